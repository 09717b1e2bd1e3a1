package arm

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/node"
)

// staged is where a manifest is written: beside the directory that is watched.
func (p Place) staged(name string) string { return filepath.Join(p.Dir, "."+name+".yaml") }

// Manifest is the file of a manifest.
func (p Place) Manifest(name string) string { return filepath.Join(p.Manifests, name+".yaml") }

// Stage writes a manifest beside the directory that is watched.
func (p Place) Stage(name, manifest string) error {
	return os.WriteFile(p.staged(name), []byte(manifest), 0o600)
}

// Drop renames a staged manifest into the directory, as an editor or a deployment tool does,
// and returns the moment before it appeared.
func (p Place) Drop(name string) (time.Time, error) {
	t := time.Now()
	return t, os.Rename(p.staged(name), p.Manifest(name))
}

// DropPod stages the manifest of a pod and drops it.
func (p Place) DropPod(name string, s PodShape) (time.Time, error) {
	if err := p.Stage(name, Manifest(name, s)); err != nil {
		return time.Time{}, err
	}
	return p.Drop(name)
}

// Remove deletes a manifest, and returns the moment before.
func (p Place) Remove(name string) (time.Time, error) {
	t := time.Now()
	return t, os.Remove(p.Manifest(name))
}

// PodShape is how a pod differs from the other pods that agents start.
type PodShape struct {
	EmptyDir    bool
	Volumes     bool // an emptyDir, a configMap, a secret and a projected volume of both
	HostNetwork bool
	Grace       int    // seconds; 0 is 5
	Args        string // of the container, between commas; "" is "forever"
}

// Manifest returns a pod of one idle container.
func Manifest(name string, s PodShape) string {
	if s.Args == "" {
		s.Args = "forever"
	}
	if s.Grace == 0 {
		s.Grace = 5
	}
	text := `apiVersion: v1
kind: Pod
metadata:
  name: ` + name + `
  namespace: ` + Namespace + `
spec:
`
	if s.HostNetwork {
		text += "  hostNetwork: true\n"
	}
	text += fmt.Sprintf(`  terminationGracePeriodSeconds: %d
  containers:
  - name: `+Container+`
    image: `+node.Stamp+`
    args: [%s]
`, s.Grace, s.Args)
	switch {
	case s.Volumes:
		text += `    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret}
    - {name: all, mountPath: /all}
  volumes:
  - {name: data, emptyDir: {}}
  - {name: config, configMap: {name: ` + name + `}}
  - {name: secret, secret: {secretName: ` + name + `}}
  - name: all
    projected:
      sources:
      - configMap: {name: ` + name + `}
      - secret: {name: ` + name + `}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ` + name + `, namespace: ` + Namespace + `}
data: {page.html: "` + RawConfig + `"}
---
apiVersion: v1
kind: Secret
metadata: {name: ` + name + `, namespace: ` + Namespace + `}
stringData: {password: "` + RawSecret + `"}
`
	case s.EmptyDir:
		text += `    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`
	}
	return text
}
