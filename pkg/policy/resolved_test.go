package policy_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A PersistentVolume that a claim is bound to is held to hostPaths as a host path is: the
// pod names the claim only, and another object of the cluster names the path.
//
// Shows: D1
func TestJudgePath_ClaimBoundToPath_IsHeldToHostPaths(t *testing.T) {
	t.Parallel()
	const allow = "hostPaths: [{prefix: /data}, {prefix: /data/ro, readOnly: true}]"
	claimed := func(rest string) string {
		return `{spec: {volumes: [{name: db, persistentVolumeClaim: {claimName: a` + rest + `}}], containers: [{name: c, volumeMounts: [{name: db, mountPath: /db}]}]}}`
	}
	directory, create, none := ptr.To(v1.HostPathDirectory), ptr.To(v1.HostPathDirectoryOrCreate), (*v1.HostPathType)(nil)
	for _, c := range []struct {
		name, pod, path string
		kind            *v1.HostPathType
		want            string // "" is allowed
	}{
		{"below a prefix", claimed(""), "/data/db", directory, ""},
		{"without a type", claimed(""), "/data/db", none, ""},
		{"the host", claimed(""), "/", directory, "no prefix of hostPaths contains it"},
		{"beside a prefix", claimed(""), "/data-evil", directory, "no prefix of hostPaths contains it"},
		{"upwards", claimed(""), "/data/../etc", directory, "it contains .."},
		{"writes to a read-only prefix", claimed(""), "/data/ro/db", directory, "is read-only"},
		{"reads a read-only prefix", claimed(", readOnly: true"), "/data/ro/db", directory, ""},
		{"creates below a read-only prefix", claimed(", readOnly: true"), "/data/ro/db", create, "to create"},
		{"shows a read-only prefix from above", claimed(""), "/data", directory, "is read-only"},
	} {
		s := podOf(t, c.pod)
		s.Origin.Source = "api"
		problems := edge(t, allow).CheckPath(s, "/kubeconfig", "db", &v1.HostPathVolumeSource{Path: c.path, Type: c.kind}, nil)
		got := ""
		for _, p := range problems {
			got += p.Path + ": " + p.Msg + "\n"
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) || got != "" && !strings.HasPrefix(got, "spec.volumes[0].persistentVolumeClaim") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	s := podOf(t, claimed(""))
	s.Origin.Source = "api"
	at := &v1.HostPathVolumeSource{Path: "/mnt/disk/db", Type: directory}
	follow := func(prefix string) string { return strings.Replace(prefix, "/data", "/mnt/disk", 1) }
	if problems := edge(t, allow).CheckPath(s, "/kubeconfig", "db", at, follow); len(problems) > 0 {
		t.Errorf("below what a prefix leads to: %v", problems)
	}
	if problems := edge(t, "images: ['*']").CheckPath(s, "/kubeconfig", "db", at, nil); len(problems) > 0 {
		t.Errorf("a rule without hostPaths: %v", problems)
	}
	if problems := parsed(t, "rules: [{name: a, sources: [{kind: file}]}]").CheckPath(s, "/kubeconfig", "db", at, nil); len(problems) != 1 {
		t.Errorf("a source without a rule: %v", problems)
	}
}

// Check applies the rules of Source to a pod that no source has just read.
func TestJudge_RestoredPod_IsHeldToItsRule(t *testing.T) {
	t.Parallel()
	p := parsed(t, "rules: [{name: by-hand, sources: [{kind: file, location: /m}]}]\ndefault: {hostPaths: []}")
	s := podOf(t, `{spec: {volumes: [{name: h, hostPath: {path: /}}], containers: [{name: c}]}}`)
	if problems := p.Check(s, "/m"); len(problems) > 0 {
		t.Errorf("of a source that may: %v", problems)
	}
	if problems := p.Check(s, "/elsewhere"); len(problems) != 1 || problems[0].Path != "spec.volumes[0].hostPath.path" {
		t.Errorf("of another: %v", problems)
	}
}
