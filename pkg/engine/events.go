package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Reasons of events, as people look for them (appendix D of the contract). Those of
// admission are admission's own.
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
	eventUnhealthy      = "Unhealthy"
	eventProbeWarning   = "ProbeWarning"
	eventPullSecret     = "FailedToRetrieveImagePullSecret"
	eventPostStart      = "FailedPostStartHook"
	eventPreStop        = "FailedPreStopHook"
	eventMount          = "FailedMount"
	eventSandbox        = "FailedCreatePodSandBox"
	eventPodCgroup      = "FailedCreatePodContainer"
	eventSandboxChanged = "SandboxChanged"
	eventNetwork        = "NetworkNotReady"
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

// say tells of something that happened to a pod, or to one of its containers: here,
// once, when it happens.
func (c Config) say(key pod.Key, uid, path, kind, reason, message string) {
	if c.Events == nil {
		return
	}
	c.Events.Event(pod.Event{
		Key: key, UID: uid, Container: path, Type: kind, Reason: reason,
		Message: strings.TrimSpace(message), At: time.Now(),
	})
}

// fieldPath names a container as events do; "" where the pod is not known to have it.
func fieldPath(of *pod.Spec, name string) string {
	if of == nil || name == "" {
		return ""
	}
	c, init := of.Container(name)
	switch {
	case c == nil:
		return ""
	case init:
		return "spec.initContainers{" + name + "}"
	case ephemeral(of, name):
		return "spec.ephemeralContainers{" + name + "}"
	}
	return "spec.containers{" + name + "}"
}

// lasting is what was told by events of a state that lasts: it is told once.
type lasting struct {
	crash   map[string]time.Time // by container: until when it is held back
	image   map[string]time.Time // the same of an image
	network bool                 // that the pod waits for the network
	failing bool                 // that the pod cannot be looked at
}

// event tells of what happens to a pod of spec of, or to one of its containers.
func (w *worker) event(of *pod.Spec, container, kind, reason, format string, a ...any) {
	uid := w.rec.UID
	if of != nil {
		uid = of.UID()
	}
	w.cfg.say(w.key, uid, fieldPath(of, container), kind, reason, fmt.Sprintf(format, a...))
}

// hearPull tells what becomes of an image that a container needs. It is called from a
// call of the worker: it reads nothing but what it is given.
func hearPull(cfg Config, of *pod.Spec, container string) func(pod.PullNews) {
	path, image := fieldPath(of, container), ""
	if c, _ := of.Container(container); c != nil {
		image = c.Image
	}
	return func(n pod.PullNews) {
		if n.Image == "" {
			n.Image = image
		}
		switch {
		case n.Present:
			cfg.say(of.Key, of.UID(), path, pod.EventNormal, eventPulled, fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", n.Image))
		case n.Pulled:
			text := fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting).", n.Image, n.Took.Truncate(time.Millisecond), n.Waited.Truncate(time.Millisecond))
			if n.Bytes > 0 {
				text += fmt.Sprintf(" Image size: %d bytes.", n.Bytes)
			}
			cfg.say(of.Key, of.UID(), path, pod.EventNormal, eventPulled, text)
		default:
			cfg.say(of.Key, of.UID(), path, pod.EventNormal, eventPulling, fmt.Sprintf("Pulling image %q", n.Image))
		}
	}
}

// tellFailed tells of a step that failed, in the words of t.
func (w *worker) tellFailed(s plan.Step, t pod.Trouble) {
	of := w.letter.want
	warn := func(reason, format string, a ...any) {
		w.event(of, s.Container, pod.EventWarning, reason, format, a...)
	}
	switch s.Action {
	case plan.PutVolumes:
		for line := range strings.Lines(t.Message) {
			warn(eventMount, "%s", mountText(line))
		}
	case plan.RunSandbox:
		if t.Reason == eventPodCgroup {
			warn(eventPodCgroup, "unable to ensure pod container exists: %s", t.Message)
			return
		}
		warn(eventSandbox, "Failed to create pod sandbox: %s", t.Message)
	case plan.PullImage:
		w.tellPullFailed(s.Container, t)
	case plan.CreateContainer, plan.StartContainer:
		id := w.created[s.Container]
		if id == "" {
			id = s.ID
		}
		text := t.Message
		if id != "" { // one event for all that fail alike
			text = strings.ReplaceAll(text, id, s.Container)
		}
		warn(eventFailed, "Error: %s", text)
	case plan.UpdateContainer:
		w.event(of, "", pod.EventWarning, eventResizeError, "%s", resizeText("error", of, t.Message))
	}
}

// tellPullFailed tells why an image is not here.
func (w *worker) tellPullFailed(container string, t pod.Trouble) {
	of, image := w.letter.want, ""
	if of == nil {
		return
	}
	if c, _ := of.Container(container); c != nil {
		image = c.Image
	}
	warn := func(reason, format string, a ...any) {
		w.event(of, container, pod.EventWarning, reason, format, a...)
	}
	switch t.Reason {
	case "InvalidImageName":
		warn(eventInspectFailed, "Failed to apply default image tag %q: %s", image, t.Message)
	case "ImageInspectError":
		warn(eventInspectFailed, "Failed to inspect image %q: %s", image, t.Message)
	case "ErrImageNeverPull":
		warn(eventNeverPull, "Container image %q is not present with pull policy of Never", image)
	default:
		w.tellPullSecrets(of)
		warn(eventFailed, "Failed to pull image %q: %s", image, t.Message)
	}
	warn(eventFailed, "Error: %s", t.Reason)
}

// tellPullSecrets tells which secrets a pod names for its pulls and does not have.
func (w *worker) tellPullSecrets(of *pod.Spec) {
	var missing []string
	for _, ref := range of.Pod.Spec.ImagePullSecrets {
		if of.Data.Known() && of.Data.Secret(ref.Name) == nil {
			missing = append(missing, ref.Name)
		}
	}
	if len(missing) > 0 {
		w.event(of, "", pod.EventWarning, eventPullSecret,
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
}

// mountText words a failure of one volume as others look for it.
func mountText(line string) string {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "volume ")
	name, why, found := strings.Cut(rest, ": ")
	if !ok || !found {
		return "Unable to attach or mount volumes: " + strings.TrimSpace(line)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %s", name, why)
}

// tellStopFailed tells that something of a pod could not be stopped.
func (w *worker) tellStopFailed(s plan.Step, err error) {
	if s.Action == plan.StopContainer || s.Action == plan.StopSandbox {
		w.event(w.madeOf(), "", pod.EventWarning, eventKillPod, "error killing pod: %v", err)
	}
}

// madeOf is the spec of what is on the node, as far as it is known.
func (w *worker) madeOf() *pod.Spec {
	for _, spec := range []*pod.Spec{w.rec.Want, w.letter.want} {
		if spec != nil && (w.have.UID == "" || w.have.UID == spec.UID()) {
			return spec
		}
	}
	return nil
}

// tellKilling tells of a container that is about to be stopped, and why.
func (w *worker) tellKilling(s plan.Step) {
	of := w.madeOf()
	text := "Stopping container " + s.Container
	switch {
	case s.Killed == string(pod.Liveness), s.Killed == string(pod.Startup):
		text = fmt.Sprintf("Container %s failed %s probe", s.Container, s.Killed)
		if of != nil {
			c, _ := of.Container(s.Container)
			if again, _ := (pod.Life{Killed: s.Killed}).Restarts(of.Pod.Spec.RestartPolicy, c, 0); again {
				text += ", will be restarted"
			}
		}
	case s.Killed == pod.HookFailed:
		text = eventPostStart
	case s.Killed == pod.OnRequest:
		text = fmt.Sprintf("Container %s restart requested, will be restarted", s.Container)
	case s.Why == plan.WhyEdited:
		text = fmt.Sprintf("Container %s definition changed, will be restarted", s.Container)
	case s.Why == plan.WhyResized:
		text = fmt.Sprintf("Container %s resize requires restart", s.Container)
	}
	w.event(of, s.Container, pod.EventNormal, eventKilling, "%s", text)
}

// tellWaits tells what the plan has found that lasts, once each: back-offs, and that
// there is no network.
func (w *worker) tellWaits(v plan.View, p plan.Plan) {
	of := v.Want
	if of == nil || deleting(of) {
		return
	}
	for _, name := range sortedNames(p.Backoff) {
		until := p.Backoff[name].Until
		if w.said.crash[name].Equal(until) {
			continue
		}
		if w.said.crash == nil {
			w.said.crash = make(map[string]time.Time)
		}
		w.said.crash[name] = until
		w.event(of, name, pod.EventWarning, eventBackOff, "Back-off restarting failed container %s in pod %s_%s(%s)", name, of.Name, of.Namespace, of.UID())
	}
	for _, name := range sortedNames(w.trouble) {
		t := w.trouble[name]
		told := t.Count > 1 || t.Until.Sub(v.Now) <= plan.PullTold
		if w.failing[name] != plan.PullImage || !told || !t.Until.After(v.Now) || w.said.image[name].Equal(t.Until) {
			continue
		}
		if w.said.image == nil {
			w.said.image = make(map[string]time.Time)
		}
		w.said.image[name] = t.Until
		w.tellImageBackOff(of, name, t)
	}
	waits := p.WaitFor == plan.WaitNetwork
	if waits && !w.said.network {
		w.event(of, "", pod.EventWarning, eventNetwork, "network is not ready: container runtime network not ready: %s", w.letter.noNetwork)
	}
	w.said.network = waits
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (w *worker) tellImageBackOff(of *pod.Spec, name string, t pod.Trouble) {
	switch t.Reason { // of these nothing is pulled: there is nothing to hold back
	case "InvalidImageName", "ImageInspectError", "ErrImageNeverPull":
		return
	}
	c, _ := of.Container(name)
	if c == nil {
		return
	}
	w.event(of, name, pod.EventNormal, eventBackOff, "Back-off pulling image %q: %s: %s", c.Image, t.Reason, t.Message)
	w.event(of, name, pod.EventWarning, eventFailed, "Error: ImagePullBackOff")
}

// tellSandbox tells of a sandbox that takes the place of one that is lost, and of a
// pod that is given other name servers than it asks for.
func (w *worker) tellSandbox(v plan.View, s plan.Step) {
	if b := v.Have.Sandbox; b != nil && v.Have.UID == v.Want.UID() && v.Instance == s.Instance {
		w.event(v.Want, "", pod.EventNormal, eventSandboxChanged, "Pod sandbox changed, it will be killed and re-created.")
	}
	policy := v.Want.Pod.Spec.DNSPolicy
	clusterFirst := policy == v1.DNSClusterFirstWithHostNet || policy == v1.DNSClusterFirst && !v.Want.Pod.Spec.HostNetwork
	if w.cfg.NoClusterDNS && clusterFirst {
		w.event(v.Want, "", pod.EventWarning, eventNoDNS,
			"pod: \"%s_%s(%s)\". kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			v.Want.Name, v.Want.Namespace, v.Want.UID(), policy, v1.DNSDefault)
	}
}

// tellUnread tells that a pod could not be looked at, once in a row. That the runtime
// does not answer is the node's trouble.
func (w *worker) tellUnread(err error) {
	if err == nil {
		w.said.failing = false
		return
	}
	if !w.said.failing && !errors.Is(err, pod.ErrUnavailable) {
		w.said.failing = true
		w.event(w.letter.want, "", pod.EventWarning, eventSync, "error determining status: %v", err)
	}
}

// tellResized tells of a resize that is over.
func (w *worker) tellResized(spec *pod.Spec, before, now *v1.PodStatus) {
	if of := resizingOf(before); of == nil || resizingOf(now) != nil || pendingOf(now) != nil || now.Phase != v1.PodRunning || w.letter.want == nil {
		return
	}
	w.event(spec, "", pod.EventNormal, eventResizeDone, "%s", resizeText("completed", spec, ""))
}

func resizingOf(st *v1.PodStatus) *v1.PodCondition { return condition(st, v1.PodResizeInProgress) }
func pendingOf(st *v1.PodStatus) *v1.PodCondition  { return condition(st, v1.PodResizePending) }

func condition(st *v1.PodStatus, kind v1.PodConditionType) *v1.PodCondition {
	if i := slices.IndexFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == kind }); i >= 0 {
		return &st.Conditions[i]
	}
	return nil
}

// resizeText says how a resize gets on, and what was asked for.
func resizeText(how string, of *pod.Spec, wrong string) string {
	type asked struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources,omitempty"`
	}
	var all struct {
		InitContainers []asked `json:"initContainers,omitempty"`
		Containers     []asked `json:"containers,omitempty"`
		Generation     int64   `json:"generation"`
		Error          string  `json:"error,omitempty"`
	}
	if of == nil {
		return "Pod resize " + how
	}
	all.Generation, all.Error = of.Pod.Generation, wrong
	for i := range of.Pod.Spec.InitContainers {
		c := &of.Pod.Spec.InitContainers[i]
		all.InitContainers = append(all.InitContainers, asked{c.Name, c.Resources})
	}
	for i := range of.Pod.Spec.Containers {
		c := &of.Pod.Spec.Containers[i]
		all.Containers = append(all.Containers, asked{c.Name, c.Resources})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "Pod resize " + how
	}
	return "Pod resize " + how + ": " + string(text)
}
