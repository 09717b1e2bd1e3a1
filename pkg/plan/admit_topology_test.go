package plan_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// A pod whose devices and CPUs are not on one NUMA node is refused, in the kubelet's words: finally if an API
// server's controller can replace it. It waits if the devices of the node are those of a pod that stops. A pod that
// replaces the one with the devices gets their node.
//
// Shows: C-1.46.9, C-1.46.11
func TestAdmit_DevicesAreOnAnotherNUMANode_PodIsRefused(t *testing.T) {
	t.Parallel()
	const gpu = "containers: [{name: c, image: i, resources: {limits: {x.com/gpu: 1, cpu: %s, memory: 1Gi}, requests: {x.com/gpu: 1, cpu: %s, memory: 1Gi}}}]"
	const text = "TopologyAffinityError: Resources cannot be allocated with Topology locality"
	m, err := cpuset.Read(cpusettest.Sys(t, "two-sockets-smt"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := cpuset.New(m, cpuset.Policy{CPU: "static", Topology: "single-numa-node", Reservation: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range []struct {
		name   string
		source string
		stops  bool
		cpus   string
		want   string
		final  bool
	}{
		{"the node has CPUs", "api", false, "2", "", false},
		{"another pod has the CPUs of the node", "api", false, "12", text, true},
		{"of a file", "file", false, "12", text, false},
		{"the other pod stops", "api", true, "12", text, false},
	} {
		have, want := sized(t, "have", it.source, fmt.Sprintf(gpu, "4", "4")), sized(t, "want", it.source, fmt.Sprintf(gpu, it.cpus, it.cpus))
		supply := cpusettest.Devices(t, "gpu a@1 b@1 d!@0")
		supply["x.com/gpu"].Layout.Users["uid-have"] = map[string][]string{"c": {"a"}}
		s := a.State()
		s.SetDevices(supply)
		s.Put("uid-have", "c", pod.Placement{CPUs: "6-7,18-19", NUMA: []int{1}})
		node := plan.Node{Devices: supply, CPUs: s}
		if it.stops {
			node.Terminating = map[pod.Key]bool{have.Key: true}
		}
		ok, refused := plan.Admit([]*pod.Spec{want}, []*pod.Spec{have}, node)
		got, final := "", false
		if len(ok) == 0 {
			got, final = refused[0].Reason+": "+refused[0].Message, refused[0].Final
		}
		if got != it.want || final != it.final {
			t.Errorf("%s: %q, final %t; want %q, %t", it.name, got, final, it.want, it.final)
		}
		if of := s.Of("uid-want")["c"]; it.want == "" && (fmt.Sprint(of.NUMA) != "[1]" || fmt.Sprint(of.Devices["x.com/gpu"]) != "[b]" || of.CPUs != "8,20") {
			t.Errorf("%s: %+v", it.name, of)
		}
	}
}
