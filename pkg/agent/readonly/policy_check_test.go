package readonly

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/policy"
)

// judging returns rules with a policy, and a pod from the record of an earlier agent.
func judging(t *testing.T, text string) (Rules, *pod.Spec) {
	t.Helper()
	to, problems := policy.Parse([]byte("apiVersion: nodectl.dev/v1alpha1\nkind: SourcePolicy\n"+text), "policy.yaml", func(string, []string) string { return "" })
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "0f6d7d1a"}}
	p.Spec.Containers = []v1.Container{{Name: "c"}}
	return Rules{to}, &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: "file", Location: "/m", File: "/m/web.yaml"}}
}

// A pod from a record is checked against the policy and validated: the earlier agent may
// have done neither.
//
// Shows: D1
func TestForbids_RecordedPod_IsCheckedAndValidated(t *testing.T) {
	t.Parallel()
	r, s := judging(t, "rules: [{name: edge, sources: [{kind: file, location: /m}], hostPaths: [{prefix: /data}]}]")
	if why := r.Forbids(s); why != "" {
		t.Errorf("allowed: %s", why)
	}
	s.Pod.Spec.Volumes = []v1.Volume{{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}}}
	if why := r.Forbids(s); !strings.HasPrefix(why, `spec.volumes[0].hostPath.path: source policy rule "edge" does not allow host path "/"`) {
		t.Errorf("forbidden: %q", why)
	}
	s.Pod.Spec.Volumes[0].EmptyDir = &v1.EmptyDirVolumeSource{}
	r = Rules{}
	if why := r.Forbids(s); !strings.Contains(why, "exactly one source") {
		t.Errorf("malformed, without a policy: %q", why)
	}
}

// A last good set that is older than the policy restores no object in a namespace that its
// source may no longer use: the object would hide one of an allowed source.
func TestLastGoodSets_ForbiddenObject_IsNotRestored(t *testing.T) {
	t.Parallel()
	r, s := judging(t, "rules: [{name: edge, sources: [{kind: file, location: /m}], namespaces: [web]}, {name: all, sources: [{kind: http}]}]")
	object := func(source, location, namespace string) *pod.Object {
		return &pod.Object{Key: pod.Key{Namespace: namespace, Name: "o"}, Kind: pod.KindSecret, Origin: pod.Origin{Source: source, Location: location}}
	}
	sets := map[string]podconfig.Restored{
		"file:/m":  {Files: []pod.LastGoodSet{{File: "/m/a", Pods: []*pod.Spec{s}, Objects: []*pod.Object{object("file", "/m", "x"), object("file", "/m", "web")}}}},
		"http:u":   {Files: []pod.LastGoodSet{{File: "u", Objects: []*pod.Object{object("http", "u", "x")}}}},
		"file:/no": {Files: []pod.LastGoodSet{{File: "/no/a", Objects: []*pod.Object{object("file", "/no", "web")}}}},
	}
	held := r.withoutForbidden(sets)
	if f := held["file:/m"].Files[0]; len(f.Pods) != 1 || len(f.Objects) != 1 || f.Objects[0].Namespace != "web" {
		t.Errorf("of a source with a rule: %+v", f)
	}
	if f := held["http:u"].Files[0]; len(f.Objects) != 1 {
		t.Errorf("of a source that may: %+v", f)
	}
	if f := held["file:/no"].Files[0]; len(f.Objects) != 0 {
		t.Errorf("of a source without a rule: %+v", f)
	}
	if len(sets["file:/m"].Files[0].Objects) != 2 || len(Rules{}.withoutForbidden(sets)["file:/m"].Files[0].Objects) != 2 {
		t.Error("the set itself, and one without a policy, keep all")
	}
}

// The policy is applied to a path as written and with its links resolved; so are prefixes.
func TestAllows_PathThroughLinks_IsResolvedBeforeComparison(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("disk", filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	r, s := judging(t, "default: {hostPaths: [{prefix: "+filepath.Join(dir, "data")+"}]}")
	s.Pod.Spec.Volumes = []v1.Volume{{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(dir, "data/a")}}}}
	for path, c := range map[string]struct{ written, followed bool }{
		filepath.Join(dir, "data/a"): {true, false},
		filepath.Join(dir, "disk/a"): {false, true},
		"/etc":                       {false, false},
	} {
		at := &v1.HostPathVolumeSource{Path: path}
		if err := r.Allows(s, "h", at, false); c.written != (err == nil) {
			t.Errorf("%s, as written: %v", path, err)
		}
		if err := r.Allows(s, "h", at, true); c.followed != (err == nil) {
			t.Errorf("%s, followed: %v", path, err)
		}
	}
}
