package cri_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// node is a runtime over real directories.
type node struct {
	*cri.Runtime
	*testing.T
	rt                *critest.Runtime
	root, logs, links string
}

func newNode(t *testing.T) node {
	dir := t.TempDir()
	n := node{T: t, rt: critest.New(), root: filepath.Join(dir, "root"), logs: filepath.Join(dir, "pods"), links: filepath.Join(dir, "containers")}
	n.Runtime = n.rt.CRI(cri.Config{Node: "n1", RootDir: n.root, PodLogsDir: n.logs + "/", ContainerLogsDir: n.links})
	return n
}

// talkative is a pod whose containers have the default path for a message.
func talkative(policy v1.TerminationMessagePolicy, images ...string) *pod.Spec {
	w := wanted("web", images...)
	for i := range w.Pod.Spec.Containers {
		c := &w.Pod.Spec.Containers[i]
		c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", policy
	}
	return w
}

func (n node) messageFile(container string, attempt int) string {
	return filepath.Join(n.root, "pods", "uid-web", "containers", container, fmt.Sprint(attempt))
}

func (n node) logFile(container string, attempt int) string {
	return filepath.Join(n.logs, "default_web_uid-web", container, fmt.Sprint(attempt)+".log")
}

func (n node) look(want *pod.Spec, name string) pod.Container {
	n.Helper()
	a, err := n.Pod(n.Context(), want.Key)
	if err != nil {
		n.Fatal(err)
	}
	c, ok := a.Containers[name]
	if !ok {
		n.Fatalf("no container %s: %+v", name, a)
	}
	return c
}

func (n node) put(path, text string) {
	n.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
}

// files returns the files below dir, without directories, by path.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Shows: C-1.26.11
func TestC_1_26_11_MessageFileIsForEveryUserBelowClosedDirectories(t *testing.T) {
	n := newNode(t)
	old := syscall.Umask(0o077) // an agent started by hand
	defer syscall.Umask(old)
	want := talkative("", "sleep", "sleep")
	want.Pod.Spec.Containers[1].TerminationMessagePath = ""
	start(t, n.Runtime, want, 3)
	info, err := os.Lstat(n.messageFile("c0", 3))
	if err != nil || info.Mode() != 0o666 || info.Size() != 0 {
		t.Errorf("file %v, %v", info, err)
	}
	if info, err := os.Lstat(filepath.Join(n.root, "pods")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory %v, %v", info, err)
	}
	if got := files(t, n.root); len(got) != 1 {
		t.Errorf("files %v", got)
	}
}

// Shows: C-1.26.11
func TestC_1_26_11_TheMessageIsRead(t *testing.T) {
	long := strings.Repeat("x", 5000) + "end"
	for name, c := range map[string]struct {
		text string
		code int32
		want string
	}{
		"a line":        {"no database\n", 1, "no database\n"},
		"success, too":  {"all is well", 0, "all is well"},
		"none":          {"", 1, ""},
		"the last 4096": {long, 1, long[len(long)-4096:]},
		"no UTF-8":      {"caf\xe9", 1, "caf\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			want := talkative(v1.TerminationMessageReadFile, "sleep")
			start(t, n.Runtime, want, 0)
			n.rt.SetMessage(want.Key, "c0", c.text)
			if got := n.look(want, "c0"); got.Message != "" {
				t.Errorf("while it runs: %q", got.Message)
			}
			n.rt.Exit(want.Key, "c0", c.code)
			if diff := cmp.Diff(c.want, n.look(want, "c0").Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

// Each attempt has a file of its own: the message of the previous one can still be read.
//
// Shows: C-1.26.11
func TestC_1_26_11_EachLifeHasItsOwnMessage(t *testing.T) {
	n := newNode(t)
	want := talkative("", "sleep")
	l := start(t, n.Runtime, want, 0)
	for i, text := range []string{"first", "second"} {
		if i > 0 {
			id := create(t, n.Runtime, want, l.sandbox, "c0", uint32(i))
			if err := n.StartContainer(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		n.rt.SetMessage(want.Key, "c0", text)
		n.rt.Exit(want.Key, "c0", 1)
	}
	a, err := n.Pod(t.Context(), want.Key)
	if err != nil || len(a.Dead) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if now, before := a.Containers["c0"].Message, a.Dead[0].Message; now != "second" || before != "first" {
		t.Errorf("now %q, before %q", now, before)
	}
}

// Shows: C-1.26.11
func TestC_1_26_11_FallbackToLogsOnError(t *testing.T) {
	const log = "2026-01-02T03:04:05.000000006Z stdout F one\n2026-01-02T03:04:05.000000007Z stderr F two\n"
	for name, c := range map[string]struct {
		policy  v1.TerminationMessagePolicy
		message string
		code    int32
		want    string
	}{
		"error, no message":   {v1.TerminationMessageFallbackToLogsOnError, "", 1, "one\ntwo\n"},
		"error, a message":    {v1.TerminationMessageFallbackToLogsOnError, "why", 1, "why"},
		"success":             {v1.TerminationMessageFallbackToLogsOnError, "", 0, ""},
		"another policy":      {v1.TerminationMessageReadFile, "", 1, ""},
		"no policy is a file": {"", "", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			want := talkative(c.policy, "sleep")
			start(t, n.Runtime, want, 0)
			n.put(n.logFile("c0", 0), log)
			n.rt.SetMessage(want.Key, "c0", c.message)
			n.rt.Exit(want.Key, "c0", c.code)
			if got := n.look(want, "c0").Message; got != c.want {
				t.Errorf("message %q, want %q", got, c.want)
			}
		})
	}
}

// Of a large log only the end is read; a log that is a link is not read.
//
// Shows: C-1.26.11
func TestC_1_26_11_LargeLogs(t *testing.T) {
	n := newNode(t)
	want := talkative(v1.TerminationMessageFallbackToLogsOnError, "sleep")
	start(t, n.Runtime, want, 0)
	var log, text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&log, "2026-01-02T03:04:05.678901234Z stdout F line %d\n", i)
		if i >= 20_000-80 {
			fmt.Fprintf(&text, "line %d\n", i)
		}
	}
	n.put(n.logFile("c0", 0), log.String())
	n.rt.Exit(want.Key, "c0", 1)
	if diff := cmp.Diff(text.String(), n.look(want, "c0").Message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	path := n.logFile("c0", 0)
	if err := errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path)); err != nil {
		t.Fatal(err)
	}
	if got := n.look(want, "c0").Message; got != "" {
		t.Errorf("a link was followed: %q", got)
	}
}

// If a container cannot be started, the runtime's message comes first, and then the rest.
//
// Shows: C-1.26.11
func TestC_1_26_11_TheRuntimesMessageComesFirst(t *testing.T) {
	n := newNode(t)
	want := talkative("", "no-such-command")
	box, err := n.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
	if err != nil {
		t.Fatal(err)
	}
	id := create(t, n.Runtime, want, box, "c0", 0)
	if err := n.StartContainer(t.Context(), id); err == nil {
		t.Fatal("it started")
	}
	n.put(n.messageFile("c0", 0), "its own")
	if got := n.look(want, "c0").Message; !strings.HasSuffix(got, "executable file not found in $PATH: its own") {
		t.Errorf("message %q", got)
	}
}

// A link or a pipe in place of the file is not read, nor is another mount there.
//
// Shows: C-1.26.11
func TestC_1_26_11_OnlyOurOwnFileIsOpened(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	exited := func(t *testing.T, mess func(n node, path string) error) string {
		n := newNode(t)
		want := talkative("", "sleep")
		start(t, n.Runtime, want, 0)
		if err := mess(n, n.messageFile("c0", 0)); err != nil {
			t.Fatal(err)
		}
		n.rt.Exit(want.Key, "c0", 1)
		return n.look(want, "c0").Message
	}
	for name, c := range map[string]struct {
		mess func(n node, path string) error
		want string // the suffix of the message
	}{
		"link": {func(_ node, path string) error { return errors.Join(os.Remove(path), os.Symlink(secret, path)) }, "too many levels of symbolic links"},
		"pipe": {func(_ node, path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o666)) }, "is not a regular file"},
		"directory that is a link": {func(_ node, path string) error {
			dir := filepath.Dir(path)
			other := filepath.Join(t.TempDir(), "0")
			return errors.Join(os.RemoveAll(dir), os.WriteFile(other, []byte("secret"), 0o600), os.Symlink(filepath.Dir(other), dir))
		}, "not a directory"},
		"gone": {func(_ node, path string) error { return os.Remove(path) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := exited(t, c.mess)
			if strings.Contains(got, "secret") && !strings.Contains(got, "Error on reading") || !strings.HasSuffix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("message %q, want one that ends with %q", got, c.want)
			}
		})
	}
	t.Run("a volume in its place", func(t *testing.T) {
		n := newNode(t)
		want := talkative("", "sleep")
		box, err := n.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
		if err != nil {
			t.Fatal(err)
		}
		id, err := n.CreateContainer(t.Context(), pod.CreateRequest{
			Want: want, Container: "c0", Sandbox: &pod.Sandbox{ID: box},
			Mounts: []pod.Mount{{HostPath: secret, ContainerPath: "/dev/termination-log"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.StartContainer(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		n.rt.Exit(want.Key, "c0", 1)
		if got := n.look(want, "c0").Message; got != "" {
			t.Errorf("message %q", got)
		}
	})
}

// A UID comes from a manifest: it never leads to another directory.
//
// Shows: C-1.26.11
func TestC_1_26_11_StrangeNamesMakeNoFile(t *testing.T) {
	for _, uid := range []types.UID{"", ".", "..", "../../x", "a/b"} {
		n := newNode(t)
		made, err := n.RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("box"), Instance: 1, Attempt: 0})
		if err != nil {
			t.Fatal(err)
		}
		box := &pod.Sandbox{ID: made}
		before := files(t, filepath.Dir(n.root))
		want := talkative("", "sleep")
		want.Pod.UID = uid
		id, err := n.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: "c0", Sandbox: box})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(n.links, "web_default_c0-"+id+".log")); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, files(t, filepath.Dir(n.root))); diff != "" {
			t.Errorf("UID %q: files (-before +after):\n%s", uid, diff)
		}
	}
}

// On a full disk the container runs without a message file.
//
// Shows: F12
func TestF12_NoMessageFile_ContainerRuns(t *testing.T) {
	n := newNode(t)
	n.put(n.root, "a file where a directory is to be")
	want := talkative("", "sleep")
	start(t, n.Runtime, want, 0)
	n.rt.Exit(want.Key, "c0", 1)
	if c := n.look(want, "c0"); c.State != pod.StateExited || c.Message != "" {
		t.Errorf("%+v", c)
	}
}
