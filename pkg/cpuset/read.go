package cpuset

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// Read reads the description of the machine whose /sys is root. If the kernel knows no NUMA nodes,
// each socket counts as one, with the socket's ID and without memory, as in cAdvisor.
func Read(root fs.FS) (Machine, error) {
	m := Machine{CPUs: map[int]CPU{}}
	nodes, err := numbered(root, "devices/system/node", "node")
	if err != nil {
		return m, err
	}
	of := map[int]int{} // NUMA node by CPU
	for _, id := range nodes {
		n, err := readNode(root, id)
		if err != nil {
			return m, err
		}
		m.Nodes = append(m.Nodes, n)
		list, err := numbered(root, fmt.Sprintf("devices/system/node/node%d", id), "cpu")
		if err != nil {
			return m, err
		}
		for _, cpu := range list {
			of[cpu] = id
		}
	}
	if err := m.readCPUs(root, of); err != nil {
		return m, err
	}
	if len(m.CPUs) == 0 {
		return m, fmt.Errorf("no CPU is described in /sys/devices/system/cpu")
	}
	if len(nodes) == 0 {
		for _, id := range cpus(m.CPUs).parts(nodeOf).List() {
			m.Nodes = append(m.Nodes, Node{ID: id})
		}
	}
	return m, nil
}

// readCPUs reads the CPUs that are online.
func (m *Machine) readCPUs(root fs.FS, node map[int]int) error {
	list, err := numbered(root, "devices/system/cpu", "cpu")
	if err != nil {
		return err
	}
	type core struct{ node, socket, id int }
	first, shared := map[core]int{}, map[int]cache{}
	for _, id := range list {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d", id)
		if text(root, dir+"/online") == "0" {
			continue
		}
		number, errCore := strconv.Atoi(text(root, dir+"/topology/core_id"))
		socket, errSocket := strconv.Atoi(text(root, dir+"/topology/physical_package_id"))
		if errCore != nil || errSocket != nil {
			continue // the kernel does not describe it
		}
		at, known := node[id]
		if !known {
			at = socket
		}
		of := core{at, socket, number}
		if _, seen := first[of]; !seen {
			first[of] = id
		}
		m.CPUs[id] = CPU{Core: first[of], Socket: socket, Node: at, Cache: socket}
		shared[id] = readCache(root, dir)
	}
	for id, c := range m.CPUs {
		inNode := cpus(m.CPUs).in(nodeOf, c.Node).Size()
		if s := shared[id]; s.cpus > 0 && s.cpus != inNode {
			c.Cache = s.id
			m.CPUs[id] = c
		}
	}
	return nil
}

// cache is a CPU's cache above level 2, with the number of CPUs that share it. cpus is 0 if there
// is no such cache.
type cache struct{ id, cpus int }

func readCache(root fs.FS, cpu string) cache {
	for i := range 8 {
		dir := fmt.Sprintf("%s/cache/index%d", cpu, i)
		level, err := strconv.Atoi(text(root, dir+"/level"))
		if err != nil || level < 3 {
			continue
		}
		id, err := strconv.Atoi(text(root, dir+"/id"))
		by, errBy := cpuset.Parse(text(root, dir+"/shared_cpu_list"))
		if err == nil && errBy == nil {
			return cache{id, by.Size()}
		}
	}
	return cache{}
}

func readNode(root fs.FS, id int) (Node, error) {
	dir := fmt.Sprintf("devices/system/node/node%d", id)
	n := Node{ID: id}
	for line := range strings.Lines(text(root, dir+"/meminfo")) {
		f := strings.Fields(line)
		if len(f) >= 4 && f[2] == "MemTotal:" {
			kib, err := strconv.ParseUint(f[3], 10, 64)
			if err != nil {
				return n, fmt.Errorf("read %s/meminfo: %w", dir, err)
			}
			n.Memory = kib << 10
		}
	}
	for word := range strings.FieldsSeq(text(root, dir+"/distance")) {
		d, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return n, fmt.Errorf("read %s/distance: %w", dir, err)
		}
		n.Distances = append(n.Distances, d)
	}
	sizes, _ := fs.ReadDir(root, dir+"/hugepages") // a kernel without huge pages has no directory
	for _, s := range sizes {
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(s.Name(), "hugepages-"), "kB"), 10, 64)
		pages, errPages := strconv.ParseUint(text(root, path.Join(dir, "hugepages", s.Name(), "nr_hugepages")), 10, 64)
		if err != nil || errPages != nil {
			return n, fmt.Errorf("read %s/hugepages/%s: invalid page size or number of pages", dir, s.Name())
		}
		if n.HugePages == nil {
			n.HugePages = map[v1.ResourceName]uint64{}
		}
		size := resource.NewQuantity(int64(kib<<10), resource.BinarySI)
		n.HugePages[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = pages * kib << 10
	}
	return n, nil
}

// numbered returns the numbers of those entries of a directory whose names are name and a number,
// sorted.
func numbered(root fs.FS, dir, name string) ([]int, error) {
	entries, err := fs.ReadDir(root, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	found := map[int]bool{}
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), name); ok {
			if id, err := strconv.Atoi(rest); err == nil && id >= 0 {
				found[id] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// text returns the content of a file without the space around it, "" if it cannot be read.
func text(root fs.FS, name string) string {
	b, _ := fs.ReadFile(root, name)
	return strings.TrimSpace(string(b))
}
