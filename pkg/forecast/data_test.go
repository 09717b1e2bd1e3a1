package forecast

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// webData is the ConfigMap web.
func webData(values map[string]string) *pod.Object {
	return &pod.Object{
		Key: pod.Key{Namespace: "default", Name: "web"}, Kind: pod.KindConfigMap, Hash: fmt.Sprint(values),
		Object: &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Data: values},
	}
}

// usesWebAndS has a pod read the ConfigMap web and the Secret s.
func usesWebAndS(p *v1.Pod) {
	of := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: of("web")}}, {SecretRef: &v1.SecretEnvSource{LocalObjectReference: of("s")}}}
}

// TestI8_PreviewOfDataAgainstTheRuntime: the sums in the records show which values changed, and
// plan shows the restarts. The output has no value that the agent did not keep, and never a
// Secret's.
//
// Shows: I8
func TestI8_PreviewOfDataAgainstTheRuntime(t *testing.T) {
	t.Parallel()
	const canary = "canary-7f3a"
	asks := func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationRestartOnChange: "true"} }
	old := []*pod.Object{webData(map[string]string{"a": "1", "b": "2"}), secretData(canary)}
	for name, c := range map[string]struct {
		edits []func(*v1.Pod)
		now   []*pod.Object
		want  []string
	}{
		"the same": {nil, old, []string{"unchanged 1"}},
		"a value of a ConfigMap": {nil, []*pod.Object{webData(map[string]string{"a": "1", "b": "22"}), old[1]}, []string{
			"UPDATE web a/web.yaml:1 configmap/web.data[b]:(1 bytes)->(2 bytes)", "unchanged 0",
		}},
		"a value came, and one of a Secret changed": {nil, []*pod.Object{webData(map[string]string{"a": "1", "b": "2", "c": "3"}), secretData(canary + canary)}, []string{
			"UPDATE web a/web.yaml:1 configmap/web.data[c]:->3 secret/s.data[password]:(redacted, 11 bytes)->(redacted, 22 bytes)", "unchanged 0",
		}},
		"a pod that asks for it restarts": {[]func(*v1.Pod){asks}, []*pod.Object{old[0], secretData(canary + canary)}, []string{
			"UPDATE web a/web.yaml:1 secret/s.data[password]:(redacted, 11 bytes)->(redacted, 22 bytes) restart pod=false [c] (secret/s changed)", "unchanged 0",
		}},
		"I9 an object is gone: rejected, and untouched": {[]func(*v1.Pod){asks}, old[:1], []string{"unchanged 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := lookSpec("web", "x", append(c.edits, usesWebAndS)...)
			was := podspec.Bind(spec, podspec.NewData(old))
			kept := *was
			kept.Data = &pod.Data{Sums: was.Data.Sums, Unbound: was.Data.Unbound} // as a record has it
			file := source.File{File: "a/web.yaml", Pods: []*pod.Spec{spec}, Objects: c.now}
			f, err := Preview(t.Context(), Options{
				Config: podconfig.New(podconfig.Config{
					Sources: []source.Source{said{name: "file:a", files: []source.File{file}}}, Recorded: []*pod.Spec{&kept},
				}),
				Observer: looker{pods: []pod.Actual{runs(was)}},
				Records:  []pod.Record{{Key: spec.Key, UID: spec.UID(), Want: &kept, Instance: 1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, summary(f)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.HasPrefix(name, "I9") != (len(f.State.Problems) > 0) {
				t.Errorf("problems %v", f.State.Problems)
			}
			if s := fmt.Sprint(summary(f), f.State.Problems); strings.Contains(s, canary) {
				t.Errorf("a secret value is shown: %s", s)
			}
		})
	}
}

// TestPreviewOfDataOfTwoKindsOfSource: a saved set holds one object of a name; a pod that is
// bound to another source's object is not compared with it.
func TestPreviewOfDataOfTwoKindsOfSource(t *testing.T) {
	t.Parallel()
	uses := func(p *v1.Pod) {
		p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "web"}}}}
	}
	mine, theirs := lookSpec("mine", "x", uses), lookSpec("theirs", "x", uses)
	theirs.Origin = pod.Origin{Source: "http", Location: "u", File: "u"}
	of := func(o pod.Origin, value string) *pod.Object {
		object := webData(map[string]string{"a": value})
		object.Origin = o
		return object
	}
	saved := saved(t, item(mine), item(theirs), map[string]any{"kind": "ConfigMap", "metadata": map[string]any{"namespace": "default", "name": "web"}, "data": map[string]any{"a": "1"}})
	f, err := Preview(t.Context(), Options{
		Config: podconfig.New(podconfig.Config{Sources: []source.Source{
			said{name: "file:a", files: []source.File{{File: "a/mine.yaml", Pods: []*pod.Spec{mine}, Objects: []*pod.Object{of(mine.Origin, "2")}}}},
			said{name: "http:u", files: []source.File{{File: "u", Pods: []*pod.Spec{theirs}, Objects: []*pod.Object{of(theirs.Origin, "3")}}}},
		}}),
		Against: saved,
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"UPDATE mine a/mine.yaml:1 configmap/web.data[a]:1->2", "unchanged 1"}, summary(f)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestI8_SavedSecretsAreNotQuotedInErrors: the error names the place in a damaged saved set,
// not a value.
//
// Shows: I8
func TestI8_SavedSecretsAreNotQuotedInErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"kind": "List", "items": [{"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "canary-7f3a!"}}]}`,
		`{"kind": "List", "items": [{"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": ["canary-7f3a"]}}]}`,
		`{"kind": "List", "items": [{"kind": "Secret", "metadata": {"name": "s"}, "data": "canary-7f3a"}]}`,
	} {
		if _, err := ReadSavedSet([]byte(text), "x.json"); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
