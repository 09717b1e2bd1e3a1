package cpuset

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// machines are the descriptions in testdata.
var machines = []string{"two-sockets-smt", "eight-nodes", "asymmetric", "hybrid", "one-socket"}

// machine reads a description of testdata as the /sys of such a machine.
func machine(t testing.TB, name string) Machine {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sys := fstest.MapFS{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		given := map[string]string{}
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			given[key] = value
		}
		switch words[0] {
		case "node":
			writeNode(sys, words[1], given)
		case "cores":
			writeCores(t, sys, words[1], given)
		default:
			t.Fatalf("%s: unknown line %q", name, lines.Text())
		}
	}
	shareCaches(sys)
	m, err := Read(sys)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func put(sys fstest.MapFS, text string, path string, args ...any) {
	sys["devices/system/"+fmt.Sprintf(path, args...)] = &fstest.MapFile{Data: []byte(text + "\n")}
}

func writeNode(sys fstest.MapFS, id string, given map[string]string) {
	bytes := resource.MustParse(given["memory"])
	put(sys, fmt.Sprintf("Node %s MemTotal:       %d kB\nNode %s MemFree: 1 kB", id, bytes.Value()>>10, id), "node/node%s/meminfo", id)
	put(sys, strings.ReplaceAll(given["distance"], ",", " "), "node/node%s/distance", id)
	for key, pages := range given {
		if size, ok := strings.CutPrefix(key, "hugepages-"); ok {
			q := resource.MustParse(size)
			put(sys, pages, "node/node%s/hugepages/hugepages-%dkB/nr_hugepages", id, q.Value()>>10)
		}
	}
}

// writeCores writes cores: "0-6/2" is 0, 2, 4, 6. threads is the distance of a core's two threads.
func writeCores(t testing.TB, sys fstest.MapFS, list string, given map[string]string) {
	t.Helper()
	list, step, _ := strings.Cut(list, "/")
	set, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	each, _ := strconv.Atoi(step)
	next, _ := strconv.Atoi(given["threads"])
	for _, core := range set.List() {
		if each > 0 && core%each != 0 {
			continue
		}
		for _, cpu := range []int{core, core + next} {
			put(sys, strconv.Itoa(core), "cpu/cpu%d/topology/core_id", cpu)
			put(sys, given["socket"], "cpu/cpu%d/topology/physical_package_id", cpu)
			if node, ok := given["node"]; ok {
				put(sys, "", "node/node%s/cpu%d/online", node, cpu)
			}
			if cache, ok := given["cache"]; ok {
				put(sys, "3", "cpu/cpu%d/cache/index3/level", cpu)
				put(sys, cache, "cpu/cpu%d/cache/index3/id", cpu)
			}
		}
	}
}

// shareCaches writes which CPUs share each cache, and an offline CPU.
func shareCaches(sys fstest.MapFS) {
	by := map[string][]int{}
	for path, f := range sys {
		var cpu int
		if n, _ := fmt.Sscanf(path, "devices/system/cpu/cpu%d/cache/index3/id", &cpu); n == 1 && strings.HasSuffix(path, "/id") {
			by[string(f.Data)] = append(by[string(f.Data)], cpu)
		}
	}
	for _, list := range by {
		for _, cpu := range list {
			put(sys, cpuset.New(list...).String(), "cpu/cpu%d/cache/index3/shared_cpu_list", cpu)
		}
	}
	put(sys, "0", "cpu/cpu99/online")
	put(sys, "99", "cpu/cpu99/topology/core_id")
	put(sys, "0", "cpu/cpu99/topology/physical_package_id")
}

func TestRead_MachinesOfTheField_AreDescribed(t *testing.T) {
	for _, c := range []struct {
		name                               string
		cpus, cores, sockets, numa, caches int
		cpu                                int
		place                              CPU
	}{
		{"two-sockets-smt", 24, 12, 2, 2, 2, 18, CPU{Core: 6, Socket: 1, Node: 1, Cache: 1}},
		{"eight-nodes", 64, 32, 2, 8, 16, 35, CPU{Core: 3, Node: 0, Cache: 1}},
		{"asymmetric", 10, 10, 2, 2, 2, 8, CPU{Core: 8, Socket: 1, Node: 1, Cache: 1}},
		{"hybrid", 16, 12, 1, 1, 1, 7, CPU{Core: 6}},
		{"one-socket", 8, 8, 1, 1, 1, 5, CPU{Core: 5}},
	} {
		m := machine(t, c.name)
		all := cpus(m.CPUs)
		got := fmt.Sprint(len(all), all.parts(coreOf).Size(), all.parts(socketOf).Size(), all.parts(nodeOf).Size(), all.parts(cacheOf).Size(), m.CPUs[c.cpu])
		if want := fmt.Sprint(c.cpus, c.cores, c.sockets, c.numa, c.caches, c.place); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
	m := machine(t, "two-sockets-smt")
	if n := m.Nodes[1]; n.Memory != 64<<30 || n.HugePages["hugepages-1Gi"] != 2<<30 || n.HugePages["hugepages-2Mi"] != 1<<30 || fmt.Sprint(n.Distances) != "[21 10]" {
		t.Errorf("node 1: %+v", n)
	}
	if n := machine(t, "asymmetric").Nodes; len(n) != 3 || n[1].Memory != 0 || n[2].Memory != 128<<30 {
		t.Errorf("nodes: %+v", n)
	}
}

func TestRead_MachineWithoutCPUs_IsAnError(t *testing.T) {
	if _, err := Read(fstest.MapFS{}); err == nil {
		t.Error("no error")
	}
}
