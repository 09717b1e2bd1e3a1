package engine

import (
	"encoding/json"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
)

// guaranteedPod has this number of exclusive CPUs.
func guaranteedPod(cpus string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus), v1.ResourceMemory: resource.MustParse("64Mi")}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// fourCPUs gives containers CPUs of a machine with four, of which the first one is reserved. It
// returns the state files that agents write.
func fourCPUs(t *testing.T, m *machine) map[string][]byte {
	t.Helper()
	return withCPUs(t, m, "static", 0, 1, 2, 3)
}

// withCPUs is fourCPUs for a machine with other CPUs, and a policy for them.
func withCPUs(t *testing.T, m *machine, policy string, ids ...int) map[string][]byte {
	t.Helper()
	of := cpuset.Machine{CPUs: map[int]cpuset.CPU{}, Nodes: []cpuset.Node{{ID: 0, Memory: 8 << 30}}}
	for _, i := range ids {
		of.CPUs[i] = cpuset.CPU{Core: i}
	}
	a, err := cpuset.New(of, cpuset.Policy{CPU: policy, Memory: "Static", Reservation: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi"),
	}, ReservedMemory: map[int]cpuset.Reserved{0: {v1.ResourceMemory: 1 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	m.alter = func(c *Config) {
		c.CPUs, c.SaveCPUs = a, func(now map[string][]byte) error { maps.Copy(files, now); return nil }
	}
	return files
}

// cpusOf is the CPUs and NUMA nodes of a running container now.
func cpusOf(m *machine, name string) string {
	r := m.rt.Resources(pod.Key{Namespace: "default", Name: name}, "app")
	return r.GetCpusetCpus() + "@" + r.GetCpusetMems()
}

func wantCPUs(t *testing.T, m *machine, want map[string]string) {
	t.Helper()
	for name, cpus := range want {
		if got := cpusOf(m, name); got != cpus {
			t.Errorf("%s runs on %s, want %s", name, got, cpus)
		}
	}
}

// Shows: C-1.46.1, C-1.46.4, C-1.46.6, C-1.46.8
func TestCPUs_AgentIsKilledAndPodsChange_SetsAreNeverShared(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		files := fourCPUs(t, m)
		a, b := mkpod("a", guaranteedPod("2")), mkpod("b")
		m.src.set(a, b)
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "0,3@"})
		config := m.rt.ContainerConfig(a.Key, "app")
		if quota := config.Linux.Resources.CpuQuota; quota != -1 {
			t.Errorf("quota %d", quota)
		}
		if note := config.Annotations[pod.AnnotationPlacement]; note != `{"cpus":"1-2","memory":[{"numaAffinity":[0],"type":"memory","size":67108864}]}` {
			t.Errorf("annotation %s", note)
		}
		var state struct {
			PolicyName, DefaultCPUSet string
			Entries                   map[string]map[string]string
		}
		if err := json.Unmarshal(files["cpu_manager_state"], &state); err != nil || state.PolicyName != "static" || state.DefaultCPUSet != "0,3" || state.Entries["uid-a"]["app"] != "1-2" {
			t.Errorf("state file %s: %v", files["cpu_manager_state"], err)
		}
		m.die()
		updates := m.rt.Calls()["UpdateContainerResources"]
		m.disk.records = map[pod.Key]pod.Record{} // only the runtime knows the CPUs of the pods
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "0,3@"})
		if n := m.rt.Calls()["UpdateContainerResources"]; n != updates {
			t.Errorf("%d updates after a restart of the agent", n-updates)
		}
		c := mkpod("c", guaranteedPod("1"))
		m.src.set(a, b, c)
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "0@", "c": "3@0"})
		m.rt.Exit(a.Key, "app", 1)
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "0@", "c": "3@0"})
		m.src.set(b, c)
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"b": "0-2@", "c": "3@0"})
	})
}

// TestCPUs_StateFilesCannotBeWritten_AreWrittenAgain: the disk is full when a pod gets its CPUs.
func TestCPUs_StateFilesCannotBeWritten_AreWrittenAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		files := fourCPUs(t, m)
		var full atomic.Bool
		alter := m.alter
		m.alter = func(c *Config) {
			alter(c)
			save := c.SaveCPUs
			c.SaveCPUs = func(now map[string][]byte) error {
				if full.Load() {
					return errFull
				}
				return save(now)
			}
		}
		full.Store(true)
		m.src.set(mkpod("a", guaranteedPod("2")))
		m.arrive()
		m.pass(5 * saveRetry)
		m.settle()
		if len(files) > 0 {
			t.Errorf("%d files on a full disk", len(files))
		}
		full.Store(false)
		m.pass(saveRetry)
		m.settle()
		if text := string(files["cpu_manager_state"]); !strings.Contains(text, `"uid-a":{"app":"1-2"}`) {
			t.Errorf("state file %s", text)
		}
	})
}

// Shows: C-1.46.1, C-1.46.7
func TestCPUs_PodThatGetsNone_IsReportedAsByTheKubelet(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		a, b := mkpod("a", guaranteedPod("2")), mkpod("b", guaranteedPod("2"))
		m.src.set(a, b)
		m.arrive()
		m.pass(time.Minute)
		if got := m.stands("b"); !strings.Contains(got, "UnexpectedAdmissionError") || !strings.Contains(got, "not enough cpus available to satisfy request: requested=2, available=1, which is unexpected") {
			t.Errorf("b: %s", got)
		}
		m.src.set(resized(a, guaranteedPod("1")), b)
		m.pass(time.Minute)
		if got := resizeCondition(t, m, "a"); got != "PodResizePending Infeasible" {
			t.Errorf("condition %q", got)
		}
		wantCPUs(t, m, map[string]string{"a": "1-2@0"})
		m.src.set(b)
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"b": "1-2@0"})
	})
}

func TestCPUs_PolicyIsChanged_PodsKeepWhatTheyHave(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		a, b := mkpod("a", guaranteedPod("2")), mkpod("b")
		m.src.set(a, b)
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "@", "b": "@"})
		if note, is := m.rt.ContainerConfig(a.Key, "app").Annotations[pod.AnnotationPlacement]; is {
			t.Errorf("annotation %s", note)
		}
		m.leave()
		fourCPUs(t, m)
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "0-3@", "b": "0-3@"})
		if !strings.Contains(m.log.String(), "Running pod stays in the shared pool") {
			t.Error("no word about a")
		}
		m.src.set(a, b, mkpod("c", guaranteedPod("1")))
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "0,2-3@", "b": "0,2-3@", "c": "1@0"})
		m.leave()
		m.alter = nil
		updates := m.rt.Calls()["UpdateContainerResources"]
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "0,2-3@", "c": "1@0"})
		if n := m.rt.Calls()["UpdateContainerResources"]; n != updates {
			t.Errorf("%d updates without a policy", n-updates)
		}
		if !strings.Contains(m.log.String(), `no policy makes any more" pod=default/c kept="CPUs, memory"`) {
			t.Error("no word about c")
		}
		m.leave()
		withCPUs(t, m, "none", 0, 1, 2, 3)
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "0,2-3@", "c": "1@0"})
		if !strings.Contains(m.log.String(), `no policy makes any more" pod=default/c kept=CPUs`) {
			t.Error("no word about the CPUs of c")
		}
	})
}
