package engine

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// rotationPeriod is how often the logs of running containers are looked at
// (C-1.43.1).
const rotationPeriod = 10 * time.Second

// logFile is the log of a container that runs.
type logFile struct{ containerID, path string }

func logsOf(have pod.Actual) []logFile {
	var list []logFile
	for _, c := range have.Containers {
		if c.State == pod.StateRunning && c.LogPath != "" {
			list = append(list, logFile{c.ID, c.LogPath})
		}
	}
	return list
}

// rotate looks at the logs of all running containers, beside the loop, one at a
// time. A round that is not over when the next is due lets that one pass.
func (l *loop) rotate(ctx context.Context) {
	select {
	case err := <-l.rotated:
		l.rotating = false
		l.noteLogs(err)
	default:
	}
	if l.cfg.Logs == nil || l.rotating {
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
	l.rotating = true
	l.workers.Go(func() {
		var failed error
		defer func() { l.rotated <- failed }() // there is room: one round at a time
		for _, f := range files {
			if ctx.Err() != nil {
				return
			}
			err := l.cfg.Logs.Rotate(ctx, f.path, func(ctx context.Context) error { return l.cfg.Runtime.ReopenLog(ctx, f.containerID) })
			if err != nil && ctx.Err() == nil {
				l.log.Debug("Log not rotated", "log", f.path, "error", err)
				failed = err
			}
		}
	})
}
