package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

const provided = "alpha.kubernetes.io/provided-node-ip"

// TestObject_ExternalCloudProvider_AddressesAreTheCloudControllers compares with the kubelet's
// setter. Addresses that a cloud controller wrote stay. Until then the node reports the addresses
// of --node-ip, and the annotation passes them to the controller.
//
// Shows: C-1.25.6, C-1.25.2
func TestObject_ExternalCloudProvider_AddressesAreTheCloudControllers(t *testing.T) {
	t.Parallel()
	host := v1.NodeAddress{Type: v1.NodeHostName, Address: "n1"}
	ip := func(s string) v1.NodeAddress { return v1.NodeAddress{Type: v1.NodeInternalIP, Address: s} }
	written := []v1.NodeAddress{ip("172.16.0.9"), {Type: v1.NodeExternalIP, Address: "203.0.113.7"}, {Type: v1.NodeExternalDNS, Address: "n1.cloud.example"}}
	for name, c := range map[string]struct {
		external   bool
		given      []string
		before     []v1.NodeAddress
		annotation string // of the object before
		want       []v1.NodeAddress
		wantIP     string
	}{
		"written by the controller":          {true, nil, written, "", written, ""},
		"written, and --node-ip":             {true, []string{"10.0.0.1"}, written, "", written, "10.0.0.1"},
		"written, and two of --node-ip":      {true, []string{"10.0.0.1", "fd00::1"}, written, "", written, "10.0.0.1,fd00::1"},
		"nothing written yet":                {true, nil, nil, "", []v1.NodeAddress{host}, ""},
		"nothing written yet, and --node-ip": {true, []string{"10.0.0.1", "fd00::1"}, nil, "", []v1.NodeAddress{ip("10.0.0.1"), ip("fd00::1"), host}, "10.0.0.1,fd00::1"},
		"--node-ip only asks for a family":   {true, []string{"::"}, nil, "", []v1.NodeAddress{ip("10.0.0.1"), ip("fd00::1"), host}, ""},
		"--node-ip is given no longer":       {true, nil, written, "10.9.9.9", written, ""},
		"no cloud":                           {false, []string{"10.0.0.1"}, written, "", []v1.NodeAddress{ip("10.0.0.1"), ip("fd00::1"), host}, ""},
		"no cloud any more":                  {false, nil, written, "10.9.9.9", []v1.NodeAddress{ip("10.0.0.1"), ip("fd00::1"), host}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := someInputs()
			in.ExternalCloud, in.NodeIPs = c.external, c.given
			before := Object(someFacts(), someInputs(), nil, monday)
			before.Status.Addresses = c.before
			if c.annotation != "" {
				before.Annotations[provided] = c.annotation
			}
			n := Object(someFacts(), in, before, monday)
			if diff := cmp.Diff(c.want, n.Status.Addresses); diff != "" {
				t.Errorf("addresses:\n%s", diff)
			}
			if got := n.Annotations[provided]; got != c.wantIP {
				t.Errorf("annotation %q, want %q", got, c.wantIP)
			}
			if _, has := n.Annotations[provided]; has && c.wantIP == "" {
				t.Error("the annotation is there, and empty")
			}
			if again := Object(someFacts(), in, n, monday); Changed(n, again) {
				t.Error("the next round changes the object again")
			}
		})
	}
	in := someInputs()
	in.ExternalCloud, in.NodeIPs = true, []string{"10.0.0.1"}
	fresh := Object(someFacts(), in, nil, monday)
	if fresh.Annotations[provided] != "10.0.0.1" {
		t.Errorf("annotations of a node that registers: %v", fresh.Annotations)
	}
}

// TestObject_ExtendedResourceThatNothingServes_IsDropped: a kubelet was on this machine before,
// with a device plugin. A pod that the scheduler places by this resource could not run on this
// node. Resources of other kinds stay.
//
// Shows: C-1.25.2
func TestObject_ExtendedResourceThatNothingServes_IsDropped(t *testing.T) {
	t.Parallel()
	before := Object(someFacts(), someInputs(), nil, monday)
	for _, l := range []v1.ResourceList{before.Status.Capacity, before.Status.Allocatable} {
		l["example.com/gpu"], l["attachable-volumes-csi-x"], l["kubernetes.io/batch-cpu"] = list("n", "2")["n"], list("n", "2")["n"], list("n", "2")["n"]
	}
	n := Object(someFacts(), someInputs(), WithoutExtended(before), monday)
	for name, l := range map[string]v1.ResourceList{"capacity": n.Status.Capacity, "allocatable": n.Status.Allocatable} {
		if _, has := l["example.com/gpu"]; has {
			t.Errorf("%s has the resource", name)
		}
		for _, other := range []v1.ResourceName{"attachable-volumes-csi-x", "kubernetes.io/batch-cpu"} {
			if _, has := l[other]; !has {
				t.Errorf("%s lacks %s", name, other)
			}
		}
	}
}

// The node shows the devices of plugins as capacity, and the healthy ones as allocatable.
func TestObject_DevicesOfPlugins_AreCapacity(t *testing.T) {
	t.Parallel()
	in := someInputs()
	in.Devices, in.HealthyDevices = list("example.com/gpu", "4"), list("example.com/gpu", "3")
	before := Object(someFacts(), in, nil, monday)
	n := Object(someFacts(), in, before, monday)
	for want, l := range map[int64]v1.ResourceList{4: n.Status.Capacity, 3: n.Status.Allocatable} {
		gpu := l["example.com/gpu"]
		if gpu.Value() != want {
			t.Errorf("%d devices are %s", want, gpu.String())
		}
	}
}
