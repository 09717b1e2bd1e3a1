package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ReleaseKey identifies a release. Its workloads are of one namespace and one layer, so that a source
// cannot put its workloads into a release of another source.
type ReleaseKey struct{ Layer, Namespace, Name string }

// ReleaseOf returns the release of a workload. The name is "" for a workload without a release.
func ReleaseOf(o *pod.Object) ReleaseKey {
	name := annotationsOf(o)[pod.AnnotationRelease]
	if name == "" || !pod.HasVersions(o.Kind) {
		return ReleaseKey{}
	}
	return ReleaseKey{o.Origin.Layer(), o.Namespace, name}
}

// MaxRelease limits the workloads of a release, because a decision about one depends on all others.
const MaxRelease = 50

// Outcome is the result of a rollout of a release.
type Outcome string

// The outcomes. A rollout without an outcome continues.
const (
	Passed Outcome = "passed" // every new version passed its trial
	// Failed means that a new version failed: all workloads that changed return to their previous
	// versions.
	Failed Outcome = "failed"
	// Stays means that a new version failed, and that one of the workloads cannot return, so that
	// none does.
	Stays Outcome = "stays"
)

// ReleaseState is the state of a workload in a rollout of its release. The first workload that has
// an outcome in its state decides for all. The other workloads copy the outcome, also after a restart
// of the agent. So versions that changed together stay together.
type ReleaseState struct {
	Name string `json:"name"`
	// Rollout is the number of the rollout. Each rollout has a higher one than the rollout before.
	// Workloads that changed together have the same number.
	Rollout int64 `json:"rollout"`
	// Before is the hash of the revision that the workload had before; "" if it is new.
	Before  string  `json:"before,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
	// Failed is the workload whose version failed, as deployment/web, and Why the reason.
	Failed string `json:"failed,omitempty"`
	Why    string `json:"why,omitempty"`
	// Without has the hashes of the new templates of some workloads. These were about to join the
	// rollout when it failed, and their states could not be written. They do not roll out these
	// templates.
	Without map[string]string `json:"without,omitempty"`
}

// Member is a workload of a release, in the state after its last decision.
type Member struct {
	// Object is the workload of the source.
	Object *pod.Object
	// State is the state that is stored.
	State State
	// Maybe is another state that the store may have: it is being written, or its write has failed.
	// While it is not nil, no outcome may depend on State. A rollback waits for it at most stuckAfter.
	Maybe *State
	// MaybeSince is when the first write of a Maybe began.
	MaybeSince time.Time
}

// stuckAfter is how long a rollback waits for a workload whose state cannot be written.
const stuckAfter = time.Minute

// isStuck reports whether a rollback no longer waits for the state of the workload.
func (m *Member) isStuck(now time.Time) bool {
	return m.Maybe != nil && !now.Before(m.MaybeSince.Add(stuckAfter))
}

// nameOf returns the kind and name of a workload, such as deployment/web.
func nameOf(o *pod.Object) string { return strings.ToLower(o.Kind) + "/" + o.Name }

// isChanged reports whether the newest revision is a new version of a rollout in progress.
func (s *State) isChanged() bool {
	n := len(s.Revisions)
	return s.Release != nil && s.Release.Outcome == "" && n > 0 && s.Revisions[n-1].Hash != s.Release.Before
}

// needs reports whether a rollback of the release may return to a revision.
func (s *State) needs(r *Revision) bool {
	return s.Release != nil && s.Release.Outcome == "" && s.Release.Before == r.Hash
}

// before returns the revision that the workload had before the rollout, or nil if it is new.
func (s *State) before() *Revision {
	if s.Release == nil {
		return nil
	}
	if i := indexOf(s.Revisions, s.Release.Before); i >= 0 {
		return &s.Revisions[i]
	}
	return nil
}

// Together returns the other workloads with a new version in the workload's rollout of the release:
// if one version fails, all workloads return. rolls is false if the workload has no new version in a
// rollout of a release.
func Together(s *State, others []Member) (all []pod.ObjectKey, rolls bool) {
	if !s.isChanged() {
		return nil, false
	}
	for i := range others {
		if m := &others[i]; m.takesPart(s.Release) {
			all = append(all, m.Object.ObjectKey())
		}
	}
	return all, true
}

// takesPart reports whether a workload has a new version in the rollout. A workload that replaces
// pods only after a user deletes them does not take part.
func (m *Member) takesPart(r *ReleaseState) bool {
	return m.State.isChanged() && m.State.Release.Name == r.Name && m.State.Release.Rollout == r.Rollout && replacesPods(m.Object)
}

// beginsRollout reports whether a workload, with its overrides, has a template to roll out that is
// not its newest revision.
func beginsRollout(effective *pod.Object, s *State) bool {
	return replacesPods(effective) && !isPaused(effective) && !s.hasTemplate(effective)
}

// joinRollout makes a new template of the workload part of a rollout of its release: of the rollout
// in progress, or else of a new one.
func (in *Input) joinRollout() {
	key, r := ReleaseOf(in.Object), in.State.Release
	if r != nil && r.Name != key.Name {
		r = nil
	}
	if in.State.Release = r; key.Name == "" || !beginsRollout(in.Object, &in.State) {
		return
	}
	before := ""
	if n := len(in.State.Revisions); n > 0 {
		before = in.State.Revisions[n-1].Hash
	}
	if r == nil || r.Outcome != "" {
		in.State.Release = &ReleaseState{Name: key.Name, Rollout: in.rolloutNumber(key.Name), Before: before}
	}
	if d, is := in.Object.Object.(*appsv1.Deployment); is && before != "" && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		in.reviseFirst(&d.Spec.Template)
	}
}

// reviseFirst adds the revision of the template before the old pods are gone. Otherwise the state
// would lack the new version if another workload fails before that.
func (in *Input) reviseFirst(t *v1.PodTemplateSpec) {
	in.State.Revisions = revise(in.State.Revisions, t, in.Now, func(collisions int32) string { return templateHash(t, collisions) })
	in.State.Deployment = in.State.Deployment.withoutProgress()
}

// rolloutNumber returns the number of the rollout in progress, or of the next one.
func (in *Input) rolloutNumber(release string) int64 {
	newest, over := int64(0), true
	see := func(r *ReleaseState) {
		switch {
		case r == nil || r.Name != release || r.Rollout < newest:
		case r.Rollout > newest:
			newest, over = r.Rollout, r.Outcome != ""
		default:
			over = over || r.Outcome != ""
		}
	}
	see(in.State.Release)
	for i := range in.Release {
		see(in.Release[i].State.Release)
		if maybe := in.Release[i].Maybe; maybe != nil {
			see(withOutcome(maybe.Release))
		}
	}
	if over {
		return newest + 1
	}
	return newest
}

// withOutcome returns the rollout if it has an outcome, else nil. A rollout that begins, and whose
// state may not be stored, does not count: another workload that begins computes the same number.
func withOutcome(r *ReleaseState) *ReleaseState {
	if r == nil || r.Outcome == "" {
		return nil
	}
	return r
}

// tryAgain ends the override of a workload that returned because another workload failed. It does so
// once the other workload has a new version, so that both roll out together.
func (in *Input) tryAgain() []Event {
	if !triesAgain(in.Object, &in.State, in.stateOf) {
		return nil
	}
	next := in.State.Override.copied()
	next.Template = nil
	in.State.Override = next.orNil()
	return []Event{{v1.EventTypeNormal, "OverrideEnded", fmt.Sprintf("The override of spec.template has ended: %s, which failed, has another version now", in.State.Release.Failed)}}
}

func triesAgain(o *pod.Object, s *State, stateOf func(name string) *State) bool {
	r := s.Release
	if r == nil || r.Outcome != Failed || r.Name != ReleaseOf(o).Name || r.Failed == nameOf(o) {
		return false
	}
	if s.Override == nil || s.Override.Template == nil || !s.Override.Template.Rollback {
		return false
	}
	failed := stateOf(r.Failed)
	return failed != nil && failed.isChanged() && failed.Release.Name == r.Name && failed.Release.Rollout > r.Rollout
}

// stateOf returns the state of a workload of the release, or nil.
func (in *Input) stateOf(of string) *State {
	if of == nameOf(in.Object) {
		return &in.State
	}
	for i := range in.Release {
		if nameOf(in.Release[i].Object) == of {
			return &in.Release[i].State
		}
	}
	return nil
}

// copyOutcome copies the outcome that another workload of the release has. If the rollout failed, it
// returns the version that failed with it, the version to return to, and the reason.
func (in *Input) copyOutcome() (failed, to *Revision, why string, events []Event) {
	outcome := in.outcomeOfOthers()
	if outcome == nil {
		return nil, nil, "", nil
	}
	changed, back, next := in.State.isChanged(), in.State.before(), *in.State.Release
	next.Outcome, next.Failed, next.Why = outcome.Outcome, outcome.Failed, outcome.Why
	in.State.Release = &next
	if !changed || next.Outcome == Stays {
		return nil, nil, "", nil
	}
	in.State.Revisions = slices.Clone(in.State.Revisions)
	newest := &in.State.Revisions[len(in.State.Revisions)-1]
	switch why = next.Why; {
	case next.Outcome == Passed:
		newest.Good = true
	case !in.State.hasTemplate(in.Object): // the template has changed again
		newest.Failed, newest.Good = why, false
	case back == nil || !in.canReturn(in.Object, back):
		events = []Event{{v1.EventTypeWarning, "RevisionFailed", fmt.Sprintf("Revision %d stays, because there is no other one to return to: %s", newest.Number, why)}}
	default:
		return newest, back, why, nil
	}
	return nil, nil, "", events
}

// outcomeOfOthers returns the state of another workload that has an outcome of this workload's
// rollout, or nil. Once that workload is stuck, an outcome in its Maybe counts, too. If its store
// does not have it, that workload copies the outcome from this one.
func (in *Input) outcomeOfOthers() *ReleaseState {
	r := in.State.Release
	if r == nil || r.Outcome != "" || r.Name != ReleaseOf(in.Object).Name {
		return nil
	}
	for i := range in.Release {
		m := &in.Release[i]
		states := []*State{&m.State}
		if m.isStuck(in.Now) {
			states = append(states, m.Maybe)
		}
		for _, s := range states {
			if o := s.Release; o != nil && o.Name == r.Name && o.Rollout == r.Rollout && o.Outcome != "" {
				return o
			}
		}
	}
	return nil
}

// stayBehind keeps the newest revision of a workload whose new template was about to join a rollout
// that has failed. It returns the event about it.
func (in *Input) stayBehind(source *pod.Object) []Event {
	n := len(in.State.Revisions)
	if n == 0 || !beginsRollout(in.Object, &in.State) {
		return nil
	}
	failed := in.failedRollout()
	newest := &in.State.Revisions[n-1]
	if failed == nil || !in.canReturn(in.Object, newest) {
		return nil
	}
	next := in.State.Override.copied()
	next.setTemplate(source, &newest.Template, in.Now, fmt.Sprintf("revision %d stays: %s", newest.Number, failed.Why))
	if next.Template == nil {
		return nil
	}
	next.Template.Rollback = true
	in.State.Override = next.orNil()
	in.Object, _, _ = in.State.Override.Apply(source)
	in.State.Release = &ReleaseState{Name: failed.Name, Rollout: failed.Rollout, Before: newest.Hash, Outcome: Failed, Failed: failed.Failed, Why: failed.Why}
	return []Event{{v1.EventTypeWarning, "RevisionFailed", fmt.Sprintf("The new version is not tried: %s", failed.Why)}}
}

// failedRollout returns the newest rollout of the release if it has failed and if the workload was
// about to join it with its current template, else nil. An outcome that is being stored counts. If
// its write fails, the other workloads copy the outcome from this one.
func (in *Input) failedRollout() *ReleaseState {
	t, _ := in.Object.Template()
	name := ReleaseOf(in.Object).Name
	var newest *ReleaseState
	see := func(o *ReleaseState) {
		if o != nil && o.Name == name && (newest == nil || o.Rollout > newest.Rollout || o.Rollout == newest.Rollout && o.Without != nil) {
			newest = o
		}
	}
	for i := range in.Release {
		if see(in.Release[i].State.Release); in.Release[i].Maybe != nil {
			see(in.Release[i].Maybe.Release)
		}
	}
	if newest == nil || newest.Outcome != Failed || newest.Without[nameOf(in.Object)] != templateHash(t, 0) {
		return nil
	}
	return newest
}

// canReturn reports whether a workload may get the template of an older revision.
func (in *Input) canReturn(effective *pod.Object, to *Revision) bool {
	of := Input{Object: effective, Allowed: in.Allowed}
	return to.isKnown() && of.allows(to)
}

// judgeRelease ends the rollout of the release once its outcome is certain. why is the reason if the
// newest version of this workload failed, else "". If the workload returns to the previous version,
// judgeRelease returns both versions and the reason.
func (in *Input) judgeRelease(d *Decision, newest *Revision, why string) (failed, to *Revision, reason string) {
	r := *d.State.Release
	switch {
	case why == "" && !d.State.Trial.Passed, in.mustWait(d, &r, why == ""):
		return nil, nil, ""
	case why == "":
		r.Outcome = Passed
		d.State.Release, d.State.Trial = &r, nil
		newest.Good = true
		return nil, nil, ""
	}
	r.Failed = nameOf(in.Object)
	r.Why = fmt.Sprintf("release %s failed: %s: %s", r.Name, r.Failed, why)
	obstacle := in.obstacle(&r)
	if obstacle != "" {
		r.Outcome = Stays
		d.State.Release, d.State.Trial = &r, nil
		d.Events = append(d.Events, Event{v1.EventTypeWarning, "RevisionFailed", fmt.Sprintf("Revision %d failed, and %s: %s", newest.Number, obstacle, r.Why)})
		return nil, nil, ""
	}
	r.Outcome = Failed
	in.leaveOut(&r)
	back := in.State.before()
	if back == nil { // the workload is new: only the other workloads return
		d.State.Release, d.State.Trial = &r, nil
		d.Events = append(d.Events, Event{v1.EventTypeWarning, "RevisionFailed", fmt.Sprintf("Revision %d failed, and there is no other one to return to: %s", newest.Number, r.Why)})
		return nil, nil, ""
	}
	in.State.Release = &r
	return newest, back, r.Why
}

// mustWait reports whether the rollout of a release cannot end yet. It waits for another workload
// whose state is being stored, or which is about to join the rollout. A success also waits for
// workloads on trial. A failure does not wait for a workload that is stuck.
func (in *Input) mustWait(d *Decision, r *ReleaseState, success bool) bool {
	return slices.ContainsFunc(in.Release, func(m Member) bool {
		switch {
		case m.Maybe == nil:
		case success:
			return true
		case m.isStuck(in.Now):
			return false
		default:
			d.Wake = earlier(d.Wake, m.MaybeSince.Add(stuckAfter))
			return true
		}
		effective, _, _ := m.State.Override.Apply(m.Object)
		switch {
		case beginsRollout(effective, &m.State):
			return true
		case !success:
			return false
		}
		t := m.State.Trial
		return triesAgain(m.Object, &m.State, in.stateOf) || m.takesPart(r) && (t == nil || !t.Passed)
	})
}

// leaveOut adds to a failed rollout the workloads whose states cannot be written. They return, or do
// not roll out, once their states can be written.
func (in *Input) leaveOut(r *ReleaseState) {
	var names []string
	r.Without = nil
	for i := range in.Release {
		m := &in.Release[i]
		if !m.isStuck(in.Now) {
			continue
		}
		name := nameOf(m.Object)
		effective, _, _ := m.State.Override.Apply(m.Object)
		if t, _ := effective.Template(); beginsRollout(effective, &m.State) {
			if r.Without == nil {
				r.Without = make(map[string]string)
			}
			r.Without[name] = templateHash(t, 0)
			names = append(names, name)
		} else if m.takesPart(r) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		r.Why += fmt.Sprintf(" (the state of %s cannot be written: it follows later)", strings.Join(names, ", "))
	}
}

// obstacle returns why no workload of the rollout returns: a clause with the name of a workload that
// cannot return to its previous version. It returns "" if all workloads with a previous version can
// return.
func (in *Input) obstacle(r *ReleaseState) string {
	returns := false
	check := func(o *pod.Object, s *State) string {
		to := s.before()
		if s.Release.Before == "" {
			return ""
		}
		if returns = true; to != nil && in.canReturn(o, to) {
			return ""
		}
		return "no workload of the release is rolled back, because " + nameOf(o) + " has no previous version that it may use"
	}
	all := []string{check(in.Object, &in.State)}
	for i := range in.Release {
		if m := &in.Release[i]; m.takesPart(r) {
			effective, _, _ := m.State.Override.Apply(m.Object)
			all = append(all, check(effective, &m.State))
		}
	}
	if why := cmp.Or(all...); why != "" || returns {
		return why
	}
	return "there is no other one to return to"
}
