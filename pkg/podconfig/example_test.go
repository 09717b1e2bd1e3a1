package podconfig_test

import (
	"fmt"
	"time"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
)

// reading is the reading of a source: one pod in one file.
func reading(location, image string) source.Snapshot {
	text := "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, image: " + image + "}]}}"
	file, _ := manifest.Parse([]byte(text), manifest.Options{Node: "n1", Source: "file", Location: location, File: "web.yaml", Static: true})
	return source.Snapshot{Files: source.FilesOf(file)}
}

// Two directories define a pod of one name: the first layer has it. When the pod there
// changes, the difference is one update.
func ExampleMerge() {
	now := time.Now()
	first, second := podconfig.NewLayer("file:/a", nil), podconfig.NewLayer("file:/b", nil)
	first, second = first.Read(reading("/a", "nginx:1"), now), second.Read(reading("/b", "httpd"), now)
	before := podconfig.Merge([]podconfig.Layer{first, second})
	for _, c := range before.Conflicts {
		fmt.Println(c.Key, c.Winner.Location, c.Loser.Location, c.Reason)
	}
	first = first.Read(reading("/a", "nginx:2"), now)
	after := podconfig.Merge([]podconfig.Layer{first, second})
	for _, u := range podconfig.Diff(before, after) {
		for _, s := range u.Pods {
			fmt.Println(u.Op, u.Source, u.Location, s.Key, s.Pod.Spec.Containers[0].Image)
		}
	}
	// Output:
	// default/web-n1 /a /b earlier layer wins
	// UPDATE file /a default/web-n1 nginx:2
}
