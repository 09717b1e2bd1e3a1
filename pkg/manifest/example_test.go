package manifest_test

import (
	"fmt"

	"github.com/nodectl/nodectl/pkg/manifest"
)

// A file with a pod and with a pod that has a mistake: the first one is used, the second one
// is a problem with its place.
func ExampleParse() {
	const text = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, image: nginx}]
---
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  containers: [{name: app, imag: postgres}]
`
	file, _ := manifest.Parse([]byte(text), manifest.Options{
		Node: "n1", Source: "file", Location: "/etc/pods", File: "pods.yaml", Static: true,
	})
	for _, s := range file.Pods {
		fmt.Println(s.Key, s.Pod.Spec.RestartPolicy, s.Pod.Spec.Containers[0].ImagePullPolicy)
	}
	for _, p := range file.Problems {
		fmt.Println(p)
	}
	// Output:
	// default/web-n1 Always Always
	// pods.yaml:11:16: spec.containers[0].image: required
	// pods.yaml:11:28: spec.containers[0].imag: unknown field "imag" (did you mean "image"?)
}
