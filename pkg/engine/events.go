package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Reasons of events: the kubelet's, where it has one (appendix D of the contract). Events about
// admission have the reasons of package plan.
const (
	eventPulling        = "Pulling"
	eventPulled         = "Pulled"
	eventBackOff        = "BackOff"
	eventFailed         = "Failed"
	eventInspectFailed  = "InspectFailed"
	eventNeverPull      = "ErrImageNeverPull"
	eventCreated        = "Created"
	eventStarted        = "Started"
	eventKilling        = "Killing"
	eventPullSecret     = "FailedToRetrieveImagePullSecret"
	eventPostStart      = "FailedPostStartHook"
	eventPreStop        = "FailedPreStopHook"
	eventMount          = "FailedMount"
	eventSandbox        = "FailedCreatePodSandBox"
	eventPodCgroup      = "FailedCreatePodContainer"
	eventSandboxChanged = "SandboxChanged"
	eventDeadline       = "DeadlineExceeded"
	eventNetwork        = "NetworkNotReady"
	eventForbidden      = "ForbiddenBySourcePolicy"
	eventKillPod        = "FailedKillPod"
	eventGrace          = "ExceededGracePeriod"
	eventSync           = "FailedSync"
	eventEvicted        = "Evicted"
	eventNoDNS          = "MissingClusterDNS"
	eventResizeStarted  = "ResizeStarted"
	eventResizeDone     = "ResizeCompleted"
	eventResizeError    = "ResizeError"
	eventResize         = "Resize" // Deferred or Infeasible
)

// recorder sends events; it may be used from many goroutines.
type recorder struct{ events Events } // nil: events are dropped

// event sends an event of a pod, or of one of its containers, with the current time.
func (r recorder) event(key pod.Key, uid, path, kind, reason, message string) {
	r.annotated(key, uid, path, kind, reason, message, nil)
}

// annotated is event with annotations for the event's object.
func (r recorder) annotated(key pod.Key, uid, path, kind, reason, message string, annotations map[string]string) {
	if r.events == nil {
		return
	}
	r.events.Event(pod.Event{
		Key: key, UID: uid, Container: path, Type: kind, Reason: reason,
		Message: strings.TrimSpace(message), At: time.Now(), Annotations: annotations,
	})
}

// fieldPath is the field path by which events name a container; "" if the spec has no such
// container.
func fieldPath(spec *pod.Spec, name string) string {
	if spec == nil || name == "" {
		return ""
	}
	c, init := spec.Container(name)
	switch {
	case c == nil:
		return ""
	case init:
		return "spec.initContainers{" + name + "}"
	case ephemeral(spec, name):
		return "spec.ephemeralContainers{" + name + "}"
	}
	return "spec.containers{" + name + "}"
}

// warning returns a function that sends warning events of the spec's pod; nil for no spec.
func warning(r recorder, spec *pod.Spec) pod.Warn {
	if spec == nil {
		return nil
	}
	return func(reason, message string) { r.event(spec.Key, spec.UID(), "", pod.EventWarning, reason, message) }
}

// event sends an event of the pod, or of one of its containers. Its UID is that of spec, or of the
// record if spec is nil.
func (w *worker) event(spec *pod.Spec, container, kind, reason, format string, a ...any) {
	uid := w.rec.UID
	if spec != nil {
		uid = spec.UID()
	}
	w.env.recorder.event(w.key, uid, fieldPath(spec, container), kind, reason, fmt.Sprintf(format, a...))
}

// pullEvents returns a function that sends the events of a pull for a container. The function may
// run in parallel with the worker, so it reads no field of the worker.
func pullEvents(r recorder, spec *pod.Spec, container string) func(pod.PullProgress) {
	path, image := fieldPath(spec, container), ""
	if c, _ := spec.Container(container); c != nil {
		image = c.Image
	}
	return func(n pod.PullProgress) {
		if n.Image == "" {
			n.Image = image
		}
		switch {
		case n.Present:
			r.event(spec.Key, spec.UID(), path, pod.EventNormal, eventPulled, fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", n.Image))
		case n.Pulled:
			text := fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting).", n.Image, n.Took.Truncate(time.Millisecond), n.Waited.Truncate(time.Millisecond))
			if n.Bytes > 0 {
				text += fmt.Sprintf(" Image size: %d bytes.", n.Bytes)
			}
			r.event(spec.Key, spec.UID(), path, pod.EventNormal, eventPulled, text)
		case n.Pending:
			text := fmt.Sprintf("Still pulling image %q after %v", n.Image, n.Waited.Round(time.Second))
			if n.Queued {
				text = fmt.Sprintf("Waiting for other images for %v before pulling image %q", n.Waited.Round(time.Second), n.Image)
			}
			r.event(spec.Key, spec.UID(), path, pod.EventNormal, eventPulling, text)
		default:
			r.event(spec.Key, spec.UID(), path, pod.EventNormal, eventPulling, fmt.Sprintf("Pulling image %q", n.Image))
		}
	}
}

// reportFailed sends the events of a failed step, with the message of t.
func (w *worker) reportFailed(s plan.Step, t pod.Failure) {
	spec := w.update.want
	warn := func(reason, format string, a ...any) {
		w.event(spec, s.Container, pod.EventWarning, reason, format, a...)
	}
	switch s.Action {
	case plan.SetUpVolumes:
		for line := range strings.Lines(t.Message) {
			warn(eventMount, "%s", mountText(line))
		}
	case plan.RunSandbox:
		if t.Reason == eventPodCgroup {
			warn(eventPodCgroup, "unable to ensure pod container exists: %s", t.Message)
			return
		}
		if claims(t) {
			warn(pod.ReasonPrepareClaims, "Failed to prepare dynamic resources: %s", t.Message)
			return
		}
		warn(eventSandbox, "Failed to create pod sandbox: %s", t.Message)
	case plan.PullImage:
		w.reportPullFailed(s.Container, t)
	case plan.CreateContainer, plan.StartContainer:
		id := w.created[s.Container]
		if id == "" {
			id = s.ID
		}
		text := t.Message
		if id != "" { // one event for all containers that fail alike
			text = strings.ReplaceAll(text, id, s.Container)
		}
		warn(eventFailed, "Error: %s", text)
	case plan.UpdateContainer:
		w.event(spec, "", pod.EventWarning, eventResizeError, "%s", resizeText("error", spec, t.Message))
	}
}

// claims reports whether a step failed because of the pod's claims.
func claims(t pod.Failure) bool {
	return t.Reason == pod.ReasonWaitsForClaim || t.Reason == pod.ReasonWaitsForDriver || t.Reason == pod.ReasonPrepareClaims
}

// reportPullFailed sends the events of an image that could not be pulled.
func (w *worker) reportPullFailed(container string, t pod.Failure) {
	spec, image := w.update.want, ""
	if spec == nil {
		return
	}
	if c, _ := spec.Container(container); c != nil {
		image = c.Image
	}
	warn := func(reason, format string, a ...any) {
		w.event(spec, container, pod.EventWarning, reason, format, a...)
	}
	switch t.Reason {
	case "InvalidImageName":
		warn(eventInspectFailed, "Failed to apply default image tag %q: %s", image, t.Message)
	case "ImageInspectError":
		warn(eventInspectFailed, "Failed to inspect image %q: %s", image, t.Message)
	case "ErrImageNeverPull":
		warn(eventNeverPull, "Container image %q is not present with pull policy of Never", image)
	default:
		w.reportPullSecrets(spec)
		warn(eventFailed, "Failed to pull image %q: %s", image, t.Message)
	}
	warn(eventFailed, "Error: %s", t.Reason)
}

// reportPullSecrets sends an event that names the missing pull secrets of a pod.
func (w *worker) reportPullSecrets(spec *pod.Spec) {
	var missing []string
	for _, ref := range spec.Pod.Spec.ImagePullSecrets {
		if spec.Data.HasContents() && spec.Data.Secret(ref.Name) == nil {
			missing = append(missing, ref.Name)
		}
	}
	if len(missing) > 0 {
		w.event(spec, "", pod.EventWarning, eventPullSecret,
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
}

// mountText is the kubelet's message for the failure of one volume.
func mountText(line string) string {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "volume ")
	name, why, found := strings.Cut(rest, ": ")
	if !ok || !found {
		return "Unable to attach or mount volumes: " + strings.TrimSpace(line)
	}
	if strings.HasPrefix(why, "MountVolume.") || strings.HasPrefix(why, "Unable to attach or mount volumes: ") {
		return why // a CSI driver's volume: the text names it as the kubelet does
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %s", name, why)
}

// instanceSpec is the spec of the instance on the node, nil when it is not known.
func (w *worker) instanceSpec() *pod.Spec {
	for _, spec := range []*pod.Spec{w.rec.Want, w.update.want} {
		if spec != nil && (w.last.uid == "" || w.last.uid == spec.UID()) {
			return spec
		}
	}
	return nil
}

// reportKilling sends the event of a container that is about to be stopped, with the reason.
func (w *worker) reportKilling(s plan.Step) {
	spec := w.instanceSpec()
	text := "Stopping container " + s.Container
	switch {
	case s.Killed == string(pod.Liveness), s.Killed == string(pod.Startup):
		text = fmt.Sprintf("Container %s failed %s probe", s.Container, s.Killed)
		if spec != nil {
			c, _ := spec.Container(s.Container)
			if again, _ := (pod.ContainerNotes{Killed: s.Killed}).Restarts(spec.Pod.Spec.RestartPolicy, c, 0); again {
				text += ", will be restarted"
			}
		}
	case s.Killed == pod.HookFailed:
		text = eventPostStart
	case s.Why == plan.WhyResized:
		text = fmt.Sprintf("Container %s resize requires restart", s.Container)
	case s.Killed == pod.OnRequest:
		text = fmt.Sprintf("Container %s restart requested, will be restarted", s.Container)
	case s.Why == plan.WhyEdited:
		text = fmt.Sprintf("Container %s definition changed, will be restarted", s.Container)
	}
	w.event(spec, s.Container, pod.EventNormal, eventKilling, "%s", text)
}
