package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// saveRetry is how long a worker waits after a failed write of its record before it writes the record
// again. The last good writer and the state writer wait as long.
const saveRetry = time.Minute

// instanceRecord is the record of the pod's instance, as the worker keeps it on disk.
type instanceRecord struct {
	pod.Record
	loaded    bool  // loadRecord was called
	dirty     bool  // the record differs from the one on the disk
	saveErr   error // of the last write
	saveTried bool  // a write was tried since the last report; saveErr is its result
}

// loadRecord reads the record of uid, the UID that the runtime shows. If that is "", it reads the
// record of the desired pod. If there is none either, it reads that of the orphaned pod that the
// worker stops.
func (w *worker) loadRecord(uid string) {
	if uid == "" && w.update.want != nil {
		uid = w.update.want.UID()
	}
	if uid == "" {
		uid = w.uid
	}
	end := w.env.board.Begin(w.key, activity.Call{Kind: activity.Record, Name: "read record"})
	rec, ok, err := w.env.records.Load(w.key, uid)
	end()
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

// forgetRest removes the directory of an orphaned pod of which nothing else is left. An agent that is
// killed while it starts or removes a pod leaves such a directory.
func (w *worker) forgetOrphanDir(ctx context.Context) {
	if w.uid == "" {
		return
	}
	own, err := w.isOwner(w.uid)
	if own {
		w.releaseDevices(w.uid)
		w.leaveClaims(w.uid)
		err = w.call(ctx, 0, nil, func() error { return w.env.volumes.Forget(ctx, w.key, w.uid) })
	}
	if err != nil {
		w.log.Warn("Failed to remove the pod's directory", "error", err)
	}
	w.uid = ""
}

// save is saveOwn for callers that continue if the UID belongs to another pod. It only logs that.
func (w *worker) save() {
	if err := w.saveOwn(); err != nil {
		w.log.Debug("Not writing record: the UID belongs to another pod", "error", err)
	}
}

// saveOwn writes the record if it has changed. Its only error is a *pod.OwnerError: the UID
// belongs to another pod. After any other failure the worker continues, and the disk has an old
// record or none. If the agent restarts then, some status fields are lost, but no container stops.
func (w *worker) saveOwn() error {
	if !w.rec.dirty || w.rec.UID == "" || w.rec.Instance == 0 {
		return nil // no instance has begun
	}
	end := w.env.board.Begin(w.key, activity.Call{Kind: activity.Record, Name: "write record"})
	err := w.env.records.Save(w.rec.Record)
	end()
	if other, is := errors.AsType[*pod.OwnerError](err); is { // no failure of the disk
		return other
	}
	w.rec.saveTried, w.rec.saveErr, w.rec.dirty = true, err, err != nil
	return nil
}

// catchUp sets the number of the instance to the one that the runtime shows, if that is newer.
func (r *instanceRecord) catchUp(have pod.Actual) {
	if r.AdoptNewerInstance(have) {
		r.dirty = true
	}
}

// raiseAttempts raises the next attempt numbers in the record above those of the containers that
// the runtime shows and that have started. So no two containers that start have the same attempt
// number, even if the earlier one is removed meanwhile.
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
			raise(name, c.Attempt) // it has not started: the next container may have the same number
		} else {
			raise(name, c.Attempt+1)
		}
	}
}

// remember stores the decisions of the plan in the record: the spec of the instance, its end, and
// the time at which its stop began. The caller saves the record.
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
	case w.update.halt.terminates(v.Want) && w.rec.Instance == 0 && v.Have.Empty():
		if err := w.shutDownUnstarted(ctx, v.Want); err != nil {
			return err
		}
	case p.End.Phase != "":
		// If no instance has begun, save writes nothing. Then the pod had terminated at its API
		// server before it ran here, and its source shows that to the next agent as well.
		w.rec.Terminal, w.rec.dirty = v1.PodPhase(p.End.Phase), true
		w.rec.TerminalReason, w.rec.TerminalMessage = p.End.Reason, p.End.Message
		if p.End.Reason == eventDeadline {
			w.event(v.Want, "", pod.EventNormal, eventDeadline, "%s", p.End.Message)
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

// noteStopping records that the stop of the instance begins now, unless it has begun.
func (r *instanceRecord) noteStopping() {
	if r.StopSince.IsZero() {
		r.StopSince, r.dirty = time.Now(), true
	}
}

// refuse records a final refusal as an instance that has Failed, so that no later agent judges
// the pod again. It records nothing if the UID belongs to another pod.
func (w *worker) refuse(ctx context.Context, want *pod.Spec) error {
	if w.update.refused.reason == plan.DuplicateUID {
		return nil
	}
	if err := w.beginInstance(ctx, want, max(w.rec.Instance, 1)); err != nil {
		return err
	}
	w.rec.Terminal, w.rec.TerminalReason = v1.PodFailed, w.update.refused.reason
	w.rec.TerminalMessage = status.RejectedPrefix + w.update.refused.message
	return nil
}

// reject records that the instance has Failed, since the node rejects the pod after its admission.
func (w *worker) reject(want *pod.Spec, e *pod.RejectError) {
	w.rec.Terminal, w.rec.TerminalReason = v1.PodFailed, e.Reason
	w.rec.TerminalMessage, w.rec.dirty = status.RejectedPrefix+e.Message, true
	delete(w.failedSteps.byContainer, "")
	w.log.Warn("Rejecting pod", "reason", e.Reason, "message", e.Message, "error", e.Err)
	w.event(want, "", pod.EventWarning, e.Reason, "%s", e.Message)
}

// beginInstance records the instance that is about to start. It first removes the directory,
// cgroup and users of an older pod of this name with another UID. If that fails, the record
// stays the older pod's, and the worker tries again.
func (w *worker) beginInstance(ctx context.Context, want *pod.Spec, instance int) error {
	old := w.rec.UID
	other := w.rec.Instance > 0 && old != "" && old != want.UID()
	if other {
		if err := w.removeAll(ctx, old); err != nil {
			return fmt.Errorf("remove the older pod %s of this name: %w", old, err)
		}
	}
	if !w.rec.Begin(want, instance, time.Now()) {
		return nil
	}
	w.rec.dirty, w.reported.status = true, restartCounts(w.reported.status)
	if other {
		w.reported.status = v1.PodStatus{}
	}
	return nil
}

// release removes the pod's cgroup and releases its devices and users.
func (w *worker) release(uid string) error {
	w.releaseDevices(uid)
	if w.env.cgroups != nil {
		if err := w.env.cgroups.Destroy(uid); err != nil {
			return err
		}
	}
	if w.env.users != nil {
		return w.env.users.Release(uid)
	}
	return nil
}

// removeAll removes everything under the UID on the node: the cgroup with its processes, the users,
// prepared claims, the directory. It removes nothing if the UID belongs to another pod.
func (w *worker) removeAll(ctx context.Context, uid string) error {
	if own, err := w.isOwner(uid); !own {
		return err
	}
	if err := w.release(uid); err != nil {
		return err
	}
	w.leaveClaims(uid)
	return w.call(ctx, w.env.starts.SlotTimeout(), nil, func() error { return w.env.volumes.Forget(ctx, w.key, uid) })
}

// otherOwner returns the pod that owns the record of the UID on the disk, if that is another pod,
// else nil. A manifest may set the UID of another pod. err says that the record cannot be read.
func (w *worker) otherOwner(uid string) (other *pod.OwnerError, err error) {
	owner, known, err := w.env.records.Owner(uid)
	if err == nil && known && owner != w.key {
		return &pod.OwnerError{UID: uid, Owner: owner}, nil
	}
	return nil, err
}

// isOwner reports whether the UID belongs to no other pod: then the worker may remove everything
// under it.
func (w *worker) isOwner(uid string) (bool, error) {
	other, err := w.otherOwner(uid)
	if other != nil {
		w.log.Warn("Not removing anything: the UID belongs to another pod", "podUID", uid, "owner", other.Owner.String())
		return false, nil
	}
	return err == nil, err
}

// forget removes everything of the pod on the node (removeAll), and empties its record. The worker
// writes the record again only when another instance begins.
func (w *worker) forget(ctx context.Context, uid string) error {
	if uid != "" {
		if err := w.removeAll(ctx, uid); err != nil {
			return err
		}
	}
	w.rec.clear(w.key)
	if !deleting(w.update.want) { // the worker still reports the last status of a pod that is being deleted (C-1.27.9)
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
	notes := r.ContainerNotes[id]
	change(&notes)
	r.ContainerNotes[id] = notes
	r.dirty = true
}

// setStreak records the crash streak of a container before its removal. The next container of the
// name continues the streak (C-1.21.3).
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
