package dra

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	retryFirst = time.Second
	retryLast  = 2 * time.Minute
	wipeLast   = 5 * time.Minute
	idle       = time.Hour
)

// wipe is the deletion of the ResourceSlices of an unregistered driver, or of all drivers.
type wipe struct {
	at       time.Time
	failures int
	cancel   context.CancelFunc // of the request; nil if none is running
}

// leftover is a pod that no source has, and that a claim's file names.
type leftover struct {
	retry    time.Time
	failures int
}

// Run deletes the ResourceSlices of unregistered drivers, and unprepares the claims of pods that no
// source has, until ctx ends. It begins with the slices of all drivers, because none has registered
// yet.
func (c *Claims) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	c.mu.Lock()
	c.wipes[""] = &wipe{at: time.Now()}
	c.mu.Unlock()
	all.Go(func() {
		for ctx.Err() == nil {
			backoff.SleepOr(ctx, c.wipeDue(ctx), c.due)
		}
	})
	for ctx.Err() == nil {
		backoff.SleepOr(ctx, c.retryLeft(ctx), c.undone)
	}
}

// wipeDue deletes the slices whose deletion is due, and returns the wait until the next one.
func (c *Claims) wipeDue(ctx context.Context) time.Duration {
	c.mu.Lock()
	var due []string
	for name, w := range c.wipes {
		if !time.Now().Before(w.at) {
			due = append(due, name)
		}
	}
	c.mu.Unlock()
	for _, name := range due {
		c.wipeOne(ctx, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := idle
	for _, w := range c.wipes {
		wait = min(wait, max(time.Until(w.at), time.Millisecond))
	}
	return wait
}

// wipeOne deletes the slices of a driver, or of all drivers for "", except of those that are connected.
// If the driver connects meanwhile, the request is cancelled.
func (c *Claims) wipeOne(ctx context.Context, name string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	w := c.wipes[name]
	var but []string
	for driver := range c.drivers {
		if name == "" && c.usableLocked(driver) {
			but = append(but, driver)
		}
	}
	if w != nil {
		w.cancel = cancel
	}
	c.mu.Unlock()
	if w == nil {
		return // the driver is back
	}
	slices.Sort(but)
	err := c.wipe(ctx, name, but)
	c.mu.Lock()
	defer c.mu.Unlock()
	w.cancel = nil
	switch {
	case c.wipes[name] != w: // the driver is back, or went away again
	case err == nil:
		delete(c.wipes, name)
	default:
		w.failures++
		w.at = time.Now().Add(backoff.Jitter(backoff.After(w.failures, retryFirst, wipeLast), 1, 1.2))
	}
	c.cfg.Log.Debug("Deleting ResourceSlices without a driver", "driver", name, "error", err)
}

// wipe deletes the slices of a driver on this node, or of all drivers but these for "".
func (c *Claims) wipe(ctx context.Context, driver string, but []string) error {
	if c.cluster.API == nil || c.cluster.Node == nil {
		return nil
	}
	n := c.cluster.Node()
	if n == nil {
		return errNoNode
	}
	return c.cluster.API.DeleteResourceSlices(ctx, n.Name, driver, but)
}

// retryLeft unprepares the claims of pods that no source has, and returns how long to wait.
func (c *Claims) retryLeft(ctx context.Context) time.Duration {
	c.mu.Lock()
	var due []string
	for uid, l := range c.left {
		if !time.Now().Before(l.retry) {
			due = append(due, uid)
		}
	}
	c.mu.Unlock()
	var calls sync.WaitGroup // a driver that hangs delays only its own claims
	for _, uid := range due {
		calls.Go(func() { c.retryOne(ctx, uid) })
	}
	calls.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := idle
	for _, l := range c.left {
		wait = min(wait, max(time.Until(l.retry), time.Millisecond))
	}
	return wait
}

func (c *Claims) retryOne(ctx context.Context, uid string) {
	err := c.releaseAll(ctx, uid, c.isLeft)
	if err != nil {
		c.cfg.Log.Warn("Failed to unprepare claims of unknown pod; retrying", "uid", uid, "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l, still := c.left[uid]
	switch {
	case err == nil:
		delete(c.left, uid)
	case still:
		l.failures++
		l.retry = time.Now().Add(backoff.After(l.failures, retryFirst, retryLast))
		c.left[uid] = l
	}
}

// isLeft reports whether no source has the pod, and the pod has not requested claims since.
func (c *Claims) isLeft(uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, left := c.left[uid]
	return left
}
