package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// A restarted agent knows the checksums of objects before it has read them. Volumes keep
// showing these objects, even optional ones.
//
// Shows: C-1.37.6
func TestC_1_37_6_ObjectsThatAreNotReadYet(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	for name, v := range map[string]v1.Volume{
		"configmap": configMapVolume("v", "o"), "secret": secretVolume("v", "o"),
		"projected": projectedVolume("v", v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "o"}, Optional: ptr.To(true)}}),
	} {
		if v.ConfigMap != nil {
			v.ConfigMap.Optional = ptr.To(true)
		}
		if v.Secret != nil {
			v.Secret.Optional = ptr.To(true)
		}
		s := withUID(spec(v), "uid-"+name)
		all := []*pod.Object{configMapObject("o", map[string]string{"a": "1"}), secretObject("o", map[string]string{"a": "1"})}
		p.setUp(t, bound(s, all...), 1)
		dir := filepath.Join(p.root, "pods", "uid-"+name, "1/volumes/kubernetes.io~"+name, "v")
		shows := func(want string) {
			t.Helper()
			if text, err := os.ReadFile(filepath.Join(dir, "a")); string(text) != want || (err != nil) != (want == "") {
				t.Errorf("%s: %q %v, want %q", name, text, err, want)
			}
		}
		shows("1")
		saved := podspec.Bind(s, podspec.NewSavedData(nil, []pod.ObjectSum{podspec.SumOf(all[0]), podspec.SumOf(all[1])}))
		if err := p.SetUp(saved, 1); err == nil || !strings.Contains(err.Error(), `"o" has not been read again yet`) {
			t.Errorf("%s: %v", name, err)
		}
		shows("1")
		p.setUp(t, bound(s, configMapObject("other", nil)), 1) // now it is known to be missing
		shows("")
	}
}

// If a claim's directory was removed, Ready reports it and the next SetUp makes it again. A
// file in its place is not taken for a claim.
func TestReadyLooksAtClaims(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := bound(withUID(spec(claimVolume("db", "data", false)), uid), claimObject("data"))
	p.setUp(t, s, 1)
	dir := filepath.Join(p.root, "volumes/default/data/data")
	if !p.Ready(s, 1) {
		t.Fatal("not ready after SetUp")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if put, _, _ := p.Volumes.Ready(s, 1); put {
		t.Error("ready without the claim's directory")
	}
	p.setUp(t, s, 1)
	if !p.Ready(s, 1) || !exists(t, dir) {
		t.Error("not ready after SetUp")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", dir); err != nil {
		t.Fatal(err)
	}
	if err := p.SetUp(s, 1); err == nil || p.Ready(s, 1) || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("a link in its place: %v", err)
	}
}

// A volume with an optional object that the source could not read is not set up without it.
func TestPut_OptionalObjectUnread_IsNotSetUpWithoutIt(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	v := configMapVolume("v", "o")
	v.ConfigMap.Optional = ptr.To(true)
	s := withUID(spec(v), uid)
	s.Unread = []pod.ObjectID{{Kind: pod.KindConfigMap, Name: "o"}}
	if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), `configmap "o" could not be read yet`) {
		t.Errorf("put: %v", err)
	}
	if put, _, _ := p.Volumes.Ready(s, 1); put {
		t.Error("the volume counts as set up")
	}
	s.Unread = nil
	p.setUp(t, s, 1)
	again := *s // as after a restart of the agent: the volumes that were set up stay
	again.Unread = []pod.ObjectID{{Kind: pod.KindConfigMap, Name: "o"}}
	if put, current, _ := p.Volumes.Ready(&again, 1); !put || !current {
		t.Error("a volume that was set up does not count")
	}
}
