package manifest

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A gitRepo volume runs git on the host, with hooks from the repository
// (CVE-2024-10220) or on another pod's repository (CVE-2025-1767). No source may have one.
//
// Shows: D1
func TestCVE_2024_10220_2025_1767_GitRepo_IsRejected(t *testing.T) {
	t.Parallel()
	f, _ := Parse([]byte(ordinary+"  - name: code\n    gitRepo: {repository: /var/lib/kubelet/pods/x}\n"), options("web.yaml"))
	if len(f.Pods) > 0 || len(f.Problems) != 1 || !strings.HasPrefix(f.Problems[0].Path, "spec.volumes[2].gitRepo") {
		t.Errorf("%d pods, problems %+v", len(f.Pods), f.Problems)
	}
	p := servedPod(t)
	p.Spec.Volumes = []v1.Volume{{Name: "code", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "https://git.example/x"}}}}
	if s, problems := FromAPI(p, apiOptions()); s != nil || len(problems) != 1 || !strings.HasPrefix(problems[0].Path, "spec.volumes[0].gitRepo") {
		t.Errorf("%v, problems %+v", s, problems)
	}
}

// The mirror of a static pod that names a resource claim gets past NodeRestriction
// (CVE-2025-4563): a manifest may not name one.
//
// Shows: D1
func TestCVE_2025_4563_StaticPodWithResourceClaim_IsRejected(t *testing.T) {
	t.Parallel()
	f, _ := Parse([]byte(ordinary+"  resourceClaims:\n  - {name: gpu, resourceClaimName: anothers}\n"), options("web.yaml"))
	if len(f.Pods) > 0 || len(f.Problems) != 1 || !strings.HasPrefix(f.Problems[0].Path, "spec.resourceClaims") {
		t.Errorf("%d pods, problems %+v", len(f.Pods), f.Problems)
	}
}

// TestParse_ProblemOfNamedPod_NamesPod: the problems of a pod name it; those of a ConfigMap, or of an
// object whose kind is not known, name no pod.
func TestParse_ProblemOfNamedPod_NamesPod(t *testing.T) {
	for text, want := range map[string]pod.Key{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a}]}\n": {Namespace: "default", Name: "web-n1"},
		"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\n":            {},
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: 1\n":             {},
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: 1\n":                   {},
	} {
		f, _ := Parse([]byte(text), options("a.yaml"))
		if len(f.Problems) != 1 || f.Problems[0].Pod != want {
			t.Errorf("%q: %+v", text, f.Problems)
		}
	}
}
