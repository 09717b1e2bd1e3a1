package cri_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// everyKind is a pod with a container of every kind.
func everyKind() *pod.Spec {
	w := wanted("web", "sleep")
	w.Pod.Spec.InitContainers = []v1.Container{
		{Name: "setup", Image: "exit-0"},
		{Name: "side", Image: "sleep", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
	}
	w.Pod.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "sleep"}, TargetContainerName: "c0"},
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "alone", Image: "sleep"}},
	}
	return w
}

// Shows: C-1.22.6
func TestC_1_22_6_EveryKindOfContainerIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		want := everyKind()
		box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
		if err != nil {
			t.Fatal(err)
		}
		q := pod.CreateRequest{Want: want, Container: "debug", Sandbox: &pod.Sandbox{ID: box}}
		var se *pod.StartError
		if _, err := r.CreateContainer(t.Context(), q); !errors.As(err, &se) || se.Reason != "CreateContainerConfigError" || se.Final ||
			!strings.Contains(err.Error(), "target container c0 is not running") {
			t.Errorf("an ephemeral container before its target: %v", err)
		}
		for _, name := range []string{"setup", "side", "c0", "debug", "alone"} {
			c, _ := want.Container(name)
			fetch(t, r, want, c.Image)
			id := create(t, r, want, box, name, 0)
			if err := r.StartContainer(t.Context(), id); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		synctest.Wait()
		a, err := r.Pod(t.Context(), want.Key)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for name, c := range a.Containers {
			got[name] = c.State.String()
		}
		if diff := cmp.Diff(map[string]string{"setup": "exited", "side": "running", "c0": "running", "debug": "running", "alone": "running"}, got); diff != "" {
			t.Errorf("containers (-want +got):\n%s", diff)
		}
	})
}

// Shows: C-1.22.11
func TestC_1_22_11_ContainerAnnotations_AreReadBack(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := asking("100m", "1", "64Mi")
	hook := &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/bye", HTTPHeaders: []v1.HTTPHeader{
		{Name: "X-Why", Value: "stop"}, {Name: "AUTHORIZATION", Value: "Bearer hidden"}, {Name: "cookie", Value: "hidden"},
	}}}
	want.Pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: hook}
	start(t, r, want, 0)
	a, err := r.Pod(t.Context(), want.Key)
	if err != nil {
		t.Fatal(err)
	}
	c := a.Containers["c0"]
	if c.Resources != "cpu=100m/1,memory=/64Mi" {
		t.Errorf("resources %q", c.Resources)
	}
	if diff := cmp.Diff(&v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/bye", HTTPHeaders: []v1.HTTPHeader{{Name: "X-Why", Value: "stop"}}}}, c.PreStop); diff != "" {
		t.Errorf("preStop (-want +got):\n%s", diff)
	}
	if len(hook.HTTPGet.HTTPHeaders) != 3 {
		t.Error("the pod's own hook has lost its headers")
	}
}

// Shows: C-1.23.9
func TestC_1_23_9_StopSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		for _, c := range []struct {
			signal v1.Signal
			image  string
			code   int32
			took   time.Duration
		}{
			{"", "sleep", 143, 0},
			{v1.SIGTERM, "sleep", 143, 0},
			{v1.SIGUSR1, "sleep", 138, 0},
			{v1.SIGUSR1, "ignore-term", 138, 0},
			{v1.SIGINT, "slow-term-3s", 0, 3 * time.Second},
			{"", "ignore-term", 137, 5 * time.Second},
			{"", "slow-term-3s", 0, 3 * time.Second},
		} {
			want := wanted("web", c.image)
			if c.signal != "" {
				want.Pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: &c.signal}
			}
			l := start(t, r, want, 0)
			rt.Reset()
			began := time.Now()
			if err := r.StopContainer(t.Context(), l.containers["c0"], 5*time.Second); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			a, err := r.Pod(t.Context(), want.Key)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.Containers["c0"]; got.ExitCode != c.code || took != c.took {
				t.Errorf("%s %s: code %d after %s, want %d after %s", c.image, c.signal, got.ExitCode, took, c.code, c.took)
			}
			if said := slices.ContainsFunc(rt.Transcript(), func(s string) bool { return strings.HasSuffix(s, " grace=5 signal="+string(c.signal)) }); said != (c.signal != "") {
				t.Errorf("%s: %q", c.signal, rt.Transcript())
			}
			if err := r.StopSandbox(t.Context(), l.sandbox); err != nil {
				t.Fatal(err)
			}
			if err := r.RemoveSandbox(t.Context(), l.sandbox); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// F31: the runtime's reason for a kill by the kernel is passed on. The kill of a process
// other than the first is not the end of the container.
//
// Shows: F31
func TestF31_OutOfMemory(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep", "sleep")
	start(t, r, want, 0)
	rt.OOM(want.Key, "c0")
	rt.OOMChild(want.Key, "c1")
	look := func(name string) pod.Container {
		a, err := r.Pod(t.Context(), want.Key)
		if err != nil {
			t.Fatal(err)
		}
		return a.Containers[name]
	}
	if c := look("c0"); c.State != pod.StateExited || c.ExitCode != 137 || c.Reason != "OOMKilled" {
		t.Errorf("the container: %+v", c)
	}
	if c := look("c1"); c.State != pod.StateRunning || c.Reason != "" {
		t.Errorf("a child of it: %+v", c)
	}
	rt.Exit(want.Key, "c1", 0)
	if c := look("c1"); c.State != pod.StateExited || c.ExitCode != 0 {
		t.Errorf("after it: %+v", c)
	}
}
