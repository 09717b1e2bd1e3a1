//go:build linux

package support

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// parse reads a manifest with these parts beside a name and a container.
func parse(t *testing.T, part map[string]any) (source.File, []pod.Problem) {
	t.Helper()
	doc := merged(yamlOf("apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: main, image: 'app:1'}]}"), part)
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Parse(text, manifest.Options{Node: "n1", Source: "file", Location: "/m", File: "/m/p.yaml", Static: true})
}

// written is a Pod's part with a field in it, one item in each list on the way.
func written(t *testing.T, path string) map[string]any {
	t.Helper()
	return writtenIn(t, reflect.TypeFor[v1.Pod](), path)
}

// writtenIn is written for an object of another type.
func writtenIn(t *testing.T, of reflect.Type, path string) map[string]any {
	t.Helper()
	root := map[string]any{}
	at := root
	steps := strings.Split(path, ".")
	for i, step := range steps {
		name, list := strings.CutSuffix(step, "[]")
		f, ok := fieldOf(of, name)
		if !ok {
			t.Fatalf("%s: the API has no %s", path, name)
		}
		if i == len(steps)-1 {
			at[name] = filled(f)
			break
		}
		inner := map[string]any{}
		if at[name] = inner; list {
			at[name] = []any{inner}
		}
		if name == "ephemeralContainers" || name == "volumes" {
			inner["name"] = "debugger" // an API server's pod without it is broken
		}
		at, of = inner, f
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
	}
	return root
}

// fieldOf is the type of a field by its name in JSON.
func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		switch tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case tag == name:
			return f.Type, true
		case tag == "" && f.Anonymous:
			if of, ok := fieldOf(f.Type, name); ok {
				return of, true
			}
		}
	}
	return nil, false
}

// filled is a value of a type that asks for something.
func filled(t reflect.Type) any {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return "2026-01-02T03:04:05Z"
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString]():
		return 1
	}
	switch t.Kind() {
	case reflect.Pointer:
		return filled(t.Elem())
	case reflect.Slice:
		return []any{filled(t.Elem())}
	case reflect.Map:
		return map[string]any{"cpu": filled(t.Elem())}
	case reflect.Struct:
		f := t.Field(0)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			return filled(f.Type)
		}
		return map[string]any{name: filled(f.Type)}
	case reflect.Bool:
		return true
	case reflect.Int32, reflect.Int64:
		return 1
	}
	return "x"
}

// TestRejected: a manifest with a field that is rejected is, by the field's name, and
// without it is not.
func TestRejected(t *testing.T) {
	t.Parallel()
	rows := 0
	for _, f := range podspec.Fields() {
		if f.Support != podspec.Rejected {
			continue
		}
		rows++
		file, _ := parse(t, written(t, f.Path))
		want := strings.ReplaceAll(f.Path, "[]", "[0]")
		at := slices.IndexFunc(file.Problems, func(p pod.Problem) bool { return p.Path == want })
		switch {
		case len(file.Pods) > 0 || at < 0:
			t.Errorf("%s: %d pods, problems %v", f.Path, len(file.Pods), file.Problems)
		case file.Problems[at].Line != 1 || file.Problems[at].Column == 0:
			t.Errorf("%s: no place: %+v", f.Path, file.Problems[at])
		}
	}
	if file, notices := parse(t, nil); len(file.Pods) != 1 || len(notices) > 0 || rows < 40 {
		t.Errorf("%d rows; without any: %v, notices %v", rows, file.Problems, notices)
	}
}

// TestRejected_OfAServer is TestRejected for pods from an API server.
func TestRejected_OfAServer(t *testing.T) {
	t.Parallel()
	rows := 0
	for _, f := range podspec.APIFields() {
		if f.Support != podspec.Rejected {
			continue
		}
		rows++
		_, problems := served(t, written(t, f.Path))
		want := strings.ReplaceAll(f.Path, "[]", "[0]")
		if !slices.ContainsFunc(problems, func(p pod.Problem) bool { return p.Path == want }) {
			t.Errorf("%s: %v", f.Path, problems)
		}
	}
	if spec, problems := served(t, nil); spec == nil || rows == 0 {
		t.Errorf("%d rows; without any: %v", rows, problems)
	}
}

// served is a pod of an API server with these parts.
func served(t *testing.T, part map[string]any) (*pod.Spec, []pod.Problem) {
	t.Helper()
	text, err := json.Marshal(merged(yamlOf("metadata: {name: p, namespace: default, uid: u}, spec: {nodeName: n1, containers: [{name: main, image: 'app:1'}]}"), part))
	if err != nil {
		t.Fatal(err)
	}
	var p v1.Pod
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return manifest.FromAPI(&p, manifest.Options{Node: "n1", Source: "api", Location: "/kubeconfig"})
}

// beyond has, for each field that is supported for some values, one for which it is
// not.
var beyond = map[string]string{
	"spec.volumes[].emptyDir.medium":           "spec: {volumes: [{name: v, emptyDir: {medium: Disk}}]}",
	"spec.containers[].resources.limits":       "spec: {containers: [{resources: {limits: {kubernetes.io/gpu: 1}}}]}",
	"spec.containers[].resources.requests":     "spec: {containers: [{resources: {requests: {kubernetes.io/gpu: 1}, limits: {kubernetes.io/gpu: 1}}}]}",
	"spec.initContainers[].resources.limits":   "spec: {initContainers: [{name: i, image: i, resources: {limits: {kubernetes.io/gpu: 1}}}]}",
	"spec.initContainers[].resources.requests": "spec: {initContainers: [{name: i, image: i, resources: {requests: {kubernetes.io/gpu: 1}, limits: {kubernetes.io/gpu: 1}}}]}",
	"spec.automountServiceAccountToken":        "spec: {automountServiceAccountToken: true}",
	"spec.priorityClassName":                   "spec: {priorityClassName: high}",
	"spec.overhead":                            "spec: {overhead: {ephemeral-storage: 1Gi}}",
	"spec.resources.limits":                    "spec: {resources: {limits: {ephemeral-storage: 1Gi}}}",
	"spec.resources.requests":                  "spec: {resources: {requests: {ephemeral-storage: 1Gi}}}",
}

// TestRejected_OtherValues: a field that is supported for some values rejects the other ones, and
// the problem names the field. TestFields shows the supported values.
func TestRejected_OtherValues(t *testing.T) {
	t.Parallel()
	for _, f := range podspec.Fields() {
		text, ok := beyond[f.Path]
		if ok != (f.Check != nil) {
			t.Errorf("%s: it has a condition: %v, and a value beyond: %v", f.Path, f.Check != nil, ok)
		}
		if !ok {
			continue
		}
		file, _ := parse(t, yamlOf(text))
		want := strings.ReplaceAll(f.Path, "[]", "[0]")
		if !slices.ContainsFunc(file.Problems, func(p pod.Problem) bool { return strings.HasPrefix(p.Path, want) }) {
			t.Errorf("%s: %v", f.Path, file.Problems)
		}
	}
}

// ignored has a value for each field that is, of a kind that the API takes.
var ignored = map[string]string{
	"metadata.selfLink":          "metadata: {selfLink: /a}",
	"metadata.resourceVersion":   "metadata: {resourceVersion: '1'}",
	"metadata.generation":        "metadata: {generation: 1}",
	"metadata.creationTimestamp": "metadata: {creationTimestamp: '2026-01-02T03:04:05Z'}",
	"metadata.ownerReferences":   "metadata: {ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: x}]}",
	"metadata.managedFields":     "metadata: {managedFields: [{manager: me, operation: Update, apiVersion: v1, fieldsType: FieldsV1}]}",
	"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": "spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Exists}]}}]}}}",
	"spec.affinity.podAffinity":                "spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}}}",
	"spec.affinity.podAntiAffinity":            "spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}}}",
	"spec.schedulerName":                       "spec: {schedulerName: mine}",
	"spec.tolerations[].tolerationSeconds":     "spec: {tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 5}]}",
	"spec.preemptionPolicy":                    "spec: {preemptionPolicy: Never}",
	"spec.topologySpreadConstraints":           "spec: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}",
	"spec.securityContext.seLinuxChangePolicy": "spec: {securityContext: {seLinuxChangePolicy: Recursive}}",
	"status": "status: {phase: Running}",
}

// TestIgnored: a manifest with an ignored field gives the same pod as without it. Its author
// gets one notice, with the field's place in the spec and the reason.
func TestIgnored(t *testing.T) {
	t.Parallel()
	left := map[string]bool{}
	for path := range ignored {
		left[path] = true
	}
	plain, _ := parse(t, nil)
	for _, f := range podspec.Fields() {
		if f.Support != podspec.Inert {
			continue
		}
		text, ok := ignored[f.Path]
		if delete(left, f.Path); !ok {
			t.Errorf("nothing shows %s", f.Path)
			continue
		}
		file, notices := parse(t, yamlOf(text))
		if len(file.Pods) != 1 {
			t.Errorf("%s: %v", f.Path, file.Problems)
			continue
		}
		if got, want := file.Pods[0], plain.Pods[0]; got.SandboxHash != want.SandboxHash || fmt.Sprint(got.ContainerHashes) != fmt.Sprint(want.ContainerHashes) {
			t.Errorf("%s: another pod", f.Path)
		}
		var want []string
		if strings.HasPrefix(f.Path, "spec.") {
			want = []string{strings.ReplaceAll(f.Path, "[]", "[0]") + " is ignored: " + f.Note}
		}
		var got []string
		for _, n := range notices {
			got = append(got, n.Msg)
			if n.File != "/m/p.yaml" || n.Line != 1 || n.Column == 0 {
				t.Errorf("%s: no place: %+v", f.Path, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: notices %q, want %q", f.Path, got, want)
		}
	}
	for path := range left {
		t.Errorf("the table does not ignore %s", path)
	}
}

// TestIgnored_OfAServer: a pod from an API server may set its ignored fields.
func TestIgnored_OfAServer(t *testing.T) {
	t.Parallel()
	rows := 0
	for _, f := range podspec.APIFields() {
		if f.Support != podspec.Inert {
			continue
		}
		rows++
		if spec, problems := served(t, written(t, f.Path)); spec == nil {
			t.Errorf("%s: %v", f.Path, problems)
		}
	}
	if rows == 0 {
		t.Error("no rows")
	}
}
