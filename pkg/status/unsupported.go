package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// eventUnsupported is the reason of a pod with a field that the node does not support. The
// kubelet has no such reason.
const eventUnsupported = "UnsupportedField"

// Unsupported has the status and the event of an API server's pod with a field that the node does not
// support.
type Unsupported struct {
	Status v1.PodStatus
	// Reason and Message are those of the event and of the status.
	Reason, Message string
	// Final says that the pod is Failed, because no change of the node would help.
	Final bool
	// Known says that the pod's status at the API server has the reason and the message already:
	// the caller sends no event.
	Known bool
}

// OfUnsupported returns the status of an API server's pod with problems. If the node lacks an extended
// resource or a volume's driver, the pod is Pending, because a controller would replace a Failed pod
// again and again. The kubelet does the same while it cannot mount a volume. Any other problem is
// final: the pod is Failed. ok is false without problems, if the pod is not Pending, and if a container
// of the pod was created: such a pod keeps its status.
func OfUnsupported(p *v1.Pod, problems []pod.Problem, hostIPs []string, now time.Time) (u Unsupported, ok bool) {
	if len(problems) == 0 || p.Status.Phase != v1.PodPending && p.Status.Phase != "" || anyCreated(&p.Status) {
		return Unsupported{}, false
	}
	first := problems[0]
	u.Final = !first.Lacking
	u.Reason, u.Message = eventUnsupported, cmp.Or(first.Path, "pod")+": "+first.Msg
	if volumes := unmountable(p, problems); len(volumes) > 0 && !u.Final {
		u.Reason = "FailedMount"
		u.Message = fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=%v, unattached volumes=[], failed to process volumes=[]: %s", volumes, u.Message)
	}
	if own := *p; !u.Final {
		u.Known = p.Status.Reason == u.Reason && p.Status.Message == u.Message
		notes := Notes{NotAdmittedReason: u.Reason, NotAdmittedMessage: u.Message, HostIPs: hostIPs}
		u.Status = Of(&pod.Spec{Key: pod.KeyOf(p), Pod: &own, Origin: pod.Origin{Source: pod.SourceOf(p)}}, pod.Actual{Key: pod.KeyOf(p)}, pod.Health{}, p.Status, notes, now)
		return u, true
	}
	u.Message = RejectedPrefix + u.Message
	u.Status = *p.Status.DeepCopy()
	u.Status.Phase, u.Status.Reason, u.Status.Message = v1.PodFailed, u.Reason, u.Message
	return u, true
}

// anyCreated reports whether a container of the pod was created.
func anyCreated(s *v1.PodStatus) bool {
	made := func(c v1.ContainerStatus) bool {
		return c.ContainerID != "" || c.State.Waiting == nil && c.State != (v1.ContainerState{})
	}
	return slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses), made)
}

// unmountable names the volumes that have problems, in the order of the spec. It returns nil if
// the first problem is not a volume's.
func unmountable(p *v1.Pod, problems []pod.Problem) (names []string) {
	if !strings.HasPrefix(problems[0].Path, "spec.volumes[") {
		return nil
	}
	for i, v := range p.Spec.Volumes {
		at := fmt.Sprintf("spec.volumes[%d]", i)
		if slices.ContainsFunc(problems, func(q pod.Problem) bool { return strings.HasPrefix(q.Path, at) }) {
			names = append(names, v.Name)
		}
	}
	return names
}
