package volume_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// below allows paths below a directory, as written and with links followed.
func below(dir string) func(*pod.Spec, string, *v1.HostPathVolumeSource, bool) error {
	return func(_ *pod.Spec, _ string, at *v1.HostPathVolumeSource, _ bool) error {
		if at.Path != dir && !strings.HasPrefix(at.Path, dir+"/") {
			return fmt.Errorf("%s is not allowed", at.Path)
		}
		return nil
	}
}

// The target of an API server's claim is checked when it is mounted: as the volume names
// it, and with its links followed.
//
// Shows: D1
func TestPut_ClaimBoundOutsideTheAllowedPaths_IsNotMounted(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	inside, outside := filepath.Join(dir, "inside"), filepath.Join(dir, "outside")
	write(t, filepath.Join(inside, "data", "file"), "allowed")
	write(t, filepath.Join(outside, "file"), "the host's")
	if err := os.Symlink(outside, filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	for path, allowed := range map[string]bool{filepath.Join(inside, "data"): true, outside: false, filepath.Join(inside, "link"): false} {
		p := newPlace(t)
		c := p.config()
		c.Allow = below(inside)
		c.Claim = func(context.Context, *pod.Spec, string) (pod.BoundVolume, error) {
			return pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: path, Type: ptr.To(v1.HostPathDirectory)}}, nil
		}
		p.Volumes = volume.New(c)
		s := withUID(spec(claimVolume("db", "data", false)), uid)
		s.Origin.Source = "api"
		err := p.SetUp(s, 1)
		if allowed != (err == nil) || !allowed && !strings.Contains(err.Error(), outside+" is not allowed") {
			t.Errorf("%s: %v", path, err)
		}
		if got := len(mounts(t, p.root)) > 0; got != allowed {
			t.Errorf("%s: mounted %v", path, got)
		}
	}
}

// A container of a running pod does not get a claim that is no longer allowed. The mark has
// the claim's target, so that no server has to be asked.
func TestMounts_ClaimForbiddenAfterItWasMounted_IsRefused(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "kept")
	p := newPlace(t)
	c := p.config()
	reachable := true
	c.Claim = func(context.Context, *pod.Spec, string) (pod.BoundVolume, error) {
		if !reachable {
			return pod.BoundVolume{}, errors.New("the server is away")
		}
		return pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: dir, Type: ptr.To(v1.HostPathDirectory)}}, nil
	}
	p.Volumes = volume.New(c)
	s := withUID(spec(claimVolume("db", "data", false)), uid)
	s.Origin.Source = "api"
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}}
	p.setUp(t, s, 1)

	reachable = false
	c.Allow = below(dir)
	p.Volumes = volume.New(c)
	p.setUp(t, s, 1) // as the next agent does after a change of the pod
	if _, err := p.Mounts(t.Context(), s, 1, "c"); err != nil {
		t.Errorf("allowed, with the server away: %v", err)
	}
	c.Allow = below("/data")
	p.Volumes = volume.New(c)
	if m, err := p.Mounts(t.Context(), s, 1, "c"); err == nil || !strings.Contains(err.Error(), dir+" is not allowed") {
		t.Errorf("forbidden meanwhile: mounts %v, %v", m, err)
	}
}

// A host path is checked by SetUp, even if the manifest was checked before. A link in it must
// not lead to a path that is not allowed. Nothing is made there.
//
// Shows: D1
func TestPut_HostPathThroughLink_IsJudgedByItsTarget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inside, outside := filepath.Join(dir, "inside"), filepath.Join(dir, "outside")
	for _, d := range []string{inside, outside} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(inside, "new"):       "",
		filepath.Join(outside, "new"):      filepath.Join(outside, "new") + " is not allowed",
		filepath.Join(inside, "link"):      outside + " is not allowed",
		filepath.Join(inside, "link/new"):  filepath.Join(outside, "new") + " is not allowed",
		filepath.Join(inside, "link/a/b"):  filepath.Join(outside, "a/b") + " is not allowed",
		filepath.Join(inside, "new/below"): "",
	} {
		p := newPlace(t)
		c := p.config()
		c.Allow = below(inside)
		p.Volumes = volume.New(c)
		s := withUID(spec(host("h", path, v1.HostPathDirectoryOrCreate)), uid)
		if err := p.SetUp(s, 1); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("%s was made outside", left[0].Name())
	}
}

// A host path is checked for each container: a container that writes above it can have put
// a link there since SetUp, and the policy can have changed.
func TestMounts_HostPathChangedAfterPut_IsJudgedAgain(t *testing.T) {
	needRoot(t)
	for _, part := range []string{"", "part"} {
		dir := t.TempDir()
		inside, outside := filepath.Join(dir, "inside"), filepath.Join(dir, "outside")
		write(t, filepath.Join(inside, "data", "part", "file"), "allowed")
		write(t, filepath.Join(outside, "part", "file"), "the host's")
		path := filepath.Join(inside, "data")
		p := newPlace(t)
		c := p.config()
		c.Allow = below(inside)
		p.Volumes = volume.New(c)
		s := withUID(spec(host("h", path, v1.HostPathUnset)), uid)
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "h", MountPath: "/h", SubPath: part}}
		p.setUp(t, s, 1)
		if _, err := p.Mounts(t.Context(), s, 1, "c"); err != nil {
			t.Errorf("part %q, allowed: %v", part, err)
		}
		if err := errors.Join(os.Rename(path, path+".old"), os.Symlink(outside, path)); err != nil {
			t.Fatal(err)
		}
		if m, err := p.Mounts(t.Context(), s, 1, "c"); err == nil || !strings.Contains(err.Error(), outside+" is not allowed") {
			t.Errorf("part %q, exchanged for a link: mounts %v, %v", part, m, err)
		}
		if err := errors.Join(os.Remove(path), os.Rename(path+".old", path)); err != nil {
			t.Fatal(err)
		}
		c.Allow = below("/data")
		p.Volumes = volume.New(c)
		if m, err := p.Mounts(t.Context(), s, 1, "c"); err == nil || !strings.Contains(err.Error(), path+" is not allowed") {
			t.Errorf("part %q, forbidden meanwhile: mounts %v, %v", part, m, err)
		}
	}
}

// A Secret comes late, so the first SetUp of a pod with a claim fails. The claim's target is
// recorded all the same: the server is not asked again, and a policy that forbids the
// target applies.
func TestMounts_ClaimOfAPutThatFailed_IsRemembered(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "kept")
	p := newPlace(t)
	c := p.config()
	reachable := true
	c.Claim = func(context.Context, *pod.Spec, string) (pod.BoundVolume, error) {
		if !reachable {
			return pod.BoundVolume{}, errors.New("the server is away")
		}
		return pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: dir, Type: ptr.To(v1.HostPathDirectory)}}, nil
	}
	late := filepath.Join(t.TempDir(), "late")
	s := withUID(spec(claimVolume("db", "data", false), host("h", late, v1.HostPathDirectory)), uid)
	s.Origin.Source = "api"
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}}
	c.Allow = func(_ *pod.Spec, _ string, at *v1.HostPathVolumeSource, _ bool) error { return nil }
	p.Volumes = volume.New(c)
	if err := p.SetUp(s, 1); err == nil {
		t.Fatal("put with a path that is missing")
	}
	if err := os.Mkdir(late, 0o700); err != nil {
		t.Fatal(err)
	}
	reachable = false
	p.setUp(t, s, 1)
	if _, err := p.Mounts(t.Context(), s, 1, "c"); err != nil {
		t.Errorf("allowed, with the server away: %v", err)
	}
	c.Allow = below("/data")
	p.Volumes = volume.New(c)
	if m, err := p.Mounts(t.Context(), s, 1, "c"); err == nil || !strings.Contains(err.Error(), dir+" is not allowed") {
		t.Errorf("forbidden meanwhile: mounts %v, %v", m, err)
	}
}

// A SetUp that mounted a claim fails while it changes the group of the claim's files, at the
// first start of the machine or a later one. The next SetUp changes the group.
func TestPut_GroupOfAClaimCutShort_IsChangedByTheNext(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write(t, file, "kept")
	p := newPlace(t)
	c := p.config()
	stop := func() {}
	c.Claim = func(context.Context, *pod.Spec, string) (pod.BoundVolume, error) {
		stop() // the agent stops right after the answer
		return pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: dir, Type: ptr.To(v1.HostPathDirectory)}}, nil
	}
	s := withUID(spec(claimVolume("db", "data", false)), uid)
	s.Origin.Source = "api"
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	for _, start := range []string{"first", "second"} {
		var ctx context.Context
		ctx, stop = context.WithCancel(t.Context())
		p.Volumes = volume.New(c)
		if err := p.Volumes.SetUp(ctx, s, pod.Place{}, 1); err == nil {
			t.Fatalf("%s start: put though the agent stopped", start)
		}
		stop = func() {}
		p.setUp(t, s, 1)
		info, err := os.Stat(file)
		if err != nil || info.Sys().(*syscall.Stat_t).Gid != 77 {
			t.Errorf("%s start: %v %v, want the pod's group", start, info, err)
		}
		// The machine restarts, and another program has changed the group meanwhile.
		unmountAll(t, p.root)
		mark := filepath.Join(p.instance(1), "ready")
		text, err := os.ReadFile(mark)
		boot, err2 := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err := errors.Join(err, err2, os.WriteFile(mark, bytes.Replace(text, bytes.TrimSpace(boot), []byte("another"), 1), 0o600), os.Chown(file, 0, 0)); err != nil {
			t.Fatal(err)
		}
	}
}
