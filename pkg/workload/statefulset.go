package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// nextStatefulSet decides for a StatefulSet as Kubernetes' StatefulSet controller does. Each pod
// has an ordinal, from which its name, its host name and the names of its claims follow. With the
// policy OrderedReady, the pods are made in the order of their ordinals, each when the one before
// it is available. They are removed in the opposite order, one at a time. A rolling update replaces
// the pod with the highest ordinal first. Scaling comes before an update.
//
// Three things differ, because the node runs the pods as it runs static pods. First, the engine
// starts a pod again that Failed or was deleted; the decision gives it the revision that Kubernetes
// would give it, also with the strategy OnDelete. Second, an update replaces a pod in place: the
// old pod stops after the new one was admitted. Third, an edit of serviceName or
// volumeClaimTemplates, which Kubernetes rejects, applies to the pods that are made after it; the
// claims of older pods stay.
//
// nodectl ignores persistentVolumeClaimRetentionPolicy: it never removes the data of a claim. The
// decision has the claims of existing pods only; the data of other claims stay until a user removes
// the volume.
func nextStatefulSet(in Input) Decision {
	set, ok := in.Object.Object.(*appsv1.StatefulSet)
	if !ok {
		return Decision{State: in.State}
	}
	s := &setRun{result: newResult(&in), set: set, ordered: set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	s.place()
	s.revise()
	if s.scaleUp() && s.scaleDown() {
		s.update()
	}
	return s.decide()
}

// setRun decides for one StatefulSet.
type setRun struct {
	*result
	set       *appsv1.StatefulSet
	ordered   bool
	start     int
	replicas  []*member // by ordinal
	condemned []*member // the highest ordinal first
	revisions []Revision
	current   *Revision // the revision of pods below the partition
	newest    *Revision
	used      []v1.PersistentVolumeClaim // the claim templates of the decision's pods
}

// member is the pod of one ordinal.
type member struct {
	ordinal  int
	pod      Pod       // its Spec is nil if the set has no pod
	stops    bool      // a pod of this ordinal left the set, and still stops
	made     *pod.Spec // the pod that the decision adds
	removed  bool
	replaced bool // made replaces pod
}

func (m *member) exists() bool { return m.pod.Spec != nil }

// revision returns the revision hash of the pod that the decision has for this ordinal.
func (m *member) revision() string {
	switch {
	case m.made != nil:
		return revisionOf(m.made)
	case m.exists():
		return revisionOf(m.pod.Spec)
	}
	return ""
}

func revisionOf(s *pod.Spec) string { return s.Pod.Labels[appsv1.StatefulSetRevisionLabel] }

// available reports whether the decision keeps the pod, and the pod is available.
func (s *setRun) available(m *member) bool {
	if !m.isRunning() || !m.pod.isReady() {
		return false
	}
	ok, due := m.pod.isAvailable(s.set.Spec.MinReadySeconds, s.in.Now)
	if !ok {
		s.out.Wake = earlier(s.out.Wake, due)
	}
	return ok
}

// isRunning reports whether the pod exists and runs, and the decision neither replaces nor removes
// it.
func (m *member) isRunning() bool {
	return m.exists() && m.made == nil && !m.removed && !m.stops && m.pod.phase() == v1.PodRunning
}

// ordinalOf returns the ordinal in the name of a pod of the set.
func (s *setRun) ordinalOf(p Pod) (int, bool) {
	text, ok := strings.CutPrefix(p.Spec.Name, s.in.Object.Name+"-")
	n, err := strconv.ParseInt(text, 10, 32)
	return int(n), ok && err == nil && n >= 0 && text == strconv.Itoa(int(n))
}

// place puts each pod at its ordinal.
func (s *setRun) place() {
	if o := s.set.Spec.Ordinals; o != nil {
		s.start = int(o.Start)
	}
	for i := range replicasOf(s.set.Spec.Replicas) {
		s.replicas = append(s.replicas, &member{ordinal: s.start + i})
	}
	condemned := map[int]*member{}
	for _, p := range s.in.Pods {
		ordinal, ok := s.ordinalOf(p)
		if !ok {
			if !p.Leaving {
				s.remove(p, "the name of the pod has no ordinal")
			}
			continue
		}
		m := condemned[ordinal]
		if i := ordinal - s.start; i >= 0 && i < len(s.replicas) {
			m = s.replicas[i]
		} else if m == nil {
			m = &member{ordinal: ordinal}
			condemned[ordinal] = m
			s.condemned = append(s.condemned, m)
		}
		if p.Leaving {
			m.stops = true
		} else {
			m.pod = p
		}
	}
	slices.SortFunc(s.condemned, func(a, b *member) int { return cmp.Compare(b.ordinal, a.ordinal) })
	s.dropWaiting()
}

// dropWaiting removes the condemned pods that the node has not started, because each waits until the
// pod that it replaces has stopped. Kubernetes would not have created them yet.
func (s *setRun) dropWaiting() {
	for _, m := range s.condemned {
		if m.exists() && m.stops {
			s.out.Steps = append(s.out.Steps, Step{Remove, m.pod.Spec.Key, fmt.Sprintf("replicas is %d", len(s.replicas))})
			m.pod = Pod{}
		}
	}
}

// create makes the pod of an ordinal.
func (s *setRun) create(m *member) {
	m.made = s.newPod(m.ordinal, s.revisionFor(m.ordinal))
	s.add(m.made, fmt.Sprintf("replicas is %d", len(s.replicas)))
	s.reportPod("Create", m.made)
}

// replace makes another pod of the same ordinal.
func (s *setRun) replace(m *member, r *Revision, reason string) {
	m.made, m.replaced = s.newPod(m.ordinal, r), true
	s.out.Pods = append(s.out.Pods, m.made)
	s.out.Steps = append(s.out.Steps, Step{Action: Replace, Key: m.made.Key, Reason: reason})
	s.reportPod("Delete", m.made)
	s.reportPod("Create", m.made)
}

// delete removes the pod of an ordinal.
func (s *setRun) delete(m *member, reason string) {
	m.removed = true
	s.remove(m.pod, reason)
	s.reportPod("Delete", m.pod.Spec)
}

func (s *setRun) reportPod(verb string, p *pod.Spec) {
	s.event(v1.EventTypeNormal, "Successful"+verb, fmt.Sprintf("%s Pod %s in StatefulSet %s successful", verb, p.Name, s.in.Object.Name))
}

// scaleUp makes the missing pods, and reports whether scaleDown may follow. With the policy
// OrderedReady, it continues with the next ordinal only when the pod is available.
func (s *setRun) scaleUp() bool {
	for _, m := range s.replicas {
		switch {
		case !m.exists() && !m.stops:
			s.create(m)
		case m.exists() && !m.stops && s.comesBack(m):
			s.replace(m, s.revisionFor(m.ordinal), "the pod starts again, with "+s.name(s.revisionFor(m.ordinal)))
		}
		if s.ordered && !s.available(m) {
			return false
		}
	}
	return true
}

// comesBack reports whether the node has started the pod again, or will, while Kubernetes would
// create it from another revision. That is so if the pod Failed, or if its instance began after the
// newest revision. A pod of a revision that was rolled back comes back too, although it is not
// available: in Kubernetes a user has to delete it.
func (s *setRun) comesBack(m *member) bool {
	if m.pod.Status == nil || m.revision() == s.revisionFor(m.ordinal).Hash {
		return false
	}
	if i := indexOf(s.revisions, m.revision()); i >= 0 && s.revisions[i].Failed != "" && !m.pod.isReady() {
		return true
	}
	return m.pod.isTerminated() || !m.pod.isReady() && m.pod.beganAfter(s.newest.Since.Time)
}

// scaleDown removes the pods beyond the replicas, and reports whether update may follow. With the
// policy OrderedReady, it removes one pod at a time, and only while all pods are available. It may
// also remove the first pod that is not available.
func (s *setRun) scaleDown() bool {
	first := s.firstUnavailable()
	for _, m := range s.condemned {
		if !m.exists() {
			if s.ordered {
				return false // the pod still stops
			}
			continue
		}
		if s.ordered && (m.stops || !s.available(m) && m != first) {
			return false
		}
		s.delete(m, fmt.Sprintf("replicas is %d", len(s.replicas)))
		if s.ordered {
			return false
		}
	}
	return true
}

// firstUnavailable returns the unavailable pod with the lowest ordinal. Pods that stay come before
// condemned ones.
func (s *setRun) firstUnavailable() *member {
	for _, m := range s.replicas {
		if !s.available(m) {
			return m
		}
	}
	for _, m := range slices.Backward(s.condemned) {
		if !s.available(m) {
			return m
		}
	}
	return nil
}

// update replaces pods of older revisions, the highest ordinal first. Without maxUnavailable, it
// replaces a pod when all pods above it are available. With maxUnavailable, as in clusters with
// that feature, it replaces as many as may be unavailable. With the policy OrderedReady, it makes
// only the new pod with the lowest ordinal now. It removes the others, and scaleUp makes their new
// pods one after the other.
func (s *setRun) update() {
	strategy := &s.set.Spec.UpdateStrategy
	if strategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	rolling := ptr.Deref(strategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	partition := min(int(ptr.Deref(rolling.Partition, 0)), len(s.replicas))
	budget := s.budget(rolling.MaxUnavailable)
	var old []*member
	for _, m := range slices.Backward(s.replicas[partition:]) {
		isOld := m.exists() && !m.stops && m.revision() != s.newest.Hash
		if budget <= 0 || !isOld && rolling.MaxUnavailable == nil && !s.available(m) {
			break
		}
		if isOld {
			old = append(old, m)
			if rolling.MaxUnavailable == nil || s.available(m) {
				budget-- // the budget counts an unavailable pod already
			}
		}
	}
	for i, m := range old {
		reason := s.name(s.newest) + " replaces " + s.nameOf(m) + limits(partition, rolling.MaxUnavailable)
		if s.ordered && i < len(old)-1 {
			s.delete(m, reason+": the new pod waits for the pod before it")
		} else {
			s.replace(m, s.newest, reason)
		}
	}
}

// budget returns how many pods an update may replace now.
func (s *setRun) budget(unavailable *intstr.IntOrString) int {
	if unavailable == nil {
		return 1
	}
	budget := max(1, int(portion(*unavailable, int32(len(s.replicas)), false)))
	for _, m := range s.replicas {
		if !s.available(m) {
			budget--
		}
	}
	return budget
}

// limits returns the limits of a rolling update as text, for the reason of a step.
func limits(partition int, unavailable *intstr.IntOrString) string {
	var out []string
	if partition > 0 {
		out = append(out, fmt.Sprintf("partition %d", partition))
	}
	if unavailable != nil {
		out = append(out, "maxUnavailable "+unavailable.String())
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}

// decide completes the decision.
func (s *setRun) decide() Decision {
	for _, m := range slices.Concat(s.replicas, s.condemned) {
		if m.exists() && m.made == nil && !m.removed {
			s.keep(m.pod)
		}
	}
	d := s.finish()
	for _, p := range d.Pods {
		d.Claims = append(d.Claims, s.claims(p)...)
	}
	slices.SortFunc(d.Claims, func(a, b *pod.Object) int { return a.Key.Compare(b.Key) })
	status := s.status()
	d.Status = status
	d.State.Revisions, d.history = s.revisions, &history{s.set.Spec.RevisionHistoryLimit, s.isLive}
	d.State.StatefulSet = &StatefulSetState{Current: status.CurrentRevision, Claims: s.used}
	return d
}

// isLive reports whether the revision is the current one, or that of a pod of the set.
func (s *setRun) isLive(r *Revision) bool {
	if r.Hash == s.current.Hash {
		return true
	}
	return slices.ContainsFunc(s.in.Pods, func(p Pod) bool { return revisionOf(p.Spec) == r.Hash })
}

// status returns the status. When all pods are ready and of the newest revision, that revision
// becomes the current one.
func (s *setRun) status() *appsv1.StatefulSetStatus {
	collisions := int32(0)
	out := &appsv1.StatefulSetStatus{CurrentRevision: s.current.Hash, UpdateRevision: s.newest.Hash, CollisionCount: &collisions}
	for _, m := range slices.Concat(s.replicas, s.condemned) {
		if !m.exists() && !m.stops {
			continue
		}
		out.Replicas++
		if m.isRunning() && m.pod.isReady() {
			out.ReadyReplicas++
		}
		if s.available(m) {
			out.AvailableReplicas++
		}
		if m.exists() && !m.stops && !m.removed && !m.replaced {
			if m.revision() == s.current.Hash {
				out.CurrentReplicas++
			}
			if m.revision() == s.newest.Hash {
				out.UpdatedReplicas++
			}
		}
	}
	n := int32(len(s.replicas))
	rolls := s.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
	if rolls && out.UpdatedReplicas == n && out.ReadyReplicas == n && out.Replicas == n {
		out.CurrentReplicas, out.CurrentRevision = n, s.newest.Hash
	}
	return out
}
