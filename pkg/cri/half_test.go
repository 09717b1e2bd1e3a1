package cri_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// One list of sandboxes is empty by mistake while the list of containers is not. The pod is
// still read correctly: its containers name their sandbox.
//
// Shows: F26
func TestF26_SandboxMissingInTheList_IsReadByID(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep")
	box, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: want.Pod.Spec.Containers[0].Name, Sandbox: &pod.Sandbox{ID: box, Instance: 1}}); err != nil {
		t.Fatal(err)
	}
	whole, err := r.Pod(t.Context(), want.Key)
	if err != nil || whole.Sandbox == nil || len(whole.Containers) != 1 {
		t.Fatalf("%+v, %v", whole, err)
	}
	rt.Fault(critest.Fault{Method: "ListPodSandbox", Empty: true, Times: 2})
	half, err := r.Pod(t.Context(), want.Key)
	if diff := cmp.Diff(whole, half); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	all, err := r.Pods(t.Context())
	if diff := cmp.Diff([]pod.Actual{whole}, all); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// One list of containers is empty by mistake while the list of sandboxes is not. No pod
// looks as if its containers had to be made.
//
// Shows: F26
func TestF26_SandboxWithoutContainersIsAskedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		want := wanted("web", "sleep")
		start(t, r, want, 0)
		time.Sleep(2 * time.Second)
		whole, err := r.Pod(t.Context(), want.Key)
		if err != nil || len(whole.Containers) != 1 {
			t.Fatalf("%+v, %v", whole, err)
		}
		lift := rt.Fault(critest.Fault{Method: "ListContainers", Empty: true, Times: 1})
		once, err := r.Pod(t.Context(), want.Key)
		if diff := cmp.Diff(whole, once); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		lift()
		rt.Fault(critest.Fault{Method: "ListContainers", Empty: true})
		if twice, err := r.Pod(t.Context(), want.Key); err != nil || len(twice.Containers) != 0 {
			t.Errorf("what is said twice: %+v, %v", twice, err)
		}
		// The lists of a pod that is being made are read once.
		rt.Reset()
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("next", "sleep"), Instance: 1, Attempt: 0}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Pod(t.Context(), wanted("next").Key); err != nil {
			t.Error(err)
		}
		if n := rt.Calls()["ListContainers"]; n != 1 {
			t.Errorf("%d lists for a look at a new sandbox", n)
		}
	})
}
