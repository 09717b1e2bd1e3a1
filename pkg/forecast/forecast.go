// Package forecast computes the changes that serving a set of pods would make.
//
// Preview compares the set with the running pods, or with a saved set. It does not compute steps
// itself: it calls plan.Foresee, which calls the same plan.Next as the engine's workers.
//
// The package changes nothing: its only access to the runtime is a plan.Observer.
package forecast

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Options are all that Preview reads. Nothing in them has a method that changes anything.
type Options struct {
	Config *podconfig.PodConfig
	// Observer reads the running pods; nil: there is no comparison with the runtime.
	Observer plan.Observer
	// Records are the agent's records, one of each pod. A pod that runs without a record is
	// compared by the hashes that the runtime carries.
	Records []pod.Record
	// TranslateOrigin translates an origin that a sandbox carries into the layers of Config,
	// where those differ from the agent's; nil where they do not.
	TranslateOrigin func(pod.Origin) pod.Origin
	// RequireSourceReady is the agent's setting: the kinds of source whose pods do not start before
	// their source is ready.
	RequireSourceReady map[string]bool
	// Forbids is the agent's function that returns the reason why no container of a pod may start,
	// or "". nil forbids nothing.
	Forbids func(want *pod.Spec) string
	// Disabled names the features that are off on the node.
	Disabled pod.Disabled
	// Halted is why the node starts no pod at all, "" when it does: it is drained, or shuts down.
	Halted string
	// Against is the saved set to compare with instead of the runtime; nil for none.
	Against *SavedSet
}

// Forecast has the changes that serving a set would make.
type Forecast struct {
	State     *podconfig.Merged
	Changes   []Change // ADD, UPDATE, DELETE, REMOVE, RECONCILE; by key inside
	Unchanged int      // pods that stay as they are
	Reconcile int      // pods of which only the status differs
	// Rollouts are the steps of workloads, by kind and key. The caller of Preview sets them.
	Rollouts []Rollout
	// Notices name the facts that the forecast could not determine, one sentence each.
	Notices []string

	now      time.Time // for plan
	forbids  func(want *pod.Spec) string
	disabled pod.Disabled
	visible  podconfig.Visible
}

// Rollout is the changes of the pods of one workload, in order.
type Rollout struct {
	pod.ObjectKey
	Steps []RolloutStep
	// Release is the release whose rollout the steps are a part of; "" for none. Together are the
	// other workloads of that rollout: if a version of one fails, all return.
	Release  string
	Together []pod.ObjectKey
}

// RolloutStep is one change of the pods of a workload.
type RolloutStep struct {
	Action string // add, remove or replace
	Pod    pod.Key
	Reason string
}

// Change is one pod that serving the set would change.
type Change struct {
	Op  podconfig.Op
	Key pod.Key
	Old *pod.Spec // nil for ADD, and where no record has it
	New *pod.Spec // nil for REMOVE
	// Source and Origin say which source defines the pod, or defined it last.
	Source string
	Origin pod.Origin
	UID    string
	Fields []podspec.FieldChange
	// RestartPod says that the whole pod is replaced, RestartContainers which
	// containers are; both empty: nothing restarts.
	RestartPod        bool
	RestartContainers []string
	// Resizes names the containers that are resized in place, without a restart.
	Resizes []podspec.ContainerResize
	// Reason says why something restarts, or why a pod is removed although a manifest still
	// defines it; may be empty.
	Reason string
	// Steps are those of serve for this pod, in order, if nothing is in its way; only a
	// comparison with the runtime has them.
	Steps []plan.Step
	Grace int64 // seconds a removed pod gets to end
}

// Restarts reports whether the change restarts anything.
func (c Change) Restarts() bool { return c.RestartPod || len(c.RestartContainers) > 0 }

// Preview reads every layer once. It returns the changes that serving the result would make:
// compared with the saved set, else with the running pods, else with nothing. It returns an error
// only when the observer does; problems of sources and manifests are in the forecast's State.
func Preview(ctx context.Context, o Options) (Forecast, error) {
	state := o.Config.Once(ctx)
	switch {
	case o.Against != nil:
		return againstSaved(state, o.Against, o.Config.Visible), nil
	case o.Observer != nil:
		have, err := o.Observer.Pods(ctx)
		if err != nil {
			return Forecast{State: state}, err
		}
		return againstRuntime(state, have, o, time.Now()), nil
	}
	return againstSaved(state, &SavedSet{}, o.Config.Visible), nil
}

// noteMissingDependencies notes every pod with a dependency that no source defines: it does
// not start before one does.
func (f *Forecast) noteMissingDependencies() {
	for s := range f.State.Pods.All() {
		for _, d := range s.DependsOn {
			if _, found := s.ResolveDependency(d, f.visible, f.State.Pod); !found {
				f.Notices = append(f.Notices, fmt.Sprintf("pod %s depends on pod %s, which no source defines", s.Key, d.Name))
			}
		}
	}
}

// againstSaved compares state with a set that an earlier merge wrote.
func againstSaved(state *podconfig.Merged, saved *SavedSet, visible podconfig.Visible) Forecast {
	f := Forecast{State: state, visible: visible}
	old := map[pod.Key]*pod.Spec{}
	for _, s := range saved.Pods {
		old[s.Key] = s
	}
	for want := range state.Pods.All() {
		was := old[want.Key]
		if was == nil {
			f.add(want)
			continue
		}
		if want == was { // its current manifest is rejected, and it stays as it was
			f.Unchanged++
			continue
		}
		f.update(want, saved.bound(was, want, state))
	}
	for _, s := range saved.Pods {
		if state.Pod(s.Key) != nil {
			continue
		}
		if why := staysOfKind(state, s); why != "" {
			f.unchanged(s.Key, why)
			continue
		}
		f.remove(s.Key, s, s.Origin, s.UID(), podview.Grace(s, nil, pod.Actual{}), "")
	}
	f.finish()
	return f
}

// againstRuntime compares state with the running pods: by the agent's records or, without a record,
// by the hashes on the sandbox and containers.
func againstRuntime(state *podconfig.Merged, have []pod.Actual, o Options, now time.Time) Forecast {
	f := Forecast{State: state, now: now, forbids: o.Forbids, disabled: o.Disabled, visible: o.Config.Visible}
	if o.Halted != "" {
		f.Notices = append(f.Notices, "no pod starts: "+o.Halted)
		f.forbids = func(*pod.Spec) string { return o.Halted }
	}
	records := plan.RecordsOf(have, o.Records)
	runs := map[pod.Key]pod.Actual{}
	for _, a := range have {
		runs[a.Key] = a
	}
	for want := range state.Pods.All() {
		a, r := runs[want.Key], records[want.Key]
		found := plan.FoundPod{Layer: lastOrigin(a, r, o.TranslateOrigin).Layer(), Spec: r.Want, ShownUID: a.UID, Running: podview.Running(a), Stopping: !r.StopSince.IsZero()}
		switch d := plan.Delayed(state, want, found, o.RequireSourceReady); {
		case d != nil && d.Stop:
			f.removeRunning(a, r, lastOrigin(a, r, o.TranslateOrigin), "it is already being stopped")
		case d != nil && d.As != nil: // an agent that was killed may have left it half done
			f.noteStays(want.Key, d.Layer+" could not be read")
			f.updateRunning(d.As, a, r)
		case d != nil && found.Running:
			f.unchanged(want.Key, d.Layer+" could not be read")
		case d != nil:
			f.waits(want.Key, d.Layer)
		case want.Pod.DeletionTimestamp != nil:
			f.deleted(want, a, r)
		case a.Empty() && r.Terminal == "": // nothing runs, and no record forbids a start
			if why := plan.ForbiddenBy(f.forbids, want); why != "" {
				f.Unchanged++
				f.Notices = append(f.Notices, fmt.Sprintf("pod %s does not start: %s", want.Key, why))
				continue
			}
			f.add(want)
			f.Changes[len(f.Changes)-1].Steps = f.steps(want, a, r)
		case r.Want != nil:
			f.updateRunning(want, a, r)
		default:
			f.updateByHash(want, a, r)
		}
	}
	for _, a := range have {
		if a.Empty() || state.Pod(a.Key) != nil {
			continue
		}
		r := records[a.Key]
		origin := lastOrigin(a, r, o.TranslateOrigin)
		why, stays := undefined(state, origin)
		if stays {
			f.unchanged(a.Key, why)
			continue
		}
		f.removeRunning(a, r, origin, why)
	}
	f.finish()
	return f
}

// steps returns the steps of serve for a pod that is on the node as a and has the record r.
func (f *Forecast) steps(want *pod.Spec, a pod.Actual, r pod.Record) []plan.Step {
	return plan.Foresee(f.view(want, a, r))
}

// view returns the input of plan, as an agent makes it.
func (f *Forecast) view(want *pod.Spec, a pod.Actual, r pod.Record) plan.View {
	v := plan.NewView(want, a, r, plan.ForbiddenBy(f.forbids, want), nil, f.now)
	v.Disabled = f.disabled
	return v
}

// restarts fills in the restarts and resizes of a running pod if want is served, from plan.
func (f *Forecast) restarts(c *Change, want *pod.Spec, a pod.Actual, r pod.Record) {
	v := f.view(want, a, r)
	c.Steps = plan.Foresee(v)
	c.RestartPod, c.RestartContainers = plan.RestartedByEdit(a, v.Record.Instance, c.Steps)
	for _, name := range plan.Resized(c.Steps) {
		have := a.Containers[name]
		has := cmp.Or(r.ContainerNotes[have.ID].Resources, have.Resources)
		c.Resizes = append(c.Resizes, podspec.ContainerResize{Container: name, Resources: pod.ResourcesChanged(has, want.Resources(name))})
	}
}

// undefined returns whether a running pod that the set does not define stays, and why; or why
// it is removed, where its manifest may still exist.
func undefined(state *podconfig.Merged, origin pod.Origin) (why string, stays bool) {
	ready, configured := state.Ready(origin.Layer())
	switch {
	case origin.Source == "":
		return "its layer is unknown", false
	case !configured:
		return "layer " + origin.Layer() + " is not configured", false
	case !ready:
		return origin.Layer() + " could not be read", true
	}
	if file := rejectedFile(state, origin); file != "" {
		return file + " is rejected", true
	}
	return "", false
}

// staysOfKind returns why a saved pod that the set does not define stays: a saved set
// knows the kind of its layer only, so every layer of that kind counts.
func staysOfKind(state *podconfig.Merged, s *pod.Spec) string {
	for _, l := range state.Layers {
		if !l.Ready && (s.Origin.Source == "" || l.Source == s.Origin.Source) {
			return l.Name + " could not be read"
		}
	}
	return ""
}

// rejectedFile returns the file of origin when something in it is rejected.
func rejectedFile(state *podconfig.Merged, origin pod.Origin) string {
	for _, p := range state.Problems {
		if origin.File != "" && p.File == origin.File {
			return p.File
		}
	}
	return ""
}

func (f *Forecast) add(want *pod.Spec) {
	f.Changes = append(f.Changes, Change{Op: podconfig.ADD, Key: want.Key, New: want, Source: want.Origin.Source, Origin: want.Origin, UID: want.UID()})
}

func (f *Forecast) remove(key pod.Key, old *pod.Spec, origin pod.Origin, uid string, grace int64, why string) {
	f.Changes = append(f.Changes, Change{Op: podconfig.REMOVE, Key: key, Old: old, Source: origin.Source, Origin: origin, UID: uid, Grace: grace, Reason: why})
}

// removeRunning records the removal of a pod that is on the node.
func (f *Forecast) removeRunning(a pod.Actual, r pod.Record, origin pod.Origin, why string) {
	steps := f.steps(nil, a, r)
	f.remove(a.Key, r.Want, origin, a.UID, graceOf(steps, podview.Grace(r.Want, nil, a)), why)
	f.Changes[len(f.Changes)-1].Steps = steps
}

// unchanged counts a pod that stays, and notes why.
func (f *Forecast) unchanged(key pod.Key, why string) {
	f.Unchanged++
	f.noteStays(key, why)
}

func (f *Forecast) noteStays(key pod.Key, why string) {
	f.Notices = append(f.Notices, fmt.Sprintf("pod %s stays: %s", key, why))
}

func (f *Forecast) waits(key pod.Key, layer string) {
	f.Unchanged++
	f.Notices = append(f.Notices, fmt.Sprintf("pod %s does not start until %s answers", key, layer))
}

// deleted records a pod that its source deletes (C-1.2.9), until nothing of it is on the
// node. It never starts again, however long its source shows it.
func (f *Forecast) deleted(want *pod.Spec, a pod.Actual, r pod.Record) {
	if a.Empty() {
		f.Unchanged++
		return
	}
	c := changeOf(want, r.Want)
	c.Op, c.Steps = podconfig.DELETE, f.steps(want, a, r)
	if r.Want != nil {
		c.Fields = differences(r.Want, want)
	}
	c.Grace = graceOf(c.Steps, podview.Grace(want, nil, a))
	f.Changes = append(f.Changes, c)
}

// update records want where it differs from the spec before.
func (f *Forecast) update(want, was *pod.Spec) {
	c := changeOf(want, was)
	c.Fields = differences(was, want)
	c.RestartPod, c.RestartContainers, c.Reason = podspec.RestartByData(was, want)
	c.Resizes = podspec.Resizes(was, want)
	f.change(c)
}

// updateRunning adds want to the forecast if it differs from the running pod: the record shows the
// fields, and plan the restarts. A record is written after a container was created, so the agent
// may have ended in between: changed fields of a container that already runs as desired do not
// count.
func (f *Forecast) updateRunning(want *pod.Spec, a pod.Actual, r pod.Record) {
	was := r.Want
	c := changeOf(want, was)
	c.Fields = differences(was, want)
	f.restarts(&c, want, a, r)
	if c.Restarts() {
		whole, containers, why := podspec.RestartByData(was, want)
		if c.Reason = why; whole != c.RestartPod || !slices.Equal(containers, c.RestartContainers) {
			c.Reason = hashReason(c)
		}
	}
	for name := range want.ContainerHashes {
		have, ok := a.Containers[name]
		if ok && have.Hash == want.ContainerHash(name) && was.ContainerHash(name) != have.Hash {
			c.Fields = slices.DeleteFunc(c.Fields, func(d podspec.FieldChange) bool { return ofContainer(d.Path, name) })
		}
	}
	for _, name := range c.unknown() {
		if !hasContainer(was, name) {
			c.Fields = append(c.Fields, podspec.FieldChange{Path: "spec.containers[" + name + "]", Old: "(runs)"})
		}
	}
	f.change(c)
}

// updateByHash compares want with a pod without a recorded spec.
func (f *Forecast) updateByHash(want *pod.Spec, a pod.Actual, r pod.Record) {
	c := changeOf(want, nil)
	note := "its record cannot be read: compared by hash"
	known := a.Sandbox != nil && podspec.HashVersion(a.Sandbox.SandboxHash) == podspec.HashVersion(want.SandboxHash)
	changed := known && (a.UID != want.UID() || a.Sandbox.SpecHash != want.Hash)
	for name, hash := range want.ContainerHashes {
		have, ok := a.Containers[name]
		changed = changed || known && ok && have.Hash != hash && podspec.HashVersion(have.Hash) == podspec.HashVersion(hash)
	}
	f.restarts(&c, want, a, r)
	unknown := c.unknown()
	switch {
	case changed:
		if c.Reason = hashReason(c); !c.Restarts() {
			c.Reason = "the hash of the manifest differs"
		}
	case known && len(unknown) > 0:
		c.Reason = "the manifest does not have container " + strings.Join(unknown, ", ")
	default:
		c = changeOf(want, nil)
	}
	if !known {
		note = "its record cannot be read, and it has no hash that can be compared: assumed to be unchanged"
	}
	f.Notices = append(f.Notices, fmt.Sprintf("pod %s: %s", want.Key, note))
	f.change(c)
}

// finish adds the notices of the whole set, and sorts the changes for output: by op, then by
// key.
func (f *Forecast) finish() {
	f.noteMissingDependencies()
	rank := []podconfig.Op{podconfig.ADD, podconfig.UPDATE, podconfig.DELETE, podconfig.REMOVE, podconfig.RECONCILE}
	slices.SortStableFunc(f.Changes, func(a, b Change) int {
		if c := slices.Index(rank, a.Op) - slices.Index(rank, b.Op); c != 0 {
			return c
		}
		return a.Key.Compare(b.Key)
	})
	slices.Sort(f.Notices)
}

// lastOrigin returns which origin defined a running pod last.
func lastOrigin(a pod.Actual, r pod.Record, here func(pod.Origin) pod.Origin) pod.Origin {
	if r.Want != nil {
		return r.Want.Origin
	}
	if a.Sandbox == nil {
		return pod.Origin{}
	}
	source, location, _ := strings.Cut(a.Sandbox.Layer, ":")
	o := pod.Origin{Source: source, Location: location}
	if here != nil {
		o = here(o)
	}
	return o
}

// graceOf returns the longest grace of steps that stop a container, or otherwise if there are
// none.
func graceOf(steps []plan.Step, otherwise int64) int64 {
	longest := int64(-1)
	for _, s := range steps {
		if s.Action == plan.StopContainer {
			longest = max(longest, s.Grace)
		}
	}
	if longest < 0 {
		return otherwise
	}
	return longest
}
