package plan_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Admission refuses a pod that claims the UID of another pod, if that one's UID comes from its name
// or from an API server. It does so even if the claiming pod has a higher priority and comes first.
//
// Shows: D1
func TestAdmit_ClaimedUID_YieldsToItsOwner(t *testing.T) {
	t.Parallel()
	make := func(source, name, uid string, priority int32) *pod.Spec {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}}
		p.Spec.NodeName, p.Spec.Priority = "n1", ptr.To(priority)
		p.Spec.Containers = []v1.Container{{Name: "c"}}
		return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: source, Location: "/m", File: name}}
	}
	derived := pod.StaticUID("n1", "default", "web-n1")
	for name, owner := range map[string]*pod.Spec{
		"derived":         make("file", "web-n1", derived, 0),
		"an API server's": make("api", "web", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", 0),
	} {
		thief := make("http", "evil-n1", owner.UID(), 2000001000)
		ok, refused := plan.Admit([]*pod.Spec{thief, owner}, nil, plan.Node{Name: "n1", MaxPods: 10})
		if len(ok) != 1 || ok[0] != owner || len(refused) != 1 || refused[0].Spec != thief || refused[0].Reason != "DuplicateUID" {
			t.Errorf("%s: admitted %v, refused %v", name, ok, refused)
		}
	}
}
