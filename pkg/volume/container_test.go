package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
	"github.com/nodectl/nodectl/pkg/volume"
)

func (p place) request(s *pod.Spec, sandbox pod.Sandbox) pod.CreateRequest {
	sandbox.Instance = 1
	return pod.CreateRequest{Want: s, Container: "c", Sandbox: &sandbox}
}

// C-1.38.5: the pod's hosts file is made, updated in place, and mounted unless a container
// has its own mount there.
//
// Shows: C-1.38.5
func TestC_1_38_5_HostsFile(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	p := newPlace(t)
	c := p.config()
	c.ClusterDomain, c.SELinux = "cluster.example", true
	p.Volumes = volume.New(c)
	s := withUID(spec(), uid)
	s.Pod.Name, s.Pod.Namespace, s.Pod.Spec.Subdomain = "web", "shop", "front"
	path := filepath.Join(p.instance(1), "etc-hosts")
	want := []pod.Mount{{HostPath: path, ContainerPath: "/etc/hosts", Relabel: true}}
	var ino uint64
	for i, ips := range [][]string{{"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.2", "fd00::2"}, {"10.0.0.3"}} {
		if i == 3 {
			s.Pod.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}
		}
		m, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{IPs: ips}))
		if diff := cmp.Diff(want, m); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o644 {
			t.Fatalf("%v %v, want 0644", info, err)
		}
		if now := info.Sys().(*syscall.Stat_t).Ino; i > 0 && now != ino {
			t.Error("another file: containers that run see the old one")
		} else {
			ino = now
		}
		text, err := os.ReadFile(path)
		if want := podenv.HostsFile(s, ips, nil, "cluster.example"); err != nil || string(text) != string(want) || !strings.Contains(string(text), ips[0]+"\tweb.front.shop.svc.cluster.example\tweb\n") {
			t.Errorf("%d: %q %v, want %q", i, text, err, want)
		}
	}
	// The next start replaces the files that a container wrote.
	write(t, path, "garbage\n")
	if _, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{IPs: []string{"10.0.0.3"}})); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); strings.Contains(string(text), "garbage") {
		t.Error("what a container wrote is still there")
	}
	if m, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{})); err != nil || len(m) != 0 {
		t.Errorf("without an address: %v %v, want none", m, err)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil || exists(t, path) {
		t.Errorf("TearDown: %v", err)
	}
}

// Shows: C-1.38.5
func TestC_1_38_5_HostsFileOfTheNode(t *testing.T) {
	p := newPlace(t)
	s := withUID(spec(), uid)
	s.Pod.Spec.HostNetwork = true
	s.Pod.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a"}}}
	m, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{HostNetwork: true}))
	if err != nil || len(m) != 1 {
		t.Fatal(m, err)
	}
	node, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(m[0].HostPath)
	if err != nil || !strings.Contains(string(text), string(node)) || !strings.HasSuffix(string(text), "1.2.3.4\ta\n") {
		t.Errorf("%q %v", text, err)
	}
}

// Shows: C-1.38.5
func TestC_1_38_5_ContainersOwnHostsFile(t *testing.T) {
	p := newPlace(t)
	s := withUID(spec(host("h", "/etc/hosts", v1.HostPathFile)), uid)
	p.setUp(t, s, 1)
	for path, own := range map[string]bool{"/etc/hosts": true, "etc/hosts": true, "/etc//hosts": true, "/etc": false, "/etc/hosts.d": false} {
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "h", MountPath: path}}
		m, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{IPs: []string{"10.0.0.1"}}))
		if err != nil || (len(m) == 1) != own {
			t.Errorf("%s: %v %v", path, m, err)
		}
	}
}

// On a full or read-only disk, only a pod whose hosts file has more than the runtime's
// cannot start.
//
// Shows: F13
func TestF13_HostsFileOnAReadOnlyDisk(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", p.root, "tmpfs", 0, "size=64k")
	if err := unix.Mount("", p.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	s := withUID(spec(), uid)
	if m, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{IPs: []string{"10.0.0.1"}})); err != nil || len(m) != 0 {
		t.Errorf("%v %v, want no mount", m, err)
	}
	s.Pod.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a"}}}
	if m, err := p.Volumes.Mounts(t.Context(), p.request(s, pod.Sandbox{IPs: []string{"10.0.0.1"}})); err == nil {
		t.Errorf("%v, want an error: the pod asks for names", m)
	}
}

// The mount options of each kind: write access, SELinux labels, user mappings.
//
// Shows: C-1.37.8
func TestC_1_37_8_MountsOfEveryKind(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	c := p.config()
	c.SELinux, c.RecursiveReadOnly = true, func(*string) bool { return true }
	p.Volumes = volume.New(c)
	s := withUID(spec(empty("e"), memory("m", "1Mi"), host("h", "/", ""), configMapVolume("cm", "conf"), secretVolume("sec", "pass"),
		downwardVolume("d", "metadata.name"), projectedVolume("p"), vol("i", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "x:1"}}), claimVolume("cl", "data", false), claimVolume("cr", "data", true)), uid)
	s = bound(s, configMapObject("conf", nil), secretObject("pass", nil), claimObject("data"))
	p.setUp(t, s, 1)
	for _, v := range s.Pod.Spec.Volumes {
		s.Pod.Spec.Containers[0].VolumeMounts = append(s.Pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	s.Pod.Spec.Containers[0].VolumeMounts = append(s.Pod.Spec.Containers[0].VolumeMounts,
		v1.VolumeMount{Name: "e", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
		v1.VolumeMount{Name: "e", MountPath: "/may", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
		v1.VolumeMount{Name: "e", MountPath: "/not", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyDisabled)})
	r := p.request(s, pod.Sandbox{IPs: []string{"10.0.0.1"}})
	r.Place.Users = &pod.Users{HostID: 65536, Length: 65536}
	got, err := p.Volumes.Mounts(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	dir := p.instance(1) + "/volumes/kubernetes.io~"
	claim := p.root + "/volumes/default/data/data"
	want := []pod.Mount{
		{HostPath: dir + "empty-dir/e", ContainerPath: "/e", Relabel: true},
		{HostPath: dir + "empty-dir/m", ContainerPath: "/m", Relabel: true},
		{HostPath: "/", ContainerPath: "/h"},
		{HostPath: dir + "configmap/cm", ContainerPath: "/cm", ReadOnly: true, Relabel: true},
		{HostPath: dir + "secret/sec", ContainerPath: "/sec", ReadOnly: true, Relabel: true},
		{HostPath: dir + "downward-api/d", ContainerPath: "/d", ReadOnly: true, Relabel: true},
		{HostPath: dir + "projected/p", ContainerPath: "/p", ReadOnly: true, Relabel: true},
		{Image: "x:1", ContainerPath: "/i", ReadOnly: true},
		{HostPath: claim, ContainerPath: "/cl", Relabel: true},
		{HostPath: claim, ContainerPath: "/cr", ReadOnly: true},
		{HostPath: dir + "empty-dir/e", ContainerPath: "/rro", Relabel: true, ReadOnly: true, RecursiveReadOnly: true},
		{HostPath: dir + "empty-dir/e", ContainerPath: "/may", Relabel: true, ReadOnly: true, RecursiveReadOnly: true},
		{HostPath: dir + "empty-dir/e", ContainerPath: "/not", Relabel: true, ReadOnly: true},
		{HostPath: p.instance(1) + "/etc-hosts", ContainerPath: "/etc/hosts", Relabel: true},
	}
	for i := range want {
		want[i].Users = r.Place.Users
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Shows: C-1.37.8
func TestC_1_37_8_RecursiveReadOnlyThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, supported := range []bool{true, false} {
		p := newPlace(t)
		c := p.config()
		c.RecursiveReadOnly = func(*string) bool { return supported }
		p.Volumes = volume.New(c)
		s := withUID(spec(empty("e")), uid)
		p.setUp(t, s, 1)
		for _, m := range []v1.VolumeMount{
			{RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
			{RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
			{RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled), ReadOnly: true, MountPropagation: ptr.To(v1.MountPropagationHostToContainer)},
			{RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible), ReadOnly: true, MountPropagation: ptr.To(v1.MountPropagationBidirectional)},
			{RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyMode("Maybe")), ReadOnly: true},
		} {
			m.Name, m.MountPath = "e", "/e"
			s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{m}
			if got, err := p.Mounts(t.Context(), s, 1, "c"); err == nil {
				t.Errorf("%s: %+v", *m.RecursiveReadOnly, got)
			}
		}
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "e", MountPath: "/e", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)}}
		if got, err := p.Mounts(t.Context(), s, 1, "c"); err != nil || got[0].RecursiveReadOnly != supported {
			t.Errorf("IfPossible, supported %t: %+v %v", supported, got, err)
		}
	}
}
