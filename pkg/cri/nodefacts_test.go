package cri_test

import (
	"testing"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestC_1_25_6_RuntimesOwnMessages: conditions have the runtime's reason and message.
//
// Shows: C-1.25.6
func TestC_1_25_6_RuntimesOwnMessages(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	f, err := r.Facts(t.Context())
	ok := pod.RuntimeCondition{Known: true, OK: true}
	if err != nil || f.Runtime != ok || f.Network != ok || f.Features == nil {
		t.Errorf("well: %+v, %v", f, err)
	}
	rt.SetReady(true, false, "cni plugin not initialized")
	f, err = r.Facts(t.Context())
	want := pod.RuntimeCondition{Known: true, Reason: "NetworkReadyIsNot", Message: "cni plugin not initialized"}
	if err != nil || f.Runtime != ok || f.Network != want {
		t.Errorf("without a network: %+v, %v", f, err)
	}
	name, version, err := r.Version(t.Context())
	if err != nil || name != "critest" || version != "v0.0.0" {
		t.Errorf("%s %s, %v", name, version, err)
	}
}

// TestC_1_25_7_ImagesOfTheRuntime: every image, with its names.
//
// Shows: C-1.25.7
func TestC_1_25_7_ImagesOfTheRuntime(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	if all, err := r.Images(t.Context()); err != nil || all == nil || len(all) != 0 {
		t.Errorf("none: %v, %v", all, err)
	}
	rt.SetImage("example.com/a:1", true)
	all, err := r.Images(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Names) != 1 || all[0].Names[0] != "example.com/a:1" || all[0].ID == "" {
		t.Errorf("one: %+v, %v", all, err)
	}
	for range 2 { // also one that is not there
		if err := r.RemoveImage(t.Context(), all[0].ID); err != nil {
			t.Error(err)
		}
	}
	if left, err := r.Images(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("after its removal: %v, %v", left, err)
	}
}

// TestC_1_25_2_Handlers: sorted by name, whatever the runtime's order.
//
// Shows: C-1.25.2
func TestC_1_25_2_Handlers(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	rt.SetHandlers(critest.Handler{Name: "runsc"}, critest.Handler{Name: "", UserNamespaces: true}, critest.Handler{Name: "runc", UserNamespaces: true})
	f, err := rt.CRI(cri.Config{Node: "n1"}).Facts(t.Context())
	if err != nil || len(f.Handlers) != 3 {
		t.Fatalf("%+v, %v", f, err)
	}
	for i, want := range []struct {
		name  string
		users bool
	}{{"", true}, {"runc", true}, {"runsc", false}} {
		h := f.Handlers[i]
		if h.Name != want.name || *h.Features.UserNamespaces != want.users || *h.Features.RecursiveReadOnlyMounts {
			t.Errorf("handler %d: %+v", i, h)
		}
	}
}
