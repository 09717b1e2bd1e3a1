package status

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Reasons of the kubelet that scripts look for (C-1.22.9, C-1.26).
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"
	crashLoopBackOff  = "CrashLoopBackOff"
	postStartHook     = "PostStartHookError"
	statusUnknown     = "ContainerStatusUnknown"
	completed         = "Completed"
)

// The exit code and the message of a container that needs a terminated state although its exit was not
// observed (C-1.26.1).
const (
	exitLost   = 137
	notLocated = "The container could not be located when the pod was terminated"
)

// podMessages is how many bytes of termination messages a pod's status carries; each
// container gets an equal part (C-1.26.11).
const podMessages = 12 << 10

// regular returns the status of a regular container.
func (b *build) regular(c *v1.Container) v1.ContainerStatus {
	st := b.newStatus(c)
	r, ok := b.Container(c.Name)
	switch {
	case ok:
		b.fromContainer(&st, c, r)
		if !b.notes.Disabled.Has(pod.FeatureDeviceHealth) {
			st.AllocatedResourcesStatus = append(b.devices(r), b.claims(c, r)...)
		}
	case b.removedToRestart(&st):
	case b.old[c.Name].State.Terminated != nil:
		keepEnd(&st, b.old[c.Name]) // C-1.26.4
	default:
		b.missing(&st)
	}
	b.overrideWaiting(&st, c, r, b.mayRestart(c, &st))
	b.setProbed(&st, c, r)
	return st
}

// initContainer returns the status of an init container. The exit of a container in an older sandbox
// is only its last termination state: init containers run again in each sandbox (C-1.20.9).
func (b *build) initContainer(c *v1.Container) v1.ContainerStatus {
	st := b.newStatus(c)
	r, ok := b.Container(c.Name)
	sidecar := pod.Restartable(c)
	switch {
	case ok && (b.InSandbox(r) || b.have.Sandbox == nil):
		b.fromContainer(&st, c, r)
	case !ok && b.removedToRestart(&st):
	case !ok && !sidecar && !b.triggersRestartAll && b.initDone && len(b.have.Containers) > 0:
		if b.old[c.Name].State.Terminated != nil {
			keepEnd(&st, b.old[c.Name])
		} else {
			st.State.Terminated = &v1.ContainerStateTerminated{ // C-1.26.7
				Reason:  completed,
				Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
			}
		}
	case ok:
		st.State.Waiting = b.waiting()
		if r.State == pod.StateExited {
			st.LastTerminationState.Terminated = b.terminated(r)
		}
	case (b.have.Sandbox == nil || b.over) && b.old[c.Name].State.Terminated != nil:
		keepEnd(&st, b.old[c.Name])
	default:
		b.missing(&st)
	}
	end := st.State.Terminated
	done := end != nil && end.ExitCode == 0
	b.overrideWaiting(&st, c, r, b.mayRestart(c, &st) && (sidecar || !done))
	if sidecar {
		b.setProbed(&st, c, r)
	} else {
		st.Started = new(st.State.Running != nil)
		st.Ready = done
	}
	return st
}

// ephemeral returns the status of an ephemeral container. It runs once.
func (b *build) ephemeral(e *v1.EphemeralContainer) v1.ContainerStatus {
	c := (*v1.Container)(&e.EphemeralContainerCommon)
	st := b.newStatus(c)
	r, ok := b.Container(c.Name)
	switch {
	case ok:
		b.fromContainer(&st, c, r)
	case b.old[c.Name].State.Terminated != nil:
		keepEnd(&st, b.old[c.Name])
	default:
		b.missing(&st)
	}
	b.overrideWaiting(&st, c, r, st.State.Waiting != nil && !b.notes.Terminating)
	return st
}

// newStatus returns a status with name, image, mounts and restart count, which only rises (I4).
func (b *build) newStatus(c *v1.Container) v1.ContainerStatus {
	st := v1.ContainerStatus{Name: c.Name, Image: c.Image, RestartCount: b.old[c.Name].RestartCount}
	if r, ok := b.have.Containers[c.Name]; ok {
		st.RestartCount = max(st.RestartCount, int32(r.Restarts))
	}
	for _, r := range b.have.Dead {
		if r.Name == c.Name {
			st.RestartCount = max(st.RestartCount, int32(r.Restarts))
		}
	}
	st.VolumeMounts = mountsOf(c, func(m v1.VolumeMount) v1.RecursiveReadOnlyMode { return recursiveSoFar(m, b.old[c.Name]) })
	return st
}

// fromContainer fills in the state of the newest container (C-1.26.1), and the exit of the one
// before it (C-1.26.5).
func (b *build) fromContainer(st *v1.ContainerStatus, c *v1.Container, r pod.Container) {
	st.ContainerID = b.containerID(r)
	st.Image = cmp.Or(r.Image, st.Image)
	st.ImageID = r.ImageID
	st.LastTerminationState = b.lastTermination(st.Name, st.ContainerID)
	b.resources(st, c, r)
	if r.StopSignal != "" {
		st.StopSignal = new(v1.Signal(r.StopSignal))
	}
	if r.User != nil {
		st.User = &v1.ContainerUser{Linux: r.User}
	}
	st.VolumeMounts = mountsOf(c, func(m v1.VolumeMount) v1.RecursiveReadOnlyMode { return recursive(m, r) })
	switch r.State {
	case pod.StateRunning:
		switch hook := b.notes.ContainerNotes[r.ID].PostStart; {
		case hook == pod.HookDue && c.Lifecycle != nil && c.Lifecycle.PostStart != nil:
			st.State.Waiting = b.waiting() // not running before the hook has ended (C-1.22.6)
		case hook == pod.HookFailed:
			st.State.Waiting = hookFailed()
		default: // also if the spec no longer has the hook
			st.State.Running = &v1.ContainerStateRunning{StartedAt: seconds(r.StartedAt)}
		}
	case pod.StateExited:
		st.State.Terminated = b.terminated(r)
	case pod.StateUnknown:
		if r.StartedAt.IsZero() && b.old[st.Name].State.Running == nil {
			st.State.Waiting = &v1.ContainerStateWaiting{}
			return
		}
		st.State.Terminated = lost(notLocated)
		st.State.Terminated.StartedAt = seconds(r.StartedAt)
		st.State.Terminated.ContainerID = st.ContainerID
		st.RestartCount = max(st.RestartCount, int32(r.Restarts)+1)
	default:
		st.State.Waiting = &v1.ContainerStateWaiting{}
	}
}

// devices returns the devices of a container with their health, by resource and ID.
func (b *build) devices(r pod.Container) (all []v1.ResourceStatus) {
	for _, a := range r.Devices {
		one := v1.ResourceStatus{Name: v1.ResourceName(a.Resource)}
		for _, id := range a.Devices {
			health := v1.ResourceHealthStatusHealthy
			if b.notes.Unhealthy[a.Resource][id] {
				health = v1.ResourceHealthStatusUnhealthy
			}
			one.Resources = append(one.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(id), Health: health})
		}
		all = append(all, one)
	}
	return all
}

// claims returns the devices of a container's ResourceClaims with their health, by the entries of its
// resources.claims. Claims that the drivers have unprepared are left out.
func (b *build) claims(c *v1.Container, r pod.Container) (all []v1.ResourceStatus) {
	for _, entry := range c.Resources.Claims {
		for i := range b.want.Pod.Spec.ResourceClaims {
			of := &b.want.Pod.Spec.ResourceClaims[i]
			name, _, err := pod.ClaimName(b.want.Pod, of)
			if of.Name != entry.Name || err != nil {
				continue
			}
			for _, a := range r.Claims {
				if one := b.claim(entry, a); a.Name == name && len(one.Resources) > 0 {
					all = append(all, one)
				}
			}
		}
	}
	return all
}

// claim returns the devices of one claim that a container has by an entry of its resources.claims. A
// device whose health its driver does not report is Unknown.
func (b *build) claim(entry v1.ResourceClaim, a pod.ClaimAllocation) v1.ResourceStatus {
	one := v1.ResourceStatus{Name: v1.ResourceName("claim:" + entry.Name)}
	if entry.Request != "" {
		one.Name += v1.ResourceName("/" + entry.Request)
	}
	health, prepared := b.notes.Claims[a.UID]
	if !prepared {
		return one
	}
	request, _, _ := strings.Cut(entry.Request, "/") // the subrequest was the scheduler's choice
	shown := make(map[v1.ResourceID]bool)
	for _, d := range a.Devices {
		if request != "" && len(d.Requests) > 0 && !slices.Contains(d.Requests, request) {
			continue
		}
		id := v1.ResourceID(d.Driver + "/" + d.Pool + "/" + d.Device)
		if len(d.CDI) > 0 {
			id = v1.ResourceID(d.CDI[0])
		}
		if shown[id] {
			continue
		}
		shown[id] = true
		is := v1.ResourceHealth{ResourceID: id, Health: v1.ResourceHealthStatusUnknown}
		if h, known := health[d.Name()]; known {
			is.Health = h.Status
			if h.Message != "" && !b.notes.Disabled.Has(pod.FeatureHealthText) {
				is.Message = &h.Message
			}
		}
		one.Resources = append(one.Resources, is)
	}
	return one
}

// mountsOf returns the mounts of a container, created or not (C-1.26). mode returns the recursive
// read-only mode of a read-only mount.
func mountsOf(c *v1.Container, mode func(v1.VolumeMount) v1.RecursiveReadOnlyMode) (all []v1.VolumeMountStatus) {
	for _, m := range c.VolumeMounts {
		mount := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mount.RecursiveReadOnly = new(mode(m))
		}
		all = append(all, mount)
	}
	return all
}

// recursiveSoFar returns the recursive mode of a read-only mount while its container does not
// exist. With IfPossible it is the last reported mode, since only a created container shows the
// runtime's abilities.
func recursiveSoFar(m v1.VolumeMount, old v1.ContainerStatus) v1.RecursiveReadOnlyMode {
	if m.RecursiveReadOnly == nil || m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
		return v1.RecursiveReadOnlyDisabled
	}
	if *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
		return v1.RecursiveReadOnlyEnabled
	}
	for _, was := range old.VolumeMounts {
		if *m.RecursiveReadOnly == v1.RecursiveReadOnlyIfPossible && was.MountPath == m.MountPath && was.RecursiveReadOnly != nil {
			return *was.RecursiveReadOnly
		}
	}
	return v1.RecursiveReadOnlyDisabled
}

// recursive returns the recursive mode of a read-only mount of a container, as the runtime shows
// it.
func recursive(m v1.VolumeMount, r pod.Container) v1.RecursiveReadOnlyMode {
	at := m.MountPath
	if !path.IsAbs(at) {
		at = "/" + at
	}
	if slices.Contains(r.Recursive, at) {
		return v1.RecursiveReadOnlyEnabled
	}
	return v1.RecursiveReadOnlyDisabled
}

// lastTermination returns the exit of the newest container of that name before the one with id. It
// comes from the runtime, else from the last report.
func (b *build) lastTermination(name, id string) v1.ContainerState {
	for _, r := range b.have.Dead {
		if r.Name == name && r.State == pod.StateExited && b.Owns(r) {
			return v1.ContainerState{Terminated: b.terminated(r)}
		}
	}
	old := b.old[name]
	if b.restarting && old.ContainerID != id && (old.State.Running != nil || old.State.Terminated != nil) {
		return v1.ContainerState{Terminated: restartedEnd(old.State.Terminated)}
	}
	if t := old.State.Terminated; t != nil && t.ContainerID != id {
		return v1.ContainerState{Terminated: t}
	}
	if t := old.LastTerminationState.Terminated; t != nil && t.ContainerID != id {
		return v1.ContainerState{Terminated: t}
	}
	return v1.ContainerState{}
}

// missing fills in the status of a container that does not exist: it was not created yet, or it
// disappeared from the runtime (C-1.26.2, C-1.26.3).
func (b *build) missing(st *v1.ContainerStatus) {
	old := b.old[st.Name]
	st.State.Waiting = b.waiting()
	st.LastTerminationState = old.LastTerminationState
	if old.State.Terminated != nil {
		st.LastTerminationState = old.State // an init container that runs again
	}
	if old.State.Running == nil {
		return
	}
	end := lost("The container could not be located when the pod was deleted.  The container used to be Running")
	end.ContainerID = old.ContainerID
	st.LastTerminationState = v1.ContainerState{Terminated: end}
	if !b.notes.Terminating {
		st.RestartCount++
	}
}

// waiting returns the waiting state of a container that is not created yet. Its message says why
// the whole pod waits.
func (b *build) waiting() *v1.ContainerStateWaiting {
	w := &v1.ContainerStateWaiting{Reason: containerCreating}
	if len(b.want.Pod.Spec.InitContainers) > 0 {
		w.Reason = podInitializing
	}
	failure := b.notes.Failures[""]
	switch {
	case b.notAdmitted():
		w.Message = b.notes.NotAdmittedMessage
	case b.waitsForPod():
		w.Message = b.notes.Waits
	case failure.Reason != "":
		w.Message = failure.Reason + ": " + failure.Message
	case b.notes.NetworkWait != "" && !b.want.Pod.Spec.HostNetwork && !b.SandboxReady():
		w.Message = b.notes.NetworkWait
	}
	return w
}

// mayRestart reports whether a container that does not run will be started (C-1.19.8, C-1.21).
func (b *build) mayRestart(c *v1.Container, st *v1.ContainerStatus) bool {
	if b.notes.Terminating || b.over {
		return false
	}
	return st.State.Waiting != nil || st.State.Terminated != nil && b.comesBack(c, st.State.Terminated)
}

// overrideWaiting sets the waiting reason of a container that will be started or retried (C-1.26.6).
// Its exit becomes the last termination state. If due is false, it changes nothing.
func (b *build) overrideWaiting(st *v1.ContainerStatus, c *v1.Container, r pod.Container, due bool) {
	if !due {
		return
	}
	var w *v1.ContainerStateWaiting
	failure := b.notes.Failures[st.Name]
	if back, ok := b.notes.Backoff[st.Name]; ok && back.Until.After(b.now) {
		w = &v1.ContainerStateWaiting{
			Reason: crashLoopBackOff,
			Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
				back.Delay, st.Name, b.want.Name, b.want.Namespace, b.want.UID()),
		}
	} else if failure.Reason != "" {
		w = &v1.ContainerStateWaiting{Reason: failure.Reason, Message: failure.Message}
		if podview.InPullBackOff(failure, b.now) && podview.IsPullError(failure.Reason) {
			w.Reason = podview.ImagePullBackOff
			w.Message = fmt.Sprintf("Back-off pulling image %q: %s: %s", c.Image, failure.Reason, failure.Message)
		}
	} else if st.State.Terminated != nil && b.notes.ContainerNotes[r.ID].Killed == pod.HookFailed {
		w = hookFailed()
	}
	if w == nil {
		return
	}
	if st.State.Terminated != nil {
		st.LastTerminationState = v1.ContainerState{Terminated: st.State.Terminated}
	}
	st.State = v1.ContainerState{Waiting: w}
	if r.ID == "" { // the container that exited was removed
		st.ContainerID, st.ImageID, st.AllocatedResources, st.Resources, st.User = "", "", nil, nil, nil
	}
}

func hookFailed() *v1.ContainerStateWaiting {
	return &v1.ContainerStateWaiting{Reason: postStartHook, Message: "PostStartHook failed"}
}

func (b *build) terminated(r pod.Container) *v1.ContainerStateTerminated {
	reason := "Error"
	if r.ExitCode == 0 {
		reason = completed
	}
	return &v1.ContainerStateTerminated{
		ExitCode:    r.ExitCode,
		Reason:      cmp.Or(r.Reason, reason),
		Message:     cut(r.Message, b.messageLimit),
		StartedAt:   seconds(r.StartedAt),
		FinishedAt:  seconds(r.FinishedAt),
		ContainerID: b.containerID(r),
	}
}

func lost(message string) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{ExitCode: exitLost, Reason: statusUnknown, Message: message}
}

// cut returns at most the first limit bytes of a message, in whole characters.
func cut(message string, limit int) string {
	if len(message) <= limit {
		return message
	}
	for limit > 0 && !utf8.RuneStart(message[limit]) {
		limit--
	}
	return message[:limit]
}

func keepEnd(st *v1.ContainerStatus, old v1.ContainerStatus) {
	st.State, st.LastTerminationState = old.State, old.LastTerminationState
	st.ContainerID, st.ImageID = old.ContainerID, old.ImageID
	st.AllocatedResources, st.Resources, st.User, st.StopSignal = old.AllocatedResources, old.Resources, old.User, old.StopSignal
	st.Image = cmp.Or(old.Image, st.Image)
}

func (b *build) containerID(r pod.Container) string {
	if r.ID == "" {
		return ""
	}
	return cmp.Or(b.notes.RuntimeName, "containerd") + "://" + r.ID
}
