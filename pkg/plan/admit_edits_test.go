package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// An edit is judged like a new pod beside all pods but the edited one, whatever edits were
// judged and accepted before it.
func TestEdits_AnySequence_IsJudgedAsBesideTheOtherPods(t *testing.T) {
	t.Parallel()
	answers := map[string]int{}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func(name string) *pod.Spec {
			var ports []string
			for range r.IntN(4) {
				ports = append(ports, []string{"", "10.0.0.1:", "10.0.0.2:", "0.0.0.0:"}[r.IntN(4)]+fmt.Sprint(80+r.IntN(6)))
			}
			s := renamed(portPod(name, 0, ports...), fmt.Sprint("uid-", r.IntN(12)))
			s.Pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(r.Int64N(2000), resource.DecimalSI)}
			if r.IntN(2) == 0 {
				s.Origin.Source = pod.SourceAPI
			}
			return s
		}
		var admitted []*pod.Spec
		for i := range 6 {
			admitted = append(admitted, some(fmt.Sprint("p", i)))
		}
		node := plan.Node{
			Name: "n1", MaxPods: 5 + r.IntN(3), UIDs: map[string]pod.Key{},
			Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("6")},
		}
		edits := plan.NewEdits(admitted, node)
		for range 30 {
			node.UIDs[fmt.Sprint("uid-", r.IntN(12))] = admitted[r.IntN(6)].Key
			i := r.IntN(len(admitted))
			was := admitted[i]
			others := slices.Concat(admitted[:i], admitted[i+1:])
			want := some(was.Key.Name)
			_, refused := plan.Admit([]*pod.Spec{want}, others, node)
			got, is := edits.Check(want, was)
			if is != (len(refused) > 0) || is && got != refused[0] {
				t.Fatalf("seed %d: the edit of %s is refused with %+v, a new pod with %+v", seed, was.Key, got, refused)
			}
			answers[got.Reason]++
			reason, message := edits.FitResize(want, was)
			if r, m := plan.NewEdits(append([]*pod.Spec{was}, others...), node).FitResize(want, was); r != reason || m != message {
				t.Fatalf("seed %d: the resize of %s is %s %q, counted again it is %s %q", seed, was.Key, reason, message, r, m)
			}
			answers[reason]++
			if !is || r.IntN(3) == 0 { // a resize is accepted whatever its ports
				edits.Accept(want, was)
				admitted = slices.Concat(others, []*pod.Spec{want})
			}
		}
	}
	for _, reason := range []string{"", "DuplicateUID", "NodePorts", "OutOfcpu", "OutOfpods", "Deferred"} {
		if answers[reason] == 0 {
			t.Errorf("no edit was answered with %q: %v", reason, answers)
		}
	}
}
