package node

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

var monday = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func someFacts() Facts {
	return Facts{
		OS: "linux", Arch: "amd64", Kernel: "6.12.1", MachineID: "m1", SystemUUID: "u1", BootID: "b1", OSImage: "Debian",
		Capacity: list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi"), Swap: 2 << 30,
	}
}

func someInputs() Inputs {
	yes := true
	return Inputs{
		Settings: Settings{
			Name: "n1", Labels: someFacts().Labels("n1", map[string]string{"disk": "ssd"}), Port: 10250, MaxPods: 110, MaxImages: 50, ProviderID: "p://1",
			Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}, Allocatable: list("cpu", "3", "memory", "6Gi", "ephemeral-storage", "90Gi", "hugepages-2Mi", "1Gi"),
		},
		Addresses: []string{"10.0.0.1", "fd00::1"},
		Runtime:   pod.RuntimeFacts{Name: "containerd", Version: "v2.1.4", Features: &v1.NodeFeatures{SupplementalGroupsPolicy: &yes}, Handlers: []v1.NodeRuntimeHandler{{Name: "runc"}}},
		Images:    []pod.Image{{ID: "a", Names: []string{"x@sha256:1", "x:1"}, Size: 5}},
	}
}

// TestC_1_25_2_NewNode: everything a scheduler and kubectl look at is in the first
// object.
//
// Shows: C-1.25.2
func TestC_1_25_2_NewNode(t *testing.T) {
	t.Parallel()
	n := Object(someFacts(), someInputs(), nil, monday)
	if n.Name != "n1" || n.Labels["disk"] != "ssd" || n.Labels["kubernetes.io/arch"] != "amd64" || n.Spec.ProviderID != "p://1" || len(n.Spec.Taints) != 1 ||
		n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] != "true" {
		t.Errorf("metadata and spec: %+v %+v", n.ObjectMeta, n.Spec)
	}
	if diff := cmp.Diff(map[string]string{"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "hugepages-2Mi": "1Gi", "pods": "110"}, texts(n.Status.Capacity)); diff != "" {
		t.Errorf("capacity:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"cpu": "3", "memory": "6Gi", "ephemeral-storage": "90Gi", "hugepages-2Mi": "1Gi", "pods": "110"}, texts(n.Status.Allocatable)); diff != "" {
		t.Errorf("allocatable:\n%s", diff)
	}
	want := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "fd00::1"}, {Type: v1.NodeHostName, Address: "n1"}}
	if diff := cmp.Diff(want, n.Status.Addresses); diff != "" {
		t.Errorf("addresses:\n%s", diff)
	}
	swap := int64(2 << 30)
	info := v1.NodeSystemInfo{
		MachineID: "m1", SystemUUID: "u1", BootID: "b1", KernelVersion: "6.12.1", OSImage: "Debian", ContainerRuntimeVersion: "containerd://2.1.4",
		KubeletVersion: KubernetesVersion(), OperatingSystem: "linux", Architecture: "amd64", Swap: &v1.NodeSwapStatus{Capacity: &swap},
	}
	if diff := cmp.Diff(info, n.Status.NodeInfo); diff != "" {
		t.Errorf("nodeInfo:\n%s", diff)
	}
	if len(n.Status.VolumesInUse) != 0 || len(n.Status.RuntimeHandlers) != 1 || n.Status.Features == nil || n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Errorf("status %+v", n.Status)
	}
}

// TestObject_DeclaredFeatures_LeaveOutThoseThatAreOff: the scheduler and the API server then expect them
// of no pod on this node.
//
// Shows: C-1.25.2
func TestObject_DeclaredFeatures_LeaveOutThoseThatAreOff(t *testing.T) {
	t.Parallel()
	const sockets, whole, init, all = pod.FeatureWebSockets, pod.FeaturePodResize, pod.FeatureInitResize, pod.FeatureRestartAll
	for _, c := range []struct {
		off  pod.Disabled
		want []string
	}{
		{nil, []string{sockets, whole, init, all}},
		{pod.Disabled{pod.FeaturePodResources, pod.FeatureSeparateDisk}, []string{sockets, whole, init, all}},
		{pod.Disabled{init}, []string{sockets, whole, all}},
		{pod.Disabled{sockets, whole, all}, []string{init}},
		{pod.Disabled{pod.FeatureDeclared}, nil},
	} {
		in := someInputs()
		before := Object(someFacts(), in, nil, monday)
		in.Disabled = c.off
		if got := Object(someFacts(), in, before, monday).Status.DeclaredFeatures; !slices.Equal(got, c.want) {
			t.Errorf("without %q: %q, want %q", c.off, got, c.want)
		}
	}
}

// TestC_1_25_6_Conditions: their order, words and times.
//
// Shows: C-1.25.6
func TestC_1_25_6_Conditions(t *testing.T) {
	t.Parallel()
	in := someInputs()
	first := Object(someFacts(), in, nil, monday)
	later := monday.Add(10 * time.Second)
	in.Under = []v1.NodeConditionType{v1.NodeDiskPressure}
	in.Problems = []error{errors.New("container runtime is down"), errors.New("node is shutting down")}
	second := Object(someFacts(), in, first, later)
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(monday.Add(d)) }
	const ten = 10 * time.Second
	want := []v1.NodeCondition{
		{Type: "MemoryPressure", Status: "False", Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available", LastHeartbeatTime: at(ten), LastTransitionTime: at(0)},
		{Type: "DiskPressure", Status: "True", Reason: "KubeletHasDiskPressure", Message: "kubelet has disk pressure", LastHeartbeatTime: at(ten), LastTransitionTime: at(ten)},
		{Type: "PIDPressure", Status: "False", Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available", LastHeartbeatTime: at(ten), LastTransitionTime: at(0)},
		{Type: "Ready", Status: "False", Reason: "KubeletNotReady", Message: "[container runtime is down, node is shutting down]", LastHeartbeatTime: at(ten), LastTransitionTime: at(ten)},
	}
	if diff := cmp.Diff(want, second.Status.Conditions); diff != "" {
		t.Error(diff)
	}
	if c := Condition(first, v1.NodeReady); c.Status != v1.ConditionTrue || c.Reason != "KubeletReady" || c.Message != "kubelet is posting ready status" {
		t.Errorf("ready: %+v", c)
	}
	var events []string
	for _, e := range append(Events(nil, first), Events(first, second)...) {
		events = append(events, e.Message)
	}
	said := []string{
		"Node n1 status is now: NodeHasSufficientMemory", "Node n1 status is now: NodeHasNoDiskPressure", "Node n1 status is now: NodeHasSufficientPID",
		"Node n1 status is now: NodeHasDiskPressure", "Node n1 status is now: NodeNotReady",
	}
	if diff := cmp.Diff(said, events); diff != "" {
		t.Errorf("events:\n%s", diff)
	}
	bare := someFacts()
	delete(bare.Capacity, v1.ResourceMemory)
	if c := Condition(Object(bare, someInputs(), nil, monday), v1.NodeReady); c.Status != v1.ConditionFalse || c.Message != "missing node capacity for resources: memory" {
		t.Errorf("without memory: %+v", c)
	}
}

// TestC_1_25_6_AfterTheControllerGaveUp: conditions that a controller set to Unknown
// are the node's again.
//
// Shows: C-1.25.6
func TestC_1_25_6_AfterTheControllerGaveUp(t *testing.T) {
	t.Parallel()
	n := Object(someFacts(), someInputs(), nil, monday)
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		c.Status, c.Reason, c.Message = v1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
	}
	back := Object(someFacts(), someInputs(), n, monday.Add(time.Hour))
	if diff := cmp.Diff(Object(someFacts(), someInputs(), nil, monday.Add(time.Hour)).Status.Conditions, back.Status.Conditions); diff != "" {
		t.Error(diff)
	}
}

// TestC_1_25_2_WhatOthersWroteStays: a status is the node's in parts only.
//
// Shows: C-1.25.2
func TestC_1_25_2_WhatOthersWroteStays(t *testing.T) {
	t.Parallel()
	before := Object(someFacts(), someInputs(), nil, monday)
	before.UID, before.ResourceVersion = "u", "7"
	before.Labels["team"] = "red"
	delete(before.Labels, "disk")
	before.Labels["kubernetes.io/os"] = "windows"
	before.Spec = v1.NodeSpec{PodCIDR: "10.1.0.0/24", Unschedulable: true, ProviderID: "other://"}
	before.Status.Capacity["attachable-volumes-x"], before.Status.Allocatable["attachable-volumes-x"] = list("g", "2")["g"], list("g", "2")["g"]
	before.Status.Capacity["x.com/dongle"], before.Status.Allocatable["x.com/dongle"] = list("g", "4")["g"], list("g", "4")["g"]
	before.Status.Capacity["hugepages-1Gi"], before.Status.Allocatable["hugepages-1Gi"] = list("g", "2Gi")["g"], list("g", "2Gi")["g"]
	before.Status.VolumesAttached = []v1.AttachedVolume{{Name: "v"}}
	before.Status.Conditions = append(before.Status.Conditions, v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "R"})
	in := someInputs()
	in.Addresses, in.Images, in.Runtime = nil, nil, pod.RuntimeFacts{} // nothing is known yet
	after := Object(someFacts(), in, before, monday)

	want := before.DeepCopy()
	want.Labels["kubernetes.io/os"] = "linux"
	delete(want.Status.Capacity, "hugepages-1Gi")
	delete(want.Status.Allocatable, "hugepages-1Gi")
	if diff := cmp.Diff(want, after); diff != "" {
		t.Error(diff)
	}
	delete(want.Status.Capacity, "x.com/dongle")
	delete(want.Status.Allocatable, "x.com/dongle")
	if diff := cmp.Diff(want, WithoutExtended(after)); diff != "" || texts(after.Status.Capacity)["x.com/dongle"] != "4" {
		t.Errorf("without extended resources:\n%s", diff)
	}
	Adopt(in, after)
	if after.Labels["disk"] != "" || after.Labels["team"] != "red" || after.Spec.ProviderID != "other://" {
		t.Errorf("taken: %+v %+v", after.Labels, after.Spec)
	}
	after.Labels["kubernetes.io/hostname"] = "old"
	Adopt(in, after)
	if after.Labels["kubernetes.io/hostname"] != "n1" {
		t.Errorf("labels %v", after.Labels)
	}
}

// TestC_1_25_3_WhatIsAChange: a heartbeat is none, everything else is.
//
// Shows: C-1.25.3
func TestC_1_25_3_WhatIsAChange(t *testing.T) {
	t.Parallel()
	before := Object(someFacts(), someInputs(), nil, monday)
	in := someInputs()
	if Changed(before, Object(someFacts(), in, before, monday.Add(time.Minute))) {
		t.Error("a heartbeat is a change")
	}
	for name, change := range map[string]func(*Inputs){
		"pressure": func(in *Inputs) { in.Under = []v1.NodeConditionType{v1.NodePIDPressure} },
		"problem":  func(in *Inputs) { in.Problems = []error{errors.New("x")} },
		"image":    func(in *Inputs) { in.Images = []pod.Image{} },
		"address":  func(in *Inputs) { in.Addresses = in.Addresses[:1] },
		"version":  func(in *Inputs) { in.Runtime.Version = "v2.2.0" },
		"pods":     func(in *Inputs) { in.MaxPods = 50 },
	} {
		in := someInputs()
		change(&in)
		if !Changed(before, Object(someFacts(), in, before, monday)) {
			t.Errorf("%s is no change", name)
		}
	}
	relabelled := before.DeepCopy()
	delete(relabelled.Labels, "kubernetes.io/os")
	if !Changed(relabelled, Object(someFacts(), in, relabelled, monday)) {
		t.Error("a label that is missing is no change")
	}
}

// TestC_1_25_7_Images: the largest, fifty or as many as the settings say, with five names each.
//
// Shows: C-1.25.7
func TestC_1_25_7_Images(t *testing.T) {
	t.Parallel()
	in := someInputs()
	in.Images = nil
	for i := range 60 {
		in.Images = append(in.Images, pod.Image{ID: fmt.Sprint("i", i), Names: []string{fmt.Sprint("n", i), "b", "c", "d", "e", "f"}, Size: int64(i % 59)})
	}
	given := slices.Clone(in.Images)
	got := Object(someFacts(), in, nil, monday).Status.Images
	if len(got) != 50 || got[0].Names[0] != "n58" || got[49].SizeBytes != 9 || len(got[0].Names) != 5 {
		t.Errorf("%d images, first %v, last %v", len(got), got[0], got[len(got)-1])
	}
	for most, want := range map[int]int{-1: 60, 0: 0, 3: 3, 100: 60} {
		in.MaxImages = most
		if n := len(Object(someFacts(), in, nil, monday).Status.Images); n != want {
			t.Errorf("a limit of %d lists %d images, want %d", most, n, want)
		}
	}
	if diff := cmp.Diff(given, in.Images); diff != "" {
		t.Errorf("the list itself changed:\n%s", diff)
	}
}

// Shows: C-1.25.7
func TestC_1_25_7_Rebooted(t *testing.T) {
	t.Parallel()
	before := Object(someFacts(), someInputs(), nil, monday)
	f := someFacts()
	f.BootID = "b2"
	got := Events(before, Object(f, someInputs(), before, monday))
	if want := []Event{{"Rebooted", "Warning", "Node n1 has been rebooted, boot id: b2"}}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	before.Status.NodeInfo.BootID = "" // another client created the object
	if got := Events(before, Object(f, someInputs(), before, monday)); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestC_1_41_6_Spared: the part that the eviction thresholds keep back. A tenth is the
// kubelet's tenth, which is a little more than one.
//
// Shows: C-1.41.6
func TestC_1_41_6_Spared(t *testing.T) {
	t.Parallel()
	thresholds, err := pod.ParseThresholds([]string{"memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%"})
	if err != nil {
		t.Fatal(err)
	}
	f := someFacts()
	if diff := cmp.Diff(map[string]string{"memory": "100Mi", "ephemeral-storage": "10737418400"}, texts(f.HardEvictionReservation(thresholds))); diff != "" {
		t.Error(diff)
	}
	got, err := f.Allocatable(list("memory", "1Gi"), f.HardEvictionReservation(thresholds))
	if want := map[string]string{"cpu": "4", "memory": "6044Mi", "ephemeral-storage": "96636764000", "hugepages-2Mi": "1Gi"}; err != nil || cmp.Diff(want, texts(got)) != "" {
		t.Errorf("%v\n%s", err, cmp.Diff(want, texts(got)))
	}
}

// TestC_1_25_2_LabelsANodeMayNotSet: as NodeRestriction has it.
//
// Shows: C-1.25.2
func TestC_1_25_2_LabelsANodeMayNotSet(t *testing.T) {
	t.Parallel()
	for key, ok := range map[string]bool{
		"disk": true, "example.com/disk": true, "kubernetes.io/os": true, "topology.kubernetes.io/zone": true, "node.kubernetes.io/pool": true,
		"a.kubelet.kubernetes.io/x": true, "node-restriction.kubernetes.io/x": false, "kubernetes.io/role": false, "node-role.kubernetes.io/worker": false,
		"x.k8s.io/y": false, "k8s.io/y": false, "mykubernetes.io/x": true,
	} {
		if err := CheckLabels(map[string]string{key: "v"}); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestKubernetesVersion(t *testing.T) {
	t.Parallel()
	if v := versionOf([]*debug.Module{{Path: "k8s.io/apimachinery", Version: "v0.1.0"}, {Path: "k8s.io/api", Version: "v0.99.3"}}); v != "v1.99.3" {
		t.Errorf("version %q", v)
	}
	mod, err := os.ReadFile("../../go.mod")
	if want := "k8s.io/api v0." + strings.TrimPrefix(kubernetes, "v1."); err != nil || !strings.Contains(string(mod), want+"\n") {
		t.Errorf("go.mod has no %s: %v", want, err)
	}
	for text, want := range map[string]string{"v2.1.4": "2.1.4", "1.6.20~ds1": "1.6.20", "2.0.0-rc.1": "2.0.0-rc.1", "main": "main"} {
		if got := runtimeVersion(text); got != want {
			t.Errorf("runtime %s is %s, want %s", text, got, want)
		}
	}
}

// TestObject_WithoutLocalStorage: ephemeral storage that is not accounted for is neither
// capacity nor missing, even if the object had it.
func TestObject_WithoutLocalStorage(t *testing.T) {
	t.Parallel()
	f, in := someFacts(), someInputs()
	before := Object(f, in, nil, monday)
	delete(f.Capacity, v1.ResourceEphemeralStorage)
	delete(in.Allocatable, v1.ResourceEphemeralStorage)
	in.NoLocalStorage = true
	n := Object(f, in, before, monday)
	_, capacity := n.Status.Capacity[v1.ResourceEphemeralStorage]
	_, allocatable := n.Status.Allocatable[v1.ResourceEphemeralStorage]
	if ready := Condition(n, v1.NodeReady); capacity || allocatable || ready.Status != v1.ConditionTrue {
		t.Errorf("capacity %v, allocatable %v, ready %+v", n.Status.Capacity, n.Status.Allocatable, ready)
	}
}

// drivers are the CSI drivers of a node.
type drivers struct{ ids string }

func (d drivers) NodeIDs(string) string      { return d.ids }
func (drivers) Topology() map[string]string  { return map[string]string{"rack": "7", "disk": "hdd"} }
func (drivers) InUse() []v1.UniqueVolumeName { return []v1.UniqueVolumeName{"kubernetes.io/csi/x^1"} }

// A Node shows its CSI drivers and the volumes in use. Labels that it has stay, and so does the
// list of a controller.
func TestObject_CSIDrivers_AreShown(t *testing.T) {
	t.Parallel()
	in := someInputs()
	before := Object(someFacts(), in, nil, monday)
	before.Status.VolumesAttached = []v1.AttachedVolume{{Name: "kubernetes.io/csi/x^1"}}
	in.Drivers = drivers{`{"x":"node-1"}`}
	n := Object(someFacts(), in, before, monday)
	if n.Annotations["csi.volume.kubernetes.io/nodeid"] != `{"x":"node-1"}` || n.Labels["rack"] != "7" || n.Labels["disk"] != "ssd" ||
		len(n.Status.VolumesInUse) != 1 || len(n.Status.VolumesAttached) != 1 || !Changed(before, n) {
		t.Errorf("annotations %v, labels %v, in use %v", n.Annotations, n.Labels, n.Status.VolumesInUse)
	}
	in.Drivers = drivers{}
	if _, has := Object(someFacts(), in, n, monday).Annotations["csi.volume.kubernetes.io/nodeid"]; has {
		t.Error("the annotation stays without a driver")
	}
}
