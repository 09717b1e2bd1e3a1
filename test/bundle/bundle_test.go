// Package bundle_test runs the bundled runtime as a fresh machine does: unpacked
// from its archive, started, used, killed, stopped.
package bundle_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// fresh returns an unused runtime, on short paths and in its own network. name is one letter
// that no other test uses.
func fresh(t testing.TB, name string) (*bundle.Runtime, bundle.Config) {
	t.Helper()
	programs, err := node.Programs()
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := node.FreeSubnet()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "ndb-")
	if err != nil {
		t.Fatal(err)
	}
	cfg := bundle.Config{
		RootDir: dir,
		Archive: filepath.Join(filepath.Dir(programs), "bundle.tar.zst"),
		Subnet:  subnet,
		Bridge:  "ndb" + name + strconv.Itoa(os.Getpid()%100000),
	}
	r := bundle.New(cfg)
	t.Cleanup(func() {
		// The test's own context has ended by now.
		if err := r.Stop(context.Background(), true); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return r, cfg
}

func connect(t testing.TB, endpoint string) cri.RuntimeServiceClient {
	t.Helper()
	c, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return cri.NewRuntimeServiceClient(c)
}

// parent is the cgroup of a test's pods.
func parent(t testing.TB) string { return "/nodectl-" + t.Name() }

func sandbox(t *testing.T, rt cri.RuntimeServiceClient, name string) string {
	t.Helper()
	id := ""
	wait.NoError(t, func() error { // two portmap plugins conflict on their first chain
		r, err := rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
			Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name},
			Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: parent(t)},
			PortMappings: []*cri.PortMapping{{ContainerPort: 80, HostPort: 38080}},
		}})
		id = r.GetPodSandboxId()
		return err
	})
	return id
}

func status(t *testing.T, r *bundle.Runtime) bundle.Status {
	t.Helper()
	s, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// kill ends containerd as kill -9 does.
func kill(t *testing.T, r *bundle.Runtime) {
	t.Helper()
	if err := unix.Kill(status(t, r).PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error {
		if status(t, r).Running {
			return errors.New("still running")
		}
		return nil
	})
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// TestBundleLifeOnAFreshMachine covers the whole lifecycle: first use, reuse, a pod, the
// refusal to stop while the pod runs, the stop.
func TestBundleLifeOnAFreshMachine(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "a")
	if s := status(t, r); s.Running || s.Endpoint == "" || r.Running() {
		t.Errorf("before its first use: %+v", s)
	}
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := status(t, r)
	if !s.Running || !s.Ready || s.Version == "" || len(s.Digest) != 64 || s.Pods != 0 {
		t.Errorf("after Start: %+v", s)
	}
	if sid, err := unix.Getsid(s.PID); err != nil || sid != s.PID {
		t.Errorf("containerd is in session %d (%v), want its own", sid, err)
	}
	if fi, err := os.Stat(s.RunDir); err != nil || fi.Mode().Perm() != 0o711 {
		t.Errorf("run directory: %v %v", fi.Mode(), err)
	}
	// Another process, and the same one again, use the running containerd.
	if started, err := bundle.New(cfg).Ensure(t.Context()); err != nil || started {
		t.Errorf("Ensure with a running containerd: %v, %v", started, err)
	}

	rt := connect(t, endpoint)
	sandbox(t, rt, "one")
	var running *bundle.PodsRunningError
	if err := r.Stop(t.Context(), false); !errors.As(err, &running) || running.Pods != 1 {
		t.Errorf("Stop with a pod: %v", err)
	}
	if got := status(t, r); got.PID != s.PID || got.Pods != 1 {
		t.Errorf("after a refused Stop: %+v", got)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	gone(t, r, cfg, s)
	if err := r.Stop(t.Context(), false); err != nil {
		t.Errorf("stopping what does not run: %v", err)
	}
}

// gone fails the test for whatever Stop has left on the machine.
func gone(t *testing.T, r *bundle.Runtime, cfg bundle.Config, s bundle.Status) {
	t.Helper()
	if got := status(t, r); got.Running || got.Pods != 0 || r.Running() {
		t.Errorf("after Stop: %+v", got)
	}
	for _, path := range []string{s.RunDir, "/sys/class/net/" + cfg.Bridge, "/sys/fs/cgroup/pids" + parent(t), "/sys/fs/cgroup" + parent(t)} {
		if exists(path) {
			t.Errorf("Stop left %s", path)
		}
	}
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, s.RunDir+"/") || strings.HasPrefix(m, cfg.RootDir+"/") {
			t.Errorf("Stop left mount %s", m)
		}
	}
	maps, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, m := range maps {
		if line, err := os.ReadFile(m); err == nil && strings.Contains(string(line), s.RunDir) {
			t.Errorf("Stop left process %s", strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

// TestF21_ContainerdKilledUnderAPod: Ensure starts containerd again, and the pod is
// unchanged.
//
// Shows: F21
func TestF21_ContainerdKilledUnderAPod(t *testing.T) {
	t.Parallel()
	r, _ := fresh(t, "b")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rt := connect(t, endpoint)
	id := sandbox(t, rt, "one")
	kill(t, r)
	if s := status(t, r); s.Pods != 1 || !r.Running() {
		t.Errorf("without containerd the status counts %d pods, want 1", s.Pods)
	}
	if started, err := r.Ensure(t.Context()); err != nil || !started {
		t.Fatalf("Ensure: %v, %v", started, err)
	}
	wait.NoError(t, func() error {
		l, err := rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		if len(l.Items) != 1 || l.Items[0].Id != id || l.Items[0].State != cri.PodSandboxState_SANDBOX_READY {
			return fmt.Errorf("sandboxes: %v", l.Items)
		}
		return nil
	})
}

// TestBundleStopWithoutContainerd: pods are ended also when containerd is dead.
func TestBundleStopWithoutContainerd(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "c")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sandbox(t, connect(t, endpoint), "one")
	s := status(t, r)
	kill(t, r)
	var running *bundle.PodsRunningError
	if err := r.Stop(t.Context(), false); !errors.As(err, &running) {
		t.Errorf("Stop with a pod and no containerd: %v", err)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	gone(t, r, cfg, s)
}

// TestBundleSaysWhyItDoesNotStart: the error has containerd's own last line, instead of a
// timeout.
func TestBundleSaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "d")
	if _, err := r.Start(t.Context()); err != nil { // the bundle is unpacked from now on
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(cfg.RootDir, "runtime/root")
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := r.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "not a directory") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Start: %v", err)
	}
}

// TestBundleStopWithoutPrograms: Stop ends pods even if it cannot start containerd for that.
func TestBundleStopWithoutPrograms(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "e")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sandbox(t, connect(t, endpoint), "one")
	s := status(t, r)
	kill(t, r)
	if err := os.Remove(filepath.Join(cfg.RootDir, "bundle", s.Digest, "containerd")); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	// Only containerd knows the cgroup.
	for _, h := range cgroupTrees() {
		removeTree(filepath.Join(h, parent(t)))
	}
	gone(t, r, cfg, s)
	out, err := exec.Command("iptables-save", "-t", "nat").Output()
	if err == nil && strings.Contains(string(out), filepath.Base(s.RunDir)) {
		t.Errorf("Stop left rules:\n%s", out)
	}
}

// TestF33_StopIsLikeAReboot: sandboxes that ran are listed as stopped, and can be removed and
// created again.
//
// Shows: F33
func TestF33_StopIsLikeAReboot(t *testing.T) {
	t.Parallel()
	r, _ := fresh(t, "f")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := sandbox(t, connect(t, endpoint), "one")
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	rt := connect(t, endpoint)
	l, err := rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil || len(l.Items) != 1 || l.Items[0].Id != id || l.Items[0].State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("sandboxes: %v, %v", l, err)
	}
	if _, err := rt.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Error(err)
	}
	sandbox(t, rt, "one")
}

// TestBundleStartedByManyAtOnce: concurrent callers start one containerd.
func TestBundleStartedByManyAtOnce(t *testing.T) {
	t.Parallel()
	_, cfg := fresh(t, "g")
	var all sync.WaitGroup
	var started atomic.Int32
	for range 8 {
		all.Go(func() {
			did, err := bundle.New(cfg).Ensure(t.Context())
			if err != nil {
				t.Error(err)
			}
			if did {
				started.Add(1)
			}
		})
	}
	all.Wait()
	if n := started.Load(); n != 1 {
		t.Errorf("%d of 8 started containerd, want 1", n)
	}
}

// TestBundleThatHangs: a containerd that runs and does not answer is reported and not
// touched.
func TestBundleThatHangs(t *testing.T) {
	t.Parallel()
	r, cfg := fresh(t, "h")
	if _, err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := status(t, r).PID
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	node.AwaitStill(t, pid)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := bundle.New(cfg).Ensure(ctx); err == nil || !strings.Contains(err.Error(), strconv.Itoa(pid)) {
		t.Errorf("Ensure: %v", err)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if started, err := r.Ensure(t.Context()); err != nil || started || status(t, r).PID != pid {
		t.Errorf("afterwards: %v, %v", started, err)
	}
}

// TestI6_BundleSharesABridge: the first runtime to stop leaves the objects that the other uses, the
// last one leaves nothing.
//
// Shows: I6
func TestI6_BundleSharesABridge(t *testing.T) {
	t.Parallel()
	one, cfg := fresh(t, "i")
	_, other := fresh(t, "j")
	other.Bridge = cfg.Bridge
	seen := map[string]bool{}
	start := func(r *bundle.Runtime) {
		t.Helper()
		endpoint, err := r.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rt := connect(t, endpoint)
		st, err := rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sandbox(t, rt, "one")})
		if err != nil {
			t.Fatal(err)
		}
		if ip := st.Status.Network.Ip; ip == "" || seen[ip] {
			t.Errorf("address %q is given twice", ip)
		} else {
			seen[ip] = true
		}
	}
	start(one)
	if _, err := bundle.New(other).Start(t.Context()); err == nil || !strings.Contains(err.Error(), cfg.Subnet) {
		t.Errorf("a second network on one bridge: %v", err)
	}
	other.Subnet = cfg.Subnet
	two := bundle.New(other)
	start(two)
	ours, foreign := leaveChain(t, cfg.Bridge), leaveChain(t, cfg.Bridge+"x")
	if err := one.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if !chain(ours) {
		t.Error("the first one took a chain that may be a pod's of the other")
	}
	if !exists("/sys/class/net/" + cfg.Bridge) {
		t.Error("the first one took the bridge with it")
	}
	if err := two.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if exists("/sys/class/net/" + cfg.Bridge) {
		t.Error("the last one left the bridge")
	}
	if chain(ours) || !chain(foreign) {
		t.Errorf("when no pod uses the network, its chain is there: %v, another's: %v", chain(ours), chain(foreign))
	}
}

// leaveChain makes a chain in the packet filter that belongs to no pod, such as a plugin leaves if
// it continues after a kill of containerd.
func leaveChain(t *testing.T, network string) string {
	t.Helper()
	name := fmt.Sprintf("CNI-%x", sha256.Sum256([]byte(network)))[:28]
	run := func(args ...string) error {
		out, err := exec.Command("iptables", append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("iptables %q: %w: %s", args, err, out)
		}
		return nil
	}
	t.Cleanup(func() { _, _ = run("-F", name), run("-X", name) }) // where it is still there
	if err := errors.Join(run("-N", name),
		run("-A", name, "-d", "10.220.0.0/24", "-m", "comment", "--comment", fmt.Sprintf(`name: "%s" id: "missing"`, network), "-j", "ACCEPT")); err != nil {
		t.Fatal(err)
	}
	return name
}

// chain reports whether the packet filter has a chain.
func chain(name string) bool {
	return exec.Command("iptables", "-w", "-t", "nat", "-S", name).Run() == nil
}

// TestBundleLeavesTheAgentsUnit: systemd kills all processes of a unit's cgroup with the
// unit, so containerd must not be in it.
func TestBundleLeavesTheAgentsUnit(t *testing.T) {
	tree := ""
	for _, h := range cgroupTrees() {
		if strings.HasSuffix(h, "/systemd") || exists(filepath.Join(h, "cgroup.controllers")) {
			tree = h
			break
		}
	}
	if tree == "" {
		t.Fatal("no cgroup tree that systemd would use")
	}
	home := tree
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if f[1] == "name=systemd" && strings.HasSuffix(tree, "/systemd") || f[1] == "" && !strings.HasSuffix(tree, "/systemd") {
			home = filepath.Join(tree, f[2])
		}
	}
	unit := filepath.Join(tree, "ndb-unit-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(unit, 0o755); err != nil {
		t.Fatal(err)
	}
	move := func(to string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.Remove(unit); err != nil {
			t.Error(err)
		}
	})
	r, _ := fresh(t, "k")
	move(unit)
	_, err = r.Start(t.Context())
	move(home)
	if err != nil {
		t.Fatal(err)
	}
	s := status(t, r)
	// If systemd runs and shares this process's mounts, the cgroup is a unit's; else it is
	// beside all units.
	name := "nodectl-runtime-" + filepath.Base(s.RunDir)
	own := filepath.Join(tree, name)
	groups, err = os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", s.PID))
	if err != nil || !strings.Contains(string(groups), "/"+name) || strings.Contains(string(groups), filepath.Base(unit)) {
		t.Errorf("containerd %d is in the groups %s, %v; want its own, %s", s.PID, groups, err, name)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if exists(own) {
		t.Errorf("Stop left %s", own)
	}
}

// cgroupTrees returns where cgroup hierarchies are mounted.
func cgroupTrees() []string {
	var trees []string
	text, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "cgroup") {
			trees = append(trees, f[1])
		}
	}
	return trees
}

// removeTree removes a cgroup and those in it.
func removeTree(dir string) {
	below, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	for _, b := range below {
		removeTree(filepath.Dir(b))
	}
	_ = os.Remove(dir)
}
