// Package status computes the API's PodStatus of a pod. Its inputs are the desired spec, the state in
// the runtime, the probe statuses and the previously reported status.
//
// The worker of a pod calls Of for the status that it reports. Commands such as get call Pods for
// the statuses of all pods, and Summary for the columns of a table.
//
// The package has no I/O, no clock and no goroutine. Transition times, restart counts and final
// phases come from the previous status, which the caller keeps.
package status

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Notes has the facts about a pod that Of needs and that the runtime does not show. The zero value is
// that of a pod without problems.
type Notes struct {
	// Failures holds failures by container name; "" is the pod as a whole.
	Failures map[string]pod.Failure
	// Backoff holds the crash back-offs by container name.
	Backoff map[string]podview.Backoff
	// NotAdmittedReason and NotAdmittedMessage say why the pod is not admitted; both are empty
	// when it is. Such a pod is Pending until it is admitted.
	NotAdmittedReason, NotAdmittedMessage string
	// Rejected says that the pod is never admitted: it is Failed.
	Rejected bool
	// TerminalReason and TerminalMessage are the status reason and message of the phase Terminal.
	TerminalReason, TerminalMessage string
	// Disrupted is the message of the DisruptionTarget condition (DisruptedBy); "" if the pod has
	// no such condition.
	Disrupted string
	// ContainerNotes holds the notes in the pod's record, by container ID.
	ContainerNotes map[string]pod.ContainerNotes
	// Unhealthy holds the devices of the pod's containers that are not healthy, by extended
	// resource and ID.
	Unhealthy map[string]map[string]bool
	// Claims holds the known health of the devices of the pod's ResourceClaims, by UID of the claim. It
	// has each claim that drivers have prepared.
	Claims map[string]map[pod.DeviceName]pod.DeviceHealth
	// Waits says which pod this one waits for before it starts; "" when none.
	Waits string
	// ResizeReason and ResizeMessage say why the pod does not get the resources that its spec
	// requests; "" when it gets them. The reason is v1.PodReasonDeferred or v1.PodReasonInfeasible
	// (C-1.34.2).
	ResizeReason, ResizeMessage string
	// ResizeError says why the limits of the pod as a whole could not be lowered; "" when they
	// could.
	ResizeError string
	// Allocated are the resources of the pod as a whole that it has while a resize is pending;
	// nil: those of its spec.
	Allocated *v1.ResourceRequirements
	// NetworkWait says why the pod waits for the network; "" when it does not.
	NetworkWait string
	// StartTime is when the agent first acknowledged the instance. If it is zero, Of takes the
	// start time in before, else now.
	StartTime time.Time
	// Instance is the number of the instance that the status describes. Of containers of other
	// instances, only the restart counts count. With 0 the containers of all instances count.
	Instance int
	// Terminal is the recorded final phase of the instance, "" for none. The containers may show
	// that an instance without a recorded one has terminated.
	Terminal v1.PodPhase
	// Terminating says that the pod is being stopped and removed.
	Terminating bool
	// HostIPs are the node's addresses, the first of them the main one.
	HostIPs []string
	// RuntimeName is the scheme of container IDs; "" is "containerd".
	RuntimeName string
	// Disabled names the features that are off on this node.
	Disabled pod.Disabled
}

// Of returns the status of one pod (C-1.26).
//
// want must not be nil; for a pod that is being removed it is the recorded spec. For a pod of an API
// server, want.Pod.Status is the status there: it has the conditions of other owners, and replaces a
// zero before.
//
// before is the status that was last reported for the pod, or zero. Restart counts and transition
// times come from before. Final phases and the exits of containers come from it only if it describes
// the same instance: then it has the same start time.
//
// Times are whole seconds (C-1.27.4), so equal states give equal statuses.
func Of(want *pod.Spec, have pod.Actual, health pod.Health, before v1.PodStatus, n Notes, now time.Time) v1.PodStatus {
	b := newBuild(want, have, health, before, n, now)
	st := v1.PodStatus{
		QOSClass:           pod.QOS(&want.Pod.Spec),
		StartTime:          b.startTime(),
		ObservedGeneration: max(want.Pod.Generation, b.before.ObservedGeneration),
	}
	b.containers(&st)
	b.phase(&st)
	if pod.IsPhaseTerminal(st.Phase) {
		b.end(&st)
	}
	b.podResources(&st)
	b.addresses(&st)
	st.Conditions = b.conditions(&st)
	return st
}

// containers fills in the statuses of all containers, in the order of C-1.26.8.
func (b *build) containers(st *v1.PodStatus) {
	spec := &b.want.Pod.Spec
	st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
	for i := range spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, b.initContainer(&spec.InitContainers[i]))
	}
	for i := range spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, b.regular(&spec.Containers[i]))
	}
	for i := range spec.EphemeralContainers {
		st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, b.ephemeral(&spec.EphemeralContainers[i]))
	}
	byName := func(x, y v1.ContainerStatus) int { return strings.Compare(x.Name, y.Name) }
	slices.SortFunc(st.ContainerStatuses, byName)
	slices.SortFunc(st.EphemeralContainerStatuses, byName)
}

// build is one status being computed.
type build struct {
	*podview.State
	want   *pod.Spec
	have   pod.Actual
	before v1.PodStatus
	notes  Notes
	now    time.Time

	// same says that before describes this instance. If not, only the restart counts and the
	// transition times of before are used.
	same bool
	old  map[string]v1.ContainerStatus // the container statuses of before, by name
	// over says that the instance has terminated: none of its containers starts again.
	over bool
	// initDone says that the init containers are done.
	initDone bool
	// triggersRestartAll says that a container exited, and its rule for the exit code restarts
	// all containers.
	triggersRestartAll bool
	// restarting says that triggersRestartAll is true, or was for the status before.
	restarting bool
	// messageLimit is how long a termination message may be, in bytes.
	messageLimit int
}

func newBuild(want *pod.Spec, have pod.Actual, health pod.Health, before v1.PodStatus, n Notes, now time.Time) *build {
	b := &build{want: want, have: have, before: before, notes: n, now: now}
	b.State = podview.ToReport(want, have, n.ContainerNotes, health, n.Instance)
	if before.StartTime == nil && before.Phase == "" && b.want.Origin.FromAPI() {
		b.before = want.Pod.Status
	}
	b.same = n.StartTime.IsZero() || b.before.StartTime == nil || b.before.StartTime.Equal(new(seconds(n.StartTime)))
	b.old = make(map[string]v1.ContainerStatus)
	for _, list := range [][]v1.ContainerStatus{b.before.InitContainerStatuses, b.before.ContainerStatuses, b.before.EphemeralContainerStatuses} {
		for _, c := range list {
			if !b.same {
				c.State, c.LastTerminationState = v1.ContainerState{}, v1.ContainerState{}
			}
			b.old[c.Name] = c
		}
	}
	spec := &want.Pod.Spec
	b.messageLimit = podMessages / max(len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers), 1)
	b.initDone = b.Initialized(b.passedStartup)
	b.over = pod.IsPhaseTerminal(n.Terminal) || pod.IsPhaseTerminal(b.reported())
	b.triggersRestartAll = b.hasRestartAllTrigger()
	b.restarting = b.triggersRestartAll || !b.over && b.same && isTrue(b.before.Conditions, v1.AllContainersRestarting)
	return b
}

// lasting lists the containers that run as long as the pod: sidecars, then regular ones.
func (b *build) lasting() []*v1.Container {
	var all []*v1.Container
	spec := &b.want.Pod.Spec
	for i := range spec.InitContainers {
		if pod.Restartable(&spec.InitContainers[i]) {
			all = append(all, &spec.InitContainers[i])
		}
	}
	for i := range spec.Containers {
		all = append(all, &spec.Containers[i])
	}
	return all
}

func (b *build) startTime() *metav1.Time {
	switch {
	case !b.notes.StartTime.IsZero():
		return new(seconds(b.notes.StartTime))
	case b.before.StartTime != nil:
		return b.before.StartTime
	}
	return new(seconds(b.now))
}

// addresses fills in the addresses of the host and of the pod. A pod on the host network has
// those of the host. Unlike with the kubelet (C-1.26.24), the status has both even without an API
// server. A pod keeps its addresses when its sandbox is gone (C-1.28.10).
func (b *build) addresses(st *v1.PodStatus) {
	for _, ip := range onePerFamily(b.notes.HostIPs) {
		st.HostIPs = append(st.HostIPs, v1.HostIP{IP: ip})
	}
	if len(st.HostIPs) > 0 {
		st.HostIP = st.HostIPs[0].IP
	}
	ips := b.podIPs()
	for _, ip := range onePerFamily(ips) {
		st.PodIPs = append(st.PodIPs, v1.PodIP{IP: ip})
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

func (b *build) podIPs() []string {
	s := b.have.Sandbox
	switch {
	case s != nil && b.want.Pod.Spec.HostNetwork:
		return b.notes.HostIPs
	case s != nil && len(s.IPs) > 0:
		return familyFirst(s.IPs, b.notes.HostIPs)
	case s != nil && s.Ready || !b.same:
		return nil
	}
	var ips []string
	for _, ip := range b.before.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips
}

// onePerFamily keeps the first address of each family (C-1.26.25).
func onePerFamily(ips []string) []string {
	var out []string
	var seen [2]bool
	for _, ip := range ips {
		if f := family(ip); !seen[f] {
			seen[f] = true
			out = append(out, ip)
		}
	}
	return out
}

// familyFirst puts the addresses of the node's main family first (C-1.26.25).
func familyFirst(ips, host []string) []string {
	if len(host) == 0 {
		return ips
	}
	out := slices.Clone(ips)
	other := func(ip string) int { return family(ip) ^ family(host[0]) }
	slices.SortStableFunc(out, func(x, y string) int { return other(x) - other(y) })
	return out
}

// family is 1 for IPv6, 0 for IPv4.
func family(ip string) int {
	if strings.Contains(ip, ":") {
		return 1
	}
	return 0
}

// seconds truncates a time to whole seconds, the precision of the API.
func seconds(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}
