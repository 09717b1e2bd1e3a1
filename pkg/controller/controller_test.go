package controller

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"go.uber.org/goleak"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const node = "n1"

// want returns a Deployment in file a of a layer. Its annotation names its pods.
func want(name string, pods ...string) *pod.Object {
	d := &appsv1.Deployment{}
	d.Namespace, d.Name, d.Annotations = "default", name, map[string]string{"pods": strings.Join(pods, " ")}
	return &pod.Object{
		Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: name}, Hash: "v1-" + strings.Join(pods, "-"),
		Origin: pod.Origin{Source: "file", Location: "/m", File: "a", Line: 1}, Object: d,
	}
}

// at returns a workload with another place.
func at(o *pod.Object, location, file string) *pod.Object {
	moved := *o
	moved.Origin.Location, moved.Origin.File = location, file
	return &moved
}

// spec returns a pod of a workload. "web-1@2" is the pod web-1 with UID 2.
func spec(of *pod.Object, name string) *pod.Spec {
	name, uid, _ := strings.Cut(name, "@")
	owner, yes := pod.Digest([]byte(node+"\x00"+of.Kind+"\x00"+of.Namespace+"\x00"+of.Name)), true
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.Namespace, Name: name, UID: types.UID(name + uid),
		OwnerReferences: []metav1.OwnerReference{{Kind: of.Kind, Name: of.Name, UID: types.UID(owner), Controller: &yes}},
	}}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: of.Origin}
}

// decider is workload.Next for tests. A workload has the pods that its annotation names. Its state
// has one revision for each set that it had, and its status is a line for each pod of the input.
type decider struct {
	calls  map[string]int
	inputs map[string]workload.Input
	wake   func(now time.Time) time.Time
	panics string // the workload for which it panics
}

func newDecider() *decider {
	return &decider{calls: map[string]int{}, inputs: map[string]workload.Input{}}
}

func (d *decider) next(in workload.Input) workload.Decision {
	d.calls[in.Object.Name]++
	d.inputs[in.Object.Name] = in
	if in.Object.Name == d.panics {
		panic("no idea")
	}
	pods := in.Object.Object.(*appsv1.Deployment).Annotations["pods"]
	out := workload.Decision{State: in.State}
	if n := len(in.State.Revisions); n == 0 || in.State.Revisions[n-1].Hash != pods {
		out.State.Revisions = append(slices.Clone(in.State.Revisions), workload.Revision{Number: int64(n + 1), Hash: pods})
		out.Events = []workload.Event{{Type: v1.EventTypeNormal, Reason: "Scaled", Message: pods}}
	}
	for name := range strings.FieldsSeq(pods) {
		made := spec(in.Object, name)
		for _, p := range in.Pods {
			if p.Spec.Key == made.Key && p.Spec.UID() == made.UID() && !p.Leaving {
				made = p.Spec
			}
		}
		out.Pods = append(out.Pods, made)
		out.Claims = append(out.Claims, &pod.Object{Kind: pod.KindClaim, Key: made.Key, Origin: in.Object.Origin, Hash: "v1-c"})
	}
	if d.wake != nil {
		out.Wake = d.wake(in.Now)
	}
	return out
}

// saw returns the pods of the newest input of a workload: "web-1 Running, web-2 leaving".
func (d *decider) saw(name string) string {
	var out []string
	for _, p := range d.inputs[name].Pods {
		text := p.Spec.Name
		if p.Status != nil {
			text += " " + string(p.Status.Phase)
		}
		if p.Leaving {
			text += " leaving"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// shelf is a Store in memory.
type shelf struct {
	states map[pod.ObjectKey]storedState
	fail   error
	lost   error // of Load
	saves  int
	hangs  chan struct{} // Save waits until it is closed; nil: it does not wait
}

func newShelf() *shelf { return &shelf{states: map[pod.ObjectKey]storedState{}} }

func (s *shelf) Load(each func(pod.ObjectKey, string, []byte)) error {
	for id, f := range s.states {
		each(id, f.layer, f.state)
	}
	return s.lost
}

func (s *shelf) Save(of pod.ObjectKey, layer string, state []byte) error {
	if s.hangs != nil {
		<-s.hangs
	}
	if s.fail != nil {
		return s.fail
	}
	s.saves++
	s.states[of] = storedState{layer, slices.Clone(state)}
	return nil
}

func (s *shelf) Remove(of pod.ObjectKey) error {
	if s.fail != nil {
		return s.fail
	}
	delete(s.states, of)
	return nil
}

// names returns the workloads that have a state.
func (s *shelf) names() string {
	var out []string
	for id := range maps.Keys(s.states) {
		out = append(out, id.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// rig is a Controller with its parts.
type rig struct {
	*Controller
	t     *testing.T
	next  *decider
	shelf *shelf
	log   bytes.Buffer
}

// start returns a live Controller, as in an agent. s has the states, and kept the pods, of an
// earlier agent.
func start(t *testing.T, s *shelf, kept ...workload.Pod) *rig {
	r := &rig{t: t, next: newDecider(), shelf: s}
	r.Controller = New(Config{
		Node: node, Recorded: kept, Store: s, Live: true, Next: r.next.next, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
	t.Cleanup(r.Close)
	return r
}

// expand returns the pods that Expand returns.
func (r *rig) expand(workloads ...*pod.Object) string {
	pods, _ := r.Expand(workloads)
	var out []string
	for _, s := range pods {
		out = append(out, s.Name)
	}
	return strings.Join(out, " ")
}

// isDue reports whether the Controller has become due.
func (r *rig) isDue() bool {
	synctest.Wait()
	select {
	case <-r.Due():
		return true
	default:
		return false
	}
}

// report reports a phase of a pod; "gone" reports that the pod is gone.
func (r *rig) report(s *pod.Spec, phase v1.PodPhase) {
	p := *s.Pod
	p.Status.Phase = phase
	if err := r.Report(pod.StatusReport{Pod: &p, Origin: s.Origin, Gone: phase == "gone", ObservedUID: s.UID()}); err != nil {
		r.t.Error(err)
	}
}

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// TestExpand_StateCannotBeWritten_SetStays: a state is stored before its pods are desired. After an
// error the set stays unchanged, and the Controller retries with a back-off.
func TestExpand_StateCannotBeWritten_SetStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		check(t, "first", r.expand(want("web", "a", "b")), "a b")
		r.shelf.fail = errors.New("no space left on device")
		edited := want("web", "c")
		for range 3 {
			check(t, "full disk", r.expand(edited), "a b")
		}
		if n := r.next.calls["web"]; n != 2 {
			t.Errorf("%d decisions, want 2: the next one waits", n)
		}
		if n := strings.Count(r.log.String(), "no space left"); n != 1 {
			t.Errorf("the error is logged %d times", n)
		}
		time.Sleep(firstRetry)
		if !r.isDue() {
			t.Error("it is not tried again")
		}
		check(t, "still full", r.expand(edited), "a b")
		r.shelf.fail = nil
		time.Sleep(firstRetry)
		check(t, "before the second retry", r.expand(edited), "a b")
		time.Sleep(firstRetry)
		if !r.isDue() {
			t.Error("it is not tried again after the second failure")
		}
		check(t, "room again", r.expand(edited), "c")
		check(t, "seen", r.next.saw("web"), "a, b")
		if r.shelf.saves != 2 {
			t.Errorf("%d writes", r.shelf.saves)
		}
		r.expand(edited)
		if r.shelf.saves != 2 {
			t.Error("an unchanged state was written")
		}
	})
}

// TestExpand_DiskHangs_ReadingsGoOn: Expand waits for a write only for saveWait, and not at all
// while the disk hangs. The pods are desired when the state is stored.
//
// Shows: F12
func TestExpand_DiskHangs_ReadingsGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		r.expand(want("web", "a"))
		r.shelf.hangs = make(chan struct{})
		web, db := want("web", "b"), want("db", "x")
		for i, limit := range []time.Duration{saveWait, 0, 0} {
			began := time.Now()
			check(t, "the disk hangs", r.expand(web, db), "a")
			if took := time.Since(began); took > limit {
				t.Errorf("call %d waited %v", i, took)
			}
		}
		if r.isDue() {
			t.Error("due before the state is stored")
		}
		close(r.shelf.hangs)
		if !r.isDue() {
			t.Error("not due when the state is stored")
		}
		check(t, "the disk goes on", r.expand(web, db), "b x")
		check(t, "stored", r.shelf.names(), "db web")
		if r.next.calls["web"] != 2 || r.next.calls["db"] != 1 {
			t.Errorf("%v decisions", r.next.calls)
		}
	})
}

// TestExpand_ChangedWhileItsStateIsWritten_IsDecidedAgain: a decision has no effect if the workload
// or a status changed during the write.
func TestExpand_ChangedWhileItsStateIsWritten_IsDecidedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(r *rig) *pod.Object
		pods   string
	}{
		"edited":   {func(*rig) *pod.Object { return want("web", "c") }, "c"},
		"reported": {func(r *rig) *pod.Object { o := want("web", "a"); r.report(spec(o, "a"), v1.PodFailed); return nil }, "b"},
		"removed":  {func(r *rig) *pod.Object { r.expand(); return want("web", "d") }, "d"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, newShelf())
			r.expand(want("web", "a"))
			r.shelf.hangs = make(chan struct{})
			edited := want("web", "b")
			r.expand(edited)
			if o := c.change(r); o != nil {
				edited = o
			}
			r.expand(edited)
			close(r.shelf.hangs)
			r.isDue()
			check(t, name, r.expand(edited), c.pods)
			if n := r.next.calls["web"]; n != 3 {
				t.Errorf("%s: %d decisions, want 3", name, n)
			}
			var s workload.State
			if err := json.Unmarshal(r.shelf.states[edited.ObjectKey()].state, &s); err != nil || len(s.Revisions) != 2 || s.Revisions[1].Hash != c.pods {
				t.Errorf("%s: %+v is stored, %v", name, s, err)
			}
		})
	}
}

// TestReport_TwoWorkloadsAskForOnePod_EachSeesItsOwn: the workloads are of one source, or of two.
func TestReport_TwoWorkloadsAskForOnePod_EachSeesItsOwn(t *testing.T) {
	t.Parallel()
	for name, location := range map[string]string{"one source": "/m", "two sources": "/other"} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, newShelf())
			r.Synced()
			first, second := want("alpha", "a"), at(want("web", "a"), location, "b")
			r.expand(first, second)
			r.report(spec(first, "a"), v1.PodRunning)
			r.expand(first, second)
			check(t, name+": alpha", r.next.saw("alpha"), "a Running")
			check(t, name+": web", r.next.saw("web"), "a")
			if has, leaves := r.Has(spec(first, "a").Key); !has || leaves {
				t.Errorf("%s: has %t, leaves %t", name, has, leaves)
			}
			r.expand(second)
			r.report(spec(second, "a"), v1.PodRunning) // the node has exchanged it
			r.expand(second)
			check(t, name+": web has the pod", r.next.saw("web"), "a Running")
			check(t, name+": alpha has none left", r.shelf.names(), "web")
		})
	}
}

// TestHas_PodThatLeaves: Has reports a leaving pod until it is gone.
func TestHas_PodThatLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		web := want("web", "a", "b")
		r := start(t, newShelf(), workload.Pod{Spec: spec(want("other"), "z")})
		has := func(name string) string {
			has, leaves := r.Has(pod.Key{Namespace: "default", Name: name})
			return fmt.Sprint(has, leaves)
		}
		r.expand(web)
		r.report(spec(web, "b"), v1.PodRunning)
		r.expand(want("web", "a"))
		check(t, "in the set", has("a"), "true false")
		check(t, "left", has("b"), "true true")
		check(t, "of no workload yet", has("z"), "false false")
		r.report(spec(web, "b"), "gone")
		r.expand(want("web", "a"))
		check(t, "gone", has("b"), "false false")
	})
}

// TestReport_ReachesTheDecision: a report of a pod makes the Controller due, and only its workload
// is decided again. A pod that has left the set stays in the input until it is gone.
func TestReport_ReachesTheDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		web, db := want("web", "a", "b"), want("db", "x")
		r.expand(web, db)
		r.report(spec(web, "other"), v1.PodRunning)
		if r.isDue() {
			t.Error("a pod of no workload makes it due")
		}
		r.report(spec(web, "a"), v1.PodRunning)
		r.report(spec(web, "b"), v1.PodPending)
		if !r.isDue() || r.isDue() {
			t.Error("two reports do not make it due once")
		}
		r.expand(web, db)
		check(t, "seen", r.next.saw("web"), "a Running, b Pending")
		if r.next.calls["db"] != 1 {
			t.Error("another workload was decided, too")
		}
		smaller := want("web", "a")
		check(t, "smaller", r.expand(smaller, db), "a x")
		r.report(spec(web, "b"), v1.PodSucceeded)
		r.expand(smaller, db)
		check(t, "while it stops", r.next.saw("web"), "a Running, b Succeeded leaving")
		r.report(spec(web, "b"), "gone")
		r.expand(smaller, db)
		check(t, "when it is gone", r.next.saw("web"), "a Running")
		if w := r.Workloads(); len(w) != 2 || w[1].Object != smaller || len(w[1].Pods) != 1 {
			t.Errorf("%+v", w)
		}
	})
}

// TestReport_OfAnotherInstance_IsUnknown: a status counts only if it belongs to the pod in the set.
func TestReport_OfAnotherInstance_IsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		old := want("web", "a@1")
		r.expand(old)
		r.report(spec(old, "a@1"), v1.PodRunning)
		updated := want("web", "a@2")
		r.expand(updated)
		now := spec(updated, "a@2")
		for name, report := range map[string]pod.StatusReport{
			"of the old pod":             {Pod: spec(old, "a@1").Pod, ObservedUID: "a1"},
			"while the old one is there": {Pod: now.Pod, ObservedUID: "a1"},
			"while it still has to stop": {Pod: now.Pod, ObservedUID: "a2", NotDesired: true},
			"when the old one is gone":   {Pod: spec(old, "a@1").Pod, Gone: true},
			"of another source":          {Pod: now.Pod, ObservedUID: "a2", Origin: pod.Origin{Source: "http", Location: "http://127.0.0.1/"}},
		} {
			p := *report.Pod
			p.Status.Phase, report.Pod = v1.PodRunning, &p
			if report.Origin == (pod.Origin{}) {
				report.Origin = now.Origin
			}
			if err := r.Report(report); err != nil {
				t.Error(err)
			}
			r.expand(updated)
			check(t, name, r.next.saw("web"), "a")
		}
		r.report(now, v1.PodRunning)
		r.expand(updated)
		check(t, "of itself", r.next.saw("web"), "a Running")
	})
}

// TestWake_IsDueAtThatTime: the Controller is not due earlier, and not in a loop if the time has
// passed.
func TestWake_IsDueAtThatTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		r.next.wake = func(now time.Time) time.Time { return now.Add(90 * time.Second) }
		web := want("web", "a")
		r.expand(web)
		time.Sleep(longestWait)
		if !r.isDue() {
			t.Error("a clock that was set would not be noticed")
		}
		r.expand(web)
		if r.next.calls["web"] != 1 {
			t.Error("decided before the time")
		}
		time.Sleep(30 * time.Second)
		if !r.isDue() {
			t.Error("not due at the time")
		}
		r.next.wake = func(now time.Time) time.Time { return now.Add(-time.Hour) }
		r.expand(web)
		if r.next.calls["web"] != 2 || r.isDue() {
			t.Error("not decided, or due again at once")
		}
		time.Sleep(time.Second)
		if !r.isDue() {
			t.Error("a time that has passed is not waited for")
		}
		r.next.wake = nil
		r.expand(web)
		time.Sleep(time.Hour)
		if r.isDue() {
			t.Error("due without a time")
		}
	})
}

// TestNew_PodsOfThePreviousAgent_AreAdopted: they belong to the workload with the stored state. A
// decision that removes one waits for the engine's reports of them, but not without limit.
func TestNew_PodsOfThePreviousAgent_AreAdopted(t *testing.T) {
	t.Parallel()
	for _, reports := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			first := start(t, newShelf())
			web := want("web", "a", "b")
			first.expand(web)
			ready := &v1.PodStatus{Phase: v1.PodRunning}
			r := start(t, first.shelf,
				workload.Pod{Spec: spec(web, "a"), Status: ready}, workload.Pod{Spec: spec(web, "b"), Status: ready},
				workload.Pod{Spec: spec(web, "c"), Leaving: true}, workload.Pod{Spec: spec(at(web, "/other", "a"), "d")})
			edited := want("web", "b", "e")
			check(t, "before the reports", r.expand(edited), "a b")
			check(t, "seen", r.next.saw("web"), "a Running, b Running, c leaving")
			if n := len(r.next.inputs["web"].State.Revisions); n != 1 {
				t.Errorf("%d revisions of the stored state", n)
			}
			if r.shelf.saves != 1 {
				t.Error("a decision that does not take effect was stored")
			}
			r.report(spec(web, "a"), v1.PodRunning)
			check(t, "after one report", r.expand(edited), "a b")
			if reports {
				r.report(spec(web, "b"), v1.PodRunning)
			} else {
				time.Sleep(adoptTimeout)
			}
			if !r.isDue() {
				t.Error("not due")
			}
			check(t, "then", r.expand(edited), "b e")
		})
	}
}

// TestNew_PodsOfThePreviousAgent_AddedAtOnce: a decision that adds pods does not wait.
func TestNew_PodsOfThePreviousAgent_AddedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		web := want("web", "a")
		r := start(t, newShelf(), workload.Pod{Spec: spec(web, "a")})
		check(t, "pods", r.expand(want("web", "a", "b")), "a b")
	})
}

// TestExpand_WorkloadLeaves_StateIsKeptUntilItsPodsAreGone: the state also stays until every source
// has answered.
func TestExpand_WorkloadLeaves_StateIsKeptUntilItsPodsAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		for _, name := range []string{"old", "older"} {
			if err := s.Save(pod.ObjectKey{Kind: pod.KindJob, Key: pod.Key{Namespace: "default", Name: name}}, "file:/m", []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		web, old := want("web", "a"), want("old", "z")
		r := start(t, s, workload.Pod{Spec: spec(old, "z")})
		r.expand(web)
		check(t, "no source has it", r.expand(), "")
		r.report(spec(web, "a"), "gone")
		r.expand()
		check(t, "a source has not answered", s.names(), "old older web")
		r.expand(web)
		r.report(spec(web, "a"), v1.PodRunning)
		r.expand()
		r.Synced()
		if !r.isDue() {
			t.Error("not due when every source has answered")
		}
		r.expand()
		check(t, "pods are left", s.names(), "old older web")
		s.fail = errors.New("read-only file system")
		r.report(spec(web, "a"), "gone")
		r.expand()
		s.fail = nil
		time.Sleep(firstRetry)
		if !r.isDue() {
			t.Error("the removal is not tried again")
		}
		r.expand()
		check(t, "pods of another workload are left", s.names(), "old older")
		r.report(spec(old, "z"), "gone")
		r.expand()
		check(t, "in the end", s.names(), "")
	})
}

// TestExpand_WorkloadComesBack_KeepsItsState: the input has its pods that still stop.
func TestExpand_WorkloadComesBack_KeepsItsState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		r.Synced()
		web := want("web", "a")
		r.expand(web)
		r.report(spec(web, "a"), v1.PodRunning)
		r.expand()
		check(t, "back", r.expand(want("web", "b")), "b")
		check(t, "seen", r.next.saw("web"), "a Running leaving")
		if n := len(r.next.inputs["web"].State.Revisions); n != 1 {
			t.Errorf("%d revisions", n)
		}
	})
}

// TestExpand_PodNeverReported_IsNotWaitedFor: a pod that names a missing ConfigMap never reaches the
// engine. When it leaves the set, its workload does not wait for its end.
func TestExpand_PodNeverReported_IsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		r.expand(want("web", "a", "b"))
		r.report(spec(want("web"), "a"), v1.PodRunning)
		edited := want("web", "c")
		r.expand(edited)
		r.report(spec(edited, "c"), v1.PodPending)
		r.expand(edited)
		check(t, "after the edit", r.next.saw("web"), "a Running leaving, c Pending")
	})
}

// TestExpand_JobComesBack_RunsAgain: a Job that is removed and added again is another Job.
func TestExpand_JobComesBack_RunsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		job := want("once", "a")
		job.Kind = pod.KindJob
		r.expand(job)
		r.expand()
		r.expand(job)
		if n := len(r.next.inputs["once"].State.Revisions); n != 0 {
			t.Errorf("%d revisions of the former Job", n)
		}
	})
}

// TestExpand_WorkloadMoves: a workload that moves to another file keeps its state, and its pods get
// the new place. In another layer it is another workload.
func TestExpand_WorkloadMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		web := want("web", "a")
		r.expand(web)
		before := r.Workloads()[0].Pods[0].Spec
		moved := at(web, "/m", "b")
		pods, _ := r.Expand([]*pod.Object{moved})
		if len(pods) != 1 || pods[0].Origin != moved.Origin || pods[0].Pod != before.Pod || before.Origin.File != "a" {
			t.Errorf("moved: %+v", pods)
		}
		again, _ := r.Expand([]*pod.Object{moved})
		if again[0] != pods[0] {
			t.Error("an unchanged pod has another pointer")
		}
		if n := len(r.next.inputs["web"].State.Revisions); n != 1 {
			t.Errorf("%d revisions in another file", n)
		}
		elsewhere := at(web, "/other", "b")
		check(t, "in another layer", r.expand(elsewhere), "a")
		if in := r.next.inputs["web"]; len(in.State.Revisions)+len(in.Pods) != 0 {
			t.Errorf("another layer takes over %+v", in)
		}
		next := start(t, r.shelf)
		next.expand(web)
		if n := len(next.next.inputs["web"].State.Revisions); n != 0 {
			t.Error("the next agent gives a workload the state of another layer")
		}
	})
}

// TestExpand_LaterLayerAnswersFirst_StateOfTheEarlierLayerStays: the workload has that state when
// the earlier layer answers, and the state is stored again.
func TestExpand_LaterLayerAnswersFirst_StateOfTheEarlierLayerStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := start(t, newShelf())
		web := want("web", "a")
		first.expand(web)
		other := start(t, first.shelf)
		other.expand(at(web, "/other", "b"))
		if n := len(other.next.inputs["web"].State.Revisions); n != 0 {
			t.Errorf("%d revisions of another layer", n)
		}
		other.expand(web)
		if n := len(other.next.inputs["web"].State.Revisions); n != 1 {
			t.Errorf("the earlier layer has %d revisions", n)
		}
		other.Synced()
		other.expand(web)
		next := start(t, other.shelf)
		next.expand(web)
		if n := len(next.next.inputs["web"].State.Revisions); n != 1 {
			t.Errorf("the next agent has %d revisions", n)
		}
		check(t, "states", next.shelf.names(), "web")
	})
}

// TestExpand_DecisionPanics_CostsOneWorkload: its pods stay, and other workloads change.
func TestExpand_DecisionPanics_CostsOneWorkload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		r.expand(want("web", "a"), want("db", "x"))
		r.next.panics = "web"
		web, db := want("web", "b"), want("db", "y")
		check(t, "pods", r.expand(web, db), "a y")
		if !strings.Contains(r.log.String(), "no idea") || !strings.Contains(r.log.String(), "deployment/default/web") {
			t.Errorf("log: %s", r.log.String())
		}
		r.next.panics = ""
		time.Sleep(firstRetry)
		if !r.isDue() {
			t.Error("not tried again")
		}
		check(t, "pods", r.expand(web, db), "b y")
	})
}

// TestNew_StateIsDamaged_PodsStay: the log has one line, and the workload gets its pods without a
// state.
func TestNew_StateIsDamaged_PodsStay(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*shelf){
		"the file": func(s *shelf) { clear(s.states); s.lost = errors.New("Deployment_default_web.json is damaged") },
		"its state": func(s *shelf) {
			s.states[pod.ObjectKey{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}}] = storedState{"file:/m", []byte(`{"revisions":7}`)}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			web := want("web", "a")
			s := newShelf()
			damage(s)
			r := start(t, s, workload.Pod{Spec: spec(web, "a")})
			check(t, name, r.expand(web), "a")
			if in := r.next.inputs["web"]; len(in.State.Revisions) != 0 || len(in.Pods) != 1 {
				t.Errorf("%s: %+v", name, in)
			}
			if n := strings.Count(r.log.String(), "level=WARN"); n != 1 {
				t.Errorf("%s: %d warnings: %s", name, n, r.log.String())
			}
		})
	}
}

// TestExpand_Unchanged_KeepsItsPointers: unchanged pods and claims keep their pointers.
func TestExpand_Unchanged_KeepsItsPointers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		pods, claims := r.Expand([]*pod.Object{want("web", "a", "b")})
		more, moreClaims := r.Expand([]*pod.Object{want("web", "a", "b", "c")})
		if !slices.Equal(pods, more[:2]) || !slices.Equal(claims, moreClaims[:2]) {
			t.Error("unchanged pods or claims have other pointers")
		}
	})
}

// TestNew_NotLive_IsNeverDue: a command that only looks has the pods of the previous agent with
// their last statuses, and waits for nothing.
func TestNew_NotLive_IsNeverDue(t *testing.T) {
	t.Parallel()
	d := newDecider()
	d.wake = func(now time.Time) time.Time { return now.Add(time.Second) }
	web := want("web", "a")
	c := New(Config{Node: node, Recorded: []workload.Pod{{Spec: spec(web, "a"), Status: &v1.PodStatus{Phase: v1.PodRunning}}}, Next: d.next})
	pods, _ := c.Expand([]*pod.Object{want("web", "b")})
	if c.Due() != nil || len(pods) != 1 || pods[0].Name != "b" {
		t.Errorf("%v", pods)
	}
	check(t, "seen", d.saw("web"), "a Running")
	c.Close()
}

// TestEvents_AreThoseOfDecisionsThatTakeEffect: each event is reported once.
func TestEvents_AreThoseOfDecisionsThatTakeEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, d := newShelf(), newDecider()
		s.fail = errors.New("no space left on device")
		var events []string
		c := New(Config{Node: node, Store: s, Live: true, Next: d.next, Event: func(o *pod.Object, e workload.Event) {
			events = append(events, fmt.Sprintf("%s %s %s", o.Name, e.Reason, e.Message))
		}})
		defer c.Close()
		web := want("web", "a", "b")
		c.Expand([]*pod.Object{web})
		if len(events) != 0 {
			t.Errorf("%q", events)
		}
		s.fail = nil
		time.Sleep(firstRetry)
		c.Expand([]*pod.Object{web})
		c.Expand([]*pod.Object{web})
		check(t, "events", strings.Join(events, "; "), "web Scaled a b")
	})
}

// TestReport_BesideExpand: the sync loop and the goroutine of podconfig do not wait for each other.
func TestReport_BesideExpand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newShelf())
		web := want("web", "a", "b")
		r.expand(web)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 100 {
				r.report(spec(web, "a"), v1.PodRunning)
				r.Workloads()
			}
		})
		for range 100 {
			r.expand(web)
		}
		wg.Wait()
		r.expand(web)
		check(t, "seen", r.next.saw("web"), "a Running, b")
	})
}

// TestState_SurvivesJSON: every field of a state has a name in the file.
func TestState_SurvivesJSON(t *testing.T) {
	t.Parallel()
	s := workload.State{Revisions: []workload.Revision{{Number: 3, Hash: "h", Template: v1.PodTemplateSpec{Spec: v1.PodSpec{HostNetwork: true}}}}}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back workload.State
	if err := json.Unmarshal(data, &back); err != nil || len(back.Revisions) != 1 || !back.Revisions[0].Template.Spec.HostNetwork {
		t.Errorf("%+v, %v", back, err)
	}
}
