package plan_test

import (
	"fmt"
	"time"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// A pod of which the runtime has nothing yet. Next returns the steps to do now, with reasons;
// Foresee also returns those that follow if each of them succeeds.
func ExampleNext() {
	const text = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, image: nginx}]}}"
	file, _ := manifest.Parse([]byte(text), manifest.Options{Node: "n1", Source: "file", Location: "/etc/pods", File: "web.yaml", Static: true})
	want := file.Pods[0]
	v := plan.NewView(want, pod.Actual{Key: want.Key}, pod.Record{}, "", nil, time.Now())
	fmt.Print(plan.Next(v))
	fmt.Println("and after these:")
	for _, step := range plan.Foresee(v)[2:] {
		fmt.Println(step.Action, step.Container, step.Why)
	}
	// Output:
	// put-volumes instance=1 # pod is new
	// run-sandbox instance=1 attempt=0 # pod is new
	// and after these:
	// pull-image app container has not run yet
	// create-container app container has not run yet
	// start-container app container has not run yet
}
