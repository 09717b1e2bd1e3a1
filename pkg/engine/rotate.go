package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/pod"
)

// defaultLogCheck is how often the sizes of logs are checked by default (C-1.43.1).
const defaultLogCheck = 10 * time.Second

const (
	// podPatience is how long a periodic job waits for one pod before it continues with the next.
	podPatience = 5 * time.Second
	// maxHanging is how many calls of one periodic job may hang at once.
	maxHanging = 8
)

// logFile is the log of a container that runs.
type logFile struct {
	pod               pod.Key
	containerID, path string
}

func logsOf(have pod.Actual) []logFile {
	var list []logFile
	for _, c := range have.Containers {
		if c.State == pod.StateRunning && c.LogPath != "" {
			list = append(list, logFile{have.Key, c.ID, c.LogPath})
		}
	}
	return list
}

// rotation is the periodic job that rotates logs, in a goroutine of its own. While a round runs,
// no other one begins. A log whose disk or container hangs delays the other logs only once, by
// podPatience.
type rotation struct {
	running bool
	calls   *boundedcall.Calls
	done    chan error // capacity 1: the last failure of a round
	failing bool       // the last round failed, and note has logged that
}

func newRotation() rotation {
	return rotation{calls: boundedcall.New(maxHanging), done: make(chan error, 1)}
}

// rotate begins a round over the logs of all running containers.
func (l *loop) rotate(ctx context.Context) {
	r := &l.jobs.rotation
	select {
	case err := <-r.done:
		r.running = false
		r.note(l.log, err)
	default:
	}
	if l.cfg.Logs == nil || r.running {
		return
	}
	var files []logFile
	for _, e := range l.pods {
		if e.last != nil {
			files = append(files, e.last.logs...)
		}
	}
	if len(files) == 0 {
		return
	}
	r.running = true
	calls, done, cfg := r.calls, r.done, l.cfg
	l.workers.Go(func() { done <- rotateAll(ctx, cfg, calls, files) }) // there is room: one round at a time
}

// rotateAll rotates logs, Config.LogWorkers at a time, and returns the first failure.
func rotateAll(ctx context.Context, cfg Config, calls *boundedcall.Calls, files []logFile) error {
	var all errgroup.Group
	all.SetLimit(cfg.LogWorkers)
	for _, f := range files {
		all.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			err := calls.Do(ctx, f.path, podPatience, func() error {
				ctx := activity.WithPod(ctx, f.pod)
				defer activity.Begin(ctx, activity.Call{Kind: activity.Log, Name: "rotate log", Path: f.path})()
				return cfg.Logs.Rotate(ctx, f.path, func(ctx context.Context) error { return cfg.Runtime.ReopenLog(ctx, f.containerID) })
			})
			if err == nil || ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, boundedcall.ErrHangs) {
				err = fmt.Errorf("rotate %s: %w", f.path, err)
			}
			cfg.Log.Debug("Failed to rotate container log", "log", f.path, "error", err)
			return err
		})
	}
	return all.Wait()
}

// note logs when logs cannot be rotated, and when they can be rotated again.
func (r *rotation) note(log *slog.Logger, err error) {
	switch {
	case err != nil && !r.failing:
		log.Warn("Failed to rotate container logs", "error", err)
	case err == nil && r.failing:
		log.Info("Rotating container logs succeeds again")
	}
	r.failing = err != nil
}
