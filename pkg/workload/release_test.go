package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// fleet is the workloads of a release on one node.
type fleet struct {
	t   *testing.T
	all []*world
}

// in returns a workload with another name, in a release.
func inRelease(name, release string, o *pod.Object) *pod.Object {
	named := *o
	named.Name = name
	switch w := named.Object.(type) {
	case *appsv1.Deployment:
		w.Annotations = map[string]string{pod.AnnotationRelease: release}
	case *appsv1.StatefulSet:
		w.Annotations = map[string]string{pod.AnnotationRelease: release}
	case *appsv1.DaemonSet:
		w.Annotations = map[string]string{pod.AnnotationRelease: release}
	}
	return &named
}

// shop returns the release shop: an api with two pods, a database and an agent. Each has a version 1
// that passed its trial.
func shop(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t}
	f.add(inRelease("api", "shop", workloadOf(KindDeployment, webDeployment(2, "web:1", "1", "0"))))
	f.add(inRelease("db", "shop", workloadOf(KindStatefulSet, webSet(1))))
	f.add(inRelease("log", "shop", workloadOf(KindDaemonSet, webDaemonSet("", ""))))
	f.pass()
	f.expect("api=web:1 db=web:1 log=web:1")
	return f
}

func (f *fleet) add(o *pod.Object) *world {
	w := newWorld(f.t, o)
	if len(f.all) > 0 {
		w.now = f.all[0].now
	}
	f.all = append(f.all, w)
	return w
}

func (f *fleet) named(name string) *world {
	f.t.Helper()
	for _, w := range f.all {
		if w.object.Name == name {
			return w
		}
	}
	f.t.Fatalf("there is no workload %s", name)
	return nil
}

// release gives each workload the others of its release, as the last decisions left them.
func (f *fleet) release(of *world) []Member {
	var all []Member
	for _, w := range f.all {
		if w != of && ReleaseOf(w.object) == ReleaseOf(of.object) {
			var state State
			copyJSON(f.t, w.state, &state)
			all = append(all, Member{Object: w.object, State: state})
		}
	}
	return all
}

// turn has each workload decided, one after the other.
func (f *fleet) turn() {
	f.t.Helper()
	for _, w := range f.all {
		f.decide(w)
	}
}

func (f *fleet) decide(w *world) {
	f.t.Helper()
	w.release = f.release(w)
	w.next()
}

// sleep lets time pass.
func (f *fleet) sleep(d time.Duration) {
	for _, w := range f.all {
		w.now = w.now.Add(d)
	}
}

// settle lets all pods become ready and all rollouts go on, without the end of a trial.
func (f *fleet) settle() {
	f.t.Helper()
	for range 8 {
		f.turn()
		for _, w := range f.all {
			w.settle()
		}
	}
	f.turn()
}

// pass lets all rollouts end, and all trials pass.
func (f *fleet) pass() {
	f.t.Helper()
	f.settle()
	f.sleep(defaultTrial)
	f.turn()
	f.turn()
}

// set edits the image of workloads in their source, in one reading.
func (f *fleet) set(image string, names ...string) {
	f.t.Helper()
	for _, name := range names {
		w := f.named(name)
		switch w.object.Kind {
		case KindDeployment:
			setImage(w, image)
		case KindStatefulSet:
			edit(w, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = image })
		case KindDaemonSet:
			edit(w, func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Containers[0].Image = image })
		}
	}
	f.sleep(time.Second)
}

// wanted returns the image that the newest revision of a workload has.
func wanted(w *world) string {
	if n := len(w.state.Revisions); n > 0 {
		return w.state.Revisions[n-1].Template.Spec.Containers[0].Image
	}
	return "none"
}

func (f *fleet) expect(want string) {
	f.t.Helper()
	var out []string
	for _, w := range f.all {
		out = append(out, w.object.Name+"="+wanted(w))
	}
	if got := strings.Join(out, " "); got != want {
		f.t.Fatalf("the newest versions are %s, want %s", got, want)
	}
}

// breaks lets the pods of the newest version of a workload crash.
func (f *fleet) breaks(name string) {
	w := f.named(name)
	n := len(w.state.Revisions)
	crash(w, 1, true, w.ofRevision(w.state.Revisions[n-1].Number))
}

// A version of one workload fails: all that changed with it return to the versions before, and their
// histories name the release and the workload that failed. A workload that did not change stays.
func TestRelease_OneVersionFails_AllThatChangedReturn(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "db")
	f.settle()
	f.expect("api=web:2 db=web:2 log=web:1")
	f.breaks("db")
	f.turn()
	f.turn()
	f.expect("api=web:1 db=web:1 log=web:1")
	for _, name := range []string{"api", "db"} {
		w := f.named(name)
		if why := w.failedText("web:2"); !strings.HasPrefix(why, "release shop failed: statefulset/db: container web of pod db-0 crashes") {
			t.Errorf("why %s failed: %s", name, why)
		}
		override := w.state.Override.Fields()
		if len(override) != 1 || !override[0].Rollback || !strings.Contains(override[0].Why, "revision 2 failed: release shop failed: statefulset/db") {
			t.Errorf("the override of %s is %+v", name, override)
		}
	}
	equal(t, "the override of the one that did not change", f.named("log").state.Override == nil, true)
	for range 3 { // not tried again, however the time passes
		f.settle()
		f.sleep(time.Hour)
	}
	f.expect("api=web:1 db=web:1 log=web:1")
	for _, w := range f.all {
		w.release = f.release(w)
		w.next()
		w.checkIdempotent()
	}
}

// The rollback has the logs of all versions that are left.
func TestRelease_OneVersionFails_EachDecisionNamesItsPods(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "db")
	f.settle()
	f.breaks("db")
	f.turn()
	if d := f.named("db").last; d.Failed == nil || d.Failed.Number != 2 || len(d.Failed.Pods) != 1 {
		t.Errorf("db: %+v", d.Failed)
	}
	f.decide(f.named("api"))
	if d := f.named("api").last; d.Failed == nil || d.Failed.Number != 2 || len(d.Failed.Pods) != 2 {
		t.Errorf("api: %+v", d.Failed)
	}
	equal(t, "the events of api", f.named("api").events(), "RevisionFailed: Revision 2 failed: "+f.named("db").failedText("web:2")+"\nDeploymentRollback: Rolled back deployment \"api\" to revision 1")
}

// A version whose own trial is over returns, too, while another one of the rollout is on trial. Once
// all have passed, each stays.
func TestRelease_TrialsEndAtDifferentTimes_OutcomeIsOne(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) *fleet {
		f := shop(t)
		edit(f.named("db"), func(s *appsv1.StatefulSet) { s.Annotations[pod.AnnotationRollbackTrial] = "1h" })
		f.set("web:2", "api", "db")
		f.settle()
		f.sleep(2 * defaultTrial)
		f.settle()
		equal(t, "the trial of api has passed", f.named("api").state.Trial.Passed, true)
		return f
	}
	t.Run("the later one fails", func(t *testing.T) {
		t.Parallel()
		f := begin(t)
		f.breaks("db")
		f.turn()
		f.turn()
		f.expect("api=web:1 db=web:1 log=web:1")
	})
	t.Run("the earlier one fails", func(t *testing.T) {
		t.Parallel()
		f := begin(t)
		f.breaks("api")
		f.turn()
		f.turn()
		f.expect("api=web:1 db=web:1 log=web:1")
	})
	t.Run("none fails", func(t *testing.T) {
		t.Parallel()
		f := begin(t)
		f.sleep(time.Hour)
		f.turn()
		f.turn()
		for _, name := range []string{"api", "db"} {
			equal(t, "the outcome of "+name, f.named(name).state.Release.Outcome, Passed)
		}
		f.breaks("api")
		f.breaks("db")
		f.turn()
		f.turn()
		f.expect("api=web:2 db=web:2 log=web:1")
	})
}

// A workload that changes while a rollout goes on is part of it.
func TestRelease_ChangesDuringTheRollout_IsPartOfIt(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api")
	f.settle()
	f.set("web:2", "log")
	f.settle()
	equal(t, "the rollout of log", f.named("log").state.Release.Rollout, f.named("api").state.Release.Rollout)
	f.set("web:3", "api") // before the end of the rollout: it still returns to version 1
	f.settle()
	f.breaks("log")
	f.turn()
	f.turn()
	f.expect("api=web:1 db=web:1 log=web:1")
}

// A Deployment with the strategy Recreate has no pod of its new version while the old ones stop. It
// returns, too.
func TestRelease_OtherVersionFailsWhileOldPodsStop_Returns(t *testing.T) {
	t.Parallel()
	f := shop(t)
	editDeployment(f.named("api"), func(s *appsv1.DeploymentSpec) {
		s.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	f.set("web:2", "api", "log")
	f.turn()
	f.named("log").gone()
	f.turn() // the new pod of log is added, and the old pods of api still stop
	f.breaks("log")
	f.turn()
	f.turn()
	f.expect("api=web:1 db=web:1 log=web:1")
	f.settle()
	for _, p := range f.named("api").pods {
		equal(t, "the image", p.Spec.Pod.Spec.Containers[0].Image, "web:1")
	}
	equal(t, "why", strings.HasPrefix(f.named("api").failedText("web:2"), "release shop failed: daemonset/log"), true)
}

// A source gets the workload that failed another version: those that returned for its sake are tried
// again with it. A new version of one that did not fail changes nothing else.
func TestRelease_FailedWorkloadGetsAnotherVersion_OthersAreTriedAgain(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T) *fleet {
		f := shop(t)
		f.set("web:2", "api", "db", "log")
		f.settle()
		f.breaks("db")
		f.turn()
		f.turn()
		f.settle()
		f.expect("api=web:1 db=web:1 log=web:1")
		return f
	}
	t.Run("by its source", func(t *testing.T) {
		t.Parallel()
		f := failed(t)
		f.set("web:3", "db")
		f.settle()
		f.expect("api=web:2 db=web:3 log=web:2")
		f.pass()
		f.expect("api=web:2 db=web:3 log=web:2")
		equal(t, "why version 2 failed", f.named("api").failedText("web:2"), "")
	})
	t.Run("and it fails again", func(t *testing.T) {
		t.Parallel()
		f := failed(t)
		f.set("web:3", "db")
		f.settle()
		f.breaks("db")
		f.turn()
		f.turn()
		f.settle()
		f.expect("api=web:1 db=web:1 log=web:1")
	})
	t.Run("by a person", func(t *testing.T) {
		t.Parallel()
		f := failed(t)
		if _, err := f.named("db").do(Command{Verb: Clear}); err != nil {
			t.Fatal(err)
		}
		f.settle()
		f.expect("api=web:2 db=web:2 log=web:2")
	})
	t.Run("one that did not fail", func(t *testing.T) {
		t.Parallel()
		f := failed(t)
		f.set("web:3", "api")
		f.settle()
		f.expect("api=web:3 db=web:1 log=web:1")
	})
}

// A workload of another source, of another namespace or with another release does not return with
// the one that failed, although it changed at the same time.
func TestRelease_OfAnotherSource_IsAnotherRelease(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pod.Object){
		"source":    func(o *pod.Object) { o.Origin.Location = "/home/guest" },
		"kind":      func(o *pod.Object) { o.Origin.Source = "http" },
		"namespace": func(o *pod.Object) { o.Namespace = "other" },
		"release":   func(o *pod.Object) { o.Object.(*appsv1.Deployment).Annotations[pod.AnnotationRelease] = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := shop(t)
			other := inRelease("guest", "shop", workloadOf(KindDeployment, webDeployment(1, "web:1", "1", "0")))
			change(other)
			f.add(other)
			f.pass()
			f.set("web:2", "api", "guest")
			f.settle()
			f.breaks("guest")
			f.turn()
			f.turn()
			f.expect("api=web:2 db=web:1 log=web:1 guest=web:1")
		})
	}
}

// A member whose state is being written may have another outcome by now: none is decided meanwhile.
func TestRelease_StateOfAnotherIsBeingWritten_OutcomeWaits(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "db")
	f.settle()
	api, db := f.named("api"), f.named("db")
	f.breaks("db")
	db.release = f.release(db)
	i := slices.IndexFunc(db.release, func(m Member) bool { return m.Object.Name == "api" })
	passed := *api.state.Release
	passed.Outcome = Passed
	maybe := api.state
	maybe.Release = &passed
	db.release[i].Maybe = &maybe
	db.next()
	f.expect("api=web:2 db=web:2 log=web:1")
	db.release[i].State, db.release[i].Maybe = maybe, nil
	db.next()
	equal(t, "the outcome of db", db.state.Release.Outcome, Passed)
	log := f.named("log") // it begins another rollout, because the one before may be over
	f.set("web:2", "log")
	log.release = f.release(log)
	log.next()
	equal(t, "the rollout of log", log.state.Release.Rollout, db.state.Release.Rollout+1)
}

// A version before that the source policy forbids by now keeps the whole release as it is.
func TestRelease_OneCannotReturn_NoneDoes(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "db")
	f.settle()
	for _, w := range f.all {
		w.allowed = func(o *pod.Object) bool { return o.Name != "api" }
	}
	f.breaks("db")
	f.decide(f.named("db"))
	if text := f.named("db").events(); !strings.HasPrefix(text, "RevisionFailed: Revision 2 failed, and no workload of the release is rolled back, because deployment/api has no previous version that it may use: release shop failed: statefulset/db: container web") {
		t.Error(text)
	}
	f.turn()
	f.settle()
	f.expect("api=web:2 db=web:2 log=web:1")
	f.breaks("db")
	f.decide(f.named("db"))
	equal(t, "the events of another failure", f.named("db").events(), "")
}

// A workload that is new has no version before: it stays, and the other ones return.
func TestRelease_NewWorkloadFails_OthersReturn(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.add(inRelease("new", "shop", workloadOf(KindDeployment, webDeployment(1, "web:2", "1", "0"))))
	f.set("web:2", "api")
	f.settle()
	f.breaks("new")
	f.decide(f.named("new"))
	if text := f.named("new").events(); !strings.HasPrefix(text, "RevisionFailed: Revision 1 failed, and there is no other one to return to: release shop failed: deployment/new") {
		t.Error(text)
	}
	f.turn()
	f.expect("api=web:1 db=web:1 log=web:1 new=web:2")
}

// The history limit removes no version to which the release may return, and its images stay.
func TestRelease_HistoryLimitOfZero_VersionBeforeStays(t *testing.T) {
	t.Parallel()
	f := shop(t)
	none := int32(0)
	editDeployment(f.named("api"), func(s *appsv1.DeploymentSpec) { s.RevisionHistoryLimit = &none })
	edit(f.named("db"), func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = &none })
	edit(f.named("log"), func(s *appsv1.DaemonSet) { s.Spec.RevisionHistoryLimit = &none })
	f.set("web:2", "api", "db", "log")
	f.settle()
	for _, w := range f.all {
		if before := Previous(&w.state); before == nil || before.Spec.Containers[0].Image != "web:1" {
			t.Errorf("the version before of %s is %v", w.object.Name, before)
		}
	}
	f.breaks("log")
	f.turn()
	f.turn()
	f.expect("api=web:1 db=web:1 log=web:1")
}

// decideBeside has a workload decided while the state of another one may be stored, or not.
func (f *fleet) decideBeside(name, stuck string, maybe State, since time.Time) Decision {
	f.t.Helper()
	w := f.named(name)
	w.release = f.release(w)
	for i := range w.release {
		if m := &w.release[i]; m.Object.Name == stuck {
			m.Maybe, m.MaybeSince = &maybe, since
		}
	}
	return w.next()
}

// The state of a workload that has the new version, or is about to get it, cannot be written. A
// failure waits for it for a minute. Then the others return, the reason names the workload, and it
// follows once its state can be written.
func TestRelease_StateOfAMemberCannotBeWritten_FailureWaitsForAMinute(t *testing.T) {
	t.Parallel()
	for name, joined := range map[string]bool{"it has the version": true, "it is about to get it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := shop(t)
			f.set("web:2", "api", "db", "log")
			db := f.named("db")
			db.release = f.release(db)
			maybe := Next(db.input()).State
			if joined {
				f.settle()
			}
			since := db.now
			for range 6 {
				for _, other := range []string{"api", "log"} {
					f.decideBeside(other, "db", maybe, since)
					f.named(other).settle()
				}
			}
			f.breaks("api")
			d := f.decideBeside("api", "db", maybe, since)
			if wanted(f.named("api")) != "web:2" || d.Wake.IsZero() || d.Wake.After(since.Add(stuckAfter)) {
				t.Errorf("before the minute is over: %s, due at %v", wanted(f.named("api")), d.Wake)
			}
			f.sleep(stuckAfter)
			f.decideBeside("api", "db", maybe, since)
			why := f.named("api").failedText("web:2")
			if !strings.HasPrefix(why, "release shop failed: deployment/api: ") || !strings.HasSuffix(why, " (the state of statefulset/db cannot be written: it follows later)") {
				t.Errorf("why: %s", why)
			}
			f.decideBeside("log", "db", maybe, since)
			for range 3 { // its state can be written again
				f.turn()
			}
			f.expect("api=web:1 db=web:1 log=web:1")
			for range 3 {
				f.settle()
				f.sleep(time.Hour)
			}
			f.expect("api=web:1 db=web:1 log=web:1")
			f.set("web:3", "api")
			f.turn()
			f.turn()
			f.expect("api=web:3 db=web:2 log=web:2")
		})
	}
}

// The store may have the outcome of a rollout, which could not be reported as written. After a minute
// the others take this outcome: the next agent may read it.
func TestRelease_OutcomeMayBeStored_OthersTakeIt(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "db")
	f.settle()
	db := f.named("db")
	var maybe State
	copyJSON(t, db.state, &maybe)
	maybe.Release.Outcome = Passed
	since := db.now
	f.breaks("api")
	f.decideBeside("api", "db", maybe, since)
	equal(t, "the outcome before the minute is over", f.named("api").state.Release.Outcome, "")
	f.sleep(stuckAfter)
	f.decideBeside("api", "db", maybe, since)
	equal(t, "the outcome", f.named("api").state.Release.Outcome, Passed)
	f.turn()
	f.expect("api=web:2 db=web:2 log=web:1")
	equal(t, "the outcome of the other one", f.named("db").state.Release.Outcome, Passed)
}

// A Deployment that is paused during the rollout keeps its outcome open, and returns when another
// version fails.
func TestRelease_PausedDuringTheRollout_WaitsAndReturns(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "log")
	f.turn()
	editDeployment(f.named("api"), func(s *appsv1.DeploymentSpec) { s.Paused = true })
	f.settle()
	f.sleep(time.Hour)
	f.settle()
	equal(t, "the outcome of log", f.named("log").state.Release.Outcome, "")
	f.breaks("log")
	f.turn()
	f.turn()
	editDeployment(f.named("api"), func(s *appsv1.DeploymentSpec) { s.Paused = false })
	f.settle()
	f.expect("api=web:1 db=web:1 log=web:1")
}

// Without the annotation a workload leaves its release, and a rollback of its own is as before.
func TestRelease_AnnotationIsRemoved_WorkloadIsAlone(t *testing.T) {
	t.Parallel()
	f := shop(t)
	f.set("web:2", "api", "db")
	f.settle()
	edit(f.named("api"), func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{pod.AnnotationRollback: pod.RollbackOnFailure}
	})
	f.turn()
	f.breaks("db")
	f.turn()
	f.turn()
	f.expect("api=web:2 db=web:1 log=web:1")
	f.breaks("api")
	f.turn()
	f.expect("api=web:1 db=web:1 log=web:1")
}

// Together names the workloads that return together.
func TestTogether_OneChanges_OthersOfTheRolloutAreNamed(t *testing.T) {
	t.Parallel()
	f := shop(t)
	if _, rolls := Together(&f.named("api").state, f.release(f.named("api"))); rolls {
		t.Error("a rollout goes on before a change")
	}
	f.set("web:2", "api", "log")
	f.turn()
	all, rolls := Together(&f.named("api").state, f.release(f.named("api")))
	equal(t, "the rollout goes on", rolls, true)
	equal(t, "the others", fmt.Sprint(all), fmt.Sprint([]pod.ObjectKey{f.named("log").object.ObjectKey()}))
}

// Readings change workloads, pods crash or become ready, and the agent is killed between the
// decisions of two workloads, at random: the workloads that changed in one rollout always end with
// all new versions, or with none.
func TestStories_Release_OutcomeIsOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 19))
			f := shop(t)
			for n := range 4 {
				image := fmt.Sprintf("web:%d", n+2)
				var names []string
				for _, w := range f.all {
					if r.IntN(3) > 0 {
						names = append(names, w.object.Name)
					}
				}
				before := map[string]string{}
				for _, w := range f.all {
					before[w.object.Name] = wanted(w)
				}
				f.set(image, names...)
				f.turn()
				taken := map[string]int64{}
				for _, w := range f.all {
					if w.state.isChanged() {
						taken[w.object.Name] = w.state.Release.Rollout
					}
				}
				for range 40 {
					f.stir(r)
				}
				f.pass()
				f.pass()
				f.check(before, taken)
			}
		})
	}
}

// stir lets something happen.
func (f *fleet) stir(r *rand.Rand) {
	w := f.all[r.IntN(len(f.all))]
	switch r.IntN(6) {
	case 0:
		if w.state.isChanged() && r.IntN(3) == 0 {
			f.breaks(w.object.Name)
		}
	case 1:
		f.sleep(time.Duration(r.IntN(90)) * time.Second)
	case 2:
		w.set(v1.ConditionTrue, allPods)
	case 3:
		w.gone()
	default:
		f.decide(w)
	}
}

// check fails if some of the workloads that changed in one rollout have their new versions, and
// others do not. taken has the rollout of those that changed.
func (f *fleet) check(before map[string]string, taken map[string]int64) {
	f.t.Helper()
	outcomes := map[int64]map[bool]bool{}
	var text []string
	for name, rollout := range taken {
		isNew := wanted(f.named(name)) != before[name]
		if outcomes[rollout] == nil {
			outcomes[rollout] = map[bool]bool{}
		}
		outcomes[rollout][isNew] = true
		text = append(text, fmt.Sprintf("%s in rollout %d is new: %v", name, rollout, isNew))
	}
	for rollout, seen := range outcomes {
		if len(seen) > 1 {
			f.t.Fatalf("rollout %d is mixed: %v", rollout, text)
		}
	}
}
