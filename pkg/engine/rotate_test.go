package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/boundedcall"
)

// slowLogs is a Logs that takes a second for each log.
type slowLogs struct{ now, most atomic.Int32 }

func (s *slowLogs) Rotate(_ context.Context, path string, _ func(context.Context) error) error {
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	time.Sleep(time.Second)
	if path == "broken" {
		return errors.New("read-only file system")
	}
	return nil
}

// A round rotates as many logs at a time as the configuration says; a failure ends no other
// rotation.
//
// Shows: C-1.43.1
func TestRotateAll_Workers_LimitRotationsAtATime(t *testing.T) {
	for workers, took := range map[int]time.Duration{1: 6 * time.Second, 4: 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			logs := &slowLogs{}
			began := time.Now()
			err := rotateAll(t.Context(), Config{Logs: logs, LogWorkers: workers, Log: slog.New(slog.DiscardHandler)}, boundedcall.New(maxHanging), []logFile{
				{path: "a"}, {path: "broken"}, {path: "c"}, {path: "d"}, {path: "e"}, {path: "f"},
			})
			if err == nil || int(logs.most.Load()) != workers || time.Since(began) != took {
				t.Errorf("%d workers: error %v, %d at a time, took %s", workers, err, logs.most.Load(), time.Since(began))
			}
		})
	}
}
