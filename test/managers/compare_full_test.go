//go:build full

package managers

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	ours "github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
)

// compare does the steps with the kubelet's managers and with ours. It returns the first difference,
// "" for none, and the kubelet's answers to the pods before it.
func compare(k *theirs, m ours.Machine, p ours.Policy, steps []cpusettest.Step) (difference string, texts []string, err error) {
	c := caseOf(m, p)
	for _, s := range steps {
		c.add(s)
	}
	answers, err := k.ask(c)
	if err != nil {
		return "", nil, err
	}
	a, failure := ours.New(m, p)
	if started := len(answers) != 1 || answers[0].Error == "" || len(steps) == 0; started != (failure == nil) {
		return fmt.Sprintf("start: ours %v, kubelet %s", failure, answers[0].Error), nil, nil
	}
	if failure != nil {
		return "", nil, nil
	}
	s := a.State()
	for i, at := range steps {
		if at.Action == "restart" && i < len(answers) && answers[i].Error != "" {
			return "", texts, nil // the kubelet does not start with its own state, such as an empty set of shared CPUs
		}
		if i == len(answers) || answers[i].Error != "" {
			return fmt.Sprintf("step %d: the kubelet: %s", i, answers[len(answers)-1].Error), texts, nil
		}
		if at.Action != "add" {
			s = do(s, at)
			continue
		}
		got, want := admit(s, at), answers[i].text()
		if p.CPU == "none" { // its file has no shared CPUs
			want = strings.TrimSpace(strings.Split(want, "shared=")[0])
			got = strings.TrimSpace(strings.Split(got, "shared=")[0])
		}
		if got != want {
			return fmt.Sprintf("step %d, %s:\nours    %s\nkubelet %s", i, at.Containers, got, want), texts, nil
		}
		texts = append(texts, answers[i].text())
		if answers[i].Refused != "" {
			continue
		}
		for name, text := range s.Files() {
			if d := differentFiles(text, []byte(answers[i].Files[name])); d != "" {
				return fmt.Sprintf("step %d, %s: %s: %s", i, at.Containers, name, d), texts, nil
			}
		}
	}
	return "", texts, nil
}

// differentFiles compares two state files. The kubelet writes the kinds of a container's memory in any
// order, and the checksum follows it.
func differentFiles(got, want []byte) string {
	var x, y map[string]any
	if err := json.Unmarshal(got, &x); err != nil {
		return err.Error()
	}
	if err := json.Unmarshal(want, &y); err != nil {
		return err.Error() + ": " + string(want)
	}
	ordered := sortBlocks(y)
	sortBlocks(x)
	if joinGroups(x); joinGroups(y) || !ordered {
		delete(x, "checksum")
		delete(y, "checksum")
	}
	if reflect.DeepEqual(x, y) {
		return ""
	}
	return fmt.Sprintf("\nours    %s\nkubelet %s", got, want)
}

// joinGroups replaces the free and the reserved memory of NUMA nodes in a group by the sums of the group,
// and reports whether there is a group. When a pod goes, ours divides the rest among the nodes again.
func joinGroups(file map[string]any) (joined bool) {
	nodes, _ := file["machineState"].(map[string]any)
	sums := map[string]map[string]float64{}
	each := func(f func(group string, table map[string]any, name string)) {
		for _, is := range nodes {
			node, _ := is.(map[string]any)
			cells, _ := node["cells"].([]any)
			if len(cells) < 2 {
				continue
			}
			joined = true
			tables, _ := node["memoryMap"].(map[string]any)
			for kind, is := range tables {
				table, _ := is.(map[string]any)
				for _, name := range []string{"free", "reserved"} {
					f(fmt.Sprint(cells, kind), table, name)
				}
			}
		}
	}
	each(func(group string, table map[string]any, name string) {
		if sums[group] == nil {
			sums[group] = map[string]float64{}
		}
		n, _ := table[name].(float64)
		sums[group][name] += n
	})
	each(func(group string, table map[string]any, name string) { table[name] = sums[group][name] })
	return joined
}

// sortBlocks sorts the blocks of memory of each container by kind, and reports whether they were sorted.
func sortBlocks(file map[string]any) bool {
	sorted := true
	pods, _ := file["entries"].(map[string]any)
	for _, of := range pods {
		containers, _ := of.(map[string]any)
		for _, list := range containers {
			blocks, _ := list.([]any)
			by := func(a, b any) int {
				x, _ := a.(map[string]any)
				y, _ := b.(map[string]any)
				return strings.Compare(fmt.Sprint(x["type"]), fmt.Sprint(y["type"]))
			}
			sorted = sorted && slices.IsSortedFunc(blocks, by)
			slices.SortFunc(blocks, by)
		}
	}
	return sorted
}

// documented reports whether the difference is one that the comment of package cpuset names.
func documented(m ours.Machine, p ours.Policy) bool {
	return p.CPU == "static" && (uneven(m) || p.CPUOptions["distribute-cpus-across-numa"] != "" && len(m.Nodes) > 3)
}

// uneven reports whether the machine has cores, sockets, NUMA nodes or caches of several sizes.
func uneven(m ours.Machine) bool {
	for _, part := range []func(ours.CPU) int{
		func(c ours.CPU) int { return c.Core }, func(c ours.CPU) int { return c.Socket },
		func(c ours.CPU) int { return c.Node }, func(c ours.CPU) int { return c.Cache },
	} {
		sizes := map[int]int{}
		for _, c := range m.CPUs {
			sizes[part(c)]++
		}
		all := slices.Sorted(maps.Values(sizes))
		if all[0] != all[len(all)-1] {
			return true
		}
	}
	return false
}

// Drawn pods on drawn machines get the CPUs, the memory and the refusals that the kubelet's own managers
// give them, and the state files are equal, also after restarts.
//
// Shows: C-1.46.1, C-1.46.3, C-1.46.5, C-1.46.8, C-1.46.9
func TestManagers_DrawnMachinesAndPods_AreTheKubelets(t *testing.T) {
	k := start(t)
	equal, other := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		m, _ := drawMachine(rt)
		p := drawPolicy(rt, m)
		difference, _, err := compare(k, m, p, drawSteps(rt, m))
		switch {
		case err != nil:
			rt.Fatal(err)
		case difference == "":
			equal++
		case documented(m, p):
			other++
		default:
			rt.Fatalf("%+v\n%+v\n%s", m, p, difference)
		}
	})
	t.Logf("%d sequences are equal, %d have a documented difference", equal, other)
	if other*4 > equal {
		t.Errorf("%d of %d sequences have a documented difference: they are rare", other, equal+other)
	}
}

// The recorded cases of package cpuset are the answers of the kubelet.
//
// Shows: C-1.46.1
func TestRecorded_Cases_AreTheKubelets(t *testing.T) {
	const dir = "../../pkg/cpuset/cpusettest/recorded"
	want := record(t, start(t))
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != len(want) {
		t.Errorf("%d cases are recorded, want %d", len(list), len(want))
	}
	for name, text := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
			t.Errorf("%s: %v; record it again with -update:\n%s\nthe kubelet:\n%s", name, err, got, text)
		}
	}
}

// record returns cases on the described machines, by file name: one for each combination of settings,
// with at least three admitted pods, a refused one and no difference.
func record(t *testing.T, k *theirs) map[string]string {
	t.Helper()
	const most, seeds = 12, 400 // for each machine
	all := map[string]string{}
	for _, name := range cpusettest.Machines {
		m, err := ours.Read(cpusettest.Sys(t, name))
		if err != nil {
			t.Fatal(err)
		}
		policies := rapid.Custom(func(rt *rapid.T) ours.Policy { return drawPolicy(rt, m) })
		lists := rapid.Custom(func(rt *rapid.T) []cpusettest.Step { return drawSteps(rt, m) })
		seen := map[string]bool{}
		for seed := 0; seed < seeds && len(seen) < most; seed++ {
			p, steps := policies.Example(seed), lists.Example(seed)
			settings := words(p)
			key := fmt.Sprint(settings["options"], settings["topology-options"], settings["memory"], settings["topology"], settings["scope"])
			difference, texts, err := compare(k, m, p, steps)
			if err != nil {
				t.Fatal(err)
			}
			adds := 0
			for _, step := range steps {
				if step.Action == "add" {
					adds++
				}
			}
			// The kubelet may refuse to restart, and answers no later step.
			if seen[key] || difference != "" || adds != len(texts) || !worthRecording(texts) {
				continue
			}
			seen[key] = true
			c := cpusettest.Case{Machine: name, Policy: settings, Steps: steps}
			for i := range c.Steps {
				if c.Steps[i].Action == "add" {
					c.Steps[i].Want, texts = texts[0], texts[1:]
				}
			}
			all[fmt.Sprintf("%s-%02d.txt", name, len(seen))] = c.Text()
		}
	}
	return all
}

// worthRecording reports whether answers have three admitted pods, and one that is refused.
func worthRecording(texts []string) bool {
	admitted := 0
	for _, text := range texts {
		if strings.Contains(text, "shared=") {
			admitted++
		}
	}
	return admitted >= 3 && admitted < len(texts)
}

// words returns the settings of a policy as recorded cases have them.
func words(p ours.Policy) map[string]string {
	list := func(of map[string]string) string { return strings.Join(slices.Sorted(maps.Keys(of)), ",") }
	cpus := p.Reservation[v1.ResourceCPU]
	all := map[string]string{
		"cpu": p.CPU, "options": list(p.CPUOptions), "reserved": p.Reserved.String(), "cpus": cpus.String(), "memory": p.Memory,
		"topology": p.Topology, "topology-options": list(p.TopologyOptions), "scope": p.Scope,
	}
	var memory []string
	for _, id := range slices.Sorted(maps.Keys(p.ReservedMemory)) {
		memory = append(memory, fmt.Sprintf("%d:%d", id, p.ReservedMemory[id][v1.ResourceMemory]>>20))
	}
	all["reserved-memory"] = strings.Join(memory, ",")
	maps.DeleteFunc(all, func(_, text string) bool { return text == "" })
	return all
}
