//go:build linux

// Package support shows of every field of a pod that it has the effect that docs/support.md
// states, and writes that page.
//
// A proof is a pod that sets fields, and a check of the places where they take effect: requests to
// the container runtime, files, the pod's status, requests of probes. Each proof runs again without
// each of its fields, and has to fail then.
package support

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podapi "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// proof is a pod that sets fields, and the check of their effects.
type proof struct {
	name string
	// rows are the fields' paths, parted by blanks. Those that begin with "c." are a
	// container's: the proof is made for each kind of container.
	rows string
	// same are those of the rows whose value here is their default: they are changed
	// where the others are taken away.
	same string
	// meta, spec and container are parts of the manifest, in YAML; the container
	// is the one under test. with are objects beside the pod.
	meta, spec, status, container, with string
	// sidecar says that an init container has to be one.
	sidecar bool
	// notInit and notEphemeral leave out a kind of container.
	notInit, notEphemeral bool
	// later are rows that the pod has only once it runs.
	later string
	// api says that the pod is an API server's.
	api bool
	// look returns an error if a field has no effect.
	look func(*node) error
}

// kinds of containers, and where they stand.
var kinds = map[string]string{"container": "containers", "init container": "initContainers", "ephemeral container": "ephemeralContainers"}

// made is a proof with its manifest.
type made struct {
	proof
	id       string   // its name, with the kind of container
	kind     string   // of container
	paths    []string // full
	defaults []string // those of them that are the default
	doc      map[string]any
	text     string
}

// expand makes proofs for each kind of container.
func expand(all []proof) (out []made) {
	for _, p := range all {
		forms := []string{"container"}
		if strings.HasPrefix(p.rows, "c.") {
			if !p.notInit {
				forms = append(forms, "init container")
			}
			if !p.notEphemeral {
				forms = append(forms, "ephemeral container")
			}
		}
		for _, kind := range forms {
			out = append(out, of(p, kind))
		}
	}
	return out
}

// of is a proof for one kind of container.
func of(p proof, kind string) made {
	m := made{proof: p, id: p.name, kind: kind}
	if strings.HasPrefix(p.rows, "c.") {
		m.id = kind + ": " + p.name
	}
	m.api = m.api || kind == "ephemeral container"
	full := func(rows string) (paths []string) {
		for _, row := range strings.Fields(rows) {
			if rest, ok := strings.CutPrefix(row, "c."); ok {
				row = "spec." + kinds[kind] + "[]." + rest
			}
			paths = append(paths, row)
		}
		return paths
	}
	m.paths, m.defaults = full(p.rows), full(p.same)
	spec := yamlOf(p.spec)
	container := merged(map[string]any{"name": "main", "image": "app:1"}, yamlOf(p.container))
	if p.sidecar && kind == "init container" {
		container["restartPolicy"] = "Always"
	}
	if m.api && spec["tolerations"] == nil && !strings.Contains(p.rows, "tolerations") {
		spec["tolerations"] = []any{map[string]any{"operator": "Exists"}}
	}
	list, _ := spec[kinds[kind]].([]any)
	spec[kinds[kind]] = append(list, container)
	if kind != "container" && spec["containers"] == nil {
		spec["containers"] = []any{map[string]any{"name": "beside", "image": "app:1"}}
	}
	m.doc = map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": spec,
		"metadata": merged(map[string]any{"name": "p"}, yamlOf(p.meta)),
	}
	if p.status != "" {
		m.doc["status"] = yamlOf(p.status)
	}
	m.text = fmt.Sprint(p.meta, p.spec, p.container, p.with)
	return m
}

// rejected is the error of a manifest that is no valid pod.
type rejected struct{ problems []pod.Problem }

func (r rejected) Error() string { return fmt.Sprintf("rejected: %v", r.problems) }

// read reads the manifest as its source does.
func (m made) read(o *outside, doc map[string]any) (source.File, error) {
	opts := manifest.Options{Node: "n1", Source: "file", Location: "/m", File: "/m/p.yaml", Static: true}
	if m.api {
		opts.Source, opts.Location, opts.File = "api", "/kubeconfig", "/kubeconfig"
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return source.File{}, err
	}
	filled := o.fill(string(text))
	var file source.File
	if m.with != "" || !m.api {
		docs := m.with
		if !m.api {
			docs = filled + "\n---\n" + m.with
		}
		file, _ = manifest.Parse([]byte(docs), opts)
	}
	if m.api {
		var p v1.Pod
		if err := json.Unmarshal([]byte(filled), &p); err != nil {
			return file, err
		}
		if p.UID == "" {
			p.UID = "3f0c"
		}
		if p.Namespace == "" {
			p.Namespace = "default"
		}
		p.Spec.NodeName = "n1"
		corev1.SetObjectDefaults_Pod(&p)
		if file.Problems = refusals(&p); len(file.Problems) > 0 {
			return file, rejected{file.Problems}
		}
		spec, problems := manifest.FromAPI(&p, opts)
		if file.Problems = append(file.Problems, problems...); spec != nil {
			file.Pods = []*pod.Spec{spec}
		}
	}
	if file.File = opts.File; len(file.Problems) > 0 {
		return file, rejected{file.Problems}
	}
	return file, nil
}

// refusals are an API server's validation errors for the pod.
func refusals(p *v1.Pod) (out []pod.Problem) {
	var in core.Pod
	if err := corev1.Convert_v1_Pod_To_core_Pod(p, &in, nil); err != nil {
		return []pod.Problem{{Msg: err.Error()}}
	}
	opts := podapi.GetValidationOptionsFromPodSpecAndMeta(&in.Spec, nil, &in.ObjectMeta, nil)
	for _, e := range validation.ValidatePodSpec(&in.Spec, &in.ObjectMeta, field.NewPath("spec"), opts) {
		out = append(out, pod.Problem{Path: e.Field, Msg: e.ErrorBody()})
	}
	return out
}

// attempt looks at one manifest.
func (m made) attempt(t *testing.T, doc map[string]any) error {
	t.Helper()
	o := newOutside(t, m.text)
	first := doc
	for path := range strings.FieldsSeq(m.later) {
		first, _ = edited(first, path, nil)
	}
	look := m.look
	if m.later != "" {
		look = func(n *node) error {
			if err := n.become(doc); err != nil {
				return err
			}
			return m.look(n)
		}
	}
	err := run(t, o, m.under(), first, func(doc map[string]any) (source.File, error) { return m.read(o, doc) }, look)
	if t.Failed() {
		t.Logf("the agent's log:\n%s", o.log)
	}
	return err
}

// under is the name of the container under test.
func (m made) under() string {
	if name, ok := yamlOf(m.proof.container)["name"].(string); ok {
		return name
	}
	return "main"
}

// TestFields shows each field that is supported, and that each look depends on it.
func TestFields(t *testing.T) {
	t.Parallel()
	for _, m := range expand(proofs()) {
		t.Run(m.id, func(t *testing.T) {
			t.Parallel()
			if err := m.attempt(t, m.doc); err != nil {
				t.Fatalf("%v", err)
			}
			for _, path := range m.paths {
				t.Run("without "+path, func(t *testing.T) { m.without(t, path) })
			}
		})
	}
}

// soleValues end the paths of fields that have one value alone in their proofs: any
// other one is no pod.
var soleValues = []string{
	"fieldRef.apiVersion", "livenessProbe.successThreshold", "startupProbe.successThreshold", "spec.nodeName", "spec.automountServiceAccountToken",
	"volumes[].name", "volumeMounts[].name", "volumeDevices[].name", "resourceClaims[].name", "resources.claims[].name", "fileKeyRef.volumeName", "matchFields[].key",
	"azureDisk.kind", "Profile.type", // the latter of the proof with a profile's name; the one without has others
}

// without looks once more, without the field, and where that is no pod, or the field
// has its default, with another value of it.
func (m made) without(t *testing.T, path string) {
	var none rejected
	if !slices.Contains(m.defaults, path) {
		doc, found := edited(m.doc, path, nil)
		if !found {
			t.Fatal("the manifest does not have it")
		}
		switch err := m.attempt(t, doc); {
		case err == nil:
			t.Fatal("the look does not depend on it")
		case !errors.As(err, &none):
			return
		}
	}
	doc, found := edited(m.doc, path, other)
	if !found {
		return // nothing but being there
	}
	err := m.attempt(t, doc)
	if err == nil {
		t.Error("the look does not depend on its value")
	}
	sole := slices.ContainsFunc(soleValues, func(end string) bool { return strings.HasSuffix(path, end) })
	if errors.As(err, &none) && !sole {
		t.Errorf("no probe has run: %v", err)
	}
}

// is returns an error with the difference of two values.
func is[T any](what string, got, want T) error {
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%s (-want +got):\n%s", what, diff)
	}
	return nil
}

// holds returns an error unless ok.
func holds(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// TestEveryRowHasAProof: each field that the table says is supported has a look at it, and nothing
// has one that the table does not have. A fact about pods from an API server is shown with such a
// pod.
func TestEveryRowHasAProof(t *testing.T) {
	t.Parallel()
	static, server := map[string]bool{}, map[string]bool{} // whether a proof was seen
	for rows, table := range map[*map[string]bool][]podspec.Field{&static: podspec.Fields(), &server: podspec.APIFields()} {
		for _, f := range table {
			if f.Support == podspec.Honoured {
				(*rows)[f.Path] = false
			}
		}
	}
	for _, m := range expand(proofs()) {
		for _, path := range m.paths {
			_, inTable := static[path]
			_, ofServer := server[path]
			switch {
			case m.api && ofServer:
				server[path] = true
			case inTable:
				static[path] = true
			default:
				t.Errorf("%s: the table does not support %s", m.id, path)
			}
		}
		for _, path := range slices.Concat(m.defaults, strings.Fields(m.later)) {
			if !slices.Contains(m.paths, path) {
				t.Errorf("%s: %s is none of its rows", m.id, path)
			}
		}
	}
	for _, rows := range []map[string]bool{static, server} {
		for _, path := range slices.Sorted(maps.Keys(rows)) {
			if !rows[path] {
				t.Errorf("nothing shows %s", path)
			}
		}
	}
}
