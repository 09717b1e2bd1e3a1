package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/shutdown"
)

// halts is an engine that only records its calls.
type halts struct {
	begun   chan engine.Halt
	resumed chan struct{}
}

func (h halts) Halt(_ context.Context, of engine.Halt) (<-chan struct{}, error) {
	h.begun <- of
	return make(chan struct{}), nil
}

func (h halts) Resume(context.Context) error {
	h.resumed <- struct{}{}
	return nil
}

// nodeHaltIn opens the nodeHalt of an agent with this root directory, as at its start.
func nodeHaltIn(t *testing.T, root string, alter ...func(*Config)) (*nodeHalt, halts) {
	t.Helper()
	var cfg Config
	cfg.RootDir, cfg.Log = root, slog.New(slog.DiscardHandler)
	cfg.ShutdownGracePeriod, cfg.ShutdownGracePeriodCriticalPods = 30*time.Second, 10*time.Second
	for _, f := range alter {
		f(&cfg)
	}
	h, err := openNodeHalt(cfg)
	if err != nil {
		t.Fatal(err)
	}
	to := halts{make(chan engine.Halt, 4), make(chan struct{}, 4)}
	h.engine = to
	return h, to
}

// TestHalt_Drain_LastsUntilUndoneOrTheNextBoot: an agent that starts meanwhile halts its engine
// from the start.
func TestHalt_Drain_LastsUntilUndoneOrTheNextBoot(t *testing.T) {
	t.Parallel()
	root, grace := t.TempDir(), int64(7)
	h, to := nodeHaltIn(t, root)
	if h.forEngine() != nil {
		t.Error("a new node is halted")
	}
	if _, err := h.begin(t.Context(), record.CauseDrain, &grace); err != nil {
		t.Fatal(err)
	}
	if of := <-to.begun; of.Reason != "NodeDrained" || of.Shutdown || *of.Order.MaxGrace != 7 || of.Order.Classes != nil || h.shuttingDown() {
		t.Errorf("a drain: %+v", of)
	}
	next, to := nodeHaltIn(t, root)
	if of := next.forEngine(); of == nil || of.Reason != "NodeDrained" || !strings.Contains(of.Message, "the node has been drained since 20") {
		t.Errorf("the next agent: %+v", of)
	}
	if err := next.end(t.Context(), false); err != nil || len(to.resumed) != 1 || next.forEngine() != nil {
		t.Errorf("undone: %v", err)
	}
	if h, _ := nodeHaltIn(t, root); h.forEngine() != nil {
		t.Error("the undone drain is there again")
	}
	if err := record.SaveHalt(root, record.Halt{Boot: "another", Cause: record.CauseLogind}); err != nil {
		t.Fatal(err)
	}
	if h, _ := nodeHaltIn(t, root); h.forEngine() != nil {
		t.Error("the halt of an earlier boot applies")
	}
	if _, ok, _ := record.LoadHalt(root, "another"); ok {
		t.Error("the halt of an earlier boot is kept")
	}
}

// TestHalt_ShutdownAndDrain_ShutdownApplies: while logind says that the machine shuts down,
// nothing else ends that, and a drain does not change its order.
func TestHalt_ShutdownAndDrain_ShutdownApplies(t *testing.T) {
	t.Parallel()
	h, to := nodeHaltIn(t, t.TempDir())
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); err != nil {
		t.Fatal(err)
	}
	h.setLogindShutdown(true)
	if _, err := h.begin(t.Context(), record.CauseLogind, nil); err != nil {
		t.Fatal(err)
	}
	<-to.begun
	if of := <-to.begun; of.Reason != "NodeShutdown" || !of.Shutdown || len(of.Order.Classes) != 2 || !h.shuttingDown() {
		t.Errorf("a shutdown: %+v", of)
	}
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); !errors.Is(err, errShuttingDown) {
		t.Errorf("drain: %v", err)
	}
	if err := h.end(t.Context(), false); !errors.Is(err, errShuttingDown) || len(to.resumed) > 0 {
		t.Errorf("undo: %v", err)
	}
	if err := h.end(t.Context(), true); err != nil || len(to.resumed) > 0 || h.shuttingDown() {
		t.Errorf("cancelled: %v", err)
	}
	if of := <-to.begun; of.Reason != "NodeDrained" {
		t.Errorf("after the cancelled shutdown the drain does not apply: %+v", of)
	}
	if err := h.end(t.Context(), false); err != nil || len(to.resumed) != 1 || h.forEngine() != nil {
		t.Errorf("undo: %v", err)
	}
}

// TestHalt_NoRootDirectory_ShutdownStopsPods: a drain that cannot be kept is an error; a shutdown
// stops the pods.
func TestHalt_NoRootDirectory_ShutdownStopsPods(t *testing.T) {
	t.Parallel()
	h, to := nodeHaltIn(t, t.TempDir()+"/gone")
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); err == nil || len(to.begun) > 0 || h.forEngine() != nil {
		t.Errorf("drain: %v", err)
	}
	if _, err := h.begin(t.Context(), record.CauseSignal, nil); err != nil || len(to.begun) != 1 {
		t.Errorf("shutdown: %v", err)
	}
}

// TestHalt_SIGPWR_StopsAllPods: the signal begins a shutdown, and does not end the agent.
func TestHalt_SIGPWR_StopsAllPods(t *testing.T) {
	h, to := nodeHaltIn(t, t.TempDir())
	var log bytes.Buffer
	h.log = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { h.run(ctx) })
	if err := unix.Kill(os.Getpid(), unix.SIGPWR); err != nil {
		t.Fatal(err)
	}
	if of := <-to.begun; !of.Shutdown || of.Reason != "NodeShutdown" {
		t.Errorf("%+v", of)
	}
	cancel()
	wg.Wait()
	if !strings.Contains(log.String(), "SIGPWR") {
		t.Errorf("log: %s", log.String())
	}
}

// TestHalt_UnreadableFile_StartsNoPods: the agent does not start, and keeps the file.
func TestHalt_UnreadableFile_StartsNoPods(t *testing.T) {
	t.Parallel()
	var cfg Config
	cfg.RootDir, cfg.Log = t.TempDir(), slog.New(slog.DiscardHandler)
	file := filepath.Join(cfg.RootDir, "halt.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openNodeHalt(cfg)
	if e, ok := errors.AsType[*readonly.Error](err); !ok || len(e.Hints) != 1 || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestHalt_UnknownBoot_DrainIsRefused: the next agent could not tell whether the drain applies.
func TestHalt_UnknownBoot_DrainIsRefused(t *testing.T) {
	t.Parallel()
	h, to := nodeHaltIn(t, t.TempDir())
	h.boot = ""
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); err == nil || len(to.begun) > 0 || h.forEngine() != nil {
		t.Errorf("error %v", err)
	}
}

// TestHalt_NodeJoinsACluster_DrainEnds: a node that joins a cluster is not drained any more.
func TestHalt_NodeJoinsACluster_DrainEnds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h, _ := nodeHaltIn(t, root)
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); err != nil {
		t.Fatal(err)
	}
	h, _ = nodeHaltIn(t, root, func(c *Config) { c.Kubeconfig = "/k" })
	if h.forEngine() != nil {
		t.Error("the node is halted")
	}
	if _, ok, err := record.LoadHalt(root, h.boot); ok || err != nil {
		t.Errorf("the drain is kept: %v", err)
	}
}

// TestHalt_LogindDoesNotAnswer_UndoEndsTheShutdown: so does an agent that starts without grace
// periods.
func TestHalt_LogindDoesNotAnswer_UndoEndsTheShutdown(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h, _ := nodeHaltIn(t, root)
	if _, err := h.begin(t.Context(), record.CauseLogind, nil); err != nil {
		t.Fatal(err)
	}
	if h, _ := nodeHaltIn(t, root, func(c *Config) { c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods = 0, 0 }); h.forEngine() != nil {
		t.Error("the node is halted without grace periods")
	}
	h, _ = nodeHaltIn(t, root)
	if _, err := h.begin(t.Context(), record.CauseLogind, nil); err != nil {
		t.Fatal(err)
	}
	h, to := nodeHaltIn(t, root)
	if h.forEngine() == nil {
		t.Fatal("the shutdown is forgotten")
	}
	if err := h.end(t.Context(), false); err != nil || len(to.resumed) != 1 || h.forEngine() != nil {
		t.Errorf("undo: %v", err)
	}
}

// TestHalt_PowerFails_PodsShareOneDeadline: without configured periods, 30 s are for all pods
// together, whatever their priorities.
func TestHalt_PowerFails_PodsShareOneDeadline(t *testing.T) {
	t.Parallel()
	for periods, want := range map[time.Duration]time.Duration{0: 30 * time.Second, time.Minute: time.Minute} {
		h, to := nodeHaltIn(t, t.TempDir(), func(c *Config) { c.ShutdownGracePeriod = periods })
		if _, err := h.begin(t.Context(), record.CauseSignal, nil); err != nil {
			t.Fatal(err)
		}
		if of := <-to.begun; shutdown.Total(of.Order.Classes) != want || len(of.Order.Classes) != 2 || of.Order.MaxGrace != nil {
			t.Errorf("with a period of %s the order is %+v", periods, of.Order)
		}
	}
}

// TestHalt_ShutdownAtTheStart_NoPodStarts: an agent that starts while the machine shuts
// down, and finds no file that says so, waits for the answer of logind, for two seconds at most.
//
// Shows: C-1.36.5
func TestHalt_ShutdownAtTheStart_NoPodStarts(t *testing.T) {
	after := func(d time.Duration, now bool) func(context.Context, string) (bool, error) {
		return func(ctx context.Context, _ string) (bool, error) {
			backoff.Sleep(ctx, d)
			return now, ctx.Err()
		}
	}
	for name, c := range map[string]struct {
		answer func(context.Context, string) (bool, error)
		off    bool
		halted bool
		took   time.Duration
	}{
		"shuts down":         {answer: after(time.Second, true), halted: true, took: time.Second},
		"does not shut down": {answer: after(time.Second, false), took: time.Second},
		"does not answer":    {answer: after(time.Hour, true), took: 2 * time.Second},
		"no grace periods":   {answer: after(time.Second, true), off: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			h, to := nodeHaltIn(t, root, func(cfg *Config) {
				if c.off {
					cfg.ShutdownGracePeriod, cfg.ShutdownGracePeriodCriticalPods = 0, 0
				}
			})
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				h.askLogind(t.Context(), c.answer)
				if took := time.Since(began); took != c.took || (h.forEngine() != nil) != c.halted {
					t.Errorf("after %s the halt is %+v", took, h.current())
				}
			})
			if !c.halted {
				return
			}
			if _, err := h.begin(t.Context(), record.CauseLogind, nil); err != nil || len(to.begun) != 1 {
				t.Errorf("the shutdown does not go on: %v", err)
			}
			if _, ok, err := record.LoadHalt(root, h.boot); !ok || err != nil {
				t.Errorf("the next agent does not find it: %v", err)
			}
		})
	}
}
