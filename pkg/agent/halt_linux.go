package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/bootid"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/shutdown"
	"github.com/nodectl/nodectl/pkg/shutdown/logind"
)

// nodeHalt stops all pods when the machine shuts down, or when a user drains the node, and lets
// them start again. Before the first pod stops, it writes its state to a file below the root
// directory. So an agent that starts later starts no pod.
type nodeHalt struct {
	root    string
	boot    string
	classes []shutdown.Class
	cluster bool // the node is in a cluster
	log     *slog.Logger
	engine  interface { // set before the first call of begin
		Halt(ctx context.Context, h engine.Halt) (ended <-chan struct{}, err error)
		Resume(ctx context.Context) error
	}
	event func(message string)
	power chan os.Signal // gets SIGPWR from the start of the agent

	changing       sync.Mutex // held by begin and end: the file and the engine get the changes in the same order
	mu             sync.Mutex
	now            *record.Halt // nil: pods may run
	logindShutdown bool         // logind has said that the machine shuts down, and still answers
}

// openNodeHalt reads the state that an earlier agent has left. It fails if it cannot read the
// state: a drained node must not start its pods.
func openNodeHalt(cfg Config) (*nodeHalt, error) {
	boot, _ := bootid.Read()
	h := &nodeHalt{root: cfg.RootDir, boot: boot, classes: cfg.ShutdownClasses(), cluster: cfg.Kubeconfig != "", log: cfg.Log, event: func(string) {}, power: make(chan os.Signal, 1)}
	signal.Notify(h.power, unix.SIGPWR) // its default action ends the agent
	found, ok, err := record.LoadHalt(h.root, h.boot)
	if err != nil {
		return nil, readonly.Fail(readonly.Failure, fmt.Errorf("find out whether this node is drained or shuts down: %w", err), "remove the file if the pods may start")
	}
	if ok {
		h.now = found.Applicable(h.cluster, len(h.classes) > 0)
	}
	if h.now != nil {
		h.log.Warn("Not starting pods", "reason", h.now.Text())
	} else if err := record.RemoveHalt(h.root); err != nil {
		h.log.Warn("Failed to remove a halt that does not apply", "error", err)
	}
	return h, nil
}

// logindTimeout is how long the start of an agent waits for logind.
const logindTimeout = 2 * time.Second

// askLogind asks logind whether the machine shuts down, before the first pod starts: an agent that
// starts during a shutdown may find no file. preparing is logind.Preparing. If logind does not answer
// in time, pods start, and watchLogind asks again.
func (h *nodeHalt) askLogind(ctx context.Context, preparing func(ctx context.Context, address string) (bool, error)) {
	if len(h.classes) == 0 || h.shuttingDown() {
		return
	}
	ctx, stop := context.WithTimeout(ctx, logindTimeout)
	defer stop()
	if now, err := preparing(ctx, ""); err != nil || !now {
		return
	}
	h.set(&record.Halt{Boot: h.boot, Since: time.Now(), Cause: record.CauseLogind, Drained: h.current()})
	h.log.Warn("Not starting pods", "reason", h.current().Text())
}

// current returns the halt of the node; nil if pods may run.
func (h *nodeHalt) current() *record.Halt {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// shuttingDown reports whether the machine shuts down (C-1.25.9).
func (h *nodeHalt) shuttingDown() bool {
	now := h.current()
	return now != nil && now.Shutdown()
}

// forEngine returns the halt in the engine's form; nil if pods may run.
func (h *nodeHalt) forEngine() *engine.Halt {
	now := h.current()
	if now == nil {
		return nil
	}
	out := engine.Halt{HaltReason: plan.HaltReason{Reason: now.Reason(), Message: now.Message()}, Shutdown: now.Shutdown()}
	out.Order.MaxGrace = now.MaxGrace
	switch {
	case !now.Shutdown():
	case len(h.classes) > 0:
		out.Order.Classes = h.classes
	default:
		out.Order.Classes = powerClasses()
	}
	return &out
}

// begin stops all pods. ended is closed when all have stopped, or their time is over. If begin cannot
// record a drain, it returns an error and stops no pod. A shutdown stops the pods even then.
func (h *nodeHalt) begin(ctx context.Context, cause string, maxGrace *int64) (ended <-chan struct{}, err error) {
	h.changing.Lock()
	defer h.changing.Unlock()
	was, next := h.current(), record.Halt{Boot: h.boot, Since: time.Now(), Cause: cause, MaxGrace: maxGrace}
	switch {
	case was != nil && was.Shutdown() && !next.Shutdown():
		return nil, errShuttingDown
	case h.boot == "" && !next.Shutdown():
		return nil, errors.New("record the drain: the ID of this boot cannot be read from /proc/sys/kernel/random/boot_id")
	case was == nil:
	case was.Shutdown():
		next.Since, next.Drained = was.Since, was.Drained
	case next.Shutdown():
		next.Drained = was
	default:
		next.Since = was.Since
	}
	if err := record.SaveHalt(h.root, next); err != nil {
		if !next.Shutdown() {
			return nil, fmt.Errorf("record the drain: %w", err)
		}
		h.log.Error("Failed to record the shutdown: an agent that starts before the machine stops would start pods", "error", err)
	}
	h.set(&next)
	if next.Shutdown() && (was == nil || !was.Shutdown()) {
		h.event("Shutdown manager detected shutdown event")
	}
	return h.engine.Halt(ctx, *h.forEngine())
}

func (h *nodeHalt) set(now *record.Halt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = now
}

// powerClasses returns the classes of a shutdown after SIGPWR if no classes are configured. All
// pods share 30 s, and critical pods have the last 10 s.
func powerClasses() []shutdown.Class { return shutdown.Classes(30*time.Second, 10*time.Second) }

// setLogindShutdown records whether logind reports a shutdown of the machine.
func (h *nodeHalt) setLogindShutdown(reported bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logindShutdown = reported
}

func (h *nodeHalt) isLogindShutdown() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logindShutdown
}

var errShuttingDown = errors.New("the machine is shutting down")

// end lets pods start again. cancelled says that logind has cancelled the shutdown. An earlier
// drain then applies again. Without cancelled, end fails while logind reports the shutdown.
func (h *nodeHalt) end(ctx context.Context, cancelled bool) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	was := h.current()
	switch {
	case was == nil:
		return nil
	case was.Cause == record.CauseLogind && !cancelled && h.isLogindShutdown():
		return errShuttingDown
	}
	var next *record.Halt
	if cancelled {
		next = was.Drained
	}
	err := record.RemoveHalt(h.root)
	if next != nil {
		err = record.SaveHalt(h.root, *next)
	}
	if err != nil {
		return fmt.Errorf("record the end of the %s: %w", was.Cause, err)
	}
	h.set(next)
	if was.Shutdown() {
		h.event("Shutdown manager detected shutdown cancellation")
	}
	if next != nil {
		_, err := h.engine.Halt(ctx, *h.forEngine())
		return err
	}
	return h.engine.Resume(ctx)
}

// run handles SIGPWR until ctx ends. The signal means that the power fails and the machine shuts down.
func (h *nodeHalt) run(ctx context.Context) {
	defer signal.Stop(h.power)
	for {
		select {
		case <-h.power:
			h.log.Warn("Received SIGPWR: stopping all pods")
			if _, err := h.begin(ctx, record.CauseSignal, nil); err != nil && ctx.Err() == nil {
				h.log.Error("Failed to stop the pods", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// watchLogind delays shutdowns of the machine until the pods have stopped, if grace periods are
// configured (C-1.36.1). It returns when ctx ends.
func (h *nodeHalt) watchLogind(ctx context.Context) {
	if len(h.classes) == 0 {
		return
	}
	logind.Watch(ctx, logind.Config{
		Delay: shutdown.Total(h.classes), Log: h.log,
		Begin: func(ctx context.Context) (<-chan struct{}, error) {
			h.setLogindShutdown(true)
			return h.begin(ctx, record.CauseLogind, nil)
		},
		Unavailable: func() { h.setLogindShutdown(false) },
		Idle: func(ctx context.Context) error {
			h.setLogindShutdown(false)
			if now := h.current(); now == nil || now.Cause != record.CauseLogind {
				return nil
			}
			return h.end(ctx, true)
		},
	})
}

// Drain implements server.Control.
func (c control) Drain(ctx context.Context, grace *int64) error {
	if c.halts.cluster {
		return &server.StatusError{Code: http.StatusConflict, Message: "this node is in a cluster: drain it with kubectl drain"}
	}
	_, err := c.halts.begin(ctx, record.CauseDrain, grace)
	return haltError(err)
}

// Undrain implements server.Control.
func (c control) Undrain(ctx context.Context) error { return haltError(c.halts.end(ctx, false)) }

func haltError(err error) error {
	if errors.Is(err, errShuttingDown) {
		return &server.StatusError{Code: http.StatusConflict, Message: err.Error()}
	}
	return err
}

// shutdownEvent returns a function that reports the begin and the cancellation of a shutdown, in an
// event of the node and at once in the Node status.
func (a *Agent) shutdownEvent(m *member) func(message string) {
	return func(message string) {
		a.observer.Recheck()
		a.events.NodeEvent("Shutdown", v1.EventTypeNormal, message)
		if m != nil {
			m.sink.NodeEvent(v1.EventTypeNormal, "Shutdown", message)
		}
	}
}
