package volume

import (
	"slices"
	"testing"
	"testing/fstest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestFileLabel_PolicyOfTheMachine_IsRead(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const contexts = "etc/selinux/targeted/contexts/lxc_contexts"
	for name, c := range map[string]struct {
		root fstest.MapFS
		want string
	}{
		"Fedora": {fstest.MapFS{
			"etc/selinux/config": file("# SELINUXTYPE= names the policy\nSELINUX=enforcing\nSELINUXTYPE=targeted\n"),
			contexts:             file("process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n"),
		}, "system_u:object_r:container_file_t:s0"},
		"no SELinux":   {fstest.MapFS{}, ""},
		"no contexts":  {fstest.MapFS{"etc/selinux/config": file("SELINUXTYPE=targeted\n")}, ""},
		"no label":     {fstest.MapFS{"etc/selinux/config": file("SELINUXTYPE=targeted\n"), contexts: file("file = x\n")}, ""},
		"another path": {fstest.MapFS{"etc/selinux/config": file("SELINUXTYPE=../targeted\n"), contexts: file("file = \"a:b:c:s0\"\n")}, ""},
	} {
		if got := FileLabel(c.root); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestFileLabels_ContainersOfAPod_ShareOneLabelOrNone(t *testing.T) {
	level := func(level, user string) *v1.SecurityContext {
		return &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level, User: user, Type: "spc_t", Role: "r"}}
	}
	const byDefault = "system_u:object_r:container_file_t:s0"
	for name, c := range map[string]struct {
		ofPod   string // the level of the pod
		first   *v1.SecurityContext
		second  *v1.SecurityContext
		change  v1.PodSELinuxChangePolicy
		without string // "": the default label
		want    []string
	}{
		"of the pod":        {ofPod: "s0:c1,c2", want: []string{"system_u:object_r:container_file_t:s0:c1,c2"}},
		"of the containers": {first: level("s0:c3", "u"), second: level("s0:c3", "u"), want: []string{"u:object_r:container_file_t:s0:c3"}},
		"two labels":        {ofPod: "s0:c1", second: level("s0:c4", ""), want: []string{"system_u:object_r:container_file_t:s0:c1", "system_u:object_r:container_file_t:s0:c4"}},
		"no level":          {},
		"one has no level":  {first: level("s0:c1", "")},
		"recursive":         {ofPod: "s0:c1", change: v1.SELinuxChangePolicyRecursive},
		"mount option":      {ofPod: "s0:c1", change: v1.SELinuxChangePolicyMountOption, want: []string{"system_u:object_r:container_file_t:s0:c1"}},
		"quotes":            {ofPod: `s0",suid,x="`},
		"a space":           {ofPod: "s0", first: level("s0", "a b")},
		"no policy":         {ofPod: "s0:c1", without: "-"},
	} {
		p := &v1.Pod{}
		p.Spec.SecurityContext = &v1.PodSecurityContext{}
		if c.ofPod != "" {
			p.Spec.SecurityContext.SELinuxOptions = &v1.SELinuxOptions{Level: c.ofPod}
		}
		if c.change != "" {
			p.Spec.SecurityContext.SELinuxChangePolicy = ptr.To(c.change)
		}
		mounts := []v1.VolumeMount{{Name: "v"}}
		p.Spec.InitContainers = []v1.Container{{VolumeMounts: mounts, SecurityContext: c.first}}
		p.Spec.Containers = []v1.Container{{VolumeMounts: mounts, SecurityContext: c.second}, {SecurityContext: level("s0:c9", "")}}
		label := byDefault
		if c.without != "" {
			label = ""
		}
		if got := fileLabels(label, p, "v"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
