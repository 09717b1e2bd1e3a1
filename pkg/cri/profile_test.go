package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// CVE-2023-2431: only the type Unconfined leaves a container unconfined.
//
// Shows: D1
func TestCVE_2023_2431_Seccomp(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.json")
	for _, f := range []string{outside, filepath.Join(dir, "tight.json"), filepath.Join(dir, "more", "tight.json")} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(`{"defaultAction":"SCMP_ACT_ERRNO"}`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"in.json": "tight.json", "out.json": outside, "up.json": "../" + filepath.Base(filepath.Dir(outside)), "gone.json": "nowhere", "loop.json": "loop.json"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "way")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	local := func(path string) *v1.SeccompProfile {
		return &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &path}
	}
	const (
		def, open = runtimeapi.SecurityProfile_RuntimeDefault, runtimeapi.SecurityProfile_Unconfined
		file      = runtimeapi.SecurityProfile_Localhost
	)
	for _, c := range []struct {
		name  string
		s     *v1.SeccompProfile
		kind  runtimeapi.SecurityProfile_ProfileType
		ref   string
		wrong string
	}{
		{name: "none", kind: def},
		{name: "RuntimeDefault", s: &v1.SeccompProfile{Type: "RuntimeDefault"}, kind: def},
		{name: "Unconfined", s: &v1.SeccompProfile{Type: "Unconfined"}, kind: open},
		{name: "a file", s: local("tight.json"), kind: file, ref: dir + "/tight.json"},
		{name: "a file in a directory", s: local("more/tight.json"), kind: file, ref: dir + "/more/tight.json"},
		{name: "a link that stays", s: local("in.json"), kind: file, ref: dir + "/in.json"},
		{name: "an empty profile", s: &v1.SeccompProfile{}, wrong: `unknown type ""`},
		{name: "another case", s: &v1.SeccompProfile{Type: "unconfined"}, wrong: `unknown type "unconfined"`},
		{name: "an old word", s: &v1.SeccompProfile{Type: "docker/default"}, wrong: `unknown type "docker/default"`},
		{name: "Localhost, no name", s: &v1.SeccompProfile{Type: "Localhost"}, wrong: "localhostProfile must be set"},
		{name: "Localhost, an empty name", s: local(""), wrong: "localhostProfile must be set"},
		{name: "a name without Localhost", s: &v1.SeccompProfile{Type: "Unconfined", LocalhostProfile: ptr.To("tight.json")}, wrong: "may only be set if the type is Localhost"},
		{name: "a name without a type", s: &v1.SeccompProfile{LocalhostProfile: ptr.To("tight.json")}, wrong: "may only be set if the type is Localhost"},
		{name: "no such file", s: local("tigth.json"), wrong: "there is no such file in " + dir},
		{name: "the directory", s: local("."), wrong: "not a regular file"},
		{name: "a directory", s: local("more"), wrong: "not a regular file"},
		{name: "a pipe", s: local("pipe.json"), wrong: "not a regular file"},
		{name: "absolute", s: local(dir + "/tight.json"), wrong: "below the directory"},
		{name: "up", s: local("../x"), wrong: "below the directory"},
		{name: "up and down", s: local("more/../../x"), wrong: "below the directory"},
		{name: "a link out", s: local("out.json"), wrong: "escapes"},
		{name: "a link up", s: local("up.json"), wrong: "escapes"},
		{name: "through a link out", s: local("way/outside.json"), wrong: "escapes"},
		{name: "a link to nothing", s: local("gone.json"), wrong: "there is no such file"},
		{name: "a link to itself", s: local("loop.json"), wrong: "too many"},
		{name: "a name that is no name", s: local("a\x00b"), wrong: "invalid"},
	} {
		for _, level := range []string{"container", "pod"} {
			p, con := one()
			if level == "pod" {
				p.Spec.SecurityContext.SeccompProfile = c.s
			} else {
				p.Spec.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
				con.SecurityContext.SeccompProfile = c.s
				if c.s == nil {
					p.Spec.SecurityContext.SeccompProfile = nil
				}
			}
			got, err := (&node{seccompDir: dir}).containerSecurity(p, con, nil, nil)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), "seccompProfile: ") || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%s of the %s: %v, %v; want %q", c.name, level, got.GetSeccomp(), err, c.wrong)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s of the %s: %v", c.name, level, err)
				continue
			}
			same(t, c.name+" of the "+level, &runtimeapi.SecurityProfile{ProfileType: c.kind, LocalhostRef: c.ref}, got.Seccomp)
		}
	}
	for _, n := range []*node{{}, {seccompDir: filepath.Join(dir, "nowhere")}} {
		if got, err := n.seccomp(local("tight.json")); err == nil || !strings.Contains(err.Error(), "the directory for profiles") && !strings.Contains(err.Error(), "no directory for profiles") {
			t.Errorf("without a directory: %v, %v", got, err)
		}
	}
}

func TestAppArmor(t *testing.T) {
	local := func(name string) *v1.AppArmorProfile {
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	const key = "container.apparmor.security.beta.kubernetes.io/"
	def := &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	open := &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	for _, c := range []struct {
		name     string
		own, pod *v1.AppArmorProfile
		notes    map[string]string
		want     *runtimeapi.SecurityProfile
		old      string
		wrong    string
	}{
		{name: "none"},
		{name: "RuntimeDefault", own: def, want: &runtimeapi.SecurityProfile{}, old: "runtime/default"},
		{name: "Unconfined", own: open, want: &runtimeapi.SecurityProfile{ProfileType: 1}, old: "unconfined"},
		{name: "Localhost", own: local("tight"), want: &runtimeapi.SecurityProfile{ProfileType: 2, LocalhostRef: "tight"}, old: "localhost/tight"},
		{name: "the pod's", pod: local("tight"), want: &runtimeapi.SecurityProfile{ProfileType: 2, LocalhostRef: "tight"}, old: "localhost/tight"},
		{name: "its own over the pod's", own: def, pod: open, want: &runtimeapi.SecurityProfile{}, old: "runtime/default"},
		{name: "the annotation's default", notes: map[string]string{key + "app": "runtime/default"}, want: &runtimeapi.SecurityProfile{}, old: "runtime/default"},
		{name: "the annotation's unconfined", notes: map[string]string{key + "app": "unconfined"}, want: &runtimeapi.SecurityProfile{ProfileType: 1}, old: "unconfined"},
		{name: "the annotation's name", notes: map[string]string{key + "app": "localhost/tight"}, want: &runtimeapi.SecurityProfile{ProfileType: 2, LocalhostRef: "tight"}, old: "localhost/tight"},
		{name: "the annotation over the pod's", pod: open, notes: map[string]string{key + "app": "runtime/default"}, want: &runtimeapi.SecurityProfile{}, old: "runtime/default"},
		{name: "its own over the annotation", own: def, notes: map[string]string{key + "app": "unconfined"}, want: &runtimeapi.SecurityProfile{}, old: "runtime/default"},
		{name: "another's annotation", notes: map[string]string{key + "other": "unconfined"}},
		{name: "an empty type", own: &v1.AppArmorProfile{}, wrong: `unknown type ""`},
		{name: "another case", own: &v1.AppArmorProfile{Type: "runtimeDefault"}, wrong: `unknown type "runtimeDefault"`},
		{name: "Localhost, no name", own: &v1.AppArmorProfile{Type: "Localhost"}, wrong: "localhostProfile must be set"},
		{name: "Localhost, an empty name", own: local(""), wrong: "localhostProfile must be set"},
		{name: "Localhost, blanks", pod: local(" \t"), wrong: "localhostProfile must be set"},
		{name: "a name without Localhost", own: &v1.AppArmorProfile{Type: "Unconfined", LocalhostProfile: ptr.To("x")}, wrong: "may only be set if the type is Localhost"},
		{name: "an empty annotation", notes: map[string]string{key + "app": ""}, wrong: `app: unknown profile ""`},
		{name: "an unknown annotation", notes: map[string]string{key + "app": "tight"}, wrong: `app: unknown profile "tight"`},
		{name: "an annotation without a name", notes: map[string]string{key + "app": "localhost/"}, wrong: "localhostProfile must be set"},
	} {
		p, con := one()
		p.Annotations, p.Spec.SecurityContext.AppArmorProfile, con.SecurityContext.AppArmorProfile = c.notes, c.pod, c.own
		got, err := (&node{}).containerSecurity(p, con, nil, nil)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, %v; want %q", c.name, got.GetApparmor(), err, c.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		same(t, c.name, c.want, got.Apparmor)
		if old := got.ApparmorProfile; old != c.old { //nolint:staticcheck // older runtimes read it
			t.Errorf("%s: older runtimes get %q, want %q", c.name, old, c.old)
		}
	}
}
