package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/arm"
)

// Names under which this program starts itself: as the first process of its namespaces, which reaps
// orphaned processes, and as the harness there.
const (
	insideName = "e2enode-init"
	childName  = "e2enode-inside"
)

// scratchVariable names the directory of the run's files to both.
const scratchVariable = "NODECTL_E2ENODE_SCRATCH"

// A hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	dir     string // where it is mounted
	fs      string // cgroup or cgroup2
	options string // of the mount, as "memory"
	own     string // this process's cgroup in it, as a path on the machine
}

// enter runs the harness for an agent in new namespaces: mounts, network, processes, cgroups.
// All that runs there ends before it returns.
func enter(ctx context.Context, agent string, o *options) (err error) {
	// A kubelet changes settings of the whole machine: a second run would take these for the
	// machine's own, and restore them.
	only, err := net.Listen("unix", "@nodectl-test-e2enode") // the name goes with the process
	if err != nil {
		return fmt.Errorf("another run is under way: %w", err)
	}
	defer only.Close()
	scratch, err := os.MkdirTemp("", "e2enode-")
	if err != nil {
		return err
	}
	settings := arm.ReadSettings()
	defer func() { err = errors.Join(err, settings.Restore(), removeAll(scratch)) }()
	all, err := hierarchies()
	if err != nil {
		return err
	}
	// A cgroup namespace begins at the cgroups of the process that makes it.
	group := filepath.Base(scratch)
	for _, h := range all {
		if err := h.enter(group); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.leave(group)) }()
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"-agent", agent, "-focus", o.focus, "-skip", o.skip, "-class", o.class, "-shard", o.shard,
		"-cases", o.cases, "-parallel", fmt.Sprint(o.parallel), "-results", o.results, "-logs", o.logs, "-again", o.again, "-limit", o.limit.String()}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = insideName
	cmd.Env = append(os.Environ(), scratchVariable+"="+scratch)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", agent, err)
	}
	return ctx.Err()
}

// removeAll removes a directory whose mounts may be a moment from gone.
func removeAll(dir string) error {
	return arm.Until(context.Background(), 20*time.Second, 100*time.Millisecond, func() (bool, error) {
		err := os.RemoveAll(dir)
		return err == nil, err
	})
}

// hierarchies returns the mounted cgroup hierarchies.
func hierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[2], "cgroup") {
			continue
		}
		h := hierarchy{dir: f[1], fs: f[2]}
		var own []string
		for option := range strings.SplitSeq(f[3], ",") {
			switch {
			case strings.HasPrefix(option, "name="):
				own = append(own, "none", option)
			case h.fs == "cgroup" && option != "rw" && option != "relatime" && !strings.HasPrefix(option, "no") && option != "xattr" && option != "clone_children":
				own = append(own, option)
			}
		}
		h.options = strings.Join(own, ",")
		h.own = filepath.Join(h.dir, ownGroup(string(groups), strings.TrimPrefix(h.options, "none,")))
		all = append(all, h)
	}
	return all, nil
}

// ownGroup returns the path of a hierarchy in the text of /proc/self/cgroup; "" is cgroup v2.
func ownGroup(text, controllers string) string {
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		f := strings.SplitN(s.Text(), ":", 3)
		if len(f) == 3 && f[1] == controllers {
			return f[2]
		}
	}
	return "/"
}

// enter moves this process to a new cgroup below its own.
func (h hierarchy) enter(name string) error {
	dir := filepath.Join(h.own, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if h.options == "cpuset" { // a new one has neither, and takes no process without
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(h.own, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), text, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644)
}

// leave moves this process back and removes the cgroup.
func (h hierarchy) leave(name string) error {
	if err := os.WriteFile(filepath.Join(h.own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return err
	}
	dir := filepath.Join(h.own, name)
	return arm.Until(context.Background(), 20*time.Second, 100*time.Millisecond, func() (bool, error) {
		err := removeGroups(dir)
		return err == nil, err
	})
}

func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

// initMain is the first process of the namespaces: it sets them up, starts the harness and
// reaps every process until that ends.
func initMain() int {
	scratch := os.Getenv(scratchVariable)
	all, err := hierarchies()
	if err == nil {
		err = errors.Join(mountAll(scratch, all), network(), syscall.Sethostname([]byte(nodeName)))
	}
	var exe string
	if err == nil {
		exe, err = os.Executable()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: set up the namespaces:", err)
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	child, err := os.StartProcess(exe, append([]string{childName}, os.Args[1:]...), &os.ProcAttr{Files: []*os.File{nil, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = child.Signal(s) // it may have ended
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			fmt.Fprintln(os.Stderr, "error: wait:", err)
			return 1
		}
		if pid == child.Pid {
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		}
	}
}

// mountAll gives the namespace its own /proc, /sys, /run, /var/lib and /var/log, and a copy of /etc.
func mountAll(scratch string, all []hierarchy) error {
	// Nothing that is mounted from here on reaches the machine; below it, mounts propagate as
	// systemd sets them up.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	mount := func(source, target, fs string, flags uintptr, options string) error {
		if err := unix.Mount(source, target, fs, flags, options); err != nil {
			return fmt.Errorf("mount %s on %s (%s): %w", source, target, options, err)
		}
		return nil
	}
	err := errors.Join(mount("proc", "/proc", "proc", 0, ""), mount("sysfs", "/sys", "sysfs", 0, ""), mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
	for _, dir := range []string{"/var/lib", "/var/log", "/etc"} {
		own := filepath.Join(scratch, dir)
		err = errors.Join(err, os.MkdirAll(own, 0o755))
		if dir == "/etc" {
			err = errors.Join(err, copyAll(dir, own))
		}
		err = errors.Join(err, mount(own, dir, "", unix.MS_BIND, ""))
	}
	if len(all) > 1 {
		err = errors.Join(err, mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755"))
	}
	for _, h := range all {
		if len(all) > 1 {
			err = errors.Join(err, os.MkdirAll(h.dir, 0o755))
		}
		err = errors.Join(err, mount(h.fs, h.dir, h.fs, 0, h.options))
	}
	return errors.Join(err, mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
}

// copyAll copies a directory, with owners and links.
func copyAll(from, to string) error {
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// The node's address, and the router that its default route names and that does not exist.
const (
	address = "198.19.255.1"
	router  = "198.19.255.254"
)

// network makes a device with the node's address.
func network() error {
	for _, args := range []string{
		"link set lo up", "link add e2e0 type veth peer name e2e1", "addr add " + address + "/24 dev e2e0",
		"link set e2e0 up", "link set e2e1 up", "route add default via " + router,
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return nil
}
