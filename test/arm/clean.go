package arm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// LinksDir is where a kubelet links to container logs; no flag changes it.
const LinksDir = "/var/log/containers"

// MakeCgroup makes a cgroup in every hierarchy: a kubelet needs its own to exist.
func MakeCgroup(group string) error {
	for _, root := range node.CgroupRoots() {
		if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Empty removes a node's pods by remove, and the remains that the agents with the directories
// dir/turn left. An agent may have exited a moment ago while the runtime still removes a pod, so
// Empty retries failures.
func Empty(n *node.Node, dir string, remove func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	_ = wait.Try(func() error { // closing the node reports the remains
		if err = remove(ctx); err != nil {
			return err
		}
		left := 0
		for _, root := range node.CgroupRoots() {
			left += removeBelow(filepath.Join(root, n.CgroupParent))
		}
		if left > 0 {
			return fmt.Errorf("%d cgroups are not empty", left)
		}
		return nil
	})
	turn := filepath.Join(dir, "turn")
	err = errors.Join(err, Unmount(dir), Unlink(n.LogsDir), Unlink(turn), os.RemoveAll(turn))
	logs, _ := filepath.Glob(n.LogsDir + "/*")
	for _, l := range logs {
		err = errors.Join(err, os.RemoveAll(l))
	}
	return err
}

// removeBelow removes the empty cgroups below dir, and returns how many are not empty.
func removeBelow(dir string) int {
	left := 0
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			left += removeBelow(filepath.Join(dir, e.Name()))
			if os.Remove(filepath.Join(dir, e.Name())) != nil {
				left++
			}
		}
	}
	return left
}

// Unmount unmounts everything below a directory: a kubelet mounts its root directory on
// itself.
func Unmount(dir string) error {
	var errs []error
	for _, mount := range slices.Backward(node.Mounts()) {
		if strings.HasPrefix(mount, dir+"/") {
			errs = append(errs, unix.Unmount(mount, unix.MNT_DETACH))
		}
	}
	return errors.Join(errs...)
}

// Unlink removes a kubelet's links to logs below a directory.
func Unlink(dir string) error {
	var errs []error
	links, _ := filepath.Glob(LinksDir + "/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, dir+"/") {
			errs = append(errs, os.Remove(l))
		}
	}
	return errors.Join(errs...)
}

// FreePorts returns n different free TCP ports of an address.
func FreePorts(address string, n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close() // all are open at once, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Settings are those of the whole machine that a kubelet changes when it starts.
type Settings map[string]string

// ReadSettings returns them as they are.
func ReadSettings() Settings {
	s := Settings{}
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		if text, err := os.ReadFile("/proc/sys/" + name); err == nil {
			s[name] = string(text)
		}
	}
	return s
}

// Restore sets them as they were.
func (s Settings) Restore() error {
	var errs []error
	for name, was := range s {
		if now, _ := os.ReadFile("/proc/sys/" + name); string(now) != was {
			errs = append(errs, os.WriteFile("/proc/sys/"+name, []byte(was), 0o644))
		}
	}
	return errors.Join(errs...)
}

// sweep removes remains of killed programs below their nodes' directories that test/node does not
// know: mounts of a kubelet, and its links to logs.
func sweep() {
	dead := func(path string) bool {
		pid, _, ok := strings.Cut(strings.TrimPrefix(path, "/tmp/ndt-"), "-")
		n, err := strconv.Atoi(pid)
		return ok && err == nil && unix.Kill(n, 0) != nil
	}
	for _, mount := range slices.Backward(node.Mounts()) {
		if dead(mount) {
			_ = unix.Unmount(mount, unix.MNT_DETACH) // another process may be sweeping it too
		}
	}
	links, _ := filepath.Glob(LinksDir + "/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && dead(to) {
			_ = os.Remove(l)
		}
	}
}
