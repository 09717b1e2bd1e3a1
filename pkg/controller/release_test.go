package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// member returns a workload of the release shop in a source.
func member(kind, name, image, location string) *pod.Object {
	meta := metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{pod.AnnotationRelease: "shop"}}
	labels := map[string]string{"app": name}
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}}}
	o := &pod.Object{
		Kind: kind, Key: pod.Key{Namespace: "default", Name: name}, Hash: "v1-" + image,
		Origin: pod.Origin{Source: "file", Location: location, File: name, Line: 1},
	}
	one, selector := int32(1), &metav1.LabelSelector{MatchLabels: labels}
	switch kind {
	case pod.KindDeployment:
		o.Object = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: selector, Template: template}}
	case pod.KindStatefulSet:
		o.Object = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &one, Selector: selector, Template: template}}
	case pod.KindDaemonSet:
		o.Object = &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
	}
	return o
}

// shop returns the workloads of the release with their images.
func shop(api, db, log string) []*pod.Object {
	stopped := member(pod.KindDeployment, "api", api, "/m")
	stopped.Object.(*appsv1.Deployment).Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	return []*pod.Object{stopped, member(pod.KindStatefulSet, "db", db, "/m"), member(pod.KindDaemonSet, "log", log, "/m")}
}

// rounds lets the agent decide some times.
func (n *node1) rounds(count int, status func(*pod.Spec) *v1.PodStatus, objects ...*pod.Object) {
	for range count {
		n.round(status, objects...)
	}
}

// versions returns the image of each workload's pods, as "api=good db=good".
func (n *node1) versions() string {
	images := map[string]string{}
	for _, s := range n.have {
		name := s.Pod.Labels["app"]
		images[name] = strings.TrimPrefix(images[name]+"+"+s.Pod.Spec.Containers[0].Image, "+")
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(images)) {
		out = append(out, name+"="+images[name])
	}
	return strings.Join(out, " ")
}

// TestF1_Release_KilledAfterEveryWrite_IsNeverMixed: two of three workloads of a release change in
// one reading. The agent is killed after one of the writes of a state, at each of them in turn. In
// the end both have their new version, or both the one before.
//
// Shows: F1
func TestF1_Release_KilledAfterEveryWrite_IsNeverMixed(t *testing.T) {
	t.Parallel()
	const before, after = "api=good db=good log=good", "api=next db=%s log=good"
	for db, ends := range map[string][]string{
		"bad":   {before},                              // crashes
		"fine":  {fmt.Sprintf(after, "fine")},          // passes its trial
		"frail": {before, fmt.Sprintf(after, "frail")}, // crashes once the agent is killed
		"late":  {before},                              // does not become ready
	} {
		t.Run(db, func(t *testing.T) {
			t.Parallel()
			seen := map[string]bool{}
			writes := tellRelease(t, db, -1, seen, ends)
			if writes < 12 {
				t.Fatalf("the story took %d writes: it was not played", writes)
			}
			for kill := 1; kill <= writes; kill++ {
				tellRelease(t, db, kill, seen, ends)
			}
			if len(seen) != len(ends) {
				t.Errorf("the ends are %v, want each of %v", seen, ends)
			}
		})
	}
}

// tellRelease plays a story in which the database gets a version, and the agent is killed after a
// write. It returns how many writes there were.
func tellRelease(t *testing.T, db string, kill int, seen map[string]bool, ends []string) (writes int) {
	synctest.Test(t, func(t *testing.T) {
		n := &node1{t: t, store: &mortal{shelf: newShelf(), left: kill}, state: map[string]*v1.PodStatus{}}
		n.boot()
		defer func() { n.c.Close() }()
		status := func(s *pod.Spec) *v1.PodStatus {
			image := s.Pod.Spec.Containers[0].Image
			copied := *s.Pod
			copied.Spec.Containers = []v1.Container{{Name: "c", Image: "good"}}
			switch {
			case image == "bad", image == "frail" && n.boots > 1:
				copied.Spec.Containers[0].Image = "bad"
			case image == "late":
				return &v1.PodStatus{Phase: v1.PodRunning}
			}
			return healthy(&pod.Spec{Key: s.Key, Pod: &copied})
		}
		n.rounds(10, status, shop("good", "good", "good")...)
		time.Sleep(2 * time.Minute)
		n.rounds(6, status, shop("good", "good", "good")...)
		next := shop("next", db, "good")
		n.rounds(15, status, next...)
		for range 3 {
			time.Sleep(time.Minute)
			n.rounds(6, status, next...)
		}
		time.Sleep(15 * time.Minute)
		n.rounds(10, status, next...)
		n.boot()
		time.Sleep(time.Hour)
		n.rounds(10, status, next...)
		got := n.versions()
		if !slices.Contains(ends, got) {
			t.Errorf("killed after write %d, the versions are %s, want one of %v", kill, got, ends)
		}
		seen[got], writes = true, n.store.saves
		n.checkHistory(kill, got == ends[0] && db != "fine")
	})
	return writes
}

// TestF1_Release_StateOfAMemberCannotBeWritten_OthersReturn: three workloads change in one reading, and
// the version of one fails. The state of another one cannot be written, or is written although the
// write fails. The rollback does not wait for it for longer than a few minutes, and it follows once
// its state can be written. The agent is killed after one of the writes, at each of them in turn.
//
// Shows: F1
func TestF1_Release_StateOfAMemberCannotBeWritten_OthersReturn(t *testing.T) {
	t.Parallel()
	for name, lies := range map[string]bool{"not written": false, "written": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writes := tellStuckRelease(t, lies, -1)
			if writes < 12 {
				t.Fatalf("the story took %d writes: it was not played", writes)
			}
			for kill := 1; kill <= writes; kill++ {
				tellStuckRelease(t, lies, kill)
			}
		})
	}
}

func tellStuckRelease(t *testing.T, lies bool, kill int) (writes int) {
	synctest.Test(t, func(t *testing.T) {
		n := &node1{t: t, store: &mortal{shelf: newShelf(), left: kill}, state: map[string]*v1.PodStatus{}}
		n.boot()
		defer func() { n.c.Close() }()
		n.rounds(10, healthy, shop("good", "good", "good")...)
		time.Sleep(2 * time.Minute)
		n.rounds(10, healthy, shop("good", "good", "good")...)
		n.store.broken, n.store.lies = "log", lies
		next := shop("next", "bad", "next")
		for range 6 {
			n.rounds(10, healthy, next...)
			time.Sleep(time.Minute)
		}
		got := n.versions()
		// The workload itself may have any version, or wait for its write without a pod.
		if !strings.HasPrefix(got, "api=good db=good") || !lies && got != "api=good db=good log=good" {
			t.Errorf("killed after write %d, the versions are %s while a state cannot be written", kill, got)
		}
		n.store.broken = ""
		for range 3 {
			n.rounds(10, healthy, next...)
			time.Sleep(time.Minute)
		}
		check(t, fmt.Sprintf("killed after write %d, the versions in the end", kill), n.versions(), "api=good db=good log=good")
		writes = n.store.saves
	})
	return writes
}

// checkHistory fails if not both workloads that changed, or none, have a version that failed.
func (n *node1) checkHistory(kill int, rolledBack bool) {
	n.t.Helper()
	for _, w := range n.c.Workloads() {
		failed := 0
		for _, r := range w.Decision.State.Revisions {
			if r.Failed != "" {
				failed++
				if !strings.HasPrefix(r.Failed, "release shop failed: statefulset/db: ") {
					n.t.Errorf("killed after write %d, version %d of %s failed: %s", kill, r.Number, w.Object.Name, r.Failed)
				}
			}
		}
		if want := rolledBack && w.Object.Name != "log"; (failed == 1) != want || failed > 1 {
			n.t.Errorf("killed after write %d, %d versions of %s have failed", kill, failed, w.Object.Name)
		}
	}
}

// TestExpand_WorkloadOfAnotherSourceNamesTheRelease_ReleaseStays: a source that names the release of
// another one rolls back its own workload only.
func TestExpand_WorkloadOfAnotherSourceNamesTheRelease_ReleaseStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &node1{t: t, store: &mortal{shelf: newShelf(), left: -1}, state: map[string]*v1.PodStatus{}}
		n.boot()
		defer func() { n.c.Close() }()
		both := func(api, guest string) []*pod.Object {
			return append(shop(api, "good", "good"), member(pod.KindDeployment, "guest", guest, "/home/guest"))
		}
		n.rounds(8, healthy, both("good", "good")...)
		time.Sleep(2 * time.Minute)
		n.rounds(6, healthy, both("good", "good")...)
		n.rounds(12, healthy, both("next", "bad")...)
		time.Sleep(2 * time.Minute)
		n.rounds(6, healthy, both("next", "bad")...)
		check(t, "the versions", n.versions(), "api=next db=good guest=good log=good")
	})
}

// TestExpand_TooManyWorkloadsInARelease_EachIsAlone: the size of a release is bounded, since each
// decision about one of its workloads depends on all.
func TestExpand_TooManyWorkloadsInARelease_EachIsAlone(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]string{workload.MaxRelease: "w0=good w1=good", workload.MaxRelease + 1: "w0=next w1=good"} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &node1{t: t, store: &mortal{shelf: newShelf(), left: -1}, state: map[string]*v1.PodStatus{}}
				n.boot()
				defer func() { n.c.Close() }()
				all := func(first, second string) []*pod.Object {
					var out []*pod.Object
					for i := range count {
						image := "good"
						switch i {
						case 0:
							image = first
						case 1:
							image = second
						}
						out = append(out, member(pod.KindDaemonSet, fmt.Sprintf("w%d", i), image, "/m"))
					}
					return out
				}
				n.rounds(4, healthy, all("good", "good")...)
				time.Sleep(2 * time.Minute)
				n.rounds(4, healthy, all("good", "good")...)
				n.rounds(10, healthy, all("next", "bad")...)
				if got := n.versions(); !strings.HasPrefix(got, want+" ") {
					t.Errorf("the versions are %s", got)
				}
			})
		})
	}
}

// TestForesee_Release_NamesTheOthers: a forecast says which workloads return together.
func TestForesee_Release_NamesTheOthers(t *testing.T) {
	t.Parallel()
	c := New(Config{Node: node})
	c.Expand(shop("good", "good", "good"))
	var out []string
	for _, r := range c.Foresee() {
		var with []string
		for _, other := range r.Together {
			with = append(with, other.Name)
		}
		out = append(out, r.Object.Name+" in "+r.Release+" with "+strings.Join(with, ","))
	}
	slices.Sort(out)
	check(t, "the rollouts", strings.Join(out, "; "), "api in shop with log,db; db in shop with log,api; log in shop with api,db")
}
