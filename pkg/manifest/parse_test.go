package manifest

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
)

const ordinary = `apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web, tier: front}
  annotations: {note: "an ordinary manifest"}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 10
  initContainers:
  - name: prepare
    image: registry.example/busybox:1.36
    command: [sh, -c, "cp /etc/hosts /data"]
    volumeMounts:
    - {name: data, mountPath: /data}
  containers:
  - name: nginx
    image: registry.example/nginx:1.27
    args: ["-g", "daemon off;"]
    env:
    - {name: A, value: "1"}
    - {name: B, value: "$(A)2"}
    ports:
    - {name: http, containerPort: 80, hostPort: 8080}
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {memory: 128Mi}
    readinessProbe:
      httpGet: {path: /ready, port: http}
      periodSeconds: 5
    volumeMounts:
    - {name: data, mountPath: /data, readOnly: true}
    - {name: logs, mountPath: /var/log}
  - name: sidekick
    image: registry.example/sidekick@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    tty: true
  volumes:
  - name: data
    emptyDir: {}
  - name: logs
    hostPath: {path: /srv/logs, type: DirectoryOrCreate}
`

func parseOne(t testing.TB, text string) *pod.Spec {
	t.Helper()
	f, warnings := Parse([]byte(text), options("web.yaml"))
	if len(f.Problems) > 0 || len(warnings) > 0 || len(f.Pods) != 1 {
		t.Fatalf("problems %v, warnings %v, %d pods", f.Problems, warnings, len(f.Pods))
	}
	return f.Pods[0]
}

// TestC_1_5_4_DefaultsAreTheSchemes decodes the same manifest through the whole
// API scheme, as the kubelet does, and compares the specs.
//
// Shows: C-1.5.4
func TestC_1_5_4_DefaultsAreTheSchemes(t *testing.T) {
	t.Parallel()
	js, err := sigsyaml.YAMLToJSON([]byte(ordinary))
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err := legacyscheme.Codecs.UniversalDecoder().Decode(js, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var want v1.Pod
	if err := legacyscheme.Scheme.Convert(obj, &want, nil); err != nil {
		t.Fatal(err)
	}
	got := parseOne(t, ordinary).Pod
	want.Spec.NodeName = "n1"
	want.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}}
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("(-scheme +ours):\n%s", diff)
	}
}

// Shows: C-1.5.7, C-1.5
func TestC_1_5_7_IdentityIsTheSameFromEverySource(t *testing.T) {
	t.Parallel()
	want := parseOne(t, ordinary)
	for _, kind := range []string{"http", "stdin", "etcd"} {
		o := options("elsewhere")
		o.Source = kind
		f, _ := Parse([]byte(ordinary), o)
		got := f.Pods[0]
		if got.UID() != want.UID() || got.Hash != want.Hash || got.SandboxHash != want.SandboxHash {
			t.Errorf("%s: another identity", kind)
		}
		if diff := cmp.Diff(want.Pod.Spec, got.Pod.Spec); diff != "" {
			t.Errorf("%s:\n%s", kind, diff)
		}
		if s := got.Pod.Annotations[pod.AnnotationConfigSource]; s != kind {
			t.Errorf("config.source is %q, want %q", s, kind)
		}
	}
	if want.UID() != pod.StaticUID("n1", "default", "web-n1") || len(want.UID()) != 32 {
		t.Errorf("UID %s", want.UID())
	}
}

// Shows: C-1.5.8
func TestC_1_5_8_GivenUIDIsKept(t *testing.T) {
	t.Parallel()
	s := parseOne(t, strings.Replace(ordinary, "  name: web\n", "  name: web\n  uid: 6ba7b810-9dad-11d1-80b4-00c04fd430c8\n", 1))
	if s.UID() != "6ba7b810-9dad-11d1-80b4-00c04fd430c8" {
		t.Errorf("UID %s", s.UID())
	}
	if s.Pod.Annotations[pod.AnnotationConfigHash] != s.Hash {
		t.Errorf("config.hash is %s, the content's hash %s", s.Pod.Annotations[pod.AnnotationConfigHash], s.Hash)
	}
}

// TestF40_EveryCutOfAManifestIsNoEmptySet truncates a manifest at every byte: the rest is a pod, or
// an error that makes no statement about the set of pods.
//
// Shows: F40
func TestF40_EveryCutOfAManifestIsNoEmptySet(t *testing.T) {
	t.Parallel()
	manifest := `apiVersion: v1
kind: Pod
metadata:
  labels: {app: web}
  name: web
spec:
  hostNetwork: true
  containers:
  - name: nginx
    image: "registry.example/nginx:1.27"
    volumeMounts:
    - {name: data, mountPath: /data}
  volumes:
  - name: data
    emptyDir: {}
`
	list := "apiVersion: v1\nkind: List\nitems:\n- " + strings.TrimSpace(strings.ReplaceAll(manifest, "\n", "\n  ")) + "\n"
	for _, text := range []string{manifest, list} {
		for i := range len(text) {
			f, _ := Parse([]byte(text[:i]), options("web.yaml"))
			if len(f.Pods) == 0 && (!f.Incomplete || len(f.Problems) == 0) {
				t.Fatalf("cut at %d: no pods, incomplete %v, problems %v", i, f.Incomplete, f.Problems)
			}
		}
	}
}

func TestParse_AgainIsTheSame(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, path := range archives {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range ar.Files {
			a, aw := Parse(f.Data, options(f.Name))
			b, bw := Parse(f.Data, options(f.Name))
			if diff := cmp.Diff(render(a, aw), render(b, bw)); diff != "" {
				t.Errorf("%s %s:\n%s", path, f.Name, diff)
			}
		}
	}
}
