package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

func webSet(replicas int32, change ...func(*appsv1.StatefulSetSpec)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: simMeta(), Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, Selector: webSelector(), Template: webTemplate("web:1"), ServiceName: "peers",
	}}
	for _, c := range change {
		c(&s.Spec)
	}
	return s
}

func parallelSet(s *appsv1.StatefulSetSpec) { s.PodManagementPolicy = appsv1.ParallelPodManagement }

func editSet(m *sim, change func(*appsv1.StatefulSetSpec)) {
	simEdit(m, func(s *appsv1.StatefulSet) { change(&s.Spec) })
}

func imageOf(image string) func(*appsv1.StatefulSetSpec) {
	return func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = image }
}

func replicasAre(n int32) func(*appsv1.StatefulSetSpec) {
	return func(s *appsv1.StatefulSetSpec) { s.Replicas = &n }
}

func rollingFrom(partition int32, unavailable string) func(*appsv1.StatefulSetSpec) {
	return func(s *appsv1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition, MaxUnavailable: webAmount(unavailable)}
	}
}

// startSet returns a set whose pods are all ready.
func startSet(t *testing.T, set *appsv1.StatefulSet) *sim {
	t.Helper()
	m := newSim(t, KindStatefulSet, set)
	for len(m.last.Pods) < int(*set.Spec.Replicas) {
		m.next()
		m.ready()
	}
	m.expect("")
	return m
}

func TestStatefulSet_OrderedReady_NextPodFollowsWhenThePodBeforeIsAvailable(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindStatefulSet, webSet(3, func(s *appsv1.StatefulSetSpec) {
		s.MinReadySeconds = 10
		s.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
	}))
	m.expect("add web-5")
	m.runs(m.pod("web-5"), false)
	m.expect("")
	m.ready("web-5")
	m.expect("")
	equal(t, "the wait", m.wakesIn(), 10*time.Second)
	m.pass(10 * time.Second)
	m.expect("add web-6")
	equal(t, "the events", m.events(), []string{"SuccessfulCreate: Create Pod web-6 in StatefulSet web successful"})
	m.pod("web-5").unknown = true
	m.ready("web-6")
	m.pass(time.Minute)
	m.expect("")
	m.pod("web-5").unknown = false
	m.expect("add web-7")
	s := m.last.Status.(*appsv1.StatefulSetStatus)
	equal(t, "the available replicas", s.AvailableReplicas, int32(2))
}

func TestStatefulSet_Pod_HasTheIdentityOfItsOrdinal(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindStatefulSet, webSet(2, parallelSet, func(s *appsv1.StatefulSetSpec) {
		s.VolumeClaimTemplates = []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"tier": "disk"}}}}
		s.Template.Spec.Volumes = []v1.Volume{{Name: "data"}, {Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	}))
	m.expect("add web-0, add web-1")
	p := m.pod("web-1").spec.Pod
	hash := m.in.State.Revisions[0].Hash
	equal(t, "the labels", p.Labels, map[string]string{
		"app": "web", "apps.kubernetes.io/pod-index": "1", "controller-revision-hash": hash, "statefulset.kubernetes.io/pod-name": "web-1",
	})
	equal(t, "the host name", p.Spec.Hostname+"."+p.Spec.Subdomain, "web-1.peers")
	owner := metav1.GetControllerOf(p)
	equal(t, "the owner", fmt.Sprintf("%s %s %s", owner.APIVersion, owner.Kind, owner.Name), "apps/v1 StatefulSet web")
	equal(t, "the number of volumes", len(p.Spec.Volumes), 2)
	equal(t, "the claim of the pod", p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, "data-web-1")
	var claims []string
	for _, o := range m.last.Claims {
		c := o.Object.(*v1.PersistentVolumeClaim)
		claims = append(claims, fmt.Sprintf("%s %s %s %v %s", o.Kind, o.Key, c.Name, c.Labels, *c.Spec.VolumeMode))
	}
	equal(t, "the claims", claims, []string{
		"PersistentVolumeClaim default/data-web-0 data-web-0 map[app:web tier:disk] Filesystem",
		"PersistentVolumeClaim default/data-web-1 data-web-1 map[app:web tier:disk] Filesystem",
	})
}

// The pod of a new version waits until the pod before it has stopped. If the StatefulSet is scaled down
// meanwhile, it never starts, as in Kubernetes.
func TestStatefulSet_ScaledDownInAnUpdate_WaitingPodNeverStarts(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(3))
	editSet(m, imageOf("web:2"))
	m.expect("replace web-2")
	one := int32(1)
	editSet(m, func(s *appsv1.StatefulSetSpec) { s.Replicas = &one })
	m.expect("remove web-2")
	m.expect("") // the old pod still stops
	m.gone()
	m.expect("remove web-1")
	m.gone()
	m.expect("replace web-0")
}

func TestStatefulSet_TemplateChanges_HighestOrdinalIsReplacedFirst(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(3, rollingFrom(1, "")))
	uid := m.pod("web-2").spec.UID()
	editSet(m, imageOf("web:2"))
	m.expect("replace web-2")
	equal(t, "the reason", m.last.Steps[0].Reason, "revision 2 replaces revision 1 (partition 1)")
	if m.pod("web-2").spec.UID() == uid {
		t.Error("the new pod has the UID of the old one")
	}
	m.expect("") // the old pod still stops
	m.gone()
	m.expect("") // the new one is not ready
	m.ready()
	m.expect("replace web-1")
	m.gone()
	m.ready()
	m.expect("") // web-0 is below the partition
	s := m.last.Status.(*appsv1.StatefulSetStatus)
	equal(t, "the updated and current pods", []int32{s.UpdatedReplicas, s.CurrentReplicas}, []int32{2, 1})
	m.pods = slices.DeleteFunc(m.pods, func(p *simPod) bool { return p.spec.Name == "web-0" })
	m.expect("add web-0")
	equal(t, "the image below the partition", m.pod("web-0").spec.Pod.Spec.Containers[0].Image, "web:1")
	m.ready()
	editSet(m, rollingFrom(0, ""))
	m.expect("replace web-0")
	m.gone()
	m.ready()
	m.expect("")
	s = m.last.Status.(*appsv1.StatefulSetStatus)
	equal(t, "the current revision", s.CurrentRevision, s.UpdateRevision)
}

func TestStatefulSet_MaxUnavailable_AsManyPodsAreReplaced(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(5, parallelSet, rollingFrom(0, "50%")))
	m.runs(m.pod("web-0"), false)
	editSet(m, imageOf("web:2"))
	m.expect("replace web-4") // two may be unavailable, and web-0 is one of them
	m.ready("web-0")
	m.expect("replace web-3")
	m.gone()
	m.ready()
	m.expect("replace web-2, replace web-1")
}

func TestStatefulSet_MaxUnavailableInOrder_NewPodsFollowOneByOne(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(4, rollingFrom(0, "3")))
	editSet(m, imageOf("web:2"))
	m.expect("remove web-3, remove web-2, replace web-1")
	m.gone()
	m.ready()
	m.expect("add web-2")
	m.ready()
	m.expect("add web-3")
	m.ready()
	m.expect("replace web-0")
}

func TestStatefulSet_TemplateReturns_RevisionKeepsItsHash(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(1))
	first := m.in.State.Revisions[0].Hash
	editSet(m, imageOf("web:2"))
	m.expect("replace web-0")
	editSet(m, imageOf("web:1"))
	m.expect("") // the first pod still stops
	m.gone()
	m.ready()
	m.expect("replace web-0")
	newest := m.in.State.Revisions[len(m.in.State.Revisions)-1]
	equal(t, "the newest revision", fmt.Sprint(newest.Number, newest.Hash), fmt.Sprint(3, first))
}

func TestStatefulSet_ScaledDown_HighestOrdinalLeavesWhenAllOthersAreAvailable(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(4))
	m.runs(m.pod("web-0"), false)
	editSet(m, replicasAre(1))
	m.expect("")
	m.ready("web-0")
	m.runs(m.pod("web-2"), false)
	m.expect("remove web-3")
	m.expect("")
	m.gone()
	m.expect("remove web-2") // it is the first one that is not available
	editSet(m, replicasAre(3))
	m.expect("") // web-2 still stops
	m.gone()
	m.expect("add web-2")
	editSet(m, replicasAre(0))
	m.expect("remove web-2")
	equal(t, "the reason", m.last.Steps[0].Reason, "replicas is 0")
}

func TestStatefulSet_Parallel_ScalesAtOnce(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindStatefulSet, webSet(3, parallelSet))
	m.expect("add web-0, add web-1, add web-2")
	editSet(m, replicasAre(1))
	m.expect("remove web-2, remove web-1")
}

func TestStatefulSet_OnDelete_PodThatStartsAgainHasTheNewestRevision(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(2, func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }))
	m.pass(time.Minute)
	editSet(m, imageOf("web:2"))
	m.expect("")
	m.pass(time.Minute)
	p := m.pod("web-0")
	p.status = nil // a person deletes the pod, and the node starts it again
	m.runs(p, false)
	m.expect("replace web-0")
	m.gone()
	m.ready()
	m.expect("")
}

// A pod of a broken revision blocks the update in Kubernetes, too, until a person deletes it.
func TestStatefulSet_BrokenRevision_UndoHoldsForAPodThatStartsAgain(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(2))
	editSet(m, imageOf("web:broken"))
	m.expect("replace web-1")
	m.gone()
	m.runs(m.pod("web-1"), false)
	m.pass(time.Minute)
	editSet(m, imageOf("web:1"))
	m.expect("")
	m.pass(time.Minute)
	p := m.pod("web-1")
	p.status = nil
	m.runs(p, false)
	m.expect("replace web-1")
}

func TestStatefulSet_StateIsLost_NothingIsReplaced(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(2))
	s := &setRun{result: newResult(&m.in), set: m.in.Object.Object.(*appsv1.StatefulSet)}
	for i, p := range m.pods { // another version of the agent computed another hash
		p.spec = s.newPod(i, &Revision{Hash: "web-other", Template: s.set.Spec.Template})
	}
	m.in.State = State{}
	m.expect("")
	editSet(m, imageOf("web:2"))
	m.expect("replace web-1")
}

func TestStatefulSet_ClaimTemplateLeaves_OlderPodsKeepTheirClaims(t *testing.T) {
	t.Parallel()
	claim := func(name string) v1.PersistentVolumeClaim {
		return v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	m := startSet(t, webSet(2, func(s *appsv1.StatefulSetSpec) {
		s.VolumeClaimTemplates = []v1.PersistentVolumeClaim{claim("data")}
	}))
	editSet(m, func(s *appsv1.StatefulSetSpec) {
		s.VolumeClaimTemplates = []v1.PersistentVolumeClaim{claim("cache")}
		s.Template.Spec.Containers[0].Image = "web:2"
	})
	claims := func() (out []string) {
		for _, o := range m.last.Claims {
			out = append(out, o.Name)
		}
		return out
	}
	m.expect("replace web-1")
	equal(t, "the claims", claims(), []string{"cache-web-1", "data-web-0"})
	m.gone()
	m.ready()
	m.expect("replace web-0")
	equal(t, "the claims", claims(), []string{"cache-web-0", "cache-web-1"})
	equal(t, "the number of templates kept", len(m.in.State.StatefulSet.Claims), 1)
}

func TestStatefulSet_HistoryLimit_RevisionsOfPodsStay(t *testing.T) {
	t.Parallel()
	limit := int32(0)
	m := startSet(t, webSet(2, rollingFrom(1, ""), func(s *appsv1.StatefulSetSpec) { s.RevisionHistoryLimit = &limit }))
	for n := 2; n < 5; n++ {
		editSet(m, imageOf(fmt.Sprintf("web:%d", n)))
		m.expect("replace web-1")
		m.gone()
		m.ready()
		m.expect("")
	}
	var numbers []int64
	for _, r := range m.in.State.Revisions {
		numbers = append(numbers, r.Number)
	}
	equal(t, "the revisions", numbers, []int64{1, 4})
}

func TestStatefulSet_WorkloadMoves_PodsGetTheNewPlace(t *testing.T) {
	t.Parallel()
	m := startSet(t, webSet(1))
	object := *m.in.Object
	object.Origin.Line = 40
	m.in.Object = &object
	m.expect("")
	equal(t, "the place of the pod", m.last.Pods[0].Origin, object.Origin)
}

// checkSet fails if a decision breaks a promise of a StatefulSet. in is its input.
func checkSet(m *sim, in Input, d Decision) {
	m.t.Helper()
	set := in.Object.Object.(*appsv1.StatefulSet)
	s := &setRun{result: newResult(&in), set: set}
	state := map[int]string{} // of each ordinal: ready, or not
	for _, p := range in.Pods {
		n, _ := s.ordinalOf(p)
		switch {
		case p.Leaving:
			state[n] = "stops"
		case state[n] == "" && p.isReady():
			state[n] = "ready"
		case state[n] == "":
			state[n] = "not ready"
		}
	}
	starts, leaves := 0, map[int]bool{}
	for _, step := range d.Steps {
		n, ok := s.ordinalOf(Pod{Spec: &pod.Spec{Key: step.Key}})
		if !ok {
			m.t.Fatalf("%s is no pod of the set", step.Key)
		}
		if step.Action != Remove && state[n] == "stops" {
			m.t.Fatalf("%s is made while the node stops a pod of that name", step.Key)
		}
		if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
			continue
		}
		if step.Action == Remove {
			leaves[n] = true
			// A pod has not begun while an earlier pod of its name stops.
			if _, above := state[n+1]; above && !leaves[n+1] && state[n] != "stops" {
				m.t.Fatalf("%s is removed before web-%d", step.Key, n+1)
			}
			continue
		}
		if starts++; starts > 1 {
			m.t.Fatalf("more than one pod starts: %v", d.Steps)
		}
		for below := range n {
			if state[below] != "ready" {
				m.t.Fatalf("%s is made while web-%d is %q", step.Key, below, state[below])
			}
		}
	}
}

// The names are those that Kubernetes v1.36.3 gives the ControllerRevisions: a program outside
// this module set the defaults (SetObjectDefaults_StatefulSet), converted the sets to the internal
// version and back, encoded them with the codec of apps/v1, and hashed the patch of the template
// as history.HashControllerRevision does.
func TestSetRevision_IsThatOfKubernetes(t *testing.T) {
	t.Parallel()
	cases := templateCases()
	for _, c := range []struct {
		name       string
		collisions int32
		want       string
	}{
		{"plain", 0, "web-656b6d6c54"},
		{"plain", 1, "web-656b6d6c55"},
		{"other image", 0, "web-db4dfb78c"},
		{"rich", 0, "web-6cfd88b877"},
	} {
		template := cases[c.name]
		equal(t, c.name, setRevision("web", &template, c.collisions), c.want)
	}
}
