package volume_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

func (p place) link(t *testing.T, name, target string) {
	t.Helper()
	if err := os.MkdirAll(p.links, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(p.links, name)); err != nil {
		t.Fatal(err)
	}
}

// C-1.33.5: a forgotten pod leaves no log, no link and no message; other files beside them
// stay.
//
// Shows: C-1.33.5
func TestC_1_33_5_ForgetRemovesLogsLinksAndMessages(t *testing.T) {
	for name, forget := range map[string]func(p place) error{
		"Forget": func(p place) error { return p.Forget(t.Context(), key, uid) },
		"Sweep": func(p place) error {
			_, err := p.Sweep(t.Context(), func(uid string) bool { return uid == "5f1c0" })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			logs := filepath.Join(p.logs, "default_web-n1_"+uid)
			write(t, filepath.Join(logs, "c", "0.log"), "x")
			write(t, filepath.Join(p.root, "pods", uid, "containers", "c", "0"), "message")
			p.link(t, "web-n1_default_c-1.log", filepath.Join(logs, "c", "0.log"))
			p.link(t, "web-n1_default_c-2.log", filepath.Join(logs, "c", "1.log")) // dangling
			keep := []string{"other.log", "foreign.log", "near.log"}
			p.link(t, "other.log", filepath.Join(p.logs, "default_web-n1_5f1c0", "c", "0.log"))
			p.link(t, "near.log", logs+"x")
			write(t, filepath.Join(p.links, "foreign.log"), "a file")
			write(t, filepath.Join(p.root, "pods", "5f1c0", "containers", "c", "0"), "message")
			for range 2 {
				if err := forget(p); err != nil {
					t.Fatal(err)
				}
			}
			for _, path := range []string{logs, filepath.Join(p.root, "pods", uid)} {
				if exists(t, path) {
					t.Errorf("%s is left", path)
				}
			}
			var left []string
			entries, err := os.ReadDir(p.links)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				left = append(left, e.Name())
			}
			slices.Sort(keep)
			if diff := cmp.Diff(keep, left); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			if !exists(t, filepath.Join(p.root, "pods", "5f1c0", "containers", "c", "0")) {
				t.Error("another pod's message is gone")
			}
		})
	}
}

// The messages of a pod outlive its instances, because its exited containers can still be
// read.
//
// Shows: C-1.26.11
func TestC_1_26_11_TakeLeavesMessages(t *testing.T) {
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	message := filepath.Join(p.root, "pods", uid, "containers", "c", "0")
	write(t, message, "why")
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Fatal(err)
	}
	if !exists(t, message) {
		t.Error("the message is gone")
	}
}

// Shows: C-1.37.8
func TestC_1_37_8_MountsOfEveryKindOfContainer(t *testing.T) {
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	m := []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	s.Pod.Spec.InitContainers = []v1.Container{{Name: "i", VolumeMounts: m}}
	s.Pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e", VolumeMounts: m}}}
	p.setUp(t, s, 1)
	for _, name := range []string{"i", "e"} {
		got, err := p.Mounts(t.Context(), s, 1, name)
		want := []pod.Mount{{HostPath: p.emptyDir(1, "data"), ContainerPath: "/data"}}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}
