package volume_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/volume"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func memory(name, limit string) v1.Volume {
	e := &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}
	if limit != "" {
		e.SizeLimit = ptr.To(quantity(limit))
	}
	return vol(name, v1.VolumeSource{EmptyDir: e})
}

func limited(memory string) v1.ResourceRequirements {
	if memory == "" {
		return v1.ResourceRequirements{}
	}
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: quantity(memory)}}
}

// The size of a volume in memory is the smallest of all its limits.
//
// Shows: C-1.37.10
func TestC_1_37_10_SizeInMemory(t *testing.T) {
	needRoot(t)
	for i, tt := range []struct {
		allocatable, limit     string
		containers, init, side []string
		pod, overhead          string
		want                   string // in KiB
	}{
		{allocatable: "1Gi", want: "1048576"},
		{allocatable: "1Gi", limit: "64Mi", want: "65536"},
		{allocatable: "1Gi", limit: "2Gi", want: "1048576"},
		{allocatable: "1Gi", limit: "0", want: "1048576"},
		{allocatable: "1Gi", limit: "512Mi", containers: []string{"100Mi", "100Mi"}, want: "204800"},
		{allocatable: "1Gi", limit: "512Mi", containers: []string{"100Mi", ""}, want: "524288"},
		{allocatable: "1Gi", containers: []string{"100Mi"}, init: []string{"300Mi"}, want: "307200"},
		{allocatable: "1Gi", containers: []string{"100Mi"}, side: []string{"50Mi"}, init: []string{"60Mi"}, overhead: "10Mi", want: "163840"},
		{allocatable: "1Gi", containers: []string{"100Mi", ""}, pod: "300Mi", overhead: "10Mi", want: "317440"},
		{limit: "1Mi", want: "1024"},
	} {
		p := newPlace(t)
		c := p.config()
		if tt.allocatable != "" {
			c.Allocatable = v1.ResourceList{v1.ResourceMemory: quantity(tt.allocatable)}
		}
		p.Volumes = volume.New(c)
		s := withUID(spec(memory("m", tt.limit)), uid)
		s.Pod.Spec.Containers = nil
		for _, m := range tt.containers {
			s.Pod.Spec.Containers = append(s.Pod.Spec.Containers, v1.Container{Resources: limited(m)})
		}
		if tt.containers == nil {
			s.Pod.Spec.Containers = []v1.Container{{Name: "c"}}
		}
		for _, m := range tt.side {
			s.Pod.Spec.InitContainers = append(s.Pod.Spec.InitContainers, v1.Container{Resources: limited(m), RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)})
		}
		for _, m := range tt.init {
			s.Pod.Spec.InitContainers = append(s.Pod.Spec.InitContainers, v1.Container{Resources: limited(m)})
		}
		if tt.pod != "" {
			s.Pod.Spec.Resources = ptr.To(limited(tt.pod))
		}
		if tt.overhead != "" {
			s.Pod.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: quantity(tt.overhead)}
		}
		p.setUp(t, s, 1)
		m := mounts(t, p.emptyDir(1, "m"))
		if len(m) != 1 || m[0].FSType != "tmpfs" || m[0].Source != "tmpfs" || m[0].Options != "rw,relatime" ||
			!strings.HasPrefix(m[0].VFSOptions, "rw,size="+tt.want+"k") {
			t.Errorf("%d: %+v, want one tmpfs of %sk", i, m, tt.want)
		}
		if len(m) == 1 && !strings.Contains(m[0].VFSOptions+",", ",noswap,") {
			t.Errorf("%d: %s: a volume in memory may be swapped to the disk", i, m[0].VFSOptions)
		}
	}
}

// TestC_1_37_3_MemoryLivesAsLongAsItsInstance: a second SetUp keeps the mount and the files in it.
//
// Shows: C-1.37.3
func TestC_1_37_3_MemoryLivesAsLongAsItsInstance(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := bound(withUID(spec(memory("m", "1Mi"), secretVolume("sec", "pass")), uid), secretObject("pass", map[string]string{"k": "v"}))
	p.setUp(t, s, 1)
	write(t, filepath.Join(p.emptyDir(1, "m"), "file"), "kept")
	if err := os.Chmod(p.emptyDir(1, "m"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.Volumes = volume.New(p.config()) // restart the agent
	if !p.Ready(s, 1) {
		t.Error("another agent does not find it ready")
	}
	p.setUp(t, s, 1)
	if n := len(mounts(t, p.root)); n != 2 {
		t.Errorf("%d mounts, want one for each volume", n)
	}
	info, err := os.Stat(p.emptyDir(1, "m"))
	if err != nil || info.Mode().Perm() != 0o700 || !exists(t, filepath.Join(p.emptyDir(1, "m"), "file")) {
		t.Errorf("after SetUp again: %v, %v", info.Mode(), err)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil || exists(t, p.instance(1)) || len(mounts(t, p.root)) != 0 {
		t.Errorf("TearDown: %v; left %v", err, mounts(t, p.root))
	}
}

// After a reboot the volumes in memory are lost; so are they if a person unmounts them.
// Ready reports both.
func TestReadyNoticesWhatLeftMemory(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := bound(withUID(spec(memory("m", "1Mi"), secretVolume("sec", "pass"), empty("data")), uid), secretObject("pass", map[string]string{"k": "v"}))
	p.setUp(t, s, 1)
	write(t, filepath.Join(p.emptyDir(1, "data"), "file"), "kept")
	for _, path := range []string{p.emptyDir(1, "m"), p.volume("kubernetes.io~secret", "sec")} {
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		if p.Ready(s, 1) {
			t.Errorf("ready without %s", path)
		}
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: s.Pod.Spec.Volumes[0].Name, MountPath: "/x"}, {Name: "sec", MountPath: "/y"}}
		if m, err := p.Mounts(t.Context(), s, 1, "c"); err == nil {
			t.Errorf("mounts of what is not there: %v", m)
		}
		p.setUp(t, s, 1)
		if !p.Ready(s, 1) {
			t.Errorf("not ready after SetUp")
		}
	}
	if err := os.RemoveAll(p.emptyDir(1, "data")); err != nil || p.Ready(s, 1) {
		t.Errorf("ready without its directory (%v)", err)
	}
	p.setUp(t, s, 1)
	write(t, filepath.Join(p.emptyDir(1, "data"), "file"), "kept")
	// The mark of another boot.
	mark := filepath.Join(p.instance(1), "ready")
	text, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || !bytes.Contains(text, bytes.TrimSpace(boot)) {
		t.Fatalf("the mark %s does not tell the start of the machine (%v)", text, err)
	}
	for name, other := range map[string][]byte{
		"another start": bytes.Replace(text, bytes.TrimSpace(boot), []byte("another"), 1), "torn": text[:len(text)/2], "of an older agent": nil,
	} {
		if err := os.WriteFile(mark, other, 0o600); err != nil {
			t.Fatal(err)
		}
		if p.Ready(s, 1) {
			t.Errorf("%s: ready", name)
		}
		p.setUp(t, s, 1)
		if !p.Ready(s, 1) || !exists(t, filepath.Join(p.emptyDir(1, "data"), "file")) {
			t.Errorf("%s: after SetUp: ready %t; what lies on the disk has to stay", name, p.Ready(s, 1))
		}
	}
}

// The content of a Secret is never on a disk.
//
// Shows: I8
func TestSecretsLieInMemoryOnly(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	const canary = "cAnArY-7f3a"
	c := p.config()
	s := withUID(spec(secretVolume("sec", "pass"), empty("data"), configMapVolume("cm", "conf"), projectedVolume("all",
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "pass"}}})), uid)
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "sec", MountPath: "/k", SubPath: "k"}, {Name: "all", MountPath: "/all"}}
	var log bytes.Buffer
	c.Log = logTo(&log)
	p.Volumes = volume.New(c)
	for i := range 3 {
		b := bound(s, secretObject("pass", map[string]string{"k": fmt.Sprint(canary, i), canary + "key": "v"}), configMapObject("conf", map[string]string{"a": "b"}))
		p.setUp(t, b, 1)
		if _, err := p.Mounts(t.Context(), b, 1, "c"); err != nil {
			t.Fatal(err)
		}
	}
	var disk syscall.Stat_t
	if err := syscall.Stat(p.root, &disk); err != nil {
		t.Fatal(err)
	}
	seen, memory := 0, 0
	err := filepath.WalkDir(p.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		if st.Dev != disk.Dev {
			memory++
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		seen++
		if strings.Contains(d.Name(), canary) {
			t.Errorf("%s is on the disk", path)
		}
		if d.Type().IsRegular() {
			if text, err := os.ReadFile(path); err != nil || bytes.Contains(text, []byte(canary)) {
				t.Errorf("%s holds the secret, or cannot be read: %v", path, err)
			}
		}
		return nil
	})
	if err != nil || seen < 10 || memory != 3 {
		t.Errorf("looked at %d files on the disk and %d in memory: %v", seen, memory, err)
	}
	if strings.Contains(log.String(), canary) {
		t.Error("the secret was logged")
	}
}

// If the path of a Secret has a file system other than tmpfs, nothing of the Secret is
// written there.
func TestSecretsAreNotWrittenToAnotherFileSystem(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := bound(withUID(spec(secretVolume("sec", "pass")), uid), secretObject("pass", map[string]string{"k": "canary"}))
	dir := p.volume("kubernetes.io~secret", "sec")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount(t, "none", dir, "ramfs", 0, "")
	if err := p.SetUp(s, 1); err == nil || !strings.HasSuffix(err.Error(), "is not on a tmpfs") || p.Ready(s, 1) {
		t.Errorf("got %v, want that it is not on a tmpfs", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("written: %v %v", entries, err)
	}
}

// Volumes use no goroutines: 110 pods with four each add none.
func TestVolumesAddNoGoroutine(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	before := runtime.NumGoroutine()
	var all []*pod.Spec
	for i := range 110 {
		s := withUID(spec(empty("e"), configMapVolume("cm", "conf"), secretVolume("sec", "pass"), downwardVolume("d", "metadata.labels")), fmt.Sprint("u", i))
		all = append(all, bound(s, configMapObject("conf", map[string]string{"a": "b"}), secretObject("pass", map[string]string{"a": "b"})))
	}
	for _, s := range all {
		p.setUp(t, s, 1)
		if !p.Ready(s, 1) {
			t.Fatal("not ready")
		}
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines more", after-before)
	}
	for _, s := range all {
		if err := p.TearDown(t.Context(), s.UID(), 1); err != nil {
			t.Fatal(err)
		}
	}
}

// Huge pages have the size that the containers request.
//
// Shows: C-1.37.5
func TestC_1_37_5_HugePages(t *testing.T) {
	needRoot(t)
	huge := func(medium string) v1.Volume {
		return vol("h", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMedium(medium)}})
	}
	for i, tt := range []struct {
		medium string
		ask    []string
		want   string // options, or the error
	}{
		{"HugePages", []string{"2Mi"}, "pagesize=2M"},
		{"HugePages-2Mi", []string{"2Mi", "1Gi"}, "pagesize=2M"},
		{"HugePages", []string{"2Mi", "1Gi"}, "volume h: medium: HugePages can't be used if container requests multiple huge page sizes"},
		{"HugePages", nil, "volume h: medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
		{"HugePages-2Mi", []string{"1Gi"}, "volume h: medium HugePages-2Mi: hugePages storage requested, but there is no resource request for huge pages"},
		{"HugePages-much", []string{"1Gi"}, "volume h: medium HugePages-much: quantities must match the regular expression"},
	} {
		p := newPlace(t)
		s := withUID(spec(huge(tt.medium)), uid)
		for j, size := range tt.ask {
			c := v1.Container{Name: fmt.Sprint(j), Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceName("hugepages-" + size): quantity("1Gi")}}}
			s.Pod.Spec.Containers = append(s.Pod.Spec.Containers, c)
		}
		err := p.SetUp(s, 1)
		if err != nil {
			if !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%d: got %v, want %s", i, err, tt.want)
			}
			continue
		}
		m := mounts(t, p.emptyDir(1, "h"))
		if len(m) != 1 || m[0].FSType != "hugetlbfs" || m[0].Source != "nodev" || !strings.Contains(m[0].VFSOptions, tt.want) {
			t.Errorf("%d: %+v, want %s", i, m, tt.want)
		}
		p.setUp(t, s, 1)
		if n := len(mounts(t, p.root)); n != 1 || !p.Ready(s, 1) {
			t.Errorf("%d: %d mounts after SetUp again, ready %t", i, n, p.Ready(s, 1))
		}
		if err := p.Forget(t.Context(), key, uid); err != nil || len(mounts(t, p.root)) != 0 {
			t.Errorf("%d: Forget: %v, left %v", i, err, mounts(t, p.root))
		}
	}
}
