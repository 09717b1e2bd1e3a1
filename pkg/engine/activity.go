package engine

import (
	"context"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/prober"
)

// This file notes the engine's current work on the activity board, for `nodectl why`.

// noteState notes the state of the pod, from its plan. wait is the time until the worker plans
// again without an update; 0 is never.
func (w *worker) noteState(p plan.Plan, wait time.Duration) {
	if w.env.board == nil {
		return
	}
	s := activity.State{WaitFor: p.WaitFor, Failures: w.failures()}
	for _, step := range p.Steps {
		s.Steps = append(s.Steps, strings.TrimSpace(string(step.Action)+" "+step.Container))
	}
	if s.WaitFor == "" && w.waitsForRuntime(p) {
		s.WaitFor = runtimeNotReady
	}
	if s.WaitFor == plan.WaitNetwork && w.update.noNetwork != "" {
		s.WaitFor += ": " + w.update.noNetwork
	}
	if wait > 0 {
		s.Until = time.Now().Add(wait)
	}
	w.env.board.SetState(w.key, s)
}

// runtimeNotReady is the reason for which pods wait while the container runtime is not ready.
const runtimeNotReady = "container runtime is not ready"

// noteReady notes, for all pods, whether the runtime or the network is not ready.
func (l *loop) noteReady(r pod.RuntimeReady) {
	var s activity.State
	switch {
	case !r.Runtime:
		s.WaitFor = runtimeNotReady + ": " + r.RuntimeMessage
	case !r.Network:
		s.WaitFor = plan.WaitNetwork + ": " + r.NetworkMessage
	}
	l.env.board.SetState(pod.Key{}, s)
}

// failures lists the steps that failed and are tried again, and a resize that is pending.
func (w *worker) failures() (all []activity.Failure) {
	add := func(container string, t pod.Failure) {
		all = append(all, activity.Failure{Container: container, Reason: t.Reason, Message: t.Message, Count: t.Count, Until: t.Until})
	}
	if w.failedSteps.stopFailure.Reason != "" {
		add("", w.failedSteps.stopFailure)
	}
	for _, name := range sortedNames(w.failedSteps.byContainer) {
		add(name, w.failedSteps.byContainer[name])
	}
	if r := w.update.resize; r.reason != "" {
		add("", pod.Failure{Reason: eventResize + r.reason, Message: r.message})
	}
	return all
}

// beginStep notes a step, or several stops in parallel.
func (w *worker) beginStep(ctx context.Context, steps []plan.Step) (end func()) {
	s := steps[0]
	target := s.Container
	for _, other := range steps[1:] {
		target += ", " + other.Container
	}
	return activity.Begin(ctx, activity.Call{Kind: activity.Step, Name: string(s.Action), Target: target})
}

// beginHook notes a hook of a container, which runs with the context returned. name is postStart
// or preStop.
func beginHook(ctx context.Context, name, container string, h *v1.LifecycleHandler) (traced context.Context, end func()) {
	return activity.Trace(ctx, activity.Call{Kind: activity.Hook, Name: name, Target: container + ": " + hookTarget(h)})
}

func hookTarget(h *v1.LifecycleHandler) string {
	switch {
	case h == nil:
		return ""
	case h.Exec != nil:
		return "command " + strings.Join(h.Exec.Command, " ")
	case h.HTTPGet != nil:
		return "GET " + h.HTTPGet.Host + ":" + h.HTTPGet.Port.String() + h.HTTPGet.Path
	case h.Sleep != nil:
		return "sleep " + strconv.FormatInt(h.Sleep.Seconds, 10) + " s"
	}
	return ""
}

// notedProbes is a prober.Runner that notes each probe while it runs. The prober puts the pod into
// the context of the probe.
type notedProbes struct {
	prober.Runner
}

func (n notedProbes) Probe(ctx context.Context, r pod.ProbeRequest) error {
	target := probeTarget(r.Probe)
	if r.Container != nil {
		target = r.Container.Name + ": " + target
	}
	c := activity.Call{Kind: activity.Probe, Name: probeName(r), Target: target}
	if r.Probe != nil && r.Probe.TimeoutSeconds > 0 {
		c.Limit = time.Now().Add(time.Duration(r.Probe.TimeoutSeconds) * time.Second)
	}
	ctx, end := activity.Trace(ctx, c)
	defer end()
	return n.Runner.Probe(ctx, r)
}

func probeName(r pod.ProbeRequest) string {
	c := r.Container
	switch {
	case c == nil || r.Probe == nil:
		return "probe"
	case r.Probe == c.LivenessProbe:
		return "liveness probe"
	case r.Probe == c.StartupProbe:
		return "startup probe"
	}
	return "readiness probe"
}

func probeTarget(p *v1.Probe) string {
	switch {
	case p == nil:
		return ""
	case p.Exec != nil:
		return "command " + strings.Join(p.Exec.Command, " ")
	case p.HTTPGet != nil:
		return "GET " + p.HTTPGet.Host + ":" + p.HTTPGet.Port.String() + p.HTTPGet.Path
	case p.TCPSocket != nil:
		return "TCP " + p.TCPSocket.Host + ":" + p.TCPSocket.Port.String()
	case p.GRPC != nil:
		return "gRPC port " + strconv.Itoa(int(p.GRPC.Port))
	}
	return ""
}
