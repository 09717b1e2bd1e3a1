package stats_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/stats"
)

// noCgroups are cgroups of which none exists.
type noCgroups struct{}

func (noCgroups) PodCgroup(*v1.Pod) (pod.Cgroup, bool)    { return pod.Cgroup{}, false }
func (noCgroups) AllPodsCgroup() (at pod.Cgroup, ok bool) { return pod.Cgroup{}, true }
func (noCgroups) HostCgroup() (pod.Cgroup, bool)          { return pod.Cgroup{}, false }

// TestUsage_WithoutDisks_AsksNoRuntime: short memory must not wait for a runtime. Otherwise the
// usage of each pod comes from the runtime and the disk.
//
// Shows: C-1.35.6
func TestUsage_WithoutDisks_AsksNoRuntime(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, nil)
	p := &f.pods[0]
	p.Spec.Volumes = []v1.Volume{{Name: "work", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	work := filepath.Join(f.root, "pods", string(p.UID), "1", "volumes", "kubernetes.io~empty-dir", "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "f"), make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := f.Usage(t.Context(), true)
	u := all[string(p.UID)]
	if err != nil || !u.Measured || u.Memory != 2<<20 || u.Volumes.Bytes < 100<<10 || u.Volumes.Inodes != 2 ||
		len(u.Containers) != 2 || u.Containers["main"].Writable.Bytes != 4096 || u.Containers["main"].Memory != 1<<20 {
		t.Errorf("%+v, %v", all, err)
	}
	g := newFake(t, 1, func(c *stats.Config) { c.Cgroups = noCgroups{} })
	before := g.rt.Calls()["ListContainerStats"]
	if _, err := g.Usage(t.Context(), false); err != nil || g.rt.Calls()["ListContainerStats"] != before {
		t.Errorf("the runtime was asked, %v", err)
	}
}

// TestUsage_VolumeIsTooDeep_DiskIsUnknown: a pod cannot hide its usage in directories that are too
// deep for the measurement.
//
// Shows: C-1.35.6
func TestUsage_VolumeIsTooDeep_DiskIsUnknown(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, nil)
	p := &f.pods[0]
	p.Spec.Volumes = []v1.Volume{{Name: "work", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	work := filepath.Join(f.root, "pods", string(p.UID), "1", "volumes", "kubernetes.io~empty-dir", "work")
	if err := os.MkdirAll(filepath.Join(work, strings.Repeat("d/", 203)), 0o755); err != nil {
		t.Fatal(err)
	}
	all, err := f.Usage(t.Context(), true)
	if deep := all[string(p.UID)]; err != nil || !deep.DiskUnknown || !deep.Measured || deep.Volumes.Inodes < 200 {
		t.Errorf("too deep: %+v, %v", deep, err)
	}
	if other := all[string(f.pods[1].UID)]; other.DiskUnknown {
		t.Errorf("the other pod: %+v", other)
	}
}

// TestUsage_LayerHasGrown_IsMeasuredNow: containerd's figure of a writable layer, and the agent's own
// of a volume, may be a minute old. A pod that has filled the disk since then must not look innocent.
//
// Shows: C-1.35.6
func TestUsage_LayerHasGrown_IsMeasuredNow(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, nil)
	p := &f.pods[0]
	upper, mounts := filepath.Join(f.root, "snapshots", "7", "fs"), filepath.Join(f.root, "mountinfo")
	work := filepath.Join(f.root, "pods", string(p.UID), "1", "volumes", "kubernetes.io~empty-dir", "work")
	p.Spec.Volumes = []v1.Volume{{Name: "work", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "critest://")
	text := "30 1 8:1 / / rw,relatime - ext4 /dev/root rw\n" +
		"31 30 0:40 / /run/x/k8s.io/" + id + "/rootfs rw,relatime shared:9 - overlay overlay rw,lowerdir=/l,upperdir=" + upper + ",workdir=/w\n"
	if err := os.WriteFile(mounts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Mounts(mounts)
	usage := func() stats.PodUsage {
		all, err := f.Usage(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		return all[string(p.UID)]
	}
	before := usage()
	for _, dir := range []string{upper, work} {
		if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 100<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.Later(2 * time.Second)
	after := usage()
	if before.Containers["main"].Writable.Inodes != 1 || after.Containers["main"].Writable.Bytes < 100<<10 || after.Volumes.Bytes < 100<<10 {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if side := after.Containers["side"].Writable.Bytes; side != 4096 {
		t.Errorf("without a mount that is known: %d bytes, want the runtime's figure", side)
	}
}
