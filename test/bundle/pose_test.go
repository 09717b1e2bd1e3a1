package bundle_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// poseEnv makes this test's program a process that looks like the bundled runtime:
// "enter" pivots into poseRoot and executes posePath, "stay" waits for the end of its input.
const (
	poseEnv  = "NDB_POSE"
	poseRoot = "NDB_POSE_ROOT"
	posePath = "NDB_POSE_PATH"
)

func init() {
	switch os.Getenv(poseEnv) {
	case "enter":
		if err := enter(os.Getenv(poseRoot), os.Getenv(posePath)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "stay":
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
}

// enter makes root the root of this mount namespace, as a container's runtime does, and
// executes path in it.
func enter(root, path string) error {
	if root != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", root, err)
		}
		if err := unix.Chdir(root); err != nil {
			return err
		}
		if err := unix.PivotRoot(".", "."); err != nil {
			return fmt.Errorf("pivot root: %w", err)
		}
		if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
			return err
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
	}
	return syscall.Exec(path, os.Args, []string{poseEnv + "=stay"})
}

// A pose is a process that imitates a part of the runtime.
type pose struct {
	path  string   // the program's path, in root
	root  string   // "" is the machine's
	flags uintptr  // new namespaces
	args  []string // its argument list
}

// strike starts the process and ends it with the test.
func (p pose) strike(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = p.args
	cmd.Env = []string{poseEnv + "=enter", poseRoot + "=" + p.root, posePath + "=" + p.path}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: p.flags, Setsid: true}
	if p.flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // it may have been killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("the process that poses says %q, %v", line, err)
	}
	return cmd.Process.Pid
}

// plant copies this test's program to a path, or another text.
func plant(t *testing.T, path, text string) {
	t.Helper()
	content := []byte(text)
	if text == "" {
		var err error
		if content, err = os.ReadFile("/proc/self/exe"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

const bundleID = "0123456789abcdef"

// posed returns a runtime that was never started, the directory of an unpacked bundle
// whose programs are this test's, and the argument lists of its containerd and a shim.
func posed(t *testing.T) (r *bundle.Runtime, dir string, containerd, shim []string) {
	t.Helper()
	root := t.TempDir()
	run, err := os.MkdirTemp("/tmp", "ndb-") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	dir = filepath.Join(root, "bundle", bundleID)
	plant(t, filepath.Join(dir, "containerd"), "")
	plant(t, filepath.Join(dir, "containerd-shim-runc-v2"), "")
	// Stop has nothing to do for a root directory that no runtime was started in.
	if err := os.Mkdir(filepath.Join(root, "runtime"), 0o700); err != nil {
		t.Fatal(err)
	}
	r = bundle.New(bundle.Config{RootDir: root, RunDir: run})
	return r, dir,
		[]string{"containerd", "--config", filepath.Join(run, "config.toml")},
		[]string{"containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "one", "-address", filepath.Join(run, "containerd.sock")}
}

// A container that runs as host uid 0 executes a program with the runtime's name and
// arguments, or the runtime's very file from a hostPath volume. It is no part of the
// runtime. The same program in the agent's namespaces is, also from an older bundle.
//
// Shows: I1, D1
func TestRuntime_ProcessOfAContainer_IsNotTheRuntime(t *testing.T) {
	const container = unix.CLONE_NEWNS | unix.CLONE_NEWPID
	for name, c := range map[string]struct {
		flags uintptr
		pivot bool // into a root with the bundle's paths
		real  bool // the program is the bundle's own file
		away  bool // the program is a copy at another path
		ours  bool
	}{
		"own file, own root":                    {flags: container, pivot: true},
		"own file, own root, the host's PIDs":   {flags: unix.CLONE_NEWNS, pivot: true},
		"own file at another path":              {away: true},
		"own file at another path, own mounts":  {away: true, flags: container},
		"the bundle's file, own namespaces":     {real: true, flags: container},
		"the bundle's file, the host's PIDs":    {real: true, flags: unix.CLONE_NEWNS},
		"the bundle's file, own PIDs":           {real: true, flags: unix.CLONE_NEWPID},
		"the bundle's file, own user namespace": {real: true, flags: unix.CLONE_NEWUSER},
		"the bundle's file, the agent's":        {real: true, ours: true},
	} {
		for _, program := range []string{"containerd", "containerd-shim-runc-v2"} {
			t.Run(name+"/"+program, func(t *testing.T) {
				r, dir, containerd, shim := posed(t)
				record(t, r, "/proc/self/ns/mnt")
				p := pose{path: filepath.Join(dir, program), flags: c.flags, args: containerd}
				if program != "containerd" {
					p.args = shim
				}
				if c.pivot {
					p.root = t.TempDir()
					plant(t, filepath.Join(p.root, p.path), "")
				}
				if c.away {
					p.path = filepath.Join(t.TempDir(), program)
					plant(t, p.path, "")
				}
				pid := p.strike(t)
				if got := r.Running(); got != c.ours {
					t.Errorf("process %d is taken for the runtime: %v, want %v", pid, got, c.ours)
				}
				s := status(t, r)
				if s.Running && s.PID != pid || s.Running != (c.ours && program == "containerd") || (s.Pods == 1) != (c.ours && program != "containerd") {
					t.Errorf("with process %d the status is %+v, want it to count: %v", pid, s, c.ours)
				}
			})
		}
	}
}

// The runtime's file runs in another mount namespace than the agent's. The record of the
// launch decides. Without one it may be the runtime of an older nodectl: the agent neither
// uses it nor starts a second one, and Stop ends nothing.
//
// Shows: I1, D1
func TestRuntime_OtherMountNamespace_TheRecordDecides(t *testing.T) {
	r, dir, containerd, _ := posed(t)
	pid := pose{path: filepath.Join(dir, "containerd"), flags: unix.CLONE_NEWNS, args: containerd}.strike(t)
	if !r.Running() {
		t.Error("without a record, a runtime in another mount namespace counts as none")
	}
	for what, do := range map[string]func() error{
		"Ensure": func() error { _, err := r.Ensure(t.Context()); return err },
		"Stop":   func() error { return r.Stop(t.Context(), true) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", pid)) {
			t.Errorf("%s without a record: %v, want an error with process %d", what, err, pid)
		}
	}
	record(t, r, fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if s := status(t, r); s.PID != pid || s.Digest != bundleID {
		t.Errorf("with its mount namespace recorded, the status is %+v, want process %d", s, pid)
	}
	record(t, r, "/proc/self/ns/mnt")
	if r.Running() {
		t.Error("with another mount namespace recorded, it counts as the runtime")
	}
}

// The runtime's own program is removed or replaced while it runs. It stays the runtime.
//
// Shows: I1, D1
func TestRuntime_ProgramRemoved_IsStillTheRuntime(t *testing.T) {
	r, dir, containerd, _ := posed(t)
	pid := pose{path: filepath.Join(dir, "containerd"), args: containerd}.strike(t)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if s := status(t, r); s.PID != pid {
		t.Errorf("the status is %+v, want process %d", s, pid)
	}
}

// A process that poses as the shim of a pod lies in a directory with a program called
// containerd. "runtime stop --force" ends pods by the containerd that started them, and
// must not execute that file.
//
// Shows: I1, D1
func TestStop_ProcessPosesAsShim_ItsProgramsAreNotExecuted(t *testing.T) {
	t.Parallel()
	r, _ := fresh(t, "p")
	if _, err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := status(t, r)
	dir := t.TempDir()
	mark := filepath.Join(dir, "executed")
	plant(t, filepath.Join(dir, "containerd"), "#!/bin/sh\necho \"$@\" > "+mark+"\n")
	plant(t, filepath.Join(dir, "containerd-shim-runc-v2"), "")
	manifest, err := os.ReadFile(filepath.Join(filepath.Dir(programs(t)), "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	plant(t, filepath.Join(dir, "manifest.json"), string(manifest))
	p := pose{
		path: filepath.Join(dir, "containerd-shim-runc-v2"), flags: unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		args: []string{"containerd-shim-runc-v2", "-id", "one", "-address", filepath.Join(s.RunDir, "containerd.sock")},
	}
	pid := p.strike(t)
	kill(t, r)
	if err := r.Stop(t.Context(), true); err != nil {
		t.Error(err)
	}
	if said, err := os.ReadFile(mark); err == nil {
		t.Errorf("Stop executed the program of process %d with the arguments %s", pid, said)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe == "" { // a zombie has none
		t.Errorf("Stop ended process %d, which is no part of the runtime", pid)
	}
}

// Containerd dies while a process poses as it. The agent starts containerd again.
//
// Shows: F21, I1, D1
func TestEnsure_ProcessPosesAsContainerd_DeadRuntimeIsStarted(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "q")
	if _, err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := status(t, r)
	root := t.TempDir()
	path := filepath.Join(cfg.RootDir, "bundle", s.Digest, "containerd")
	plant(t, filepath.Join(root, path), "")
	p := pose{
		path: path, root: root, flags: unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		args: []string{path, "--config", filepath.Join(s.RunDir, "config.toml")},
	}
	pid := p.strike(t)
	if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error {
		if now := status(t, bundle.New(cfg)); now.PID == s.PID {
			return fmt.Errorf("containerd %d is still there", s.PID)
		}
		return nil
	})
	if started, err := bundle.New(cfg).Ensure(t.Context()); err != nil || !started {
		t.Fatalf("Ensure beside process %d: %v, %v; want a new containerd", pid, started, err)
	}
	if now := status(t, r); !now.Ready || now.PID == pid {
		t.Errorf("the runtime is %+v; process %d poses", now, pid)
	}
}

// A containerd that answers on the runtime's socket and is not recognised may be the
// runtime. The agent starts no second one, and says which process it is.
//
// Shows: I1, D1
func TestEnsure_UnknownProcessListens_StartsNoSecond(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "r")
	if _, err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := status(t, r)
	if err := os.Rename(filepath.Join(cfg.RootDir, "bundle"), filepath.Join(cfg.RootDir, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.RunDir, "launched.json")); err != nil {
		t.Fatal(err)
	}
	started, err := bundle.New(cfg).Ensure(t.Context())
	if started || err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", s.PID)) {
		t.Errorf("Ensure beside an unknown process on the socket: %v, %v; want an error with process %d", started, err, s.PID)
	}
	if err := os.RemoveAll(filepath.Join(cfg.RootDir, "bundle")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(cfg.RootDir, "elsewhere"), filepath.Join(cfg.RootDir, "bundle")); err != nil {
		t.Fatal(err)
	}
	if started, err := bundle.New(cfg).Ensure(t.Context()); err != nil || started {
		t.Errorf("Ensure with the bundle back: %v, %v", started, err)
	}
}

// record writes down the mount namespace of file as the one the runtime was started in.
func record(t *testing.T, r *bundle.Runtime, file string) {
	t.Helper()
	namespace, err := os.Readlink(file)
	if err != nil {
		t.Fatal(err)
	}
	plant(t, filepath.Join(filepath.Dir(strings.TrimPrefix(r.Endpoint(), "unix://")), "launched.json"), fmt.Sprintf(`{"mountNamespaces":[%q]}`, namespace))
}

func programs(t *testing.T) string {
	t.Helper()
	dir, err := node.Programs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
