package forecast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// looker is an observer that returns pods or fails.
type looker struct {
	pods []pod.Actual
	err  error
}

func (l looker) Pods(context.Context) ([]pod.Actual, error) { return l.pods, l.err }
func (l looker) Pod(context.Context, pod.Key) (pod.Actual, error) {
	return pod.Actual{}, errors.New("a preview reads all pods at once")
}
func (l looker) Ready(context.Context) (pod.RuntimeReady, error) { return pod.RuntimeReady{}, l.err }

// said is a source with a fixed snapshot.
type said struct {
	name  string
	files []source.File
	err   error
}

func (s said) Name() string { return s.name }
func (s said) Sets(context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		if s.err != nil {
			yield(source.Snapshot{}, s.err)
			return
		}
		yield(source.Snapshot{Revision: 1, Files: source.FilesOf(s.files...)}, nil)
	}
}

// lookSpec returns the desired pod NAME with one container c of the given image, as parsed
// from a/NAME.yaml.
func lookSpec(name, image string, edit ...func(*v1.Pod)) *pod.Spec {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
	for _, e := range edit {
		e(p)
	}
	s := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: "file", Location: "a", File: "a/" + name + ".yaml", Line: 1}}
	s.Hash, s.SandboxHash, s.ContainerHashes = podspec.NewHashes(p)
	return s
}

// runs returns the state in the runtime of a pod that was made from s.
func runs(s *pod.Spec) pod.Actual {
	return pod.Actual{
		Key: s.Key, UID: s.UID(),
		Sandbox:    &pod.Sandbox{ID: "s", Ready: true, SpecHash: s.Hash, SandboxHash: s.SandboxHash, Layer: s.Origin.Layer(), Grace: 7},
		Containers: map[string]pod.Container{"c": {ID: "1", Name: "c", SandboxID: "s", Resources: s.Resources("c"), Hash: s.ContainerHash("c"), State: pod.StateRunning}},
	}
}

// with returns a with one more running container.
func with(a pod.Actual, name string) pod.Actual {
	a.Containers[name] = pod.Container{ID: name, Name: name, SandboxID: a.Sandbox.ID, Hash: "v1-x", State: pod.StateRunning}
	return a
}

func fileOf(s *pod.Spec) source.File {
	return source.File{File: s.Origin.File, Pods: []*pod.Spec{s}}
}

// summary formats a forecast as lines.
func summary(f Forecast) []string {
	var out []string
	for _, c := range f.Changes {
		line := fmt.Sprintf("%s %s %s", c.Op, c.Key.Name, c.Origin)
		for _, d := range c.Fields {
			line += fmt.Sprintf(" %s:%s->%s", d.Path, d.Old, d.New)
		}
		if c.Restarts() {
			line += fmt.Sprintf(" restart pod=%v %v", c.RestartPod, c.RestartContainers)
		}
		if len(c.Resizes) > 0 {
			line += fmt.Sprintf(" resize %v", c.Resizes)
		}
		if c.Op == podconfig.REMOVE {
			line += fmt.Sprintf(" grace=%d", c.Grace)
		}
		if c.Reason != "" {
			line += " (" + c.Reason + ")"
		}
		out = append(out, line)
	}
	for _, n := range f.Notices {
		out = append(out, "notice "+n)
	}
	return append(out, fmt.Sprintf("unchanged %d", f.Unchanged))
}

func TestPreviewAgainstTheRuntime(t *testing.T) {
	t.Parallel()
	web, old := lookSpec("web", "nginx:2"), lookSpec("old", "x")
	hostNet := func(p *v1.Pod) { p.Spec.HostNetwork = true }
	label := func(p *v1.Pod) { p.Labels = map[string]string{"team": "core"} }
	graceful := func(p *v1.Pod) { g := int64(5); p.Spec.TerminationGracePeriodSeconds = &g }
	was := lookSpec("web", "nginx:1")
	record := func(s *pod.Spec) pod.Record { return pod.Record{Key: s.Key, UID: s.UID(), Want: s, Instance: 1} }
	cpu := func(n string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}
		}
	}
	waits := lookSpec("web", "nginx:1")
	waits.DependsOn = []pod.Dependency{{Name: "db", Until: pod.Ready}}
	others := lookSpec("db", "postgres:1")
	others.Origin.Source = "http"
	moved := *old
	moved.Origin.Location = "gone"
	for name, c := range map[string]struct {
		sources []source.Source
		have    []pod.Actual
		kept    []pod.Record
		want    []string
	}{
		"nothing runs": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			want:    []string{"ADD web a/web.yaml:1", "unchanged 0"},
		},
		"the same runs": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(web)}, kept: []pod.Record{record(web)},
			want: []string{"unchanged 1"},
		},
		"C-1.34 resources changed: resized in place": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(lookSpec("web", "nginx:1", cpu("2")))}}},
			have:    []pod.Actual{runs(lookSpec("web", "nginx:1", cpu("1")))}, kept: []pod.Record{record(lookSpec("web", "nginx:1", cpu("1")))},
			want: []string{"UPDATE web a/web.yaml:1 spec.containers[c].resources.requests[cpu]:1->2 resize [{c [cpu]}]", "unchanged 0"},
		},
		"C-1.34 resources changed, and the container has them already": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(lookSpec("web", "nginx:1", cpu("2")))}}},
			have:    []pod.Actual{runs(lookSpec("web", "nginx:1", cpu("1")))},
			kept: []pod.Record{{Key: web.Key, UID: web.UID(), Want: lookSpec("web", "nginx:1", cpu("2")), Instance: 1,
				ContainerNotes: map[string]pod.ContainerNotes{"1": {Resources: "cpu=2/"}}}},
			want: []string{"unchanged 1"},
		},
		"P21 a dependency that no source defines": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(waits)}}},
			want:    []string{"ADD web a/web.yaml:1", "notice pod default/web depends on pod db, which no source defines", "unchanged 0"},
		},
		"a dependency on a name that only a pod of another kind of source has": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(waits)}}, said{name: "http:a", files: []source.File{fileOf(others)}}},
			want:    []string{"ADD db a/db.yaml:1", "ADD web a/web.yaml:1", "notice pod default/web depends on pod db, which no source defines", "unchanged 0"},
		},
		"an image changed: the recorded spec shows the field": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(was)}, kept: []pod.Record{record(was)},
			want: []string{"UPDATE web a/web.yaml:1 spec.containers[c].image:nginx:1->nginx:2 restart pod=false [c] (image changed)", "unchanged 0"},
		},
		"a label changed: nothing restarts": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(lookSpec("web", "nginx:2", label))}}},
			have:    []pod.Actual{runs(web)}, kept: []pod.Record{record(web)},
			want: []string{"UPDATE web a/web.yaml:1 metadata.labels[team]:->core", "unchanged 0"},
		},
		"the host network: the pod restarts": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(lookSpec("web", "nginx:2", hostNet))}}},
			have:    []pod.Actual{runs(web)}, kept: []pod.Record{record(web)},
			want: []string{"UPDATE web a/web.yaml:1 spec.hostNetwork:false->true restart pod=true [] (hostNetwork changed)", "unchanged 0"},
		},
		"no record: hashes say which container": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(was)},
			want: []string{
				"UPDATE web a/web.yaml:1 restart pod=false [c] (the hash of the container differs)",
				"notice pod default/web: its record cannot be read: compared by hash", "unchanged 0",
			},
		},
		"no record, nothing changed": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(web)},
			want:    []string{"notice pod default/web: its record cannot be read: compared by hash", "unchanged 1"},
		},
		"a container runs that the record does not have yet: it is removed": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{with(runs(web), "third")}, kept: []pod.Record{record(web)},
			want: []string{"UPDATE web a/web.yaml:1 spec.containers[third]:(runs)->", "unchanged 0"},
		},
		"no record, and a container runs that the manifest does not name": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{with(runs(web), "third")},
			want: []string{
				"UPDATE web a/web.yaml:1 (the manifest does not have container third)",
				"notice pod default/web: its record cannot be read: compared by hash", "unchanged 0",
			},
		},
		"no record and another version of hash: no change is made up": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{{Key: web.Key, UID: web.UID(), Sandbox: &pod.Sandbox{SpecHash: "v0-1", SandboxHash: "v0-2", Layer: "file:a"}}},
			want: []string{
				"notice pod default/web: its record cannot be read, and it has no hash that can be compared: assumed to be unchanged", "unchanged 1",
			},
		},
		"a job that ended, cleaned up: it does not run again": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			kept:    []pod.Record{{Key: web.Key, Want: web, Instance: 1, Terminal: v1.PodSucceeded}},
			want:    []string{"unchanged 1"},
		},
		"a manifest is gone: its pod is removed with its own grace": {
			sources: []source.Source{said{name: "file:a"}},
			have:    []pod.Actual{runs(old)}, kept: []pod.Record{record(lookSpec("old", "x", graceful))},
			want: []string{"REMOVE old a/old.yaml:1 grace=5", "unchanged 0"},
		},
		"a manifest is gone and no record: the sandbox carries layer and grace": {
			sources: []source.Source{said{name: "file:a"}},
			have:    []pod.Actual{runs(old)},
			want:    []string{"REMOVE old a grace=7", "unchanged 0"},
		},
		"I9 a layer that has not answered keeps its pods": {
			sources: []source.Source{said{name: "file:a", err: errors.New("no such directory")}},
			have:    []pod.Actual{runs(old)}, kept: []pod.Record{record(old)},
			want: []string{"notice pod default/old stays: file:a could not be read", "unchanged 1"},
		},
		"I9 a rejected file keeps its pod": {
			sources: []source.Source{said{name: "file:a", files: []source.File{{File: "a/old.yaml", Incomplete: true, Problems: []pod.Problem{{File: "a/old.yaml", Msg: "bad"}}}}}},
			have:    []pod.Actual{runs(old)}, kept: []pod.Record{record(old)},
			want: []string{"notice pod default/old stays: a/old.yaml is rejected", "unchanged 1"},
		},
		"a layer that is not configured any more": {
			sources: []source.Source{said{name: "file:a"}},
			have:    []pod.Actual{runs(&moved)}, kept: []pod.Record{record(&moved)},
			want: []string{"REMOVE old a/old.yaml:1 grace=7 (layer file:gone is not configured)", "unchanged 0"},
		},
		"the agent ended between a container and its record: the runtime knows better": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(web)}, kept: []pod.Record{record(was)},
			want: []string{"unchanged 1"},
		},
		"the agent ended between a record and its container": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(was)}, kept: []pod.Record{record(web)},
			want: []string{"UPDATE web a/web.yaml:1 restart pod=false [c] (the hash of the container differs)", "unchanged 0"},
		},
		"the newest instance's record counts": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}},
			have:    []pod.Actual{runs(web)},
			kept:    []pod.Record{{Key: web.Key, Want: web, Instance: 2}, {Key: web.Key, Want: was, Instance: 1}},
			want:    []string{"unchanged 1"},
		},
		"order is by op, then by key": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(lookSpec("b", "x")), fileOf(lookSpec("c", "x")), fileOf(web)}}},
			have:    []pod.Actual{runs(old), runs(was)}, kept: []pod.Record{record(old), record(was)},
			want: []string{
				"ADD b a/b.yaml:1", "ADD c a/c.yaml:1",
				"UPDATE web a/web.yaml:1 spec.containers[c].image:nginx:1->nginx:2 restart pod=false [c] (image changed)",
				"REMOVE old a/old.yaml:1 grace=7", "unchanged 0",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := Preview(t.Context(), Options{Config: podconfig.New(podconfig.Config{Sources: c.sources}), Observer: looker{pods: c.have}, Records: c.kept})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, summary(f)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A pod that the node forbids shows no start and no restart: the agent would do neither.
func TestPreview_ForbiddenPod_DoesNotStart(t *testing.T) {
	t.Parallel()
	web, other := lookSpec("web", "nginx:2"), lookSpec("other", "x")
	was := lookSpec("web", "nginx:1")
	f, err := Preview(t.Context(), Options{
		Config:   podconfig.New(podconfig.Config{Sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web), fileOf(other)}}}}),
		Observer: looker{pods: []pod.Actual{runs(was)}}, Records: []pod.Record{{Key: was.Key, UID: was.UID(), Want: was, Instance: 1}},
		Forbids: func(*pod.Spec) string { return "the policy allows no images of nginx" },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"UPDATE web a/web.yaml:1 spec.containers[c].image:nginx:1->nginx:2",
		"notice pod default/other does not start: the policy allows no images of nginx", "unchanged 1",
	}
	if diff := cmp.Diff(want, summary(f)); diff != "" {
		t.Error(diff)
	}
}

// A forecast plans without the features that are off on the node, as the agent does.
func TestForecast_DisabledFeatures_AreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	off := pod.Disabled{pod.FeatureInitResize}
	f := againstRuntime(&podconfig.Merged{}, nil, Options{Config: podconfig.New(podconfig.Config{}), Disabled: off}, time.Now())
	if v := f.view(lookSpec("web", "nginx:1"), pod.Actual{}, pod.Record{}); !slices.Equal(v.Disabled, off) {
		t.Errorf("the view is without %q", v.Disabled)
	}
}

func TestPreviewSaysThatTheRuntimeFailed(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection refused")
	f, err := Preview(t.Context(), Options{Config: podconfig.New(podconfig.Config{Sources: []source.Source{said{name: "file:a"}}}), Observer: looker{err: broken}})
	if !errors.Is(err, broken) || f.State == nil || len(f.Changes) != 0 {
		t.Fatalf("got %v, %+v; want the runtime's error, the state, and no change made up", err, f)
	}
}

// saved returns a set as merge writes it.
func saved(t *testing.T, items ...any) *SavedSet {
	t.Helper()
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ReadSavedSet(data, "before.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func item(s *pod.Spec) any {
	p := s.Pod.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.Annotations = map[string]string{pod.AnnotationConfigSource: s.Origin.Source, pod.AnnotationConfigHash: s.Hash}
	return p
}

func TestPreviewAgainstASavedSet(t *testing.T) {
	t.Parallel()
	web, was, old := lookSpec("web", "nginx:2"), lookSpec("web", "nginx:1"), lookSpec("old", "x")
	for name, c := range map[string]struct {
		sources []source.Source
		against *SavedSet
		want    []string
	}{
		"the same": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}}, against: saved(t, item(web)),
			want: []string{"unchanged 1"},
		},
		"an image": {
			sources: []source.Source{said{name: "file:a", files: []source.File{fileOf(web)}}}, against: saved(t, item(was), item(old)),
			want: []string{
				"UPDATE web a/web.yaml:1 spec.containers[c].image:nginx:1->nginx:2 restart pod=false [c] (image changed)",
				"REMOVE old before.json grace=30", "unchanged 0",
			},
		},
		"I9 a layer that has not answered removes nothing": {
			sources: []source.Source{said{name: "file:a", err: errors.New("gone")}}, against: saved(t, item(old)),
			want: []string{"notice pod default/old stays: file:a could not be read", "unchanged 1"},
		},
		"another kind of layer has not answered": {
			sources: []source.Source{said{name: "http:u", err: errors.New("gone")}, said{name: "file:a"}}, against: saved(t, item(old)),
			want: []string{"REMOVE old before.json grace=30", "unchanged 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := Preview(t.Context(), Options{Config: podconfig.New(podconfig.Config{Sources: c.sources}), Against: c.against})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, summary(f)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// secretData is one value of the Secret s.
func secretData(value string) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: "s"}, Kind: "Secret", Hash: value,
		Object: &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"password": []byte(value)}}}
}

func TestSecretsShowThroughThePodsThatUseThemByLength(t *testing.T) {
	t.Parallel()
	uses := func(p *v1.Pod) {
		p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "s"}}}}
	}
	web, other := lookSpec("web", "x", uses), lookSpec("other", "x")
	redacted := map[string]any{"kind": "Secret", "metadata": map[string]any{"namespace": "default", "name": "s"}, "data": map[string]any{"password": podspec.Redacted(7)}}
	open := map[string]any{"kind": "Secret", "metadata": map[string]any{"namespace": "default", "name": "s"}, "data": map[string]any{"password": "aHVudGVyMg=="}}
	for name, c := range map[string]struct {
		secret string
		saved  any
		want   []string
	}{
		"same length":          {"1234567", redacted, []string{"unchanged 2"}},
		"another length":       {"correct horse bat", redacted, []string{"UPDATE web a/web.yaml:1 secret/s.data[password]:(redacted, 7 bytes)->(redacted, 17 bytes)", "unchanged 1"}},
		"same value, shown":    {"hunter2", open, []string{"unchanged 2"}},
		"another value, shown": {"hunter3", open, []string{"UPDATE web a/web.yaml:1 secret/s.data[password]:(redacted, 7 bytes)->(redacted, 7 bytes)", "unchanged 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := source.File{File: "a/web.yaml", Pods: []*pod.Spec{web, other}, Objects: []*pod.Object{secretData(c.secret)}}
			f, err := Preview(t.Context(), Options{
				Config:  podconfig.New(podconfig.Config{Sources: []source.Source{said{name: "file:a", files: []source.File{file}}}}),
				Against: saved(t, item(web), item(other), c.saved),
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, summary(f)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if s := fmt.Sprint(summary(f)); strings.Contains(s, "hunter") || strings.Contains(s, "horse") {
				t.Errorf("a secret value is shown: %s", s)
			}
		})
	}
}

func TestReadSavedRefusesWhatMergeDidNotWrite(t *testing.T) {
	t.Parallel()
	for in, says := range map[string]string{
		"kind: Pod":                            `kind is "Pod"`,
		"a: [":                                 "not a saved set",
		"kind: List\nitems: [{kind: Ingress}]": `kind "Ingress"`,
		"kind: List\nitems: [{kind: Secret, metadata: {name: s}, data: {k: '*'}}]": "not base64",
	} {
		if _, err := ReadSavedSet([]byte(in), "x.yaml"); err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "x.yaml") {
			t.Errorf("%q: got %v, want an error in x.yaml that says %s", in, err, says)
		}
	}
}

// A saved set holds the workloads beside their pods; a comparison takes the pods.
func TestReadSaved_Workload_IsPassedOver(t *testing.T) {
	t.Parallel()
	const text = "kind: List\nitems:\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}\n- {kind: Pod, metadata: {name: web-1, namespace: default}}\n"
	saved, err := ReadSavedSet([]byte(text), "x.yaml")
	if err != nil || len(saved.Pods) != 1 || saved.Pods[0].Name != "web-1" {
		t.Errorf("%+v, %v", saved, err)
	}
}
