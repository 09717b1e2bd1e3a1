// Package cpusettest has descriptions of machines and pods for tests of package cpuset, and the
// cases that the kubelet's own managers have answered. It does not import package cpuset, whose own
// tests use it.
package cpusettest

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

//go:embed machines
var files embed.FS

// Machines are the names of the described machines.
var Machines = []string{"two-sockets-smt", "eight-nodes", "asymmetric", "hybrid", "one-socket"}

// Sys returns the /sys of a described machine.
func Sys(t testing.TB, name string) fs.FS {
	t.Helper()
	text, err := files.ReadFile("machines/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	sys := fstest.MapFS{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
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
			t.Fatalf("%s: unknown line %q", name, line)
		}
	}
	shareCaches(sys)
	return sys
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
