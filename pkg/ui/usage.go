package ui

import "fmt"

// Usage is the usage of a pod or a container.
type Usage struct {
	Namespace, Pod, Container string
	Nanocores, Bytes          uint64
}

// UsageGrid returns the usage of pods, or of their containers, as kubectl's table; sum adds
// a last line.
func UsageGrid(all []Usage, containers, sum bool) Grid {
	header := []string{"NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)"}
	if containers {
		header = []string{"NAMESPACE", "POD", "NAME", "CPU(cores)", "MEMORY(bytes)"}
	}
	g := grid(Columns{}, header...)
	var total Usage
	row := func(u Usage) {
		cells := []cell{{text: u.Namespace}, {text: u.Pod}}
		if containers {
			cells = append(cells, cell{text: u.Container})
		}
		g.add(Columns{}, nil, append(cells, cell{text: millicores(u.Nanocores)}, cell{text: mebibytes(u.Bytes)})...)
	}
	for _, u := range all {
		row(u)
		total.Nanocores += u.Nanocores
		total.Bytes += u.Bytes
	}
	if sum {
		total.Namespace, total.Pod, total.Container = "(sum)", "-", "-"
		row(total)
	}
	return g
}

// NodeUsage is the usage of a node, with its allocatable resources.
type NodeUsage struct {
	Name             string
	Nanocores, Bytes uint64
	MilliCPU, Memory int64 // allocatable; 0 if unknown
}

// NodeUsageGrid returns the usage of nodes as kubectl's table.
func NodeUsageGrid(all []NodeUsage) Grid {
	g := grid(Columns{}, "NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)")
	for _, u := range all {
		g.add(Columns{}, nil, cell{text: u.Name},
			cell{text: millicores(u.Nanocores)}, cell{text: percent(float64(u.Nanocores)/1e6, u.MilliCPU)},
			cell{text: mebibytes(u.Bytes)}, cell{text: percent(float64(u.Bytes), u.Memory)})
	}
	return g
}

func millicores(nano uint64) string { return fmt.Sprintf("%dm", (nano+999_999)/1_000_000) }

func mebibytes(n uint64) string { return fmt.Sprintf("%dMi", n>>20) }

func percent(used float64, of int64) string {
	if of <= 0 {
		return "<unknown>"
	}
	return fmt.Sprintf("%d%%", int64(used*100/float64(of)))
}
