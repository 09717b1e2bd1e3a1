package ui

import (
	"cmp"
	"fmt"
	"strings"
)

// AllocationList is the answer of get allocations.
type AllocationList struct {
	Document
	Items []Allocation `json:"items"`
}

// Allocation has the exclusive CPUs, the NUMA memory and the devices of a container.
type Allocation struct {
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	Container string             `json:"container"`
	CPUs      string             `json:"cpus,omitempty"` // as 2-3,8
	Memory    []AllocatedMemory  `json:"memory,omitempty"`
	Devices   []AllocatedDevices `json:"devices,omitempty"`
	Claims    []AllocatedClaim   `json:"claims,omitempty"`
}

// AllocatedMemory is memory of certain NUMA nodes.
type AllocatedMemory struct {
	Type      string `json:"type"`
	Bytes     int    `json:"bytes"`
	NUMANodes []int  `json:"numaNodes"`
}

// AllocatedDevices are devices of a plugin.
type AllocatedDevices struct {
	Resource string   `json:"resource"`
	IDs      []string `json:"ids"`
}

// AllocatedClaim is devices of a ResourceClaim.
type AllocatedClaim struct {
	Name    string        `json:"name"`
	Devices []ClaimDevice `json:"devices"`
}

// ClaimDevice is one device of a driver.
type ClaimDevice struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

// Allocations returns the table of get allocations, or "" without allocations.
func (v *View) Allocations(d AllocationList) string {
	if len(d.Items) == 0 {
		return ""
	}
	rows := [][]cell{{{text: "NAMESPACE"}, {text: "POD"}, {text: "CONTAINER"}, {text: "CPUS"}, {text: "MEMORY"}, {text: "DEVICES"}}}
	for _, a := range d.Items {
		var memory, devices []string
		for _, m := range a.Memory {
			nodes := strings.ReplaceAll(strings.Trim(fmt.Sprint(m.NUMANodes), "[]"), " ", ",")
			memory = append(memory, fmt.Sprintf("%s=%s@%s", m.Type, binary(int64(m.Bytes)), nodes))
		}
		for _, one := range a.Devices {
			devices = append(devices, one.Resource+"="+strings.Join(one.IDs, ","))
		}
		for _, claim := range a.Claims {
			var names []string
			for _, d := range claim.Devices {
				names = append(names, d.Driver+"/"+d.Pool+"/"+d.Device)
			}
			devices = append(devices, "claim:"+claim.Name+"="+strings.Join(names, ","))
		}
		row := []cell{
			{text: a.Namespace}, {text: a.Pod}, {text: a.Container}, {text: a.CPUs}, {text: strings.Join(memory, " ")}, {text: strings.Join(devices, " ")},
		}
		for i := range row {
			row[i].text = cmp.Or(Clean(row[i].text), "-")
		}
		rows = append(rows, row)
	}
	return lines(v.columns("", []int{3}, rows))
}
