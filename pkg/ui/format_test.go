package ui

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func format(t *testing.T, text string) Format {
	t.Helper()
	f, err := ParseFormat(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return f
}

// TestFormatsAsKubectl: templates see the JSON of an object, or of a List.
func TestFormatsAsKubectl(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "columns")
	if err := os.WriteFile(file, []byte("NAME  PHASE\nmetadata.name status.phase\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pods := []v1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"note": "x\x1b[31my"}}, Status: v1.PodStatus{Phase: "Running", PodIP: "10.0.0.1"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i:1"}, {Name: "d", Image: "j:2"}}}},
	}
	for _, c := range []struct {
		format string
		of     any
		want   string
	}{
		{"jsonpath={.metadata.name}", pods[0], "a"},
		{"jsonpath=.metadata.name", pods[0], "a"},
		{"jsonpath={.items[*].metadata.name}", ListOf(pods), "a b"},
		{`jsonpath={range .items[*]}{.metadata.name}{"\t"}{.status.podIP}{"\n"}{end}`, ListOf(pods), "a\t10.0.0.1\nb\t\n"},
		{"jsonpath={.metadata.nothing}", pods[0], ""},
		{"jsonpath={.metadata.annotations.note}", pods[0], `x\x1b[31my`},
		{"custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image", ListOf(pods), "NAME   IMAGES\na      <none>\nb      i:1,j:2\n"},
		{"custom-columns=N:{.metadata.annotations.note}", pods[0], "N\n" + `x\x1b[31my` + "\n"},
		{"custom-columns-file=" + file, ListOf(pods), "NAME   PHASE\na      Running\nb      <none>\n"},
	} {
		got, err := format(t, c.format).Render(c.of)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, want %q (%v)", c.format, got, c.want, err)
		}
	}
	for _, wrong := range []string{"xml", "jsonpath", "jsonpath=", "jsonpath={.x", "custom-columns=A", "custom-columns=A:", "jsonpath-file=/nothing", "json=x"} {
		if f, err := ParseFormat(wrong); err == nil {
			t.Errorf("%s is %+v", wrong, f)
		}
	}
}

// TestParseFormat_GoTemplate_NamesWhatToUse: nodectl has no Go templates, under any of
// kubectl's names for them.
func TestParseFormat_GoTemplate_NamesWhatToUse(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"go-template", "go-template={{.metadata.name}}", "go-template-file=/nothing", "template={{.}}", "templatefile=x", "template-file=x"} {
		_, err := ParseFormat(text)
		if err == nil || !strings.Contains(err.Error(), "use jsonpath=… or custom-columns=…") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSortByWhatValuesAreWorth(t *testing.T) {
	t.Parallel()
	type it struct {
		Name string `json:"name"`
		V    any    `json:"v,omitempty"`
	}
	for _, c := range [][]any{
		{"9", "10", "1e3"}, {1.0, 2.0, 10.0}, {"100Mi", "1Gi", "10Gi"}, {"a", "b", "c"}, {nil, "a"},
		{"2026-01-02T00:00:00Z", "2026-01-10T00:00:00+12:00", "2026-11-01T00:00:00Z"},
	} {
		var all []it
		for i := range c {
			all = append(all, it{V: c[len(c)-1-i]})
		}
		if err := Sort(all, ".v"); err != nil {
			t.Fatal(err)
		}
		for i := range c {
			if all[i].V != c[i] {
				t.Errorf("%v: %v", c, all)
				break
			}
		}
	}
	if err := Sort([]it{{Name: "x"}}, "{.nothing}"); err == nil {
		t.Error("a field that nothing has sorts")
	}
}

// described is a pod with a little of everything.
func described() *v1.Pod {
	yes, always := true, v1.ContainerRestartPolicyAlways
	at := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-n1", Namespace: "shop", Labels: map[string]string{"app": "web", "tier": "front"},
			Annotations: map[string]string{"note": "a\x1b]0;x\x07", v1.LastAppliedConfigAnnotation: "hunter2"}},
		Spec: v1.PodSpec{
			NodeName: "n1", ServiceAccountName: "default",
			InitContainers: []v1.Container{{Name: "proxy", Image: "p:1", RestartPolicy: &always}},
			Containers: []v1.Container{{
				Name: "c", Image: "web:1", Command: []string{"sh", "-c", "one\ntwo"},
				Ports:         []v1.ContainerPort{{Name: "http", ContainerPort: 80}, {ContainerPort: 81, HostPort: 8081, Protocol: "UDP"}},
				Resources:     v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("50m")}, Limits: v1.ResourceList{"memory": resource.MustParse("64Mi")}},
				LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "ok", Port: intstr.FromInt32(80)}}, PeriodSeconds: 10, FailureThreshold: 3, SuccessThreshold: 1, TimeoutSeconds: 1},
				EnvFrom:       []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "login"}, Optional: &yes}}},
				Env: []v1.EnvVar{{Name: "PLAIN", Value: "x"}, {Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "login"}, Key: "password"}}},
					{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}}},
				VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: true, SubPath: "a"}},
			}},
			Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
				{Name: "login", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login"}}},
				{Name: "nfs", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "s"}}},
			},
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: "NoExecute"}},
		},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, HostIP: "192.0.2.2", PodIP: "10.88.0.5", PodIPs: []v1.PodIP{{IP: "10.88.0.5"}}, StartTime: &at, QOSClass: v1.PodQOSBurstable,
			Conditions: []v1.PodCondition{{Type: "Ready", Status: "True"}},
			ContainerStatuses: []v1.ContainerStatus{{
				Name: "c", ContainerID: "containerd://1", ImageID: "sha256:2", Ready: true, RestartCount: 2,
				State:                v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}},
				LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", StartedAt: at, FinishedAt: at}},
			}},
		},
	}
}

func happened() ObjectEvents {
	at := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	return ObjectEvents{Available: true, Requested: true, Events: []v1.Event{
		{Type: "Normal", Reason: "Started", Message: "Container started", Source: v1.EventSource{Component: "kubelet", Host: "n1"}, FirstTimestamp: at, LastTimestamp: at, Count: 1},
		{Type: "Warning", Reason: "BackOff", Message: "Back-off\x1b[2J", Source: v1.EventSource{Component: "kubelet"}, FirstTimestamp: at, LastTimestamp: metav1.NewTime(at.Add(time.Minute)), Count: 7},
	}}
}

// TestDescribeAsKubectl: the output has kubectl's layout, no secrets, and no terminal
// escapes.
func TestDescribeAsKubectl(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 5, 0, 0, time.UTC)
	pod := DescribePod(described(), happened(), now)
	golden(t, "describe-pod.txt", pod)
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"node-role.kubernetes.io/worker": ""}, CreationTimestamp: metav1.NewTime(now)},
		Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "a", Value: "b", Effect: "NoSchedule"}}},
		Status: v1.NodeStatus{
			Capacity: v1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}, Allocatable: v1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")},
			Addresses: []v1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.2"}}, NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
			Conditions: []v1.NodeCondition{{Type: "Ready", Status: "True", Reason: "KubeletReady", LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now)}},
		},
	}
	golden(t, "describe-node.txt", DescribeNode(node, []v1.Pod{*described()}, ObjectEvents{Requested: true}, now))
	for _, text := range []string{"\x1b", "hunter2", "\x07"} {
		if strings.Contains(pod, text) {
			t.Errorf("%q is in it", text)
		}
	}
}

// TestTablesAsKubectl: tables of nodes, events, images and usage have kubectl's layout.
func TestTablesAsKubectl(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 5, 0, 0, time.UTC)
	v := New(io.Discard, Screen{})
	wide := Columns{Wide: true, Labels: true}
	node := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}, Spec: v1.NodeSpec{Unschedulable: true}}
	images := NewImageList([]ImageItem{{ID: "sha256:0123456789abcdef", Names: []string{"r/web@sha256:9", "r/web:1"}, Size: 5_800_000, UsedBy: []string{"pod a/web", "pod a/db"}}, {ID: "sha256:fedcba9876543210", Size: 12, LastUsed: now.Add(-time.Hour), Archive: true}, {ID: "sha256:0000", Names: []string{"pause:1"}, Pinned: true}})
	text := v.Grid(NodeGrid([]v1.Node{node}, wide, now), wide) + v.Grid(EventGrid(happened().Events, Columns{}, now), Columns{}) +
		v.Grid(ImageGrid(images, Columns{}, now), Columns{}) + v.Grid(ImageGrid(images, Columns{Wide: true}, now), Columns{Wide: true}) +
		v.Grid(UsageGrid([]Usage{{"a", "web", "", 12_345_678, 5 << 20}, {"a", "db", "", 1, 0}}, false, true), Columns{}) +
		v.Grid(NodeUsageGrid([]NodeUsage{{"n1", 500_000_000, 1 << 30, 2000, 4 << 30}, {Name: "n2"}}), Columns{NoHeaders: true})
	golden(t, "tables.txt", text)
	web := images.Items[slices.IndexFunc(images.Items, func(it ImageItem) bool { return len(it.UsedBy) > 0 })]
	if !web.Called("web") || !web.Called("r/web:1") || !web.Called("0123") || web.Called("we") {
		t.Errorf("%+v goes by other names", web)
	}
	flow := v.Flow(Columns{})
	first, second := flow.Rows(PodGrid([]v1.Pod{*described()}, Columns{}, now)), flow.Rows(PodGrid([]v1.Pod{*described()}, Columns{}, now))
	if strings.Count(first, "\n") != 2 || !strings.HasSuffix(first, second) {
		t.Errorf("a stream of rows:\n%s%s", first, second)
	}
}
