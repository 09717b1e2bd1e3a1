package cgroup

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestC_1_41_1_Names: the kubelet's names for either driver.
//
// Shows: C-1.41.1
func TestC_1_41_1_Names(t *testing.T) {
	const uid = "6ba7b810-9dad-11d1"
	for _, c := range []struct {
		root    string
		systemd bool
		class   v1.PodQOSClass
		want    string
	}{
		{"/", false, v1.PodQOSGuaranteed, "/kubepods/pod" + uid},
		{"", false, v1.PodQOSBurstable, "/kubepods/burstable/pod" + uid},
		{"/a/b-c/", false, v1.PodQOSBestEffort, "/a/b-c/kubepods/besteffort/pod" + uid},
		{"/a.slice", false, v1.PodQOSGuaranteed, "/a.slice/kubepods/pod" + uid},
		{"/../a", false, v1.PodQOSGuaranteed, "/a/kubepods/pod" + uid},
		{"/", true, v1.PodQOSGuaranteed, "/kubepods.slice/kubepods-pod6ba7b810_9dad_11d1.slice"},
		{"", true, v1.PodQOSBurstable, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6ba7b810_9dad_11d1.slice"},
		{"/a/b-c", true, v1.PodQOSBestEffort, "/a.slice/a-b_c.slice/a-b_c-kubepods.slice/a-b_c-kubepods-besteffort.slice/" +
			"a-b_c-kubepods-besteffort-pod6ba7b810_9dad_11d1.slice"},
		{"/a.slice/a-b.slice", true, v1.PodQOSGuaranteed, "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod6ba7b810_9dad_11d1.slice"},
		{"/-.slice", true, v1.PodQOSGuaranteed, "/kubepods.slice/kubepods-pod6ba7b810_9dad_11d1.slice"},
	} {
		root, err := parseRoot(c.root, c.systemd)
		if err != nil {
			t.Fatal(err)
		}
		tree := &tree{root: root, systemd: c.systemd}
		got := tree.pod(c.class, uid).path(c.systemd)
		want(t, c.root, got, c.want)
		back, ok := uidOf(got[strings.LastIndexByte(got, '/')+1:], c.systemd)
		if !ok || back != uid {
			t.Errorf("%s is read as the cgroup of %q", got, back)
		}
	}
	for _, root := range []string{"/a b", "/a/$x", "/a//..x/", "/-", "/a:b"} {
		if n, err := parseRoot(root, false); err == nil || !strings.Contains(err.Error(), "--cgroup-root "+strings.ReplaceAll(root, "//", "/")[:2]) {
			t.Errorf("%q is %q, %v", root, n, err)
		}
	}
	for _, root := range []string{"/a.slice/b", "/a--b.slice", "/.slice", "/a-.slice"} {
		if n, err := parseRoot(root, true); err == nil {
			t.Errorf("%q is %q", root, n)
		}
	}
}

// TestUIDsThatAreNoNames: a UID comes from outside; one that could lead to another
// directory or another pod is refused.
func TestUIDsThatAreNoNames(t *testing.T) {
	g := cgroupsOf(t)
	for _, uid := range []string{"", ".", "..", "../x", "a/b", "/etc", "a_b", "a b", "a\n", "-a", "a\x00", strings.Repeat("a", 129), "ä", "a.slice/b", "$(x)", "a%"} {
		if _, err := g.Ensure(shape(t, uid, guaranteed)); err == nil || !strings.Contains(err.Error(), "cannot be the name of a cgroup") {
			t.Errorf("put %q: %v", uid, err)
		}
		if err := g.Destroy(uid); err != nil {
			t.Errorf("take %q: %v", uid, err)
		}
	}
	want(t, "made", names(t, g.cfg.Root), []string{})
	for base, systemd := range map[string]bool{
		"pod": false, "poda_b": false, "xpoda": false, "pod..": false, "poda": true, "kubepods-poda": true,
		"kubepods-burstable.slice": true, "kubepods-pod.slice": true, "cri-containerd-12.scope": true,
	} {
		if uid, ok := uidOf(base, systemd); ok {
			t.Errorf("%s is taken for the cgroup of pod %q", base, uid)
		}
	}
}
