package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/test/wait"
)

// stalled are hints whose drain does not answer.
type stalled struct{ hints }

func (stalled) Healthy(context.Context) error { return errors.New("the drain stands still") }

// TestWatchdog_EachPart_IsChecked: serve's watchdog needs both the engine's beat and that of the
// drain of the runtime's events.
//
// Shows: F7
func TestWatchdog_EachPart_IsChecked(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	_, cfg, e, living := fedEngine(t, log)
	asleep := engine.New(engine.Config{}) // its Run is not called
	for _, c := range []struct {
		name   string
		engine *engine.Engine
		hints  hints
		limit  time.Duration
		want   string
	}{
		{"all live", e, living, wait.Limit, ""},
		{"the drain stands still", e, stalled{living}, wait.Limit, "the drain stands still"},
		{"the loop stands still", asleep, living, 100 * time.Millisecond, "the sync loop is not responding"},
	} {
		a := &Agent{cfg: cfg, log: log, runtime: &containerRuntime{hints: c.hints}}
		got := ""
		if err := a.newSupervisor(c.engine, nil).check(t.Context(), c.limit); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
