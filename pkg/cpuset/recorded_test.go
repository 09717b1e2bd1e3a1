package cpuset

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
)

// The kubelet's own managers have answered these cases; test/managers compares with them live.
//
// Shows: C-1.46.1, C-1.46.3, C-1.46.5, C-1.46.9
func TestAdmit_RecordedCases_GetTheKubeletsSets(t *testing.T) {
	cases := cpusettest.Recorded(t)
	if len(cases) == 0 {
		t.Fatal("no recorded cases")
	}
	for _, c := range cases {
		a, err := New(machine(t, c.Machine), recordedPolicy(t, c.Policy))
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		replay(t, a, c)
	}
}

func replay(t *testing.T, a *Allocator, c cpusettest.Case) {
	t.Helper()
	s := a.State()
	for i, step := range c.Steps {
		switch step.Action {
		case "restart":
			s = s.Without(func(string) bool { return false })
			continue
		case "remove":
			s = s.Without(func(uid string) bool { return uid == step.UID })
			continue
		}
		got := ""
		if r := s.Admit(testPod(step.UID, step.Containers...)); r != nil {
			got = r.Reason + ": " + r.Message
		} else {
			got = cpusettest.Show(s.Of(step.UID), s.written(t))
		}
		if got != step.Want {
			t.Errorf("%s, step %d: %s\ngot  %s\nwant %s", c.Name, i, step.Containers, got, step.Want)
			return
		}
	}
}

// written returns the shared CPUs of the state file.
func (s *State) written(t *testing.T) string {
	t.Helper()
	var c CPUManagerCheckpoint
	if text := s.Files()[CPUStateFile]; text != nil {
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
	}
	return c.DefaultCPUSet
}

// recordedPolicy reads the settings of a recorded case.
func recordedPolicy(t *testing.T, words map[string]string) Policy {
	t.Helper()
	list := func(text string) map[string]string {
		all := map[string]string{}
		for name := range strings.SplitSeq(text, ",") {
			if name != "" {
				all[name] = "true"
			}
		}
		return all
	}
	reserved, err := cpuset.Parse(words["reserved"])
	if err != nil {
		t.Fatal(err)
	}
	p := Policy{
		CPU: words["cpu"], CPUOptions: list(words["options"]), Reserved: reserved, Memory: words["memory"],
		Topology: words["topology"], TopologyOptions: list(words["topology-options"]), Scope: words["scope"],
		Reservation: v1.ResourceList{v1.ResourceCPU: resource.MustParse(words["cpus"])},
	}
	for text := range strings.SplitSeq(words["reserved-memory"], ",") { // "1:2048" is 2 GiB of node 1
		node, size, given := strings.Cut(text, ":")
		if !given {
			continue
		}
		id, err := strconv.Atoi(node)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if p.ReservedMemory == nil {
			p.ReservedMemory = map[int]Reserved{}
		}
		p.ReservedMemory[id] = Reserved{v1.ResourceMemory: uint64(n) << 20}
		sum := p.Reservation[v1.ResourceMemory]
		sum.Add(*resource.NewQuantity(n<<20, resource.BinarySI))
		p.Reservation[v1.ResourceMemory] = sum
	}
	return p
}
