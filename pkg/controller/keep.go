package controller

import (
	"time"

	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/patience"
	"github.com/nodectl/nodectl/pkg/workload"
)

// keepWait is how long a rollback waits at most for the copy of the failed version's logs.
const keepWait = 10 * time.Second

// maxKeeps limits the copies of logs that run at once. Further copies begin when one has ended.
const maxKeeps = 4

// keeping is the copy of the logs of one failed version.
type keeping struct {
	revision int64
	until    time.Time     // the rollback waits until then at most
	done     chan struct{} // closed when the copy has ended; nil: it has not begun
	waits    bool          // the newest decision waits for it
}

// isOver reports whether a rollback need not wait for the copy any more. until uses the monotonic
// clock, because the wall clock may be set back.
func (k *keeping) isOver() bool {
	select {
	case <-k.done:
		return true
	default:
		return !time.Now().Before(k.until)
	}
}

// keep starts one copy of the logs of a failed version. It reports whether the rollback may take
// effect: the copy has ended, or takes too long. It never waits, because a hanging disk must not
// delay the readings of sources. If it reports false, the workload becomes due later.
func (c *Controller) keep(e *entry, failed workload.FailedVersion, now time.Time) bool {
	if c.cfg.Keep == nil || !c.cfg.Live {
		return true
	}
	k := e.keeping
	if k == nil || k.revision != failed.Number {
		k = &keeping{revision: failed.Number, until: time.Now().Add(keepWait)}
		e.keeping = k
	}
	if k.done == nil && c.keeps.Load() < maxKeeps {
		k.done = make(chan struct{})
		c.beginKeep(e, failed, k.done)
	}
	if k.isOver() {
		if k.done == nil {
			c.cfg.Log.Warn("Failed to keep the logs of a version that is rolled back: too many other copies run", "workload", e.name(), "revision", failed.Number)
		}
		return true
	}
	k.waits, e.wake = true, now.Add(time.Until(k.until))
	return false
}

// beginKeep copies logs in a goroutine, which may hang on the disk.
func (c *Controller) beginKeep(e *entry, failed workload.FailedVersion, done chan<- struct{}) {
	o, name := e.object, e.name()
	c.keeps.Add(1)
	patience.Start(func() error {
		err := panics.ToError(func() error {
			c.cfg.Keep(o, failed)
			return nil
		})
		if err != nil {
			c.cfg.Log.Error("Failed to keep the logs of a version that is rolled back", "workload", name, "revision", failed.Number, "error", err)
		}
		close(done)
		c.keeps.Add(-1)
		c.wake()
		return nil
	})
}

// isDue reports whether decide must run for a workload now.
func (c *Controller) isDue(e *entry, now time.Time) bool {
	switch k := e.keeping; {
	case e.saving != nil || e.change != nil:
		return false
	case e.due, e.stirred, !e.wake.IsZero() && !now.Before(e.wake):
		return true
	default:
		return k != nil && k.waits && (k.isOver() || k.done == nil && c.keeps.Load() < maxKeeps)
	}
}
