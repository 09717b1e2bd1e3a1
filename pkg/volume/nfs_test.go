package volume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/volume"
)

// servers are NFS servers, all with the same directory.
type servers struct {
	export string
	calls  []string
	fails  error
	late   bool // a call mounts, and fails nevertheless
}

func (s *servers) Mount(source, target string, options []string) error {
	s.calls = append(s.calls, fmt.Sprint("mount ", source, " ", options))
	if s.fails != nil && !s.late {
		return s.fails
	}
	return errors.Join(s.fails, unix.Mount(s.export, target, "", unix.MS_BIND, ""))
}

func (s *servers) Unmount(target string) error {
	s.calls = append(s.calls, "unmount")
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
}

// withServers returns a place with NFS servers, and the volume of its claims.
func withServers(t *testing.T) (place, *servers, *pod.BoundVolume) {
	t.Helper()
	needRoot(t)
	p := newPlace(t)
	n := &servers{export: t.TempDir()}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}}
	pv.Spec.NFS, pv.Spec.MountOptions = &v1.NFSVolumeSource{Server: "files.test", Path: "/shop"}, []string{"nfsvers=4.2", "hard"}
	bound := &pod.BoundVolume{NFS: pv, Claim: &v1.PersistentVolumeClaim{}}
	c := p.config()
	c.Mounter = n
	c.Claim = func(context.Context, *pod.Spec, string) (pod.BoundVolume, error) { return *bound, nil }
	c.Allow = func(*pod.Spec, string, *v1.HostPathVolumeSource, bool) error {
		return errors.New("no path of this node")
	}
	p.Volumes = volume.New(c)
	return p, n, bound
}

// A directory of an NFS server, of the pod itself or of a claim, is mounted once, and unmounted with the
// pod. It shows no path of this node, so that no rule about paths applies, and keeps its groups.
func TestSetUp_DirectoryOfAnNFSServer_IsMounted(t *testing.T) {
	p, n, bound := withServers(t)
	s := withUID(spec(claimVolume("db", "data", true), vol("own", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/a b"}})), uid)
	s.Origin.Source = "api"
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}, {Name: "own", MountPath: "/own"}}
	p.setUp(t, s, 1)
	p.setUp(t, s, 1)
	if want := []string{"mount files.test:/shop [nfsvers=4.2 hard ro]", "mount [fd00::1]:/a b []"}; !slices.Equal(n.calls, want) {
		t.Errorf("calls %q, want %q", n.calls, want)
	}
	m, err := p.Mounts(t.Context(), s, 1, "c")
	if err != nil || len(m) != 2 || !m[0].ReadOnly || m[1].ReadOnly || m[1].HostPath != p.volume("kubernetes.io~nfs", "own") {
		t.Fatalf("%+v, %v", m, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(n.export, &st); err != nil || st.Gid == 77 {
		t.Errorf("group %d, %v", st.Gid, err)
	}
	bound.NFS = nil // another answer of the server does not change a mount
	p.setUp(t, s, 1)
	for i := range m {
		if err := unix.Unmount(m[i].HostPath, 0); err != nil {
			t.Fatal(err)
		}
		if done, _, _ := p.Volumes.Ready(s, 1); done {
			t.Errorf("%s is not mounted, and ready", m[i].HostPath)
		}
		if all, err := p.Mounts(t.Context(), s, 1, "c"); err == nil {
			t.Errorf("mounts %v", all)
		}
		if err := unix.Mount(n.export, m[i].HostPath, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if done, current, _ := p.Volumes.Ready(s, 1); !done || !current {
		t.Errorf("ready %t, current %t", done, current)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(n.export, "kept"), nil, 0o600), p.TearDown(t.Context(), uid, 1), p.Forget(t.Context(), key, uid)); err != nil {
		t.Fatal(err)
	}
	if !exists(t, filepath.Join(n.export, "kept")) || exists(t, filepath.Join(p.root, "pods", uid)) || len(mounts(t, p.root)) > 0 {
		t.Errorf("left: %v", mounts(t, p.root))
	}
}

// A server that does not answer is the kubelet's error, and leaves no mount. The other volumes are set up
// and not mounted again by the next attempt.
func TestSetUp_NFSServerFails_OthersAreKept(t *testing.T) {
	p, n, _ := withServers(t)
	s := withUID(spec(claimVolume("db", "data", false), vol("own", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "away.test", Path: "/"}})), uid)
	s.Origin.Source = "api"
	n.fails, n.late = errors.New("mount failed: exit status 32"), true
	err := p.SetUp(s, 1)
	for _, name := range []string{"db", "own"} {
		if want := fmt.Sprintf("MountVolume.SetUp failed for volume %q : mount failed: exit status 32", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if left := mounts(t, p.root); len(left) > 0 {
		t.Errorf("mounts %v", left)
	}
	n.fails, n.calls = nil, nil
	s.Pod.Spec.Volumes[1].NFS.Path = "relative"
	if err := p.SetUp(s, 1); err == nil {
		t.Error("a relative path is mounted")
	}
	s.Pod.Spec.Volumes[1].NFS.Path = "/"
	p.setUp(t, s, 1)
	if want := []string{"mount files.test:/shop [nfsvers=4.2 hard]", "mount away.test:/ []"}; !slices.Equal(n.calls, want) {
		t.Errorf("calls %q, want %q", n.calls, want)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Error(err)
	}
}

// Text that mount would read as options, as several servers or as another mount is rejected. A pod
// without an API server has no NFS volume.
func TestSetUp_NFSVolumeIsHostile_IsRefused(t *testing.T) {
	p, n, bound := withServers(t)
	for _, from := range []v1.NFSVolumeSource{
		{Server: "", Path: "/"}, {Server: "-o", Path: "/"}, {Server: "a b", Path: "/"}, {Server: "a,b", Path: "/"}, {Server: "a/b", Path: "/"}, {Server: "a:b", Path: "/"}, {Server: "fe80::1%a,b", Path: "/"},
		{Server: "a\nb", Path: "/"}, {Server: strings.Repeat("a", 300), Path: "/"}, {Server: "a", Path: ""}, {Server: "a", Path: "b"}, {Server: "a", Path: "/b\n"}, {Server: "a", Path: "/\x00"},
	} {
		s := withUID(spec(vol("own", v1.VolumeSource{NFS: &from})), uid)
		s.Origin.Source = "api"
		if err := p.SetUp(s, 1); err == nil {
			t.Errorf("%+v is mounted", from)
		}
	}
	for _, option := range []string{"bind", "ro,bind", "rbind", "remount,rw", " move"} {
		bound.NFS.Spec.MountOptions = []string{option}
		s := withUID(spec(claimVolume("db", "data", false)), uid)
		s.Origin.Source = "api"
		if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), "is not for NFS") {
			t.Errorf("%q: %v", option, err)
		}
	}
	if err := p.SetUp(withUID(spec(vol("own", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "a", Path: "/"}})), uid), 1); err == nil || len(n.calls) > 0 {
		t.Errorf("%v, calls %q", err, n.calls)
	}
}
