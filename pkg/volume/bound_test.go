package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/volume"
)

// A claim of an API server shows the directory of its volume, and only its mount is removed
// with the pod. While the server does not answer, existing mounts stay.
//
// Shows: C-1.37
func TestC_1_37_ClaimsOfAnAPIServer(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	disk := filepath.Join(t.TempDir(), "disk")
	write(t, filepath.Join(disk, "file"), "kept")
	var refuse error
	asked := 0
	c := p.config()
	c.Claim = func(_ context.Context, want *pod.Spec, name string) (pod.BoundVolume, error) {
		if asked++; refuse != nil {
			return pod.BoundVolume{}, refuse
		}
		if want.Namespace != "default" || name != "data" {
			t.Errorf("asked for %s of %s", name, want.Namespace)
		}
		return pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: disk, Type: ptr.To(v1.HostPathDirectory)}}, nil
	}
	p.Volumes = volume.New(c)
	s := withUID(spec(claimVolume("db", "data", false)), uid)
	s.Origin.Source = "api"
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}}

	refuse = errors.New("is not bound")
	if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), `volume db: persistentvolumeclaim "data": is not bound`) {
		t.Fatalf("not bound: %v", err)
	}
	refuse = nil
	p.setUp(t, s, 1)
	m, err := p.Mounts(t.Context(), s, 1, "c")
	if err != nil || len(m) != 1 || m[0].ContainerPath != "/db" || m[0].ReadOnly {
		t.Fatalf("mounts %v %v", m, err)
	}
	if text, err := os.ReadFile(filepath.Join(m[0].HostPath, "file")); err != nil || string(text) != "kept" {
		t.Errorf("through the mount: %q %v", text, err)
	}

	if info, err := os.Stat(filepath.Join(disk, "file")); err != nil || info.Sys().(*syscall.Stat_t).Gid != 77 {
		t.Errorf("%v %v, want the pod's group", info, err)
	}
	was := asked
	refuse = errors.New("the server is away")
	p.setUp(t, s, 1)
	if asked != was {
		t.Error("a claim in place is asked for again")
	}
	if err := errors.Join(p.TearDown(t.Context(), uid, 1), p.Forget(t.Context(), key, uid)); err != nil {
		t.Fatal(err)
	}
	if !exists(t, filepath.Join(disk, "file")) || exists(t, m[0].HostPath) {
		t.Error("the claim's file went, or its mount stayed")
	}
}
