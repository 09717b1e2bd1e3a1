package csi

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	retryFirst = time.Second
	retryLast  = 2 * time.Minute
	// restGrace is how long a volume without a pod stays staged after the start of the agent: its
	// pod may still come.
	restGrace = 2 * time.Minute
	// confirmEvery is how often the publisher compares the CSINode object with the drivers if
	// nothing changes.
	confirmEvery = 10 * time.Minute
)

// Run keeps the CSINode object current, and tries again to unmount and to unstage volumes that no
// pod uses, until ctx ends.
func (v *Volumes) Run(ctx context.Context) {
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() { (&publisher{Volumes: v}).run(ctx) }) // apart from calls to drivers, which may hang
	publishing.Go(func() { (&refresher{Volumes: v}).run(ctx) })
	began := time.Now()
	for ctx.Err() == nil {
		v.retryLeft(ctx)
		if time.Since(began) > restGrace {
			v.unstageUnused(ctx)
		}
		wait := confirmEvery
		if v.hasLeft() {
			wait = retryFirst
		}
		backoff.SleepOr(ctx, wait, v.undone)
		backoff.Sleep(ctx, waitFirst)
	}
}

// publisher keeps the CSINode object current.
type publisher struct {
	*Volumes
	known    string    // the drivers that the object shows
	failures int       // since the last successful update
	next     time.Time // the time of the next attempt or comparison
}

// run keeps the object current until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for ctx.Err() == nil {
		backoff.SleepOr(ctx, max(p.update(ctx), retryFirst), p.due)
		backoff.Sleep(ctx, waitFirst) // limits the requests if a driver registers repeatedly
	}
}

// update updates the object if it is due, and returns the wait until the next update.
func (p *publisher) update(ctx context.Context) time.Duration {
	switch state := p.driverState(); {
	case p.cluster.API == nil:
		return confirmEvery
	case p.node() == nil: // its UID is not known
		return retryFirst
	case time.Now().Before(p.next) && (p.failures > 0 || state == p.known):
	default:
		err := p.putCSINode(ctx)
		if err == nil {
			p.known, p.failures, p.next = state, 0, time.Now().Add(backoff.Jitter(confirmEvery, 1, 1.1))
			break
		}
		p.failures++
		p.next = time.Now().Add(backoff.Jitter(backoff.After(p.failures, retryFirst, retryLast), 1, 1.2))
		if !errors.Is(err, errChanged) && ctx.Err() == nil {
			p.cfg.Log.Warn("Failed to update CSINode object", "error", err, "retry", time.Until(p.next).Round(time.Second).String())
		}
	}
	return time.Until(p.next)
}

// hasLeft reports whether a volume still has to be unmounted or unstaged.
func (v *Volumes) hasLeft() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, at := range v.volumes {
		if at.staged && !at.foreign && len(at.users) == 0 {
			return true
		}
	}
	return len(v.left) > 0
}

// retryLeft retries to unmount volumes of pods that no source has.
func (v *Volumes) retryLeft(ctx context.Context) {
	v.mu.Lock()
	var due []user
	for u, l := range v.left {
		if !time.Now().Before(l.retry) {
			due = append(due, u)
		}
	}
	v.mu.Unlock()
	for _, u := range due {
		err := v.unpublishAll(ctx, u.uid, v.ownUsersOf(u.uid), v.isLeft)
		v.mu.Lock()
		l, still := v.left[u]
		switch {
		case err == nil:
			delete(v.left, u)
		case still:
			l.failures++
			l.retry = time.Now().Add(backoff.After(l.failures, retryFirst, retryLast))
			v.left[u] = l
		}
		v.mu.Unlock()
		if err != nil {
			v.cfg.Log.Warn("Failed to unmount volume of unknown pod; retrying", "uid", u.uid, "volume", u.name, "error", err)
		}
	}
}

// retryUnstage notes that a volume could not be unstaged.
func (v *Volumes) retryUnstage(id volumeID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at := v.volumes[id]; at != nil {
		at.failures++
		at.retry = time.Now().Add(backoff.After(at.failures, retryFirst, retryLast))
	}
	v.undone.Send()
}

// unstageUnused unstages volumes that no pod uses. A call that hangs delays only other volumes to
// unstage, and no pod.
func (v *Volumes) unstageUnused(ctx context.Context) {
	v.mu.Lock()
	var due []volumeID
	for id, at := range v.volumes {
		if v.swept && at.staged && !at.foreign && len(at.users) == 0 && !time.Now().Before(at.retry) {
			due = append(due, id)
		}
	}
	v.mu.Unlock()
	for _, id := range due {
		o := &operation{Volumes: v, id: id, source: source{lifecycle: persistent}}
		if err := o.rest(ctx); err != nil {
			_ = o.later(err)
		}
	}
}

// rest unstages the volume if no pod uses it.
func (o *operation) rest(ctx context.Context) error {
	defer activity.Begin(ctx, activity.Call{Kind: activity.Driver, Name: "unstage volume", Target: o.id.handle, Host: o.id.driver})()
	waiting, stop := context.WithTimeout(ctx, lockTimeout)
	unlock, err := o.locks.Lock(waiting, o.id)
	stop()
	if err != nil {
		return err
	}
	defer unlock()
	defer func() { o.release(o.driver) }()
	d, err := readData(o.stageDir(o.id))
	if err != nil || !d.own() || o.others(o.id, user{}, false) > 0 {
		return err
	}
	if o.driver = o.acquire(o.id.driver); o.driver == nil {
		return errNotRegistered(o.id.driver)
	}
	if o.abilities, err = o.driver.abilities(ctx); err != nil {
		return err
	}
	switch step := Next(State{Registered: true, Stages: o.abilities.stages, Staged: d.progress(o.boot)}); step.Action {
	case Unstage:
		return o.unstage(ctx)
	case ClearStage:
		return o.clearStage()
	}
	return nil
}
