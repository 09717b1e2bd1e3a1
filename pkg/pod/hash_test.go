package pod

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const hashed = `
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web, tier: front}
  annotations: {note: hello, kubernetes.io/config.source: file, kubernetes.io/config.seen: "1"}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: init, image: busybox, command: [sh, -c, "true"]}
  containers:
  - name: nginx
    image: nginx:1.27
    env: [{name: A, value: ""}, {name: B, value: b}]
    ports:
    - {name: http, containerPort: 80, hostPort: 8080}
    - {containerPort: 81}
    resources: {limits: {cpu: 500m, memory: 1Gi}}
    volumeMounts: [{name: data, mountPath: /data}, {name: logs, mountPath: /logs, readOnly: true}]
    readinessProbe: {httpGet: {port: http}}
  - name: side
    image: side:1
  volumes:
  - {name: data, emptyDir: {}}
  - {name: logs, hostPath: {path: /srv/logs}}
`

func podFrom(t testing.TB, text string) *v1.Pod {
	t.Helper()
	var p v1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return &p
}

func specOf(t testing.TB, text string) *Spec {
	t.Helper()
	p := podFrom(t, text)
	s := &Spec{Key: KeyOf(p), Pod: p}
	s.Hash, s.SandboxHash, s.ContainerHashes = NewHashes(p)
	return s
}

// TestF16_GoldenHashes holds the hashes of released versions: a change here is
// a change of every pod on every node. Rules that must change get a new version
// in front instead.
func TestF16_GoldenHashes(t *testing.T) {
	t.Parallel()
	s := specOf(t, hashed)
	got := map[string]any{"hash": s.Hash, "sandbox": s.SandboxHash, "containers": s.ContainerHashes}
	want := map[string]any{
		"hash":    "v1-88564dbf1a98b6ccc3d26da9675dfc1d",
		"sandbox": "v1-75fee7136a1e9f93648f1e1da3438bb0",
		"containers": map[string]string{
			"init":  "v1-ac38ba5c7031836ba9eea9e91846c7a4",
			"nginx": "v1-88cd7b7823496c5b48004938a21726e1",
			"side":  "v1-43dd12695d6443c1c966af7442d0a778",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if uid := StaticUID("N1", "default", "web-n1"); uid != "17d1a151163ec8db6981c8b7db931793" {
		t.Errorf("UID %s", uid)
	}
}

// TestF16_SameWishSameHash writes the same pod in other words.
func TestF16_SameWishSameHash(t *testing.T) {
	t.Parallel()
	want := specOf(t, hashed)
	for name, text := range map[string]string{
		"comments and order": strings.Replace(hashed, "  labels: {app: web, tier: front}", "  # labels\n  labels:\n    tier: 'front'\n    app: \"web\"", 1),
		"empty values":       strings.Replace(hashed, "spec:\n", "spec:\n  hostNetwork: false\n  tolerations: []\n  securityContext: {}\n  affinity: {nodeAffinity: {}}\n  nodeSelector: {}\n  hostname: \"\"\n  priority: null\n", 1),
		"empty in container": strings.Replace(hashed, "    image: side:1", "    image: side:1\n    command: []\n    workingDir: \"\"\n    tty: false\n    securityContext: {}\n    livenessProbe: null", 1),
		"defaults":           strings.Replace(strings.Replace(hashed, "hostPort: 8080}", "hostPort: 8080, protocol: TCP}", 1), "spec:\n", "spec:\n  dnsPolicy: ClusterFirst\n", 1),
		"default type":       strings.Replace(hashed, "path: /srv/logs", "path: /srv/logs, type: \"\"", 1),
		"quantities":         strings.Replace(hashed, "cpu: 500m, memory: 1Gi", "memory: 1024Mi, cpu: \"0.5\"", 1),
		"volumes' order":     strings.Replace(hashed, "  - {name: data, emptyDir: {}}\n  - {name: logs, hostPath: {path: /srv/logs}}", "  - {name: logs, hostPath: {path: /srv/logs}}\n  - {name: data, emptyDir: {}}", 1),
		"containers' order":  strings.Replace(strings.Replace(hashed, "  - name: side\n    image: side:1\n", "", 1), "  containers:\n", "  containers:\n  - name: side\n    image: side:1\n", 1),
		"our annotations":    strings.Replace(hashed, `config.seen: "1"`, `config.seen: "2", kubernetes.io/config.hash: x`, 1),
		"a status":           hashed + "\nstatus: {phase: Running}\n",
		"an API server's":    strings.Replace(hashed, "  name: web\n", "  name: web\n  resourceVersion: \"5\"\n  generation: 3\n", 1),
	} {
		if text == hashed {
			t.Fatalf("%s: nothing is changed", name)
		}
		got := specOf(t, text)
		if got.Hash != want.Hash || got.SandboxHash != want.SandboxHash || !reflect.DeepEqual(got.ContainerHashes, want.ContainerHashes) {
			t.Errorf("%s: the hashes differ", name)
		}
	}
}

// TestRestart_ByEdit says what edits restart, and in which words.
func TestRestart_ByEdit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, want string }{
		"nothing":              {"", "", "- "},
		"label":                {"tier: front", "tier: back", "- "},
		"annotation":           {"note: hello", "note: bye", "- "},
		"grace":                {"terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 5", "- "},
		"restart policy":       {"spec:\n", "spec:\n  restartPolicy: Never\n", "- "},
		"probe":                {"port: http}}", "port: http}, periodSeconds: 3}", "- "},
		"pull policy":          {"image: side:1", "image: side:1\n    imagePullPolicy: Always", "- "},
		"toleration":           {"spec:\n", "spec:\n  tolerations: [{operator: Exists}]\n", "- "},
		"priority":             {"spec:\n", "spec:\n  priority: 5\n", "- "},
		"container added":      {"  volumes:", "  - {name: new, image: new}\n  volumes:", "- "},
		"container removed":    {"  - name: side\n    image: side:1\n", "", "- "},
		"plain port added":     {"    - {containerPort: 81}", "    - {containerPort: 81}\n    - {containerPort: 82}", "- "},
		"port name":            {"name: http, ", "name: www, ", "- "},
		"image":                {"nginx:1.27", "nginx:1.28", "nginx: image changed"},
		"two fields":           {"image: nginx:1.27", "image: nginx:1.28\n    tty: true", "nginx: image, tty changed"},
		"env":                  {"value: b", "value: c", "nginx: env changed"},
		"env order":            {`{name: A, value: ""}, {name: B, value: b}`, `{name: B, value: b}, {name: A, value: ""}`, "nginx: env changed"},
		"limit":                {"cpu: 500m", "cpu: 600m", "nginx: resources changed"},
		"mount":                {"readOnly: true", "readOnly: false", "nginx: volumeMounts changed"},
		"both, same reason":    {"image: ", "image: x/", "pod: init containers changed"},
		"host port":            {"hostPort: 8080", "hostPort: 8081", "pod: host ports changed"},
		"host port's protocol": {"hostPort: 8080", "hostPort: 8080, protocol: UDP", "pod: host ports changed"},
		"host port added":      {"{containerPort: 81}", "{containerPort: 81, hostPort: 81}", "pod: host ports changed"},
		"host network":         {"spec:\n", "spec:\n  hostNetwork: true\n", "pod: hostNetwork changed"},
		"hostname":             {"spec:\n", "spec:\n  hostname: h\n", "pod: hostname changed"},
		"dns":                  {"spec:\n", "spec:\n  dnsPolicy: None\n  dnsConfig: {nameservers: [10.0.0.1]}\n", "pod: dnsConfig, dnsPolicy changed"},
		"volume":               {"emptyDir: {}", "hostPath: {path: /x}", "pod: volumes changed"},
		"C_1_20_10 init image": {"image: busybox", "image: busybox:2", "pod: init containers changed"},
		"init pull policy":     {"image: busybox,", "image: busybox, imagePullPolicy: Never,", "- "},
		"UID":                  {"  name: web\n", "  name: web\n  uid: x\n", "pod: metadata.uid changed"},
	} {
		was, now := specOf(t, hashed), specOf(t, strings.ReplaceAll(hashed, c.old, c.new))
		if got := restartText(was, now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.old != c.new && was.Hash == now.Hash && name != "UID" {
			t.Errorf("%s: the content's hash is the same", name)
		}
		// Hashes by other rules say nothing; the fields do.
		older := *was
		older.SandboxHash = "v0-1"
		older.ContainerHashes = map[string]string{"nginx": "v0-2", "side": "v0-3", "init": "v0-4"}
		if got := restartText(&older, now); got != c.want {
			t.Errorf("%s, by fields: %q, want %q", name, got, c.want)
		}
	}
}

func restartText(was, now *Spec) string {
	whole, containers, reason := Restart(was, now)
	what := strings.Join(containers, ",")
	switch {
	case whole:
		what = "pod"
	case what == "":
		return "- " + reason
	}
	return what + ": " + reason
}

func TestRestart_ReasonsOfSeveralContainers(t *testing.T) {
	t.Parallel()
	was := specOf(t, hashed)
	now := specOf(t, strings.NewReplacer("nginx:1.27", "nginx:2", "image: side:1", "image: side:1\n    tty: true").Replace(hashed))
	if got, want := restartText(was, now), "nginx,side: nginx: image changed; side: tty changed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	now = specOf(t, strings.NewReplacer("nginx:1.27", "nginx:2", "side:1", "side:2").Replace(hashed))
	if got, want := restartText(was, now), "nginx,side: image changed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRestart_UnknownSpecsRestartNothing(t *testing.T) {
	t.Parallel()
	s := specOf(t, hashed)
	for _, c := range [][2]*Spec{{nil, s}, {s, nil}, {nil, nil}, {{}, s}} {
		if whole, containers, reason := Restart(c[0], c[1]); whole || containers != nil || reason != "" {
			t.Errorf("%v %v %q", whole, containers, reason)
		}
	}
}

// TestRestart_EveryRow sets every field with a meaning of its own, one at a
// time: exactly the hashes change that its row says.
func TestRestart_EveryRow(t *testing.T) {
	t.Parallel()
	for _, f := range Fields() {
		if f.Support == Rejected || !strings.HasPrefix(f.Path, "spec.") {
			continue
		}
		var without, with v1.Pod
		v, u := at(&without, f.Path), at(&with, f.Path)
		if _, plain := elem(v.Type()); !plain {
			continue
		}
		if port := strings.Index(f.Path, "ports[]."); port >= 0 && !strings.HasSuffix(f.Path, ".hostPort") {
			for _, p := range []*v1.Pod{&without, &with} {
				at(p, f.Path[:port]+"ports[].hostPort").SetInt(1)
			}
		}
		fill(u, 1)
		hash, sandbox, containers := NewHashes(&without)
		hash2, sandbox2, containers2 := NewHashes(&with)
		if hash == hash2 {
			t.Errorf("%s: the content's hash is the same", f.Path)
		}
		if changed := sandbox != sandbox2; changed != (f.Restart == RestartPod) {
			t.Errorf("%s restarts %s: pod %v", f.Path, f.Restart, changed)
		}
		init := strings.HasPrefix(f.Path, "spec.initContainers")
		if changed := !maps.Equal(containers, containers2); changed != (f.Restart == RestartContainer || init && f.Restart == RestartPod) {
			t.Errorf("%s restarts %s: container %v", f.Path, f.Restart, changed)
		}
	}
}

// TestHashes_SurviveJSON keeps a spec as records do.
func TestHashes_SurviveJSON(t *testing.T) {
	t.Parallel()
	s := specOf(t, hashed)
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Spec
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if got := restartText(&back, s); got != "- " {
		t.Error(got)
	}
	if !slices.Equal([]string{HashVersion(back.Hash), HashVersion(""), HashVersion("abc")}, []string{"v1", "", ""}) {
		t.Error("hash version")
	}
}
