package podenv

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.38.3
func TestC_1_38_3_DownwardFields(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "ns", UID: "u",
		Labels:      map[string]string{"b": "2", "a": "1", "example.com/c": ""},
		Annotations: map[string]string{"note": "line\n\"quoted\" é \x01", "UPPER.example/x": "y"},
	}}
	for _, c := range []struct{ path, want string }{
		{"metadata.name", "web"},
		{"metadata.namespace", "ns"},
		{"metadata.uid", "u"},
		{"metadata.labels", "a=\"1\"\nb=\"2\"\nexample.com/c=\"\""},
		{"metadata.annotations", "UPPER.example/x=\"y\"\nnote=\"line\\n\\\"quoted\\\" é \\x01\""},
		{"metadata.labels['a']", "1"},
		{"metadata.labels['none']", ""},
		{"metadata.annotations['note']", "line\n\"quoted\" é \x01"},
		{"metadata.annotations['UPPER.example/x']", "y"},
		{"metadata.labels['UPPER.example/x']", `field "metadata.labels['UPPER.example/x']" is not supported`},
		{"metadata.labels['']", `field "metadata.labels['']" is not supported`},
		{"metadata.labels[a]", `field "metadata.labels[a]" is not supported`},
		{"metadata.name['a']", `field "metadata.name['a']" is not supported`},
		{"status.podIP", `field "status.podIP" is not supported`},
		{"", `field "" is not supported`},
	} {
		got, err := DownwardField(p, c.path)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	if got, err := DownwardField(&v1.Pod{}, "metadata.labels"); got != "" || err != nil {
		t.Errorf("no labels: %q, %v", got, err)
	}
}

func list(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// Shows: C-1.38.3
func TestC_1_38_3_Resources(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "init"}},
		Containers: []v1.Container{
			{Name: "c", Resources: v1.ResourceRequirements{
				Requests: list("cpu", "1500m", "memory", "100Mi", "ephemeral-storage", "1G", "hugepages-2Mi", "4Mi"),
				Limits:   list("cpu", "1501m", "memory", "129Mi", "ephemeral-storage", "3G", "hugepages-2Mi", "6Mi"),
			}},
			{Name: "bare", Resources: v1.ResourceRequirements{Limits: list("cpu", "0")}},
		},
	}}
	whole := p.DeepCopy()
	whole.Spec.Resources = &v1.ResourceRequirements{Limits: list("memory", "2Gi", "cpu", "0", "hugepages-2Mi", "2Mi")}
	node := list("cpu", "3900m", "memory", "7Gi", "ephemeral-storage", "10Gi", "hugepages-2Mi", "1Gi")
	for _, c := range []struct {
		pod                                *v1.Pod
		container, resource, divisor       string
		volume, environment, withoutLimits string
	}{
		{p, "c", "limits.cpu", "", "2", "2", "2"},
		{p, "c", "limits.cpu", "1m", "1501", "1501", "1501"},
		{p, "c", "requests.cpu", "", "2", "2", "2"},
		{p, "c", "requests.cpu", "100m", "15", "15", "15"},
		{p, "c", "limits.memory", "", "135266304", "135266304", "135266304"},
		{p, "c", "limits.memory", "1Gi", "1", "1", "1"},
		{p, "c", "limits.memory", "100Mi", "2", "2", "2"},
		{p, "c", "limits.ephemeral-storage", "1Gi", "3", "3", "3"},
		{p, "c", "requests.hugepages-2Mi", "1Mi", "4", "4", "4"},
		{p, "c", "limits.hugepages-2Mi", "1Mi", "6", "6", "6"},
		{p, "bare", "limits.cpu", "", "4", "4", "0"},
		{p, "bare", "limits.memory", "1Mi", "7168", "7168", "0"},
		{p, "bare", "limits.hugepages-2Mi", "1", "0", "0", "0"},
		{p, "bare", "requests.cpu", "", "0", "0", "0"},
		{p, "init", "limits.cpu", "1m", "3900", "0", "0"},
		{whole, "bare", "limits.memory", "1Mi", "7168", "2048", "0"},
		{whole, "bare", "limits.cpu", "", "4", "4", "0"},
		{whole, "bare", "limits.hugepages-2Mi", "", "0", "0", "0"},
		{whole, "c", "limits.memory", "1Mi", "129", "129", "129"},
	} {
		sel := &v1.ResourceFieldSelector{ContainerName: c.container, Resource: c.resource}
		if c.divisor != "" {
			sel.Divisor = resource.MustParse(c.divisor)
		}
		got, err := ResourceField(c.pod, "", sel, node)
		if got != c.volume || err != nil {
			t.Errorf("volume: %s %s / %s: %s, %v, want %s", c.container, c.resource, c.divisor, got, err, c.volume)
		}
		if got, err = ResourceField(c.pod, "", sel, nil); got != c.withoutLimits || err != nil {
			t.Errorf("nothing allocatable: %s %s / %s: %s, %v, want %s", c.container, c.resource, c.divisor, got, err, c.withoutLimits)
		}
		reader := c.pod.DeepCopy()
		reader.Spec.Containers[0].Env = []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: sel}}}
		if got, err = envOfPod(reader, Sources{Node: pod.NodeFacts{Allocatable: node}}); got != "X="+c.environment+"\n" || err != nil {
			t.Errorf("environment: %s %s / %s: %s, %v, want %s", c.container, c.resource, c.divisor, got, err, c.environment)
		}
	}
}

// Shows: C-1.38.3
func TestC_1_38_3_ResourcesOfTheContainerItself(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{
		Name: "c", Env: []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}}},
	}}}}
	got, err := envOfPod(p, Sources{Node: pod.NodeFacts{Allocatable: list("cpu", "2")}})
	if got != "X=2\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, sel := range []*v1.ResourceFieldSelector{
		{ContainerName: "c", Resource: "limits.pods"},
		{ContainerName: "c", Resource: "cpu"},
		{ContainerName: "c", Resource: "other.cpu"},
		{ContainerName: "none", Resource: "limits.cpu"},
	} {
		if got, err := ResourceField(p, "", sel, nil); err == nil {
			t.Errorf("%+v: %q", sel, got)
		}
	}
}
