package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

func TestNewPod_OfDeployment_HasItsNameOwnerLabelsAndDefaults(t *testing.T) {
	t.Parallel()
	d := webDeployment(1, "web:1", "", "")
	d.Spec.Template.Annotations = map[string]string{"note": "x"}
	w := newWorld(t, workloadOf(KindDeployment, d))
	w.next()
	s := w.pods[0].Spec
	p, hash := s.Pod, w.state.Revisions[0].Hash
	rs := "web-" + hash
	if !strings.HasPrefix(p.Name, rs+"-") || len(p.Name) != len(rs)+6 {
		t.Errorf("the name is %s, want %s-xxxxx", p.Name, rs)
	}
	equal(t, "the key", s.Key, pod.Key{Namespace: "default", Name: p.Name})
	equal(t, "the generateName", p.GenerateName, rs+"-")
	equal(t, "the labels", p.Labels, map[string]string{"app": "web", "pod-template-hash": hash})
	equal(t, "the annotations", p.Annotations, map[string]string{"note": "x", pod.AnnotationConfigHash: s.Hash, pod.AnnotationConfigSource: "file"})
	equal(t, "the UID", s.UID(), pod.StaticUID("node", "default", p.Name))
	equal(t, "the node", p.Spec.NodeName, "node")
	equal(t, "the restart policy", p.Spec.RestartPolicy, v1.RestartPolicyAlways)
	equal(t, "the phase", p.Status.Phase, v1.PodPending)
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		t.Fatal("the pod has no controller")
	}
	equal(t, "the controller", ref.APIVersion+" "+ref.Kind+" "+ref.Name, "apps/v1 ReplicaSet "+rs)
	if s.SandboxHash == "" || s.ContainerHash("web") == "" {
		t.Errorf("the spec has no hashes: %q, %q", s.SandboxHash, s.ContainerHash("web"))
	}
	equal(t, "whether its author chose the UID", pod.HasChosenUID(s), false)
}

func TestOwns_PodOfAnotherWorkloadLayerOrNamespace_IsNotOwned(t *testing.T) {
	t.Parallel()
	o := workloadOf(KindDeployment, webDeployment(1, "web:1", "", ""))
	w := newWorld(t, o)
	w.next()
	made := w.pods[0].Spec
	rs := workloadOf(KindReplicaSet, nil)
	rs.Name = "web-" + w.state.Revisions[0].Hash
	moved, other, far := *o, *o, *made
	moved.Origin.Location, other.Name, far.Namespace = "/etc/other", "web2", "far"
	for _, c := range []struct {
		name   string
		object *pod.Object
		spec   *pod.Spec
		node   string
		want   bool
	}{
		{"its Deployment", o, made, "node", true},
		{"its Deployment, of a node in capitals", o, made, "NODE", true},
		{"a Deployment of another layer", &moved, made, "node", false},
		{"another Deployment", &other, made, "node", false},
		{"a ReplicaSet of the same name as that of the Deployment", rs, made, "node", false},
		{"a pod of another namespace", o, &far, "node", false},
		{"another node", o, made, "node2", false},
		{"a pod without a controller", o, &pod.Spec{Key: made.Key, Origin: made.Origin, Pod: &v1.Pod{}}, "node", false},
	} {
		equal(t, c.name, Owns(c.object, c.node, c.spec), c.want)
	}
}

func TestKeep_WorkloadMovesInItsSources_PodsGetTheNewPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "", "")))
	w.next()
	w.settle()
	before := w.pods[0].Spec
	moved := *w.object
	moved.Origin = pod.Origin{Source: "http", Location: "https://example.net/web.yaml", Line: 7}
	w.object = &moved
	w.expect("r1=2/2")
	equal(t, "the steps", w.steps(), "")
	after := w.pods[0].Spec
	equal(t, "the origin", after.Origin, moved.Origin)
	equal(t, "the source", pod.SourceOf(after.Pod), "http")
	equal(t, "the source of the earlier spec", pod.SourceOf(before.Pod), "file")
	equal(t, "the hash", after.Hash, before.Hash)
	w.checkIdempotent()
}

func TestFreeNames_SomeAreTaken_FreeSlotsAreUsed(t *testing.T) {
	t.Parallel()
	all := freeNames("web", "", 3, map[string]bool{})
	again := freeNames("web", "", 2, map[string]bool{all[1]: true})
	equal(t, "the names", again, []string{all[0], all[2]})
	if other := freeNames("web", "2", 1, map[string]bool{}); other[0] == all[0] {
		t.Error("two revisions have the same name for a slot")
	}
	long := freeNames(strings.Repeat("a", 100), "", 2, map[string]bool{})
	if len(long[0]) != 63 || long[0] == long[1] {
		t.Errorf("long names are %v", long)
	}
}

func TestRemovalOrder_PodsDiffer_LessUsefulOneIsFirst(t *testing.T) {
	t.Parallel()
	at := func(second int) metav1.Time {
		return metav1.NewTime(worldBegin.Add(time.Duration(second) * time.Second))
	}
	pods := map[string]*v1.PodStatus{
		"a failed":       {Phase: v1.PodFailed},
		"b unknown":      nil,
		"c pending":      {Phase: v1.PodPending, StartTime: new(at(5))},
		"d pending long": {Phase: v1.PodPending, StartTime: new(at(4))},
		"e restarted":    {Phase: v1.PodRunning, StartTime: new(at(1)), ContainerStatuses: []v1.ContainerStatus{{RestartCount: 3}}},
		"f young":        {Phase: v1.PodRunning, StartTime: new(at(9))},
		"g old":          {Phase: v1.PodRunning, StartTime: new(at(2))},
		"h ready":        {Phase: v1.PodRunning, StartTime: new(at(1)), Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: at(30)}}},
		"i ready long":   {Phase: v1.PodRunning, StartTime: new(at(9)), Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: at(20)}}},
	}
	for name, status := range pods {
		for other, status2 := range pods {
			a := Pod{Spec: &pod.Spec{Key: pod.Key{Name: name}}, Status: status}
			b := Pod{Spec: &pod.Spec{Key: pod.Key{Name: other}}, Status: status2}
			if got, want := removalOrder(a, b), strings.Compare(name, other); got != want {
				t.Errorf("%s against %s: %d, want %d", name, other, got, want)
			}
		}
	}
}

// TestScaleDownOrder_DeletionCost_DecidesAmongReadyPods: a value that Kubernetes does not accept
// counts as 0.
func TestScaleDownOrder_DeletionCost_DecidesAmongReadyPods(t *testing.T) {
	t.Parallel()
	pending, ready := &v1.PodStatus{Phase: v1.PodPending}, &v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}
	of := func(name, cost string, status *v1.PodStatus) Pod {
		p := &v1.Pod{}
		p.Annotations = map[string]string{v1.PodDeletionCost: cost}
		return Pod{Spec: &pod.Spec{Key: pod.Key{Name: name}, Pod: p}, Status: status}
	}
	pods := []Pod{
		of("a pending", "9", pending), of("b cheap", "-7", ready), of("h text", "cheap", ready), of("g sign", "+5", ready), of("f zeros", "007", ready),
		of("e empty", "", ready), of("d too large", "4294967296", ready), of("i one", "1", ready), of("j dear", "2147483647", ready),
	}
	slices.SortFunc(pods, scaleDownOrder)
	var names []string
	for _, p := range pods {
		names = append(names, p.Spec.Name[:1])
	}
	equal(t, "the order", strings.Join(names, " "), "a b h g f e d i j")
}
