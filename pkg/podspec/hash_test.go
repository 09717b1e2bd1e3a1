package podspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
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

func specOf(t testing.TB, text string) *pod.Spec {
	t.Helper()
	p := podFrom(t, text)
	s := &pod.Spec{Key: pod.KeyOf(p), Pod: p}
	Fingerprint(s, p)
	return s
}

// golden is the content of a testdata file for one pod.
type golden struct {
	Hash       string            `json:"hash"`
	Sandbox    string            `json:"sandbox"`
	Containers map[string]string `json:"containers"`
}

// TestF16_GoldenHashes holds the hashes of every version of the rules: a change here is
// a change of every pod on every node. Rules that must change get a new version and a
// new file instead; the files before it show that running pods were not edited.
//
// Shows: F16
func TestF16_GoldenHashes(t *testing.T) {
	t.Parallel()
	for _, s := range goldenPods(t) {
		now := golden{s.Hash, s.SandboxHash, s.ContainerHashes}
		if diff := cmp.Diff(goldenHashes(t, hashVersion)[s.Name], now); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.Name, diff)
		}
		was := goldenHashes(t, hashVersion1)[s.Name]
		// The record of an agent of that version: its Pod may have been defaulted by other rules,
		// too.
		old := &pod.Spec{Key: s.Key, Pod: s.Pod.DeepCopy(), Hash: was.Hash, SandboxHash: was.Sandbox, ContainerHashes: was.Containers}
		for i := range old.Pod.Spec.Containers {
			old.Pod.Spec.Containers[i].WorkingDir = "/a-default-of-another-time"
		}
		old.Pod.Spec.Hostname = "a-default-of-another-time"
		if got := restartText(old, s); got != "- " {
			t.Errorf("%s: the upgrade restarts %s", s.Name, got)
		}
		for i := range old.Pod.Spec.Containers {
			name := old.Pod.Spec.Containers[i].Name
			old.ContainerHashes[name] = "v1-00"
			if got, want := restartText(old, s), name+": workingDir changed"; got != want {
				t.Errorf("%s: an edit beside the upgrade: %q, want %q", s.Name, got, want)
			}
			old.ContainerHashes[name] = goldenHashes(t, hashVersion1)[s.Name].Containers[name]
		}
		old.SandboxHash = "v1-00"
		if got, want := restartText(old, s), "pod: hostname changed"; got != want {
			t.Errorf("%s: an edit of the pod beside the upgrade: %q, want %q", s.Name, got, want)
		}
	}
	if uid := pod.StaticUID("N1", "default", "web-n1"); uid != "17d1a151163ec8db6981c8b7db931793" {
		t.Errorf("UID %s", uid)
	}
}

// TestF16_ResourcesAcrossAnUpgrade edits resources of a pod that runs since
// before its hashes left them out.
//
// Shows: F16
func TestF16_ResourcesAcrossAnUpgrade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pod, old, new, restart, resize string }{
		{"burstable", "cpu: 100m", "cpu: 200m", "- ", "app[cpu]"},
		{"burstable", "{cpu: 100m}, limits: {memory: 64Mi}", "{cpu: 100m}", "- ", "app[memory]"},
		{"guaranteed", `cpu: "1", memory: 64Mi`, `cpu: "1"`, "pod: QoS class changed", ""},
		{"guaranteed", "memory: 64Mi", "memory: 65Mi", "- ", "app[memory]"},
		{"guaranteed", `cpu: "1"`, `cpu: "2"`, "app: resources changed", ""},
		{"plain", "name: app,", "name: app, resources: {limits: {cpu: 1}},", "pod: QoS class changed", ""},
		{"burstable", "cpu: 10m", "cpu: 20m", "pod: init containers changed", ""},
	} {
		text := goldenTexts(t)[c.pod]
		was := specOf(t, text)
		now := specOf(t, strings.Replace(text, c.old, c.new, 1))
		v1 := goldenHashes(t, hashVersion1)[c.pod]
		old := &pod.Spec{Key: was.Key, Pod: was.Pod, Hash: v1.Hash, SandboxHash: v1.Sandbox, ContainerHashes: v1.Containers}
		for name, from := range map[string]*pod.Spec{"v1": old, "v2": was} {
			if got := restartText(from, now); got != c.restart {
				t.Errorf("%s, %s, %s: restarts %q, want %q", c.pod, c.new, name, got, c.restart)
			}
			if got := resizeText(from, now); got != c.resize {
				t.Errorf("%s, %s, %s: resizes %q, want %q", c.pod, c.new, name, got, c.resize)
			}
		}
	}
}

func goldenTexts(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("testdata/hashed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for text := range strings.SplitSeq(string(b), "\n---\n") {
		out[podFrom(t, text).Name] = text
	}
	return out
}

func goldenPods(t *testing.T) []*pod.Spec {
	t.Helper()
	texts := goldenTexts(t)
	var out []*pod.Spec
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, specOf(t, texts[name]))
	}
	return out
}

func goldenHashes(t *testing.T, version string) map[string]golden {
	t.Helper()
	b, err := os.ReadFile("testdata/hashes." + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]golden
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func resizeText(was, now *pod.Spec) string {
	var out []string
	for _, r := range Resizes(was, now) {
		out = append(out, fmt.Sprint(r.Container, r.Resources))
	}
	return strings.Join(out, " ")
}

// TestF16_SameWishSameHash writes the same pod in other words.
//
// Shows: F16
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

// TestRestart_ByEdit: which edits restart what, and with which reason.
func TestRestart_ByEdit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, want string }{
		"nothing":               {"", "", "- "},
		"label":                 {"tier: front", "tier: back", "- "},
		"annotation":            {"note: hello", "note: bye", "- "},
		"grace":                 {"terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 5", "- "},
		"restart policy":        {"spec:\n", "spec:\n  restartPolicy: Never\n", "- "},
		"probe":                 {"port: http}}", "port: http}, periodSeconds: 3}", "- "},
		"pull policy":           {"image: side:1", "image: side:1\n    imagePullPolicy: Always", "- "},
		"toleration":            {"spec:\n", "spec:\n  tolerations: [{operator: Exists}]\n", "- "},
		"priority":              {"spec:\n", "spec:\n  priority: 5\n", "- "},
		"container added":       {"  volumes:", "  - {name: new, image: new}\n  volumes:", "- "},
		"container removed":     {"  - name: side\n    image: side:1\n", "", "- "},
		"plain port added":      {"    - {containerPort: 81}", "    - {containerPort: 81}\n    - {containerPort: 82}", "- "},
		"port name":             {"name: http, ", "name: www, ", "- "},
		"image":                 {"nginx:1.27", "nginx:1.28", "nginx: image changed"},
		"two fields":            {"image: nginx:1.27", "image: nginx:1.28\n    tty: true", "nginx: image, tty changed"},
		"env":                   {"value: b", "value: c", "nginx: env changed"},
		"env order":             {`{name: A, value: ""}, {name: B, value: b}`, `{name: B, value: b}, {name: A, value: ""}`, "nginx: env changed"},
		"C_1_34_limit":          {"cpu: 500m", "cpu: 600m", "- "},
		"a limit less":          {"cpu: 500m, memory: 1Gi", "cpu: 500m", "- "},
		"no limits at all":      {"limits: {cpu: 500m, memory: 1Gi}", "limits: {}", "pod: QoS class changed"},
		"deadline":              {"spec:\n", "spec:\n  activeDeadlineSeconds: 5\n", "- "},
		"own restart policy":    {"image: side:1", "image: side:1\n    restartPolicy: Never\n    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [3]}}]", "- "},
		"hooks":                 {"image: side:1", "image: side:1\n    lifecycle: {preStop: {sleep: {seconds: 1}}, postStart: {exec: {command: [a]}}}", "- "},
		"stop signal":           {"image: side:1", "image: side:1\n    lifecycle: {stopSignal: SIGINT}", "side: lifecycle changed"},
		"resize policy":         {"image: side:1", "image: side:1\n    resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]", "- "},
		"liveness probe":        {"image: side:1", "image: side:1\n    livenessProbe: {grpc: {port: 80}, terminationGracePeriodSeconds: 3}", "- "},
		"termination message":   {"image: side:1", "image: side:1\n    terminationMessagePath: /m\n    terminationMessagePolicy: FallbackToLogsOnError", "- "},
		"node selector":         {"spec:\n", "spec:\n  nodeSelector: {a: b}\n", "- "},
		"readiness gate":        {"spec:\n", "spec:\n  readinessGates: [{conditionType: a/b}]\n", "- "},
		"sysctl":                {"spec:\n", "spec:\n  securityContext: {sysctls: [{name: a, value: b}]}\n", "pod: securityContext changed"},
		"depends-on":            {"note: hello", "note: hello, nodectl.dev/depends-on: db", "- "},
		"C_1_20_1 made sidecar": {"image: busybox,", "image: busybox, restartPolicy: Always,", "pod: init containers changed"},
		"mount":                 {"readOnly: true", "readOnly: false", "nginx: volumeMounts changed"},
		"both, same reason":     {"image: ", "image: x/", "pod: init containers changed"},
		"host port":             {"hostPort: 8080", "hostPort: 8081", "pod: host ports changed"},
		"host port's protocol":  {"hostPort: 8080", "hostPort: 8080, protocol: UDP", "pod: host ports changed"},
		"host port added":       {"{containerPort: 81}", "{containerPort: 81, hostPort: 81}", "pod: host ports changed"},
		"host network":          {"spec:\n", "spec:\n  hostNetwork: true\n", "pod: hostNetwork changed"},
		"hostname":              {"spec:\n", "spec:\n  hostname: h\n", "pod: hostname changed"},
		"dns":                   {"spec:\n", "spec:\n  dnsPolicy: None\n  dnsConfig: {nameservers: [10.0.0.1]}\n", "pod: dnsConfig, dnsPolicy changed"},
		"volume":                {"emptyDir: {}", "hostPath: {path: /x}", "pod: volumes changed"},
		"C_1_20_10 init image":  {"image: busybox", "image: busybox:2", "pod: init containers changed"},
		"init pull policy":      {"image: busybox,", "image: busybox, imagePullPolicy: Never,", "- "},
		"UID":                   {"  name: web\n", "  name: web\n  uid: x\n", "pod: metadata.uid changed"},
	} {
		was, now := specOf(t, hashed), specOf(t, strings.ReplaceAll(hashed, c.old, c.new))
		if got := restartText(was, now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.old != c.new && was.Hash == now.Hash && name != "UID" {
			t.Errorf("%s: the content's hash is the same", name)
		}
		// Hashes by unknown rules say nothing; the fields do.
		older := *was
		older.Earlier = nil
		older.SandboxHash = "v0-1"
		older.ContainerHashes = map[string]string{"nginx": "v0-2", "side": "v0-3", "init": "v0-4"}
		if got := restartText(&older, now); got != c.want {
			t.Errorf("%s, by fields: %q, want %q", name, got, c.want)
		}
	}
}

// TestC_1_20_5_SidecarsRestartAlone edits one sidecar and its neighbours.
//
// Shows: C-1.20.5
func TestC_1_20_5_SidecarsRestartAlone(t *testing.T) {
	t.Parallel()
	const text = `
metadata: {name: web}
spec:
  initContainers:
  - {name: init, image: init:1}
  - name: proxy
    image: proxy:1
    restartPolicy: Always
    ports: [{containerPort: 80, hostPort: 80}]
    resources: {limits: {cpu: 1}}
  - {name: log, image: log:1, restartPolicy: Always}
  containers:
  - {name: app, image: app:1}
`
	for name, c := range map[string]struct{ old, new, restart, resize string }{
		"image":          {"proxy:1", "proxy:2", "proxy: image changed", ""},
		"command":        {"image: log:1,", "image: log:1, command: [x],", "log: command changed", ""},
		"probe":          {"image: log:1,", "image: log:1, startupProbe: {tcpSocket: {port: 1}},", "- ", ""},
		"limit":          {"cpu: 1", "cpu: 2", "- ", "proxy[cpu]"},
		"restart policy": {"image: app:1", "image: app:1, restartPolicy: Never", "- ", ""},
		"host port":      {"hostPort: 80", "hostPort: 81", "pod: host ports changed", ""},
		"init":           {"init:1", "init:2", "pod: init containers changed", ""},
		"added":          {"  containers:", "  - {name: new, image: new, restartPolicy: Always}\n  containers:", "- ", ""},
		"removed":        {"  - {name: log, image: log:1, restartPolicy: Always}\n", "", "- ", ""},
		"no longer one":  {"image: log:1, restartPolicy: Always", "image: log:1", "pod: init containers changed", ""},
		"both":           {":1", ":3", "pod: init containers changed", ""},
		"two":            {"image: log:1, restartPolicy: Always}\n  containers:\n  - {name: app, image: app:1}", "image: log:3, restartPolicy: Always}\n  containers:\n  - {name: app, image: app:3}", "app,log: image changed", ""},
	} {
		was, now := specOf(t, text), specOf(t, strings.ReplaceAll(text, c.old, c.new))
		if got := restartText(was, now); got != c.restart {
			t.Errorf("%s: %q, want %q", name, got, c.restart)
		}
		if got := resizeText(was, now); got != c.resize {
			t.Errorf("%s: resizes %q, want %q", name, got, c.resize)
		}
		older := *was
		older.SandboxHash, older.ContainerHashes = "v0-1", nil
		if got := restartText(&older, now); got != c.restart {
			t.Errorf("%s, by fields: %q, want %q", name, got, c.restart)
		}
	}
}

// TestC_1_34_4_ResizePolicyDecides says which edits of resources restart.
//
// Shows: C-1.34.4
func TestC_1_34_4_ResizePolicyDecides(t *testing.T) {
	t.Parallel()
	const text = `
metadata: {name: web}
spec:
  containers:
  - name: a
    image: a
    resources: {requests: {cpu: 1, memory: 1Gi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}, {resourceName: cpu, restartPolicy: NotRequired}]
  - {name: b, image: b, resources: {requests: {cpu: 1}}}
`
	for _, c := range []struct{ old, new, restart, resize string }{
		{"requests: {cpu: 1, memory", "requests: {cpu: 2, memory", "- ", "a[cpu]"},
		{"memory: 1Gi", "memory: 1024Mi", "- ", ""},
		{"memory: 1Gi", "memory: 2Gi", "a: resources changed", ""},
		{"cpu: 1, memory: 1Gi", "cpu: 2, memory: 2Gi", "a: resources changed", ""},
		{"cpu: 1", "cpu: 2", "- ", "a[cpu] b[cpu]"},
		{"image: b, resources: {requests: {cpu: 1}}", "image: c, resources: {requests: {cpu: 2}}", "b: image changed", ""},
		{"image: a\n    resources: {requests: {cpu: 1, memory: 1Gi}}", "image: c\n    resources: {requests: {cpu: 1, memory: 2Gi}}", "a: image, resources changed", ""},
		{"resources: {requests: {cpu: 1}}", "resources: {}", "- ", "b[cpu]"},
		{"requests: {cpu: 1", "limits: {cpu: 0", "a: resources changed", "b[cpu]"},
		{": 1", ": 0", "pod: QoS class changed", ""},
	} {
		was, now := specOf(t, text), specOf(t, strings.ReplaceAll(text, c.old, c.new))
		if got := restartText(was, now); got != c.restart {
			t.Errorf("%s: %q, want %q", c.new, got, c.restart)
		}
		if got := resizeText(was, now); got != c.resize {
			t.Errorf("%s: resizes %q, want %q", c.new, got, c.resize)
		}
	}
	if Resizes(nil, specOf(t, text)) != nil || Resizes(specOf(t, text), nil) != nil || Resizes(&pod.Spec{}, &pod.Spec{}) != nil {
		t.Error("a spec that is not there is resized")
	}
}

func restartText(was, now *pod.Spec) string {
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
	for _, c := range [][2]*pod.Spec{{nil, s}, {s, nil}, {nil, nil}, {{}, s}} {
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
		for u.Kind() == reflect.Pointer {
			u = u.Elem()
		}
		if f.Default != nil && fmt.Sprint(u.Interface()) == fmt.Sprint(f.Default) { // which would be no change
			if fill(u, 2); u.Kind() == reflect.Bool {
				u.SetBool(!f.Default.(bool))
			}
		}
		hash, sandbox, containers := NewHashes(&without)
		hash2, sandbox2, containers2 := NewHashes(&with)
		if hash == hash2 {
			t.Errorf("%s: the content's hash is the same", f.Path)
		}
		if f.Restart == Resize { // the QoS class changes with the first of them
			if sandbox == sandbox2 || !maps.Equal(containers, containers2) {
				t.Errorf("%s: not what resources change", f.Path)
			}
			continue
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
	var back pod.Spec
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
