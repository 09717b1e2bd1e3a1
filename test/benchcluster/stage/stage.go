// Package stage is a cluster of one machine for programs that set the real kubelet
// and nodectl beside each other: a whole control plane (test/cluster), a containerd
// (test/node), a network device with an address for both, and an agent that joins.
//
// test/benchcluster measures on it, test/paritycluster records. Both give an agent
// the same flags from here, so that figures and recordings are of the same two.
//
// The one rule: what was started or changed on this machine is gone when a stage is
// closed, also after an error.
package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
)

// A Stage is a control plane and a machine that an agent may make a node of it.
type Stage struct {
	*lab.Lab
	Cluster *cluster.Cluster
	Admin   *rest.RESTClient // of the core group, for somebody who may do everything
	Address string           // of the machine; the API server listens on it too

	bench    *bench
	device   string
	settings map[string]string
}

// Open starts a stage. The caller closes it.
func Open(ctx context.Context) (s *Stage, err error) {
	s = &Stage{settings: readSettings()}
	defer func() {
		if said := recover(); said != nil {
			err = fmt.Errorf("control plane: %v", said)
		}
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Lab, err = lab.Open(ctx); err != nil {
		return s, err
	}
	if s.device, s.Address, err = makeDevice(); err != nil {
		return s, err
	}
	for _, root := range cgroupRoots() { // a kubelet wants its cgroup to be there
		if err := os.MkdirAll(filepath.Join(root, s.Node.CgroupParent), 0o755); err != nil {
			return s, err
		}
	}
	s.bench = &bench{ctx: ctx, dir: s.Dir}
	s.Cluster = cluster.Start(s.bench, cluster.Whole(s.Address))
	s.Admin = s.Cluster.Client(s.bench)
	// What every pod mounts.
	return s, Await(ctx, 30*time.Second, func(ctx context.Context) error {
		return s.Admin.Get().Namespace("default").Resource("configmaps").Name("kube-root-ca.crt").Do(ctx).Error()
	})
}

// Close ends everything, and returns an error when something is left.
func (s *Stage) Close() error {
	var errs []error
	if s.bench != nil {
		s.bench.end()
	}
	if s.Lab != nil {
		errs = append(errs, s.Clean(), s.Lab.Close())
	}
	if s.device != "" {
		if out, err := exec.Command("ip", "link", "del", s.device).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w: %s", s.device, err, out))
		}
	}
	return errors.Join(append(errs, writeSettings(s.settings))...)
}

// Clean removes every pod by CRI, and what an agent left of them.
func (s *Stage) Clean() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	for deadline := time.Now().Add(10 * time.Second); ; {
		err = s.Clear(ctx)
		left := 0
		for _, root := range cgroupRoots() {
			left += removeBelow(filepath.Join(root, s.Node.CgroupParent))
		}
		if err == nil && left == 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond) // the kernel is still taking processes out
	}
	for _, mount := range slices.Backward(node.Mounts()) {
		if strings.HasPrefix(mount, s.Dir+"/") {
			err = errors.Join(err, unix.Unmount(mount, unix.MNT_DETACH))
		}
	}
	logs, _ := filepath.Glob(s.Node.LogsDir + "/*")
	for _, dir := range append(logs, filepath.Join(s.Dir, "turn")) {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	links, _ := filepath.Glob("/var/log/containers/*") // a kubelet has them in one place for all
	for _, l := range links {
		if to, e := os.Readlink(l); e == nil && strings.HasPrefix(to, s.Node.LogsDir+"/") {
			err = errors.Join(err, os.Remove(l))
		}
	}
	return err
}

// AwaitNode returns when the node is there and ready.
func (s *Stage) AwaitNode(ctx context.Context, name string) error {
	err := Await(ctx, time.Minute, func(ctx context.Context) error {
		var n v1.Node
		if err := s.Admin.Get().Resource("nodes").Name(name).Do(ctx).Into(&n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not Ready")
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// Await calls f until it returns nil.
func Await(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	for deadline := time.Now().Add(limit); ; {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", limit, err)
		}
		if err := lab.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// makeDevice makes a network device with an address of its own.
func makeDevice() (name, address string, err error) {
	for i := range 200 {
		name, address = fmt.Sprintf("ndc%d", i), fmt.Sprintf("198.19.%d.1", i)
		if exec.Command("ip", "link", "add", name, "type", "veth", "peer", "name", name+"p").Run() != nil {
			continue // somebody else's
		}
		for _, args := range [][]string{{"addr", "add", address + "/32", "dev", name}, {"link", "set", name, "up"}, {"link", "set", name + "p", "up"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				return name, address, fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
		}
		return name, address, nil
	}
	return "", "", errors.New("no network device could be made")
}

// freePorts returns ports of an address that nobody has.
func freePorts(address string, n int) ([]int, error) {
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

// changed are the settings of the machine that a kubelet changes.
var changed = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func readSettings() map[string]string {
	values := map[string]string{}
	for _, s := range changed {
		if text, err := os.ReadFile("/proc/sys/" + s); err == nil {
			values[s] = string(text)
		}
	}
	return values
}

func writeSettings(values map[string]string) error {
	var errs []error
	for s, v := range values {
		if now, _ := os.ReadFile("/proc/sys/" + s); string(now) != v {
			errs = append(errs, os.WriteFile("/proc/sys/"+s, []byte(v), 0o644))
		}
	}
	return errors.Join(errs...)
}

// cgroupRoots returns the mount points of the cgroup hierarchies.
func cgroupRoots() []string {
	var roots []string
	text, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "cgroup") {
			roots = append(roots, f[1])
		}
	}
	return roots
}

// removeBelow removes the empty cgroups below one, and returns how many are not.
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
