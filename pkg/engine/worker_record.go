package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// saveRetry is how long the worker waits before it writes a record again that could not be
// written.
const saveRetry = time.Minute

// instanceRecord is the record of the pod's instance, as the worker keeps it on disk.
type instanceRecord struct {
	pod.Record
	loaded    bool // it was read
	dirty     bool // it differs from what is on the disk
	saveErr   error
	saveTried bool // since the last report
}

// loadRecord reads the record of the instance the runtime shows, else of the desired pod,
// else of the one that was found on disk.
func (w *worker) loadRecord(uid string) {
	if uid == "" && w.update.want != nil {
		uid = w.update.want.UID()
	}
	if uid == "" {
		uid = w.uid
	}
	rec, ok, err := w.env.records.Load(w.key, uid)
	if err != nil {
		w.log.Warn("Failed to read record", "error", err)
	}
	if ok {
		w.rec.Record = rec
	} else {
		w.rec.Record = pod.Record{Key: w.key, UID: uid}
	}
	if w.rec.Attempts == nil {
		w.rec.Attempts = make(map[string]uint32)
	}
}

// forgetRest removes a directory that an agent which died early may have left of a pod.
// Nothing else shows it.
func (w *worker) forgetRest(ctx context.Context) {
	if w.uid == "" {
		return
	}
	own, err := w.isOwner(w.uid)
	if own {
		err = w.env.volumes.Forget(ctx, w.key, w.uid)
	}
	if err != nil {
		w.log.Warn("Failed to remove the pod's directory", "error", err)
	}
	w.uid = ""
}

// save writes the record as saveOwn does. If the UID belongs to another pod, it only logs that.
func (w *worker) save() {
	if err := w.saveOwn(); err != nil {
		w.log.Debug("Not writing record: the UID belongs to another pod", "error", err)
	}
}

// saveOwn writes the record when it changed. A record that cannot be written costs some
// status fields, never a container: the worker continues. The only error that it returns is
// a *pod.OwnerError: the UID belongs to another pod.
func (w *worker) saveOwn() error {
	if !w.rec.dirty || w.rec.UID == "" || w.rec.Instance == 0 {
		return nil // nothing of it exists yet
	}
	err := w.env.records.Save(w.rec.Record)
	if other, is := errors.AsType[*pod.OwnerError](err); is { // no failure of the disk
		return other
	}
	w.rec.saveTried, w.rec.saveErr, w.rec.dirty = true, err, err != nil
	return nil
}

// catchUp takes the number of a newer instance from the runtime.
func (r *instanceRecord) catchUp(have pod.Actual) {
	if r.CatchUp(have) {
		r.dirty = true
	}
}

// raiseAttempts keeps the numbers that only rise ahead of those the runtime shows, so that
// they outlive the containers that carry them.
func (r *instanceRecord) raiseAttempts(have pod.Actual) {
	raise := func(name string, next uint32) {
		if next > r.Attempts[name] {
			r.Attempts[name] = next
			r.dirty = true
		}
	}
	if have.Sandbox != nil {
		raise("", have.Sandbox.Attempt+1)
	}
	for name, c := range have.Containers {
		if c.State == pod.StateCreated {
			raise(name, c.Attempt) // it has not been started
		} else {
			raise(name, c.Attempt+1)
		}
	}
}

// remember puts into the record what this plan decided: the spec of the instance, its end,
// and since when it stops.
func (w *worker) remember(ctx context.Context, v plan.View, p plan.Plan) error {
	if v.Want != nil && w.rec.Want != v.Want && plan.Instance(v) == v.Record.Instance {
		w.rec.Want, w.rec.dirty = v.Want, true
	}
	if w.rec.StartTime.IsZero() && v.Want != nil && !deleting(v.Want) {
		w.rec.StartTime, w.rec.dirty = v.Want.Acknowledged(time.Now()), true
	}
	switch {
	case w.rec.Terminal != "":
	case w.update.refused.final && v.Have.Empty() && v.Want != nil:
		if err := w.refuse(ctx, v.Want); err != nil {
			return err
		}
	case p.Ended.Phase != "":
		// If the pod never ran here, its API server shows the end: nothing of it is recorded.
		w.rec.Terminal, w.rec.dirty = v1.PodPhase(p.Ended.Phase), true
		w.rec.TerminalReason, w.rec.TerminalMessage = p.Ended.Reason, p.Ended.Message
		if p.Ended.Reason == eventDeadline {
			w.event(v.Want, "", pod.EventNormal, eventDeadline, "%s", p.Ended.Message)
		}
	}
	if w.rec.RestartingAll != p.RestartingAll {
		w.rec.RestartingAll, w.rec.dirty = p.RestartingAll, true
	}
	if p.Stops() {
		w.rec.noteStopping()
	}
	return nil
}

// noteStopping records since when the instance is being stopped. A plan that pulls first
// stops nothing before the pull is done.
func (r *instanceRecord) noteStopping() {
	if r.StopSince.IsZero() {
		r.StopSince, r.dirty = time.Now(), true
	}
}

// refuse records a final rejection as the end of an instance that never ran, so that no later
// agent judges the pod again. It records none under the UID of another pod.
func (w *worker) refuse(ctx context.Context, want *pod.Spec) error {
	if w.update.refused.reason == plan.DuplicateUID {
		return nil
	}
	if err := w.beginInstance(ctx, want, max(w.rec.Instance, 1)); err != nil {
		return err
	}
	w.rec.Terminal, w.rec.TerminalReason = v1.PodFailed, w.update.refused.reason
	w.rec.TerminalMessage = status.Rejected + w.update.refused.message
	return nil
}

// beginInstance notes the instance that is about to start. An older pod of this name is
// removed first: while that fails, its UID stays the record's, and the pod is tried again.
func (w *worker) beginInstance(ctx context.Context, want *pod.Spec, instance int) error {
	old := w.rec.UID
	other := w.rec.Instance > 0 && old != "" && old != want.UID() // without an instance, nothing began
	if other {
		if err := w.removeAll(ctx, old); err != nil {
			return fmt.Errorf("remove the older pod %s of this name: %w", old, err)
		}
	}
	if !w.rec.Begin(want, instance, time.Now()) {
		return nil
	}
	w.rec.dirty, w.reported.status = true, counts(w.reported.status)
	if other {
		w.reported.status = v1.PodStatus{}
	}
	return nil
}

// release releases the pod's cgroup and its users.
func (w *worker) release(uid string) error {
	if w.env.cgroups != nil {
		if err := w.env.cgroups.Take(uid); err != nil {
			return err
		}
	}
	if w.env.users != nil {
		return w.env.users.Take(uid)
	}
	return nil
}

// removeAll removes what the node keeps under the UID: the cgroup with its processes, the
// users, the directory. It removes nothing where the UID is another pod's.
func (w *worker) removeAll(ctx context.Context, uid string) error {
	if own, err := w.isOwner(uid); !own {
		return err
	}
	if err := w.release(uid); err != nil {
		return err
	}
	return w.env.volumes.Forget(ctx, w.key, uid)
}

// otherOwner returns the other pod for which the disk has the UID's record, nil for none:
// manifests may claim UIDs. err says that the record cannot be read.
func (w *worker) otherOwner(uid string) (other *pod.OwnerError, err error) {
	owner, known, err := w.env.records.Owner(uid)
	if err == nil && known && owner != w.key {
		return &pod.OwnerError{UID: uid, Owner: owner}, nil
	}
	return nil, err
}

// isOwner reports whether what the node keeps under the UID may be removed: the UID is not
// another pod's.
func (w *worker) isOwner(uid string) (bool, error) {
	other, err := w.otherOwner(uid)
	if other != nil {
		w.log.Warn("Not removing anything: the UID belongs to another pod", "podUID", uid, "owner", other.Owner.String())
		return false, nil
	}
	return err == nil, err
}

// forget removes what is left of the pod. Its record is then empty, and the worker does not
// write it again.
func (w *worker) forget(ctx context.Context, uid string) error {
	if uid != "" {
		if err := w.removeAll(ctx, uid); err != nil {
			return err
		}
	}
	w.rec.clear(w.key)
	if !deleting(w.update.want) { // how it ended is still to be reported (C-1.27.9)
		w.reported.status = v1.PodStatus{}
	}
	return nil
}

// clear empties the record, which is not written before an instance begins.
func (r *instanceRecord) clear(key pod.Key) {
	r.Record, r.dirty = pod.Record{Key: key, Attempts: make(map[string]uint32)}, false
}

// setNotes changes the notes of one container.
func (r *instanceRecord) setNotes(id string, change func(*pod.ContainerNotes)) {
	if r.ContainerNotes == nil {
		r.ContainerNotes = make(map[string]pod.ContainerNotes)
	}
	l := r.ContainerNotes[id]
	change(&l)
	r.ContainerNotes[id] = l
	r.dirty = true
}

// setStreak notes the crash streak of a container that is about to be removed and has a
// successor (C-1.21.3).
func (w *worker) setStreak(s plan.Step) {
	if s.Streak == 0 {
		return
	}
	if w.rec.Streaks == nil {
		w.rec.Streaks = make(map[string]int)
	}
	w.rec.Streaks[s.Container], w.rec.dirty = s.Streak, true
	w.save()
}

// forgetNotes drops the notes of containers that are gone.
func (r *instanceRecord) forgetNotes(have pod.Actual) {
	if len(r.ContainerNotes) == 0 {
		return
	}
	there := make(map[string]bool, len(have.Containers)+len(have.Dead))
	for _, c := range have.Containers {
		there[c.ID] = true
	}
	for _, c := range have.Dead {
		there[c.ID] = true
	}
	for id := range r.ContainerNotes {
		if !there[id] {
			delete(r.ContainerNotes, id)
			r.dirty = true
		}
	}
}
