package engine

import (
	"context"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// postStart runs the postStart hook of a container that has just started. A spec or an
// operation that stops the container cancels the hook. If the hook fails, the record says so
// and the next plan stops the container (C-1.22.8).
func (w *worker) postStart(ctx context.Context, v plan.View, s plan.Step, id string) error {
	hookCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	superseded := false
	err := w.call(ctx, w.env.starts.SlotTimeout(), func() {
		if w.mustEnd(v.Want, s.Container) || w.rec.ContainerNotes[id].Killed != "" {
			superseded = true
			cancel()
		}
	}, func() error {
		traced, end := beginHook(hookCtx, "postStart", s.Container, s.Hook)
		defer end()
		return w.env.hooks.Hook(traced, hookRequest(v, s, id, warning(w.env.recorder, v.Want)))
	})
	switch {
	case superseded:
		return errStale
	case ctx.Err() != nil:
		return ctx.Err() // the hook stays due: the next agent runs it
	case err != nil:
		w.log.Warn("Hook failed", "hook", "postStart", "container", s.Container, "error", err)
		w.rec.setNotes(id, func(notes *pod.ContainerNotes) { notes.PostStart = pod.HookFailed })
		w.event(v.Want, s.Container, pod.EventWarning, eventPostStart, "PostStartHook failed")
		w.failedSteps.byContainer[s.Container] = pod.Failure{Reason: "PostStartHookError", Message: "PostStartHook failed", Count: 1}
		w.save()
		return errStale // the next plan stops the container before it starts another
	}
	w.rec.setNotes(id, func(notes *pod.ContainerNotes) { notes.PostStart = "" })
	w.save()
	return nil
}

// mustEnd reports whether the newest update or operation ends a container, or its whole instance.
// made is the spec that the container was made from.
func (w *worker) mustEnd(made *pod.Spec, container string) bool {
	now := w.update.want
	return now == nil || deleting(now) || !w.rec.StopSince.IsZero() || w.rec.Terminal != "" || now.UID() != made.UID() || now.SandboxHash != made.SandboxHash ||
		now.ContainerHash(container) != made.ContainerHash(container)
}

func hookRequest(v plan.View, s plan.Step, id string, warn pod.Warn) pod.HookRequest {
	r := pod.HookRequest{Handler: s.Hook, ContainerID: id, Warn: warn}
	for _, spec := range []*pod.Spec{v.Record.Want, v.Want} {
		if spec == nil || r.Container != nil {
			continue
		}
		r.Container, _ = spec.Container(s.Container)
	}
	if b := v.Have.Sandbox; b != nil && len(b.IPs) > 0 {
		r.PodIP = b.IPs[0]
	}
	return r
}
