package pod

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func envRequest(p *v1.Pod) CreateRequest {
	return CreateRequest{Want: &Spec{Key: KeyOf(p), Pod: p}, Sandbox: &Sandbox{IPs: []string{"10.88.0.5", "fd00::5"}}}
}

func fieldOf(path string) *v1.EnvVarSource {
	return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
}

func TestC_1_38_1_EnvironmentInOrder(t *testing.T) {
	got, err := environment(envRequest(&v1.Pod{}), &v1.Container{Env: []v1.EnvVar{
		{Name: "B", Value: "$(A)"}, // A comes later: stays
		{Name: "A", Value: "1"},
		{Name: "C", Value: "$(A)-$(B)"},
		{Name: "A", Value: "$(A)2"}, // the same name again replaces
		{Name: "D", Value: "$$(A)"},
		{Name: "IP", ValueFrom: fieldOf("status.podIP")},
		{Name: "URL", Value: "http://$(IP)/"},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range got {
		b.WriteString(e.Name + "=" + e.Value + "\n")
	}
	if want := "B=$(A)\nA=12\nC=1-$(A)\nD=$(A)\nIP=10.88.0.5\nURL=http://10.88.0.5/\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestC_1_38_3_Fields(t *testing.T) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-n1", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "x"},
			Annotations: map[string]string{"example.com/note": "y"},
		},
		Spec: v1.PodSpec{NodeName: "n1", ServiceAccountName: "sa"},
	}
	onHost := p.DeepCopy()
	onHost.Spec.HostNetwork = true
	hostIPs := []string{"192.0.2.7", "2001:db8::7"}
	for _, c := range []struct {
		pod  *v1.Pod
		path string
		want string
	}{
		{p, "metadata.name", "web-n1"},
		{p, "metadata.namespace", "ns"},
		{p, "metadata.uid", "u"},
		{p, "metadata.labels['app']", "x"},
		{p, "metadata.labels['none']", ""},
		{p, "metadata.annotations['example.com/note']", "y"},
		{p, "spec.nodeName", "n1"},
		{p, "spec.serviceAccountName", "sa"},
		{p, "status.podIP", "10.88.0.5"},
		{p, "status.podIPs", "10.88.0.5,fd00::5"},
		{p, "status.hostIP", "192.0.2.7"},
		{onHost, "status.podIP", "192.0.2.7"},
		{onHost, "status.hostIPs", "192.0.2.7,2001:db8::7"},
	} {
		got, err := field(envRequest(c.pod), c.path, hostIPs)
		if err != nil || got != c.want {
			t.Errorf("%s = %q, %v; want %q", c.path, got, err, c.want)
		}
	}
}

func TestEnvironmentRefusesWhatItCannotRead(t *testing.T) {
	for want, c := range map[string]v1.Container{
		"envFrom is not supported":                      {EnvFrom: []v1.EnvFromSource{{}}},
		"env X: only fieldRef is supported":             {Env: []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{}}}}},
		`env X: field "spec.foo" is not supported`:      {Env: []v1.EnvVar{{Name: "X", ValueFrom: fieldOf("spec.foo")}}},
		`env X: field "metadata.labels['a b']"`:         {Env: []v1.EnvVar{{Name: "X", ValueFrom: fieldOf("metadata.labels['a b']")}}},
		`env X: field "status.hostIP": no address is k`: {Env: []v1.EnvVar{{Name: "X", ValueFrom: fieldOf("status.hostIP")}}},
	} {
		if _, err := environment(envRequest(&v1.Pod{}), &c, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
}
