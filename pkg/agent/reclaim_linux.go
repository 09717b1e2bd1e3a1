package agent

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/pkg/upkeep"
)

// A pod does not need a container or sandbox that a newer one has replaced: the runtime does not
// restart exited containers. So the upkeep removes those that are not needed. The pod's worker may
// remove them at the same time.

// exited returns the exited containers of a pod. The newest one of each name is needed.
func exited(p pod.Actual) (all []reclaim.Container) {
	add := func(c pod.Container, needed bool) {
		if c.State == pod.StateExited {
			all = append(all, reclaim.Container{ID: c.ID, Name: c.Name, Pod: p.Key, Exited: c.FinishedAt, Needed: needed, Logs: logUsage(c.LogPath)})
		}
	}
	for _, c := range p.Containers {
		add(c, true)
	}
	for _, c := range p.Dead {
		add(c, false)
	}
	return all
}

// deadSandboxes returns the sandboxes of a pod that are not ready and have no container. The
// newest one is needed.
func deadSandboxes(p pod.Actual) (all []reclaim.Sandbox) {
	add := func(b pod.Sandbox, needed bool) {
		in := func(c pod.Container) bool { return c.SandboxID == b.ID }
		hasContainer := slices.ContainsFunc(p.Dead, in)
		for _, c := range p.Containers {
			hasContainer = hasContainer || in(c)
		}
		if !b.Ready && !hasContainer {
			all = append(all, reclaim.Sandbox{ID: b.ID, Pod: p.Key, Created: b.CreatedAt, Needed: needed})
		}
	}
	if p.Sandbox != nil {
		add(*p.Sandbox, true)
	}
	for _, b := range p.Older {
		add(b, false)
	}
	return all
}

// logUsage returns the disk usage of a container's log and its rotated files.
func logUsage(path string) (u reclaim.Usage) {
	if path == "" {
		return u
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return u
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), filepath.Base(path)) {
			u.Bytes += info.Size()
			u.Inodes++
		}
	}
	return u
}

// nodeActor implements upkeep.Actor.
type nodeActor struct {
	runtime *cri.Runtime
	images  *image.Inventory
	evict   func(ctx context.Context, key pod.Key, e upkeep.Eviction) error
}

// RemoveImages implements upkeep.Actor.
func (a nodeActor) RemoveImages(ctx context.Context, steps []reclaim.Step) ([]reclaim.Step, error) {
	return a.images.Reclaim(ctx, steps)
}

// RemoveContainer implements upkeep.Actor.
func (a nodeActor) RemoveContainer(ctx context.Context, of pod.Key, id string) (removed bool, err error) {
	now, err := a.runtime.Pod(ctx, of)
	if err != nil {
		return false, err
	}
	for _, c := range exited(now) {
		if c.ID == id && c.Needed {
			return false, nil
		}
	}
	return true, a.runtime.RemoveContainer(ctx, id, false)
}

// RemoveSandbox implements upkeep.Actor.
func (a nodeActor) RemoveSandbox(ctx context.Context, of pod.Key, id string) (removed bool, err error) {
	now, err := a.runtime.Pod(ctx, of)
	if err != nil {
		return false, err
	}
	for _, b := range deadSandboxes(now) {
		if b.ID == id && !b.Needed {
			return true, a.runtime.RemoveSandbox(ctx, id)
		}
	}
	return false, nil
}

// Evict implements upkeep.Actor.
func (a nodeActor) Evict(ctx context.Context, key pod.Key, e upkeep.Eviction) error {
	return a.evict(ctx, key, e)
}

// ForecastReclaim returns the steps of reclaiming that an agent with this configuration would take.
// It is for a node without a serving agent. It reads the pods from the runtime and the journal, and
// changes nothing.
func ForecastReclaim(ctx context.Context, cfg Config, assume []string) (server.Reclaim, error) {
	images, err := OpenImagesReadOnly(ctx, cfg)
	if err != nil {
		return server.Reclaim{}, err
	}
	defer images.Close()
	a := &Agent{cfg: cfg, log: cfg.Log, runtime: &containerRuntime{Runtime: images.runtime}}
	if a.host, err = readHost(ctx, cfg); err != nil {
		return server.Reclaim{}, err
	}
	all, err := cfg.Pods(ctx)
	if err != nil {
		return server.Reclaim{}, err
	}
	pods := func() []v1.Pod { return all }
	a.groups = a.newGroups()
	measured := stats.New(a.statsConfig(pods))
	observed := make(chan struct{})
	close(observed)
	policy := evictPolicy(cfg)
	u := upkeep.New(upkeep.Config{
		Policy: policy, PodsUnknown: image.ErrPodsUnknown, Log: cfg.Log,
		Observer: nodeObserver{
			levels: a.newLevels(), runtime: images.runtime, images: images.images, usage: measured.Usage, pods: pods, observed: observed, rootDir: cfg.RootDir,
		},
	})
	r, err := reclaimForecast(ctx, u, policy, assume)
	return r, readonly.Fail(readonly.Failure, err)
}

// reclaimForecast returns the answer of /v1/reclaim.
func reclaimForecast(ctx context.Context, u *upkeep.Upkeep, policy reclaim.EvictPolicy, assume []string) (server.Reclaim, error) {
	assumptions, err := upkeep.ParseAssumptions(assume)
	if err != nil {
		return server.Reclaim{}, &server.StatusError{Code: http.StatusBadRequest, Message: "assume: " + err.Error()}
	}
	f, err := u.Foresee(ctx, assumptions)
	if wrong, ok := errors.AsType[*upkeep.AssumeError](err); ok {
		return server.Reclaim{}, &server.StatusError{Code: http.StatusBadRequest, Message: "assume: " + wrong.Error()}
	}
	if errors.Is(err, image.ErrPodsUnknown) {
		err = &server.StatusError{Code: http.StatusConflict, Message: image.ErrPodsUnknown.Error()}
	}
	if err != nil {
		return server.Reclaim{}, err
	}
	out := server.Reclaim{Levels: []server.ReclaimLevel{}, Rounds: []server.ReclaimRound{}}
	for _, signal := range pod.Signals() {
		level, measured := f.Node.Level(signal)
		if !measured {
			continue
		}
		l := server.ReclaimLevel{
			Signal: signal, Available: level.Available, Capacity: level.Capacity,
			Assumed: slices.ContainsFunc(assumptions, func(a pod.Threshold) bool { return a.Signal == signal }),
		}
		for _, t := range policy.Thresholds {
			if t.Signal == signal {
				limit := server.ReclaimThreshold{Limit: strings.TrimPrefix(t.Threshold.String(), signal+"<"), Least: t.Of(level.Capacity)}
				if limit.Met = level.Available < limit.Least; t.Grace > 0 {
					limit.Grace = t.Grace.String()
				}
				l.Thresholds = append(l.Thresholds, limit)
			}
		}
		out.Levels = append(out.Levels, l)
	}
	for _, r := range f.Rounds {
		round := server.ReclaimRound{In: r.In.String(), Steps: []server.ReclaimStep{}}
		for _, s := range r.Steps {
			step := server.ReclaimStep{Action: string(s.Action), ID: s.ID, Name: s.Name, Bytes: s.Bytes, Grace: s.Grace, Why: s.Why}
			if s.Pod != (pod.Key{}) {
				step.Pod = s.Pod.String()
			}
			round.Steps = append(round.Steps, step)
		}
		for _, c := range r.Conditions {
			round.Conditions = append(round.Conditions, string(c))
		}
		if len(r.Steps) == 0 {
			round.Stuck = r.WaitFor
		}
		out.Rounds = append(out.Rounds, round)
	}
	return out, nil
}
