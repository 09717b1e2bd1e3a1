package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodectl/nodectl/test/said"
)

// Shows: D1
func TestListen_NewSocket_IsOnlyForItsOwner(t *testing.T) {
	t.Parallel()
	dir := root(t)
	socket := filepath.Join(dir, "nodectl.sock")
	_, stop := started(t, testConfig(socket))
	info, err := os.Lstat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("beside the socket: %v, %v", left, err)
	}
	stop()
	if left, err = os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("afterwards: %v, %v", left, err)
	}
}

func TestListen_StaleSocket_IsReplaced(t *testing.T) {
	t.Parallel()
	dir := root(t)
	socket := filepath.Join(dir, "nodectl.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false) // as after kill -9
	_ = dead.Close()
	if err := os.Mkdir(filepath.Join(dir, ".socket-1"), 0o700); err != nil { // as after kill -9 in listen
		t.Fatal(err)
	}
	web, stop := started(t, testConfig(socket))
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/pods", ""); code != http.StatusOK {
		t.Errorf("%d", code)
	}
	stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("afterwards: %v, %v", left, err)
	}
}

// Shows: D1
func TestListen_SocketInUse_IsKept(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	web, _ := started(t, testConfig(socket))
	var inUse *InUseError
	if err := New(testConfig(socket)).Serve(t.Context()); !errors.As(err, &inUse) {
		t.Errorf("a second one: %v", err)
	}
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/pods", ""); code != http.StatusOK {
		t.Errorf("the first one: %d", code)
	}
}

func TestListen_PathIsNoSocket_IsKept(t *testing.T) {
	t.Parallel()
	dir := root(t)
	for name, make := range map[string]func(string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink(filepath.Join(dir, "elsewhere"), path) },
		"fifo":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := New(testConfig(path)).Serve(t.Context()); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: it is another one now: %v", name, err)
		}
	}
	if err := New(testConfig(filepath.Join(dir, "missing", "nodectl.sock"))).Serve(t.Context()); err == nil {
		t.Error("a directory that is not there is no error")
	}
}

// TestRemove_PathReplaced_IsKept: remove keeps a file that another process put at the path.
func TestRemove_PathReplaced_IsKept(t *testing.T) {
	t.Parallel()
	dir := root(t)
	socket := filepath.Join(dir, "nodectl.sock")
	_, stop := started(t, testConfig(socket))
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(socket, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := os.Lstat(socket); err != nil {
		t.Error(err)
	}
}

func TestListen_LongRootDirectory_SocketIsServed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(root(t), strings.Repeat("d", 100), strings.Repeat("e", 100))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	web, _ := started(t, testConfig(filepath.Join(dir, "nodectl.sock")))
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/pods", ""); code != http.StatusOK {
		t.Errorf("%d", code)
	}
}

func TestAllowedProcess_RootAndOwnUser_AreAllowed(t *testing.T) {
	t.Parallel()
	me := uint32(os.Geteuid())
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for name, c := range map[string]struct {
		ctx  context.Context
		want bool
	}{
		"root":                   {context.WithValue(t.Context(), processKey{}, process{uid: 0}), true},
		"the agent's own user":   {context.WithValue(t.Context(), processKey{}, process{uid: me}), true},
		"another user":           {context.WithValue(t.Context(), processKey{}, process{uid: me + 1}), false},
		"UID 65534, by overflow": {context.WithValue(t.Context(), processKey{}, process{uid: 65534}), me == 65534},
		"the kernel says no":     {context.WithValue(t.Context(), processKey{}, process{err: errors.New("no")}), false},
		"no peer":                {t.Context(), false},
		"not a unix connection":  {withProcess(t.Context(), a), false},
	} {
		if _, got := allowedProcess(c.ctx); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSocket_OtherUser_IsRefused opens the socket to all users, which no agent does, and asks as
// another user. It needs root to become one. Without root it asks as its own user, which
// must succeed.
//
// Shows: D1
func TestSocket_OtherUser_IsRefused(t *testing.T) {
	t.Parallel()
	dir := root(t)
	socket := filepath.Join(dir, "nodectl.sock")
	started(t, testConfig(socket))
	want := http.StatusOK
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestSocket_OtherUser_ChildProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "ASK_SOCKET="+socket)
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o666)); err != nil {
			t.Fatal(err)
		}
		// Only root can enter the directory of the test's binary.
		copied := filepath.Join(dir, "ask")
		data, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(copied, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Dir = copied, dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		want = http.StatusForbidden
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "code="+http.StatusText(want)) {
		t.Errorf("want %s: %v\n%s", http.StatusText(want), err, out)
	}
}

// TestSocket_OtherUser_ChildProcess is the child process of TestSocket_OtherUser_IsRefused.
func TestSocket_OtherUser_ChildProcess(t *testing.T) {
	socket := os.Getenv("ASK_SOCKET")
	if socket == "" {
		return
	}
	code, _, _ := ask(t, client(socket), http.MethodGet, "/v1/pods", "")
	t.Logf("code=%s", http.StatusText(code))
}

// TestListen_DirectoryWritableByOthers_IsRefused: the server makes no socket where another user could
// replace it and receive the requests.
//
// Shows: D1
func TestListen_DirectoryWritableByOthers_IsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("not root: directories of other users are left out")
	}
	for name, c := range map[string]struct {
		above, dir os.FileMode
		owner      int
		fine       bool
	}{
		"ours":                      {0o755, 0o755, 0, true},
		"for everybody":             {0o755, 0o777, 0, false},
		"for everybody, sticky":     {0o755, 0o777 | os.ModeSticky, 0, false},
		"for its group":             {0o755, 0o770, 0, false},
		"above it for everybody":    {0o777, 0o700, 0, false},
		"above it as /tmp is":       {0o777 | os.ModeSticky, 0o700, 0, true},
		"of another user":           {0o755, 0o700, 65534, false},
		"of another user, readable": {0o755, 0o755, 65534, false},
	} {
		above := filepath.Join(root(t), "a")
		dir := filepath.Join(above, "d")
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(above, c.above), os.Chmod(dir, c.dir)); err != nil {
			t.Fatal(err)
		}
		if c.owner != 0 {
			if os.Geteuid() != 0 {
				continue
			}
			if err := os.Chown(dir, c.owner, c.owner); err != nil {
				t.Fatal(err)
			}
		}
		l, err := listen(filepath.Join(dir, "s"))
		if (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			l.remove()
		}
	}
}

// TestServe_SocketFails_TLSIsServed: kubectl reaches a node that could not make its
// local socket.
func TestServe_SocketFails_TLSIsServed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(root(t), "d")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	health, log := freePort(t), new(said.Log)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- New(Config{Socket: filepath.Join(dir, "s"), Health: health, Log: log.Logger()}).Serve(ctx)
	}()
	log.Has(t, 1, "Listening")
	c, err := net.Dial("tcp", health)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%s was made", left[0].Name())
	}
	if err := New(Config{Socket: filepath.Join(dir, "s")}).Serve(t.Context()); err == nil {
		t.Error("no error, and nothing to serve")
	}
}
