// Package node gives a test its own machine, as far as possible: a real containerd from
// hack/bundle with its own directories, socket, bridge, subnet and cgroup, independent of any
// other.
//
// It also observes a container runtime's work without asking the code under test: by CRI, in
// /proc, in the cgroup trees, in the list of mounts and in the packet filter. A closed node
// must have left nothing behind, or the test fails.
//
// No test is skipped: without root, or without bin/bundle, a test that needs a node fails
// with that error.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
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

	"github.com/nodectl/nodectl/hack/images/archive"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/wait"
)

// Stamp is the image every node has: test/images/stamp, whose arguments control the container.
const Stamp = "nodectl.dev/test/stamp:1"

// Pause is the image of the pods' sandboxes, on every node too.
const Pause = "nodectl.dev/pause:1"

// A Node is one containerd with its directories and network.
type Node struct {
	Endpoint     string // CRI, as unix:///…
	RootDir      string // for nodectl's --root-dir; the runtime is below it
	LogsDir      string // for --pod-logs-dir
	CgroupParent string // for --cgroup-root, and for sandboxes a test makes itself
	RunDir       string // sockets, state, network namespaces
	Bridge       string
	Subnet       string
	Runtime      cri.RuntimeServiceClient
	Images       cri.ImageServiceClient

	dir    string // everything on disk
	bundle *bundle.Runtime
	conn   *grpc.ClientConn
}

// New starts a node for this test alone, and closes it when the test ends.
func New(t testing.TB) *Node {
	t.Helper()
	return NewIn(t, "")
}

// NewIn is New for a node whose files are below dir, with further names of the runtime handler.
func NewIn(t testing.TB, dir string, handlers ...string) *Node {
	t.Helper()
	n, err := StartIn(t.Context(), dir, handlers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.logTail(t)
		}
		if err := n.Close(); err != nil {
			t.Errorf("node: %v", err)
		}
	})
	return n
}

// shared is the node of all tests of a binary that call Shared.
var shared struct {
	sync.Mutex
	node *Node
	err  error
}

// Shared returns a node that the tests of this binary share. The first caller starts it, Main
// closes it. At the end of each such test, nothing of it may be left on the node, so these
// tests do not run in parallel.
func Shared(t testing.TB) *Node {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.node == nil && shared.err == nil {
		shared.node, shared.err = Start(context.Background())
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	n := shared.node
	t.Cleanup(func() {
		if t.Failed() {
			n.logTail(t)
		}
		if left := n.RemovePods(context.Background()); left != nil {
			t.Errorf("node: %v", left)
		}
		if left := n.Look(); !left.Empty() {
			t.Errorf("the test left something behind:\n%s", left)
		}
	})
	return n
}

// Main runs the tests and closes the shared node. A package whose tests use
// Shared calls it from its TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(node.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	if shared.node != nil {
		if err := shared.node.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			return max(code, 1)
		}
	}
	return code
}

// count numbers the nodes of this process.
var count atomic.Int32

// Start starts a node. The caller closes it.
func Start(ctx context.Context) (*Node, error) { return StartIn(ctx, "") }

// StartIn is Start for a node whose files are below dir; "" is /tmp.
func StartIn(ctx context.Context, dir string, handlers ...string) (*Node, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a test on a real containerd needs root")
	}
	programs, err := Programs()
	if err != nil {
		return nil, err
	}
	sweep()
	id := fmt.Sprintf("%d-%d", os.Getpid(), count.Add(1))
	n := &Node{
		dir:          filepath.Join(cmp.Or(dir, "/tmp"), prefix+id),
		RunDir:       filepath.Join("/run", prefix+id),
		CgroupParent: "/" + prefix + id,
		Bridge:       "ndt" + id,
	}
	n.RootDir, n.LogsDir = filepath.Join(n.dir, "root"), filepath.Join(n.dir, "logs")
	if err := os.MkdirAll(n.LogsDir, 0o700); err != nil {
		return nil, err
	}
	if n.Subnet, err = FreeSubnet(); err != nil {
		return nil, err
	}
	n.bundle = bundle.New(bundle.Config{
		RootDir: n.RootDir, RunDir: n.RunDir, Programs: programs,
		Subnet: n.Subnet, Bridge: n.Bridge, Handlers: handlers, Log: slog.New(slog.DiscardHandler),
	})
	if err := n.boot(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) boot(ctx context.Context) error {
	var err error
	if n.Endpoint, err = n.bundle.Start(ctx); err != nil {
		return err
	}
	n.conn, err = grpc.NewClient(n.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	n.Runtime, n.Images = cri.NewRuntimeServiceClient(n.conn), cri.NewImageServiceClient(n.conn)
	images, err := Images()
	if err != nil {
		return err
	}
	for _, a := range images {
		if a.Ref == Stamp {
			_, err = bundle.ImportFile(ctx, n.Endpoint, a.File)
		}
	}
	return err
}

// Close ends all pods and containerd, removes the node's directories, and returns an error if
// anything of it still exists.
func (n *Node) Close() error {
	var errs []error
	if n.conn != nil {
		errs = append(errs, n.conn.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	errs = append(errs, n.bundle.Stop(ctx, true))
	n.removeCgroups()
	errs = append(errs, os.RemoveAll(n.dir))
	if left := n.Look(); !left.Empty() {
		errs = append(errs, fmt.Errorf("the node left something behind:\n%s", left))
	}
	return errors.Join(errs...)
}

// Import imports image archives, and returns the names of their images.
func (n *Node) Import(t testing.TB, archives ...string) []string {
	t.Helper()
	var all []string
	for _, a := range archives {
		images, err := bundle.ImportFile(t.Context(), n.Endpoint, a)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, images...)
	}
	return all
}

// Pid returns containerd's process; 0 when it does not run.
func (n *Node) Pid(t testing.TB) int {
	t.Helper()
	s, err := n.bundle.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.PID
}

// Kill ends containerd as kill -9 does, and returns when it is gone. Pods run
// on.
func (n *Node) Kill(t testing.TB) { n.signal(t, unix.SIGKILL) }

// Terminate sends SIGTERM to containerd, and returns when it has exited. Pods run on.
func (n *Node) Terminate(t testing.TB) { n.signal(t, unix.SIGTERM) }

func (n *Node) signal(t testing.TB, s unix.Signal) {
	t.Helper()
	pid := n.Pid(t)
	if pid == 0 {
		t.Fatal("containerd does not run")
	}
	if err := unix.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
	// A process that waits for the kernel, as for an unmount that flushes the whole disk,
	// exits when that is done.
	wait.NoError(t, func() error {
		if is := n.Pid(t); is != 0 {
			does, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", is))
			waits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stack", is))
			return fmt.Errorf("containerd still runs: %d, of %d that was sent %s: %.200s\n%s", is, pid, s, does, waits)
		}
		return nil
	})
}

// Restart starts containerd again after Kill or Terminate, and returns when it
// answers.
func (n *Node) Restart(t testing.TB) {
	t.Helper()
	wait.NoError(t, func() error { // recovering may have to wait for the disk
		_, err := n.bundle.Ensure(t.Context())
		return err
	})
}

// logTail logs the end of containerd's log.
func (n *Node) logTail(t testing.TB) {
	text, err := os.ReadFile(n.bundle.LogFile())
	if err != nil {
		t.Logf("containerd's log: %v", err)
		return
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	t.Logf("containerd's log ends with:\n%s", strings.Join(lines[max(0, len(lines)-20):], "\n"))
}

// Repo returns the repository's directory.
func Repo() string {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if filepath.IsAbs(dir) && exists(filepath.Join(dir, "go.mod")) {
		return dir
	}
	// Built with -trimpath: tests run in their package's directory.
	for dir, _ = os.Getwd(); dir != "/"; dir = filepath.Dir(dir) {
		if exists(filepath.Join(dir, "go.mod")) {
			return dir
		}
	}
	return "."
}

// Programs returns the directory with containerd and its tools: NODECTL_BUNDLE, or the output
// of hack/bundle/build.
func Programs() (string, error) {
	dir := os.Getenv("NODECTL_BUNDLE")
	if dir == "" {
		dir = filepath.Join(Repo(), "bin/bundle/rootfs")
	}
	if !exists(filepath.Join(dir, "containerd")) {
		return "", fmt.Errorf("a test on a real containerd needs %s: run hack/bundle/build", dir)
	}
	return dir, nil
}

// Images builds the image archives of the examples and tests unless they are up to date, and
// returns them.
func Images() ([]archive.Archive, error) {
	return archive.Build(Repo(), filepath.Join(Repo(), "bin/images"))
}

// prefix begins the names of everything that a node makes: the test's process and a number
// follow it.
const prefix = "ndt-"

// sweep ends the nodes of test processes that were killed.
func sweep() {
	dirs, _ := filepath.Glob("/run/" + prefix + "*")
	for _, run := range dirs {
		id := strings.TrimPrefix(filepath.Base(run), prefix)
		pid, _, _ := strings.Cut(id, "-")
		if n, err := strconv.Atoi(pid); err != nil || unix.Kill(n, 0) == nil {
			continue
		}
		programs, err := Programs()
		if err != nil {
			return
		}
		n := &Node{dir: "/tmp/" + prefix + id, RunDir: run, CgroupParent: "/" + prefix + id, Bridge: "ndt" + id}
		n.bundle = bundle.New(bundle.Config{RootDir: n.dir + "/root", RunDir: run, Programs: programs, Bridge: n.Bridge})
		_ = n.Close() // another process may be sweeping it too
	}
}

// taken are the names that keep the nodes of other processes off this process's subnets.
var taken struct {
	sync.Mutex
	names []net.Listener
}

// FreeSubnet picks a small network that no device of this machine is in, and that no other
// node gets while this process lives: a node has no bridge before its first pod.
func FreeSubnet() (string, error) {
	for range 100 {
		subnet := fmt.Sprintf("10.%d.%d.0/24", 128+rand.IntN(64), rand.IntN(256))
		_, want, err := net.ParseCIDR(subnet)
		if err != nil {
			return "", err
		}
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return "", err
		}
		free := true
		for _, a := range addrs {
			if p, ok := a.(*net.IPNet); ok && (p.Contains(want.IP) || want.Contains(p.IP)) {
				free = false
			}
		}
		if !free {
			continue
		}
		name, err := net.Listen("unix", "@nodectl-test-subnet-"+subnet) // it goes with the process
		if err != nil {
			continue // another process has it
		}
		taken.Lock()
		taken.names = append(taken.names, name)
		taken.Unlock()
		return subnet, nil
	}
	return "", errors.New("no subnet is free")
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
