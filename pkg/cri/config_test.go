package cri

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// fullPod uses every field that reaches the runtime.
func fullPod() *pod.Spec {
	grace := int64(45)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-n1", UID: "5e9c",
			DeletionGracePeriodSeconds: ptr.To(int64(5)),
			Labels:                     map[string]string{"app": "web", pod.LabelPodName: "stolen", pod.LabelNode: "stolen"},
			Annotations:                map[string]string{"note": "kept", pod.AnnotationInstance: "stolen"},
		},
		Spec: v1.PodSpec{
			NodeName: "n1", TerminationGracePeriodSeconds: &grace,
			InitContainers: []v1.Container{{Name: "setup", Image: "setup:1", Ports: []v1.ContainerPort{{ContainerPort: 1, HostPort: 1}}}},
			Containers: []v1.Container{{
				Name: "app", Image: "registry.example/web", Command: []string{"serve", "$(PORT)"}, Args: []string{"--home=$(HOME)", "$$(PORT)"},
				WorkingDir: "/srv", Env: []v1.EnvVar{{Name: "PORT", Value: "8080"}, {Name: "ADDR", Value: ":$(PORT)"}},
				Ports: []v1.ContainerPort{{ContainerPort: 8080, HostPort: 80, HostIP: "127.0.0.1"}, {ContainerPort: 53, HostPort: 53, Protocol: v1.ProtocolUDP}, {ContainerPort: 9}},
				Stdin: true, StdinOnce: true, TTY: true, TerminationMessagePath: "/dev/termination-log",
				TerminationMessagePolicy: v1.TerminationMessageFallbackToLogsOnError,
				Lifecycle: &v1.Lifecycle{
					StopSignal: ptr.To(v1.SIGRTMINPLUS1),
					PreStop: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/bye", Port: intstr.FromString("http"), HTTPHeaders: []v1.HTTPHeader{
						{Name: "authorization", Value: "Bearer hidden"}, {Name: "X-Why", Value: "stop"},
					}}},
				},
			}},
		},
	}
	p.Spec.Containers[0].Resources = asking("app", "250m", "1", "64Mi", "128Mi").Resources
	return &pod.Spec{
		Key: pod.KeyOf(p), Pod: p, Hash: "v1-spec", SandboxHash: "v1-box", ContainerHashes: map[string]string{"app": "v1-app"},
		Origin: pod.Origin{Source: "file", Location: "/etc/manifests", File: "/etc/manifests/web.yaml", Line: 3},
	}
}

func testRuntime() *Runtime {
	return New(Config{Node: "n1", PodLogsDir: "/logs", CgroupParent: "/pods", NodeMemory: 1 << 30}, nil, nil)
}

func TestC_1_22_12_SandboxConfig(t *testing.T) {
	r := testRuntime()
	c, err := r.sandboxConfig(fullPod(), 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox.json", c)

	host := fullPod()
	host.Pod.Spec.HostNetwork, host.Pod.Spec.HostPID, host.Pod.Spec.HostIPC = true, true, true
	if c, err = r.sandboxConfig(host, 3, 2); err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox-host.json", c)
}

func TestC_1_22_11_ContainerConfig(t *testing.T) {
	r := testRuntime()
	q := pod.CreateRequest{
		Want: fullPod(), Container: "app", Sandbox: &pod.Sandbox{}, Attempt: 7, Streak: 2,
		Mounts: []pod.Mount{
			{HostPath: "/a", ContainerPath: "/data"},
			{HostPath: "/b", ContainerPath: "/ro", ReadOnly: true, Propagation: "HostToContainer"},
			{HostPath: "/c", ContainerPath: "/both", Propagation: "Bidirectional"},
		},
	}
	c, err := r.containerConfig(q, &q.Want.Pod.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "container.json", c)
}

// A container made again differs in its attempt and in nothing else
// (CVE-2019-11245: a second path to the same thing forgot the user).
func TestRestartIsTheSameContainer(t *testing.T) {
	r := testRuntime()
	q := pod.CreateRequest{Want: fullPod(), Container: "app", Sandbox: &pod.Sandbox{}}
	text := func() string {
		c, err := r.containerConfig(q, &q.Want.Pod.Spec.Containers[0])
		if err != nil {
			t.Fatal(err)
		}
		c.Metadata.Attempt = 0
		c.LogPath = strings.Replace(c.LogPath, "app/1.log", "app/0.log", 1)
		c.Annotations[pod.AnnotationRestartCount] = "0"
		return string(canonical(t, c))
	}
	first := text()
	q.Attempt = 1
	if again := text(); again != first {
		t.Errorf("first:\n%s\nagain:\n%s", first, again)
	}
}

func TestC_1_38_6_Hostname(t *testing.T) {
	long := strings.Repeat("a", 61) + "-.tail"
	for _, c := range []struct {
		meta, spec string
		host       bool
		want       string
	}{
		{meta: "web", want: "web"},
		{meta: "web", spec: "other", want: "other"},
		{meta: long, want: strings.Repeat("a", 61)},
		{meta: "web", spec: "other", host: true, want: ""},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.meta}, Spec: v1.PodSpec{Hostname: c.spec, HostNetwork: c.host}}
		if got := hostname(p); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestDialEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"/run/x.sock":        "unix:///run/x.sock",
		"unix:///run/x.sock": "unix:///run/x.sock",
	} {
		r, err := Dial(Config{Endpoint: endpoint})
		if err != nil || r.Endpoint() != want {
			t.Errorf("%s: %v, %v", endpoint, r.Endpoint(), err)
			continue
		}
		_ = r.Close()
	}
	for _, endpoint := range []string{"", "x.sock", "unix://x.sock", "tcp://127.0.0.1:1"} {
		if _, err := Dial(Config{Endpoint: endpoint}); err == nil {
			t.Errorf("%q is taken for an endpoint", endpoint)
		}
	}
}

func canonical(t *testing.T, m proto.Message) []byte {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any // protojson varies its blanks on purpose
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	text, err = json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

func golden(t *testing.T, name string, m proto.Message) {
	t.Helper()
	got := canonical(t, m)
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; got:\n%s", file, got)
	}
}
