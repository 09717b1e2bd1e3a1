package cri_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// A list of sandboxes that is empty once, beside a list of containers that is
// not, shows the pod as it is: its containers name their sandbox.
func TestF26_SandboxThatNoListShowsIsAskedFor(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep")
	box, err := r.RunSandbox(t.Context(), want, 1, 0)
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
