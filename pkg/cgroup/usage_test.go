package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestC_1_41_1_PlaceIsWhereEnsureMakesIt: the path is the same in each hierarchy with usage
// data, and the call makes no cgroup.
//
// Shows: C-1.41.1
func TestC_1_41_1_PlaceIsWhereEnsureMakesIt(t *testing.T) {
	g := cgroupsOf(t)
	for _, spec := range []string{guaranteed, burstablePod, bestEffortPod} {
		want := shape(t, "a", spec)
		at, ok := g.PodCgroup(want.Pod)
		if !ok {
			t.Fatal("no place")
		}
		for controller, dir := range at.Dirs {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s of %q is there: %v", dir, controller, err)
			}
		}
		parent, err := g.Ensure(want)
		if err != nil {
			t.Fatal(err)
		}
		if at.Path != parent {
			t.Errorf("place %s, put in %s", at.Path, parent)
		}
		for controller, dir := range at.Dirs {
			if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
				t.Errorf("%q: %v", controller, err)
			}
		}
		all, ok := g.AllPodsCgroup()
		if _, err := os.Stat(all.Dirs["memory"]); !ok || all.Path != g.cfg.Root+"/kubepods" || err != nil {
			t.Errorf("all pods are in %+v: %v", all, err)
		}
		if err := g.Destroy("a"); err != nil {
			t.Fatal(err)
		}
	}
	host, ok := g.HostCgroup()
	if _, hybrid := host.Dirs[""]; !ok || hybrid || host.Path != "/" || host.Dirs["memory"] == "" || host.Dirs["cpuacct"] == "" {
		t.Errorf("the machine is %+v", host)
	}
}

// TestPlaceOfAll_RuntimeHangs_IsAskedAgainLater: a runtime that hangs costs one bounded call, and
// the place is found once it answers.
func TestPlaceOfAll_RuntimeHangs_IsAskedAgainLater(t *testing.T) {
	g := cgroupsOf(t)
	synctest.Test(t, func(t *testing.T) {
		calls, hangs := 0, true
		g.cfg.Driver = func(ctx context.Context) (bool, error) {
			if calls++; hangs {
				<-ctx.Done()
			}
			return false, ctx.Err()
		}
		began := time.Now()
		for range 5 {
			if at, ok := g.AllPodsCgroup(); ok {
				t.Errorf("%+v", at)
			}
		}
		if took := time.Since(began); took != askTimeout || calls != 1 {
			t.Errorf("%d calls took %s", calls, took)
		}
		hangs = false
		time.Sleep(askAgain)
		if _, ok := g.AllPodsCgroup(); !ok || calls != 2 {
			t.Errorf("found: %t, after %d calls", ok, calls)
		}
	})
}

// TestNoPlaceOfANameThatIsNone: a UID becomes part of a path.
func TestNoPlaceOfANameThatIsNone(t *testing.T) {
	g := cgroupsOf(t)
	if at, ok := g.PodCgroup(shape(t, "../../x", bestEffortPod).Pod); ok {
		t.Errorf("%+v", at)
	}
	g.cfg.Driver = func(context.Context) (bool, error) { return false, errors.New("not known") }
	if at, ok := g.PodCgroup(shape(t, "a", bestEffortPod).Pod); ok {
		t.Errorf("%+v", at)
	}
}

// TestF22_PlacesDoNotAskAgain: a runtime that hangs would be called once per pod, and each
// call takes a deadline.
//
// Shows: F22
func TestF22_PlacesDoNotAskAgain(t *testing.T) {
	asked := 0
	g := New(Config{Root: "/x", Driver: func(context.Context) (bool, error) { asked++; return false, nil }}) // no Ensure
	for range 3 {
		if _, ok := g.PodCgroup(shape(t, "a", bestEffortPod).Pod); !ok {
			t.Error("no place")
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestC_1_41_1_PlaceOfSlices: the names of the systemd driver.
//
// Shows: C-1.41.1
func TestC_1_41_1_PlaceOfSlices(t *testing.T) {
	g := New(Config{Root: "/", Driver: func(context.Context) (bool, error) { return true, nil }}) // no Ensure
	at, ok := g.PodCgroup(shape(t, "a-b", burstablePod).Pod)
	if want := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"; !ok || at.Path != want {
		t.Errorf("%+v, want %s", at, want)
	}
}
