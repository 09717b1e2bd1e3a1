package cri_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// The runtime gets all that plugins add to a container, and the CDI devices of the manifest. Of two
// plugins, the first resource by name wins, and the container's own variables win over both. The
// next agent reads the devices and the placement back; a plugin cannot write these annotations.
//
// Shows: C-1.31.6
func TestCreateContainer_DevicesOfPlugins_ReachTheRuntimeAndAreReadBack(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep")
	want.Pod.Annotations = map[string]string{"cdi.k8s.io/more": "x.com/gpu=0,x.com/nic=1"}
	want.Placed = map[string]pod.Placement{"c0": {CPUs: "2-3"}}
	devices := []pod.DeviceAllocation{
		{
			Resource: "x.com/gpu", Devices: []string{"0"}, Envs: map[string]string{"A": "gpu", "B": "gpu"}, CDI: []string{"x.com/gpu=0"},
			Mounts: []pod.DeviceMount{{HostPath: "/opt/gpu", ContainerPath: "/lib/x", ReadOnly: true}},
			Nodes:  []pod.DeviceNode{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}},
			Annotations: map[string]string{
				"x.com/note": "kept", pod.AnnotationDevices: "[]", pod.AnnotationPlacement: "{}", pod.AnnotationRestartCount: "7",
			},
		},
		{
			Resource: "x.com/nic", Devices: []string{"1"}, Envs: map[string]string{"A": "nic", "C": "nic"},
			Mounts: []pod.DeviceMount{{HostPath: "/opt/nic", ContainerPath: "/lib/x"}},
			Nodes:  []pod.DeviceNode{{HostPath: "/dev/zero", ContainerPath: "/dev/x", Permissions: "r"}},
		},
	}
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	fetch(t, r, want, "sleep")
	_, err = r.CreateContainer(t.Context(), pod.CreateRequest{
		Want: want, Container: "c0", Sandbox: &pod.Sandbox{ID: box, Instance: 1}, Devices: devices,
		Env: []v1.EnvVar{{Name: "B", Value: "own"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := rt.ContainerConfig(want.Key, "c0")
	got := make(map[string]string)
	for _, e := range config.GetEnvs() {
		got["env "+e.GetKey()] = string(e.GetValue())
	}
	for _, m := range config.GetMounts() {
		got["mount "+m.GetContainerPath()] = fmt.Sprint(m.GetHostPath(), " ", m.GetReadonly())
	}
	for _, d := range config.GetDevices() {
		got["device "+d.GetContainerPath()] = d.GetHostPath() + " " + d.GetPermissions()
	}
	for i, d := range config.GetCDIDevices() {
		got[fmt.Sprint("CDI ", i)] = d.GetName()
	}
	got["note"] = config.GetAnnotations()["x.com/note"]
	expected := map[string]string{
		"env A": "gpu", "env B": "own", "env C": "nic", "mount /lib/x": "/opt/gpu true", "device /dev/x": "/dev/null rw",
		"CDI 0": "x.com/gpu=0", "CDI 1": "x.com/nic=1", "note": "kept",
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	a, err := r.Pod(t.Context(), want.Key)
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.Allocations(t.Context())
	if got := all["uid-web"]["c0"]; err != nil || len(all) != 1 || got.CPUs != "2-3" || !cmp.Equal(devices, got.Devices) {
		t.Errorf("allocations %+v, %v", all, err)
	}
	c := a.Containers["c0"]
	if diff := cmp.Diff(devices, c.Devices); diff != "" || c.Placement.CPUs != "2-3" || c.Restarts != 0 {
		t.Errorf("read back: placement %+v, %d restarts, devices (-want +got):\n%s", c.Placement, c.Restarts, diff)
	}
}

// A container gets the CDI devices of its claims, each once. The next agent reads them back, and a
// plugin cannot write the annotation.
func TestCreateContainer_DevicesOfClaims_ReachTheRuntimeAndAreReadBack(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep")
	claims := []pod.ClaimAllocation{
		{Namespace: "default", Name: "a", UID: "u1", Devices: []pod.ClaimDevice{{Driver: "x.com", Pool: "p", Device: "d0", CDI: []string{"x.com/gpu=0"}}}},
		{Namespace: "default", Name: "b", UID: "u2", Devices: []pod.ClaimDevice{{Driver: "x.com", Requests: []string{"r"}, CDI: []string{"x.com/gpu=0", "x.com/gpu=1"}}}},
	}
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	fetch(t, r, want, "sleep")
	_, err = r.CreateContainer(t.Context(), pod.CreateRequest{
		Want: want, Container: "c0", Sandbox: &pod.Sandbox{ID: box, Instance: 1}, Claims: claims,
		Devices: []pod.DeviceAllocation{{Resource: "x.com/nic", Annotations: map[string]string{pod.AnnotationClaims: "[]"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range rt.ContainerConfig(want.Key, "c0").GetCDIDevices() {
		names = append(names, d.GetName())
	}
	if diff := cmp.Diff([]string{"x.com/gpu=0", "x.com/gpu=1"}, names); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	a, err := r.Pod(t.Context(), want.Key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(claims, a.Containers["c0"].Claims); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	all, err := r.Allocations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(claims, all[want.UID()]["c0"].Claims); diff != "" {
		t.Errorf("allocations (-want +got):\n%s", diff)
	}
}
