package cri

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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

// webImage is the image that fullPod's container is made from.
func webImage() *runtimeapi.Image { return &runtimeapi.Image{Id: "sha256:0e0e"} }

func testRuntime() *Runtime {
	r := New(Config{Node: "n1", PodLogsDir: "/logs", CgroupParent: "/pods", NodeMemory: 1 << 30}, nil, nil)
	r.node, r.machine = &node{}, machine{memory: 1 << 30} // not the values of this machine
	return r
}

// Shows: C-1.22.12
func TestC_1_22_12_SandboxConfig(t *testing.T) {
	r := testRuntime()
	c, err := r.sandboxConfig(pod.SandboxRequest{Want: fullPod(), Instance: 3, Attempt: 2})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox.json", c)

	host := fullPod()
	host.Pod.Spec.HostNetwork, host.Pod.Spec.HostPID, host.Pod.Spec.HostIPC = true, true, true
	if c, err = r.sandboxConfig(pod.SandboxRequest{Want: host, Instance: 3, Attempt: 2}); err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox-host.json", c)
}

// Shows: C-1.22.11
func TestC_1_22_11_ContainerConfig(t *testing.T) {
	r := testRuntime()
	q := pod.CreateRequest{
		Want: fullPod(), Container: "app", Sandbox: &pod.Sandbox{}, Attempt: 7, Streak: 2,
		Env: []v1.EnvVar{{Name: "PORT", Value: "8080"}, {Name: "ADDR", Value: ":8080"}},
		Mounts: []pod.Mount{
			{HostPath: "/a", ContainerPath: "/data"},
			{HostPath: "/b", ContainerPath: "/ro", ReadOnly: true, Propagation: "HostToContainer"},
			{HostPath: "/c", ContainerPath: "/both", Propagation: "Bidirectional"},
		},
	}
	c, err := r.containerConfig(q, &q.Want.Pod.Spec.Containers[0], webImage())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "container.json", c)
}

// CVE-2019-11245: a restarted container differs from the first one only in its attempt. A
// second code path once lost the user.
//
// Shows: D1
func TestCVE_2019_11245_RestartIsTheSameContainer(t *testing.T) {
	r := testRuntime()
	for name, want := range map[string]*pod.Spec{"full": fullPod(), "secured": securedPod()} {
		q := pod.CreateRequest{Want: want, Container: "app", Sandbox: &pod.Sandbox{}, Place: pod.Place{Users: &pod.Users{HostID: 65536, Length: 65536}}}
		img := &runtimeapi.Image{Id: "sha256:0e0e", Uid: &runtimeapi.Int64Value{Value: 65532}}
		text := func(attempt uint32) string {
			q.Attempt = attempt
			c, err := r.containerConfig(q, &want.Pod.Spec.Containers[0], img)
			if err != nil {
				t.Fatal(err)
			}
			c.Metadata.Attempt = 0
			c.LogPath = strings.Replace(c.LogPath, fmt.Sprintf("app/%d.log", attempt), "app/0.log", 1)
			c.Annotations[pod.AnnotationRestartCount] = "0"
			return string(canonical(t, c))
		}
		first := text(0)
		for _, attempt := range []uint32{1, 2, 70} {
			if again := text(attempt); again != first {
				t.Errorf("%s: first:\n%s\nagain:\n%s", name, first, again)
			}
		}
	}
}

// The sandbox gets the full hostname if the pod asks for it, up to the kernel's limit.
//
// Shows: C-1.38.6
func TestC_1_38_6_HostnameOfTheSandbox(t *testing.T) {
	r := testRuntime()
	r.cfg.ClusterDomain = "cluster.local"
	for _, c := range []struct {
		name  string
		spec  v1.PodSpec
		want  string
		wrong string
	}{
		{name: "the pod's name", want: "web-n1"},
		{name: "its own", spec: v1.PodSpec{Hostname: "other"}, want: "other"},
		{name: "with a subdomain", spec: v1.PodSpec{Hostname: "other", Subdomain: "sub"}, want: "other"},
		{name: "as a whole", spec: v1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: ptr.To(true)}, want: "web-n1.sub.shop.svc.cluster.local"},
		{name: "on the node's network", spec: v1.PodSpec{Hostname: "other", HostNetwork: true}},
		{name: "too long", spec: v1.PodSpec{Subdomain: strings.Repeat("s", 60), SetHostnameAsFQDN: ptr.To(true)}, wrong: "is too long (64 characters is the max"},
	} {
		want := fullPod()
		want.Pod.Spec = c.spec
		got, err := r.sandboxConfig(pod.SandboxRequest{Want: want})
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || got.Hostname != c.want {
			t.Errorf("%s: %q, %v", c.name, got.GetHostname(), err)
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
	var v any // protojson varies its white space on purpose
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
