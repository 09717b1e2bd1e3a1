package engine

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

const (
	// moveRetry is how long the mover waits after a failure.
	moveRetry = 10 * time.Second
	// movesAtOnce limits the containers that the mover moves at the same time.
	movesAtOnce = 4
)

// mover keeps containers without exclusive CPUs in the shared pool, in a goroutine of its own. The
// workers cannot do that: a worker may wait for a pull, a hook or a stop while other containers of
// its pod run, and an orphaned pod has no worker. The mover compares the pool with the CPUs that
// the runtime shows, so a kill of the agent loses no move.
type mover struct {
	runtime Runtime
	log     *slog.Logger
	shared  atomic.Pointer[string] // the current shared pool
	moves   chan move              // capacity 1
	missed  wakeup.Signal          // a round may have missed a new container
	failing bool                   // the last round failed, and the mover has logged that
}

// move is the goal of the mover: the containers of these pods run on these CPUs.
type move struct {
	cpus string
	pods map[pod.Key]bool
}

// newMover returns a mover, or nil if no policy allocates exclusive CPUs.
func newMover(cfg Config) *mover {
	if cfg.CPUs == nil {
		return nil
	}
	return &mover{runtime: cfg.Runtime, log: cfg.Log, moves: make(chan move, 1), missed: wakeup.New()}
}

// current returns the CPUs of the shared pool, "" for all CPUs.
func (m *mover) current() string {
	if m == nil {
		return ""
	}
	if cpus := m.shared.Load(); cpus != nil {
		return *cpus
	}
	return ""
}

// move requests that the containers of these pods be moved to the given CPUs. It never waits: the
// request replaces one that has not begun.
func (m *mover) move(cpus string, pods map[pod.Key]bool) {
	m.shared.Store(&cpus)
	select {
	case <-m.moves:
	default:
	}
	m.moves <- move{cpus, pods}
}

// created notes that a container was created with these CPUs as its shared pool. If the pool has
// changed since, the round after that change may have missed the container: another round follows.
func (m *mover) created(cpus string) {
	if m == nil || cpus == m.current() {
		return
	}
	m.missed.Send()
}

// run moves containers until ctx ends.
func (m *mover) run(ctx context.Context) {
	var now move
	var retry <-chan time.Time
	for {
		select {
		case now = <-m.moves:
		case <-m.missed:
		case <-retry:
		case <-ctx.Done():
			return
		}
		retry = nil
		err := m.round(ctx, now)
		if err != nil && ctx.Err() == nil {
			retry = time.After(moveRetry)
		}
		m.note(ctx, err)
	}
}

// round moves containers once. It returns the first failure.
func (m *mover) round(ctx context.Context, now move) error {
	if now.cpus == "" {
		return nil
	}
	pods, err := m.runtime.Pods(ctx)
	var all errgroup.Group
	all.SetLimit(movesAtOnce)
	all.Go(func() error { return err })
	for _, p := range pods {
		if !now.pods[p.Key] {
			continue
		}
		for _, c := range plan.ContainersToMove(p, now.cpus) {
			all.Go(func() error {
				if ctx.Err() != nil || m.current() != now.cpus {
					return nil // the next round moves it
				}
				m.log.Debug("Moving container to the shared CPUs", "pod", p.Key.String(), "container", c.Name, "from", c.CPUs, "to", now.cpus)
				return panics.ToError(func() error { return m.runtime.UpdateCPUs(ctx, c.ID, now.cpus) })
			})
		}
	}
	return all.Wait()
}

// note logs the first round that failed, and the first one that succeeded after it.
func (m *mover) note(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !m.failing:
		m.log.Warn("Failed to move containers to the shared CPUs", "error", err, "retry", moveRetry.String())
	case err == nil && m.failing:
		m.log.Info("Moving containers to the shared CPUs succeeds again")
	}
	m.failing = err != nil
}
