package controller

import (
	"time"

	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/workload"
)

// copyPatience is how long a rollback waits for the copy of the failed version's logs.
const copyPatience = 10 * time.Second

// maxCopies limits the copies of logs that run at once. Further copies begin when one has ended.
const maxCopies = 4

// logCopy is the copy of the logs of one failed version.
type logCopy struct {
	revision int64
	until    time.Time     // the rollback waits no longer than that
	done     chan struct{} // closed when the copy has ended; nil: it has not begun
	waits    bool          // the newest decision waits for it
}

// isOver reports whether a rollback need not wait for the copy any more. until is a reading of the
// monotonic clock, because the wall clock may be set back.
func (k *logCopy) isOver() bool {
	select {
	case <-k.done:
		return true
	default:
		return !time.Now().Before(k.until)
	}
}

// copyLogs starts the copy of the logs of a failed version, once. It reports whether the rollback may
// take effect: the copy has ended, or takes too long. It never waits, because a hanging disk must not
// delay the readings of sources. If it reports false, the workload becomes due later.
func (c *Controller) copyLogs(e *entry, failed workload.FailedVersion, now time.Time) bool {
	if c.cfg.Keep == nil || !c.cfg.Live {
		return true
	}
	k := e.logs
	if k == nil || k.revision != failed.Number {
		k = &logCopy{revision: failed.Number, until: time.Now().Add(copyPatience)}
		e.logs = k
	}
	if k.done == nil && c.copies.Load() < maxCopies {
		k.done = make(chan struct{})
		c.startCopy(e, failed, k.done)
	}
	if k.isOver() {
		if k.done == nil {
			c.cfg.Log.Warn("Failed to copy the logs of a version that is rolled back: too many other copies are running", "workload", e.name(), "revision", failed.Number)
		}
		return true
	}
	k.waits, e.wake = true, now.Add(time.Until(k.until))
	return false
}

// startCopy copies logs in a goroutine, which may hang on the disk.
func (c *Controller) startCopy(e *entry, failed workload.FailedVersion, done chan<- struct{}) {
	o, name := e.object, e.name()
	c.copies.Add(1)
	boundedcall.Start(func() error {
		err := panics.ToError(func() error {
			c.cfg.Keep(o, failed)
			return nil
		})
		if err != nil {
			c.cfg.Log.Error("Failed to copy the logs of a version that is rolled back", "workload", name, "revision", failed.Number, "error", err)
		}
		close(done)
		c.copies.Add(-1)
		c.due.Send()
		return nil
	})
}

// isDue reports whether decide must run for a workload now.
func (c *Controller) isDue(e *entry, now time.Time) bool {
	switch k := e.logs; {
	case e.saving != nil || e.change != nil:
		return false
	case e.due, e.dueByRelease, !e.wake.IsZero() && !now.Before(e.wake):
		return true
	default:
		return k != nil && k.waits && (k.isOver() || k.done == nil && c.copies.Load() < maxCopies)
	}
}
