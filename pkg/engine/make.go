package engine

import (
	"context"
	"errors"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

// This file makes the parts of a pod: its cgroup and users, its sandbox, its containers.

// resize gives a running container other resources. It raises the limits of the pod's cgroup before
// those of the container. worker.lower lowers them after those of the last container (C-1.34.5).
func (w *worker) resize(ctx context.Context, want *pod.Spec, container, id string) error {
	err := w.startCall(ctx, func() error {
		if w.env.cgroups == nil {
			return w.env.runtime.UpdateContainer(ctx, id, want, container)
		}
		if err := w.env.cgroups.Raise(want); err != nil {
			return err
		}
		return w.env.runtime.UpdateContainer(ctx, id, want, container)
	})
	if err != nil {
		return err
	}
	w.rec.setNotes(id, func(notes *pod.ContainerNotes) { notes.Resources = want.Resources(container) })
	w.save()
	delete(w.failedSteps.byContainer, container)
	return nil
}

// lowered is the result of the last attempts to lower the limits of the pod's cgroup.
type lowered struct {
	to  *pod.Spec // the spec of the last success, which has the current limits; nil: there was none
	err string    // why a later attempt failed; "": there was none
}

// lowerRetry is how long the worker waits after a failed lower.
const lowerRetry = time.Minute

// lower lowers the limits of the pod's cgroup, once all its containers are as desired. changed
// says that the pod's status has to be reported again: lower failed for the first time, or succeeded
// after a failure.
func (w *worker) lower(v plan.View, p plan.Plan) (changed bool) {
	if v.Have.Sandbox == nil || w.rec.Terminal != "" {
		w.lowered = lowered{} // it is about an instance that has ended
		return false
	}
	if w.env.cgroups == nil || v.Want == nil || w.lowered.to == v.Want || !p.Settled || p.Behind {
		return false
	}
	failed := w.lowered.err != ""
	err := w.env.cgroups.Lower(v.Want)
	if err == nil {
		w.lowered = lowered{to: v.Want}
		return failed
	}
	if !failed {
		w.lowered.err = err.Error()
		w.log.Warn("Failed to lower the limits of the pod's cgroup", "error", err)
		w.event(v.Want, "", pod.EventWarning, eventResizeError, "%s", resizeText("error", v.Want, w.lowered.err))
	}
	return !failed
}

// place returns the pod's cgroup parent and users. The first call allocates the users.
func (w *worker) place(want *pod.Spec) (pod.Place, error) {
	var p pod.Place
	if w.env.cgroups != nil {
		p.CgroupParent = w.env.cgroups.Parent(want)
	}
	if want.Pod.Spec.HostUsers == nil || *want.Pod.Spec.HostUsers {
		return p, nil
	}
	const reason = "FailedCreatePodSandBox"
	if w.env.users == nil {
		return p, &pod.StartError{Reason: reason, Err: errors.New("this node cannot allocate user namespaces"), Final: true}
	}
	users, err := w.env.users.Allocate(want.UID())
	if err != nil {
		return p, &pod.StartError{Reason: reason, Err: err}
	}
	p.Users = users
	return p, nil
}

// runSandbox makes the pod's cgroup and its sandbox in it.
func (w *worker) runSandbox(ctx context.Context, want *pod.Spec, s plan.Step) error {
	place, err := w.place(want)
	if err != nil {
		return err
	}
	if w.env.cgroups != nil {
		if place.CgroupParent, err = w.env.cgroups.Ensure(want); err != nil {
			return &pod.StartError{Reason: "FailedCreatePodContainer", Err: err}
		}
	}
	_, err = w.env.runtime.RunSandbox(ctx, pod.SandboxRequest{Want: want, Instance: s.Instance, Attempt: s.Attempt, Place: place, Warn: warning(w.env.recorder, want)})
	return err
}

// request collects the input of CreateContainer.
func (w *worker) request(ctx context.Context, v plan.View, s plan.Step) (r pod.CreateRequest, err error) {
	r = pod.CreateRequest{Want: v.Want, Container: s.Container, Sandbox: v.Have.Sandbox, Attempt: s.Attempt, Streak: s.Streak, SharedCPUs: w.env.mover.current()}
	if r.Place, err = w.place(v.Want); err != nil {
		return r, err
	}
	from := podenv.Sources{
		Node: pod.NodeFacts{HostIPs: w.env.hostIPs, Allocatable: w.env.allocatable},
		File: func(volume, path string) ([]byte, error) {
			return w.env.volumes.File(v.Want, r.Sandbox.Instance, volume, path)
		},
	}
	if w.env.services != nil && (w.env.servicesForAll || v.Want.Origin.FromAPI()) {
		if from.Services, err = w.env.services(v.Want.Namespace); err != nil {
			return r, err
		}
	}
	if r.Env, err = podenv.Environment(r, from); err != nil {
		return r, err
	}
	if r.Mounts, err = w.env.volumes.Mounts(ctx, r); err != nil {
		return r, err
	}
	r.BlockDevices, err = w.env.volumes.Devices(r)
	return r, err
}

func (w *worker) create(ctx context.Context, v plan.View, s plan.Step) error {
	claims, err := w.claimsFor(ctx, v.Want, s.Container)
	if err != nil {
		return err
	}
	devices, err := w.allocateDevices(ctx, v, s.Container)
	if err != nil {
		return err
	}
	var request pod.CreateRequest
	// A network file system can hang: the start slot must not wait for it.
	err = w.call(ctx, w.env.starts.SlotTimeout(), nil, func() (err error) {
		defer activity.Begin(ctx, activity.Call{Kind: activity.Volume, Name: "prepare mounts", Target: s.Container})()
		request, err = w.request(ctx, v, s)
		return err
	})
	if err != nil {
		var cannot *pod.StartError
		if errors.As(err, &cannot) {
			return err
		}
		return &pod.StartError{Reason: reasonConfig, Err: err}
	}
	request.Devices, request.Claims = devices, claims
	if err := w.takeSlot(ctx); err != nil { // the slot may have gone to another pod meanwhile
		return err
	}
	var id string
	err = w.startCall(ctx, func() (err error) {
		if w.env.cgroups != nil { // the container may get more resources than the one before it
			if err := w.env.cgroups.Raise(v.Want); err != nil {
				return &pod.StartError{Reason: "CreateContainerError", Err: err}
			}
		}
		id, err = w.env.runtime.CreateContainer(ctx, request)
		return err
	})
	w.env.mover.created(request.SharedCPUs)
	if err != nil {
		return err
	}
	w.created[s.Container] = id
	w.event(v.Want, s.Container, pod.EventNormal, eventCreated, "Container created")
	if _, ok := w.rec.Streaks[s.Container]; ok { // the container carries the crash streak now
		delete(w.rec.Streaks, s.Container)
		w.rec.dirty = true
	}
	if _, ok := w.rec.Devices[s.Container]; ok { // the container carries its devices, too
		delete(w.rec.Devices, s.Container)
		w.rec.dirty = true
	}
	return nil
}
