package plan_test

import (
	"testing"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// TestC_1_26_15_WhatAnEditAsksFor: which edits replace a pod, which start a terminated one
// again, and that Next does both.
//
// Shows: C-1.26.15
func TestC_1_26_15_WhatAnEditAsksFor(t *testing.T) {
	t.Parallel()
	base := podShape{policy: "Never", containers: 2, inits: 1, sidecars: 1}
	for name, test := range map[string]struct {
		edit              func(*podShape)
		replaces, revives bool
	}{
		"nothing":    {func(*podShape) {}, false, false},
		"label":      {func(f *podShape) { f.label++ }, false, false},
		"grace":      {func(f *podShape) { f.grace++ }, false, false},
		"image":      {func(f *podShape) { f.image++ }, false, true},
		"sidecar":    {func(f *podShape) { f.sideImage++ }, false, true},
		"memory":     {func(f *podShape) { f.memory++ }, false, true},
		"containers": {func(f *podShape) { f.containers++ }, false, true},
		"init":       {func(f *podShape) { f.initImage++ }, true, true},
		"pod":        {func(f *podShape) { f.hostname++ }, true, true},
		"uid":        {func(f *podShape) { f.uid++ }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := base
			made := f.spec()
			test.edit(&f)
			want := f.spec()
			if got := plan.Replaces(made, want); got != test.replaces {
				t.Errorf("replaces: %t", got)
			}
			if got := plan.RestartsTerminated(made, want); got != test.revives {
				t.Errorf("revives: %t", got)
			}
			m, f := newSim(), base
			runUp(m, &f)
			m.exitAll("c", 0)
			if _, ok := m.settle(); !ok {
				t.Fatal("does not end")
			}
			m.want = want
			if n := plan.Next(m.view()).Steps; len(n) > 0 != test.revives {
				t.Errorf("revives %t, and the plan is %v", test.revives, n)
			}
			served := *want
			served.Origin.Source = "api"
			if plan.RestartsTerminated(made, &served) {
				t.Error("a pod of an API server is brought back")
			}
		})
	}
	if s := base.spec(); plan.Replaces(nil, s) || plan.RestartsTerminated(nil, s) || plan.Replaces(s, nil) || plan.RestartsTerminated(s, nil) {
		t.Error("a spec that is not there changes")
	}
}

// TestP17_HashOfOtherRulesReplacesNothing: after an upgrade, fields are compared.
//
// Shows: P17
func TestP17_HashOfOtherRulesReplacesNothing(t *testing.T) {
	t.Parallel()
	f := podShape{policy: "Always", containers: 1}
	made, want := *f.spec(), f.spec()
	made.SandboxHash = "v0-old"
	made.ContainerHashes = map[string]string{"c0": "v0-old"}
	if plan.Replaces(&made, want) || plan.RestartsTerminated(&made, want) {
		t.Error("it was not edited")
	}
	f.hostname++
	if edited := f.spec(); podspec.HashVersion(edited.SandboxHash) == "v0" || !plan.Replaces(&made, edited) {
		t.Error("an edit beside an upgrade is one")
	}
}
