package podenv

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A container's environment comes only from its own manifest. It contains nothing of other
// containers, unlike in podman (CVE-2020-14370) and containerd (CVE-2021-21334). It contains
// nothing of the agent's environment, unlike in podman for names with a star (CVE-2026-57231).
//
// Shows: D1
func TestCVE_2020_14370_2021_21334_2026_57231_Environment_IsTheContainersOwn(t *testing.T) {
	const canary = "agents-own-value"
	t.Setenv("NODECTL_CANARY", canary)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
		Spec: v1.PodSpec{Containers: []v1.Container{
			{Name: "first", Env: []v1.EnvVar{{Name: "PASSWORD", Value: "firsts-own-value"}}, EnvFrom: []v1.EnvFromSource{fromSecret("", "s")}},
			{Name: "c", Env: []v1.EnvVar{
				{Name: "OWN", Value: "yes"},
				{Name: "NODECTL_CANARY", Value: "$(NODECTL_CANARY)"},
				{Name: "NODECTL_*", Value: "$(NODECTL_*)"},
				{Name: "*"},
				{Name: "TAKEN", Value: "$(PASSWORD) ${NODECTL_CANARY} $NODECTL_CANARY"},
			}},
		}},
	}
	got, err := envOfPod(p, Sources{}, secret("s", map[string][]byte{"KEY": []byte("secrets-value")}))
	if err != nil || !strings.Contains(got, "OWN=yes\n") || !strings.Contains(got, "$(NODECTL_CANARY)") {
		t.Fatalf("%q, %v", got, err)
	}
	if os.Getenv("NODECTL_CANARY") != canary {
		t.Fatal("the agent's own environment holds no canary")
	}
	for _, value := range []string{canary, "firsts-own-value", "secrets-value", "PATH="} {
		if strings.Contains(got, value) {
			t.Errorf("%q is in the environment: %q", value, got)
		}
	}
}
