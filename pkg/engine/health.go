package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// planningLimit is how long plan.Next may take; it only computes.
const planningLimit = 30 * time.Second

// Healthy returns nil while the engine works (F7): its sync loop responds, and no worker hangs in
// planning. Otherwise it returns an error that names the part that hangs, at the latest when ctx
// ends. A runtime, a disk or a pod that hangs is no error.
func (e *Engine) Healthy(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case e.healthChecks <- answer:
	case <-ctx.Done():
		return errors.New("the sync loop is not responding")
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return errors.New("the sync loop does not complete its iteration")
	}
}

// hungWorker returns an error that names a worker that has been planning for too long; nil if there
// is none.
func (l *loop) hungWorker(now time.Time) error {
	for _, e := range l.pods {
		if e.planningSince == nil {
			continue
		}
		if since := e.planningSince.Load(); since != 0 && now.Sub(time.Unix(0, since)) > planningLimit {
			return fmt.Errorf("the worker of pod %s hangs in planning", e.key)
		}
	}
	return nil
}
