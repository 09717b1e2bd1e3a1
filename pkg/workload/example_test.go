package workload_test

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// A Deployment gets its first pods, and then a new image. The caller keeps the state and the
// pods, and passes the status of each pod to Next.
func ExampleNext() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	replicas := int32(2)
	web := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{
		Replicas: &replicas,
		Template: v1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "web:1"}}},
		},
	}}
	in := workload.Input{
		Object: &pod.Object{
			Key: pod.Key{Namespace: "default", Name: "web"}, Kind: workload.KindDeployment, Object: web,
			Origin: pod.Origin{Source: "file", Location: "/etc/nodectl/manifests"},
		},
		Node: "node", Now: now,
	}
	ready := &v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{
		Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
	}}}
	decide := func() {
		d := workload.Next(in)
		for _, s := range d.Steps {
			fmt.Println(s.Action, s.Key.Name, "-", s.Reason)
		}
		// The caller stores the state, and has the node run the pods. Here all of them become
		// ready, and the removed ones stop at once.
		in.State, in.Pods = d.State, nil
		for _, s := range d.Pods {
			in.Pods = append(in.Pods, workload.Pod{Spec: s, Status: ready})
		}
	}

	decide()
	edited := web.DeepCopy()
	edited.Spec.Template.Spec.Containers[0].Image = "web:2"
	object := *in.Object
	object.Object = edited
	in.Object = &object
	for range 3 {
		decide()
	}
	// Output:
	// add web-6444769cf-l8vh8 - replicas is 2
	// add web-6444769cf-46b8d - replicas is 2
	// add web-85d5b476dd-rts97 - revision 2 replaces revision 1: at most 3 pods at a time (replicas 2, maxSurge 25%)
	// remove web-6444769cf-l8vh8 - revision 2 replaces revision 1: 3 pods are available, and 2 have to be (replicas 2, maxUnavailable 25%)
	// add web-85d5b476dd-pqcp4 - revision 2 replaces revision 1: at most 3 pods at a time (replicas 2, maxSurge 25%)
	// remove web-6444769cf-46b8d - revision 2 replaces revision 1: 3 pods are available, and 2 have to be (replicas 2, maxUnavailable 25%)
}
