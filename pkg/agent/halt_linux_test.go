package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/record"
)

// halts is an engine that only notes what it gets.
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

// halterIn opens the halter of an agent with this root directory, as at its start.
func halterIn(root string) (*halter, halts) {
	var cfg Config
	cfg.RootDir, cfg.Log = root, slog.New(slog.DiscardHandler)
	cfg.ShutdownGracePeriod, cfg.ShutdownGracePeriodCriticalPods = 30*time.Second, 10*time.Second
	h, to := openHalter(cfg), halts{make(chan engine.Halt, 4), make(chan struct{}, 4)}
	h.engine = to
	return h, to
}

// TestHalter_Drain_LastsUntilUndoneOrTheNextBoot: an agent that starts meanwhile halts its engine
// from the start.
func TestHalter_Drain_LastsUntilUndoneOrTheNextBoot(t *testing.T) {
	t.Parallel()
	root, grace := t.TempDir(), int64(7)
	h, to := halterIn(root)
	if h.forEngine() != nil {
		t.Error("a new node is halted")
	}
	if _, err := h.begin(t.Context(), record.CauseDrain, &grace); err != nil {
		t.Fatal(err)
	}
	if of := <-to.begun; of.Reason != "NodeDrained" || of.Shutdown || *of.Order.MaxGrace != 7 || of.Order.Classes != nil || h.shuttingDown() {
		t.Errorf("a drain: %+v", of)
	}
	next, to := halterIn(root)
	if of := next.forEngine(); of == nil || of.Reason != "NodeDrained" || !strings.Contains(of.Message, "the node is drained since 20") {
		t.Errorf("the next agent: %+v", of)
	}
	if err := next.end(t.Context(), false); err != nil || len(to.resumed) != 1 || next.forEngine() != nil {
		t.Errorf("undone: %v", err)
	}
	if h, _ := halterIn(root); h.forEngine() != nil {
		t.Error("the undone drain is there again")
	}
	if err := record.SaveHalt(root, record.Halt{Boot: "another", Cause: record.CauseLogind}); err != nil {
		t.Fatal(err)
	}
	if h, _ := halterIn(root); h.forEngine() != nil {
		t.Error("the halt of an earlier boot applies")
	}
	if _, ok, _ := record.LoadHalt(root, "another"); ok {
		t.Error("the halt of an earlier boot is kept")
	}
}

// TestHalter_Shutdown_OutranksADrain: nothing but logind ends a shutdown that logind announced,
// and a drain does not change its order.
func TestHalter_Shutdown_OutranksADrain(t *testing.T) {
	t.Parallel()
	h, to := halterIn(t.TempDir())
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); err != nil {
		t.Fatal(err)
	}
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

// TestHalter_NoRootDirectory_ShutsDownAllTheSame: a drain that cannot be kept is an error; a shutdown
// stops the pods.
func TestHalter_NoRootDirectory_ShutsDownAllTheSame(t *testing.T) {
	t.Parallel()
	h, to := halterIn(t.TempDir() + "/gone")
	if _, err := h.begin(t.Context(), record.CauseDrain, nil); err == nil || len(to.begun) > 0 || h.forEngine() != nil {
		t.Errorf("drain: %v", err)
	}
	if _, err := h.begin(t.Context(), record.CauseSignal, nil); err != nil || len(to.begun) != 1 {
		t.Errorf("shutdown: %v", err)
	}
}

// TestHalter_SIGPWR_StopsAllPods: the signal begins a shutdown, and ends no agent.
func TestHalter_SIGPWR_StopsAllPods(t *testing.T) {
	h, to := halterIn(t.TempDir())
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
