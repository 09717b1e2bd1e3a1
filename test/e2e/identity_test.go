package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// proc returns a line of /proc/PID/status, its fields separated by single spaces.
func (r running) proc(field string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return "no " + field
}

// namespace returns the ID of a process's namespace: "pid", "ipc", "uts", "user".
func namespace(pid any, kind string) string {
	link, err := os.Readlink(fmt.Sprintf("/proc/%v/ns/%s", pid, kind))
	if err != nil {
		return err.Error()
	}
	return link
}

// Default capabilities of containerd.
const usualCaps = "00000000a80425fb"

// TestC_1_39_SecurityContext: the user and the rights of a container's process, as the kernel
// shows them.
//
// Shows: C-1.39
func TestC_1_39_SecurityContext(t *testing.T) {
	s := parallelStage(t)
	of := func(name, context string) string {
		return container(name, "forever", "securityContext: {"+context+"}")
	}
	s.write("web.yaml", manifest("web", []string{
		container("plain", "forever"),
		of("root", "runAsUser: 0, runAsGroup: 0"),
		of("none", "capabilities: {drop: [ALL]}, runAsUser: 0"),
		of("some", "capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}, runAsUser: 0"),
		of("tight", "allowPrivilegeEscalation: false, readOnlyRootFilesystem: true"),
		of("loose", "seccompProfile: {type: Unconfined}"),
		of("all", "privileged: true, runAsUser: 0"),
	}, "securityContext: {runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000, supplementalGroups: [4000, 5000]}"))
	s.serve()
	now := s.awaitRunning("web", "plain", "root", "none", "some", "tight", "loose", "all")
	for name := range now { // before that, a process may still be the runtime's
		s.awaitLog("web", name, 0, "started")
	}
	everything := running{pid: os.Getpid()}.proc("CapBnd")
	for _, c := range []struct{ container, field, want string }{
		{"plain", "Uid", "1000 1000 1000 1000"},
		{"plain", "Gid", "2000 2000 2000 2000"},
		{"plain", "Groups", "2000 3000 4000 5000"},
		{"plain", "CapEff", "0000000000000000"},
		{"plain", "CapBnd", usualCaps},
		{"plain", "NoNewPrivs", "0"},
		{"plain", "Seccomp", "2"},
		{"root", "Uid", "0 0 0 0"},
		{"root", "Gid", "0 0 0 0"},
		{"root", "CapEff", usualCaps},
		{"root", "Seccomp", "2"},
		{"none", "CapEff", "0000000000000000"},
		{"none", "CapBnd", "0000000000000000"},
		{"some", "CapEff", "0000000000000400"},
		{"tight", "NoNewPrivs", "1"},
		{"tight", "Seccomp", "2"},
		{"loose", "Seccomp", "0"},
		{"all", "Seccomp", "0"},
		{"all", "CapEff", everything},
	} {
		if got := now[c.container].proc(c.field); got != c.want {
			t.Errorf("%s: %s is %s, want %s", c.container, c.field, got, c.want)
		}
	}
	for name, want := range map[string]error{"tight": unix.EROFS, "plain": nil} {
		if err := os.WriteFile(now[name].inside("/new"), nil, 0o600); !errors.Is(err, want) {
			t.Errorf("%s: writing to its root: %v, want %v", name, err, want)
		}
	}
	// A masked path has an empty file or directory mounted over it.
	for name, masked := range map[string]bool{"plain": true, "all": false} {
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", now[name].pid))
		s.must(err)
		if got := strings.Contains(string(mounts), " /proc/keys "); got != masked {
			t.Errorf("%s: /proc is masked: %v, want %v", name, got, masked)
		}
	}
}

// TestC_1_39_FailsClosed: a container never runs if its profile is missing, if its user would
// be root despite runAsNonRoot, or if its runtime class is unknown. Its status says why. With
// its profile it starts.
//
// Shows: C-1.39
func TestC_1_39_FailsClosed(t *testing.T) {
	s := parallelStage(t)
	s.write("profile.yaml", manifest("profile", []string{
		container("main", "forever", "securityContext: {seccompProfile: {type: Localhost, localhostProfile: tight.json}}")}))
	s.write("root.yaml", manifest("root", []string{container("main", "forever")}, "securityContext: {runAsNonRoot: true}"))
	s.write("class.yaml", manifest("class", []string{container("main", "forever")}, "runtimeClassName: nowhere"))
	s.excuse("root", "class")
	s.serve()
	for name, words := range map[string][]string{
		"profile": {"CreateContainerConfigError", "tight.json"},
		"root":    {"CreateContainerConfigError", "runAsNonRoot", "root"},
		"class":   {"nowhere", "runc"},
	} {
		s.awaitStatus(name, strings.Join(words, " … "), func(st v1.PodStatus) bool { return holds(describe(st), words) && !ready(st) })
		if n := len(s.containers(name)); n != 0 {
			t.Errorf("pod %s has %d containers", name, n)
		}
	}
	dir := filepath.Join(s.root, "seccomp")
	s.must(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "tight.json"), []byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO"}]}`), 0o600))
	main := s.awaitRunning("profile", "main")["main"]
	s.awaitLog("profile", "main", 0, "started")
	if got := main.proc("Seccomp"); got != "2" {
		t.Errorf("with its profile the seccomp mode is %s", got)
	}
	for _, l := range s.lives.of(s.name) {
		if l.pod != s.full("profile") || l.id != main.id {
			t.Errorf("%s lived", l)
		}
	}
}

// TestC_1_42_OwnUsers: a pod with hostUsers: false is root in its own user namespace, and
// owns its volumes there; two pods share no user. If the runtime does not support that, the
// pod does not run, and its status says so.
//
// Shows: C-1.42
func TestC_1_42_OwnUsers(t *testing.T) {
	s := parallelStage(t)
	r, err := s.node.Runtime.Status(s.Context(), &cri.StatusRequest{})
	s.must(err)
	able := false
	for _, h := range r.RuntimeHandlers {
		able = able || h.Name == "" && h.Features.GetUserNamespaces()
	}
	names := []string{"one", "two"}
	for _, name := range names {
		s.write(name+".yaml", documents(configMap("c-"+name, "k", "v"), manifest(name, []string{
			container("main", "write, /d/mine, x, forever", "volumeMounts: [{name: d, mountPath: /d}, {name: c, mountPath: /c}]", "securityContext: {procMount: Unmasked}"),
		}, "hostUsers: false", "volumes: [{name: d, emptyDir: {}}, {name: c, configMap: {name: c-"+name+"}}]")))
	}
	s.serve()
	if !able {
		s.excuse(names...)
		for _, name := range names {
			s.awaitStatus(name, "refused", func(st v1.PodStatus) bool { return strings.Contains(describe(st), "user namespaces") })
			if n := len(s.containers(name)); n != 0 {
				t.Errorf("pod %s has %d containers", name, n)
			}
		}
		return
	}
	first := make(map[string]bool)
	for _, name := range names {
		main := s.awaitRunning(name, "main")["main"]
		s.awaitLog(name, "main", 0, "started")
		if got := namespace(main.pid, "user"); got == namespace("self", "user") {
			t.Errorf("%s has the node's users", name)
		}
		for _, file := range []string{"uid_map", "gid_map"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", main.pid, file))
			f := strings.Fields(string(text))
			if err != nil || len(f) != 3 || f[0] != "0" || f[2] != "65536" || len(f[1]) < 5 {
				t.Errorf("%s: %s is %q, %v", name, file, text, err)
			}
			if file == "uid_map" && first[f[1]] {
				t.Errorf("two pods have the users from %s on", f[1])
			}
			first[f[1]] = true
		}
		s.eventually(func() error {
			_, err := os.Stat(main.inside("/d/mine"))
			return err
		})
		found, _ := filepath.Glob(filepath.Join(s.root, "pods", s.uid(name), "*/volumes/kubernetes.io~empty-dir/d/mine"))
		var st unix.Stat_t
		if len(found) != 1 || unix.Stat(found[0], &st) != nil || st.Uid != 0 {
			t.Errorf("%s: on the node its file is of user %d: %v", name, st.Uid, found)
		}
		if got := main.entry("/c/k"); !strings.HasSuffix(got, " v") {
			t.Errorf("%s: its ConfigMap is %q", name, got)
		}
		if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", main.pid)); err != nil || strings.Contains(string(mounts), " /proc/keys ") {
			t.Errorf("%s: procMount Unmasked is masked (%v)", name, err)
		}
	}
	for _, name := range names {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
	s.nothingLeft()
}
