// Package kube shows that a node of a real cluster that is nodectl cannot be told
// from one that is a kubelet: a whole control plane, a real containerd, kube-proxy,
// CoreDNS, and a real kubectl that does what people do.
//
// The one rule: at the end of every world the API server's audit log is read, and
// not one request of the node's identity was refused with 403.
package kube

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
)

// patience is how long anything may take that has no limit of its own.
const patience = 60 * time.Second

// nodectl is the program under test, built by TestMain.
var nodectl string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodectl-kube-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	nodectl = filepath.Join(dir, "nodectl")
	build := exec.Command("go", "build", "-o", nodectl, ".")
	build.Dir, build.Stderr = node.Repo(), os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build nodectl:", err)
		return 1
	}
	return m.Run()
}

// world is one cluster whose only node is nodectl.
type world struct {
	*testing.T
	cluster *cluster.Cluster
	machine *node.Node
	address string // of the machine, for its pods too
	name    string // of the node
	root    string
	socket  string // the agent's local socket
	static  string // directory of manifests
	file    string // the node's kubeconfig
	port    string // of the node's server
	starts  *[]span
	wire    *wire    // between the node and its API server, where there is one
	program string   // the agent's
	env     []string // of the agent, beside what every program has
	agent   *cluster.Process
}

// newWorld starts a control plane, a containerd and the agent, and returns when the
// node is ready.
func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	w := bareWorld(t)
	w.file = w.cluster.NodeKubeconfig(t, w.name)
	w.serve(flags...)
	return w
}

// bareWorld is newWorld without the agent, which serve starts.
func bareWorld(t *testing.T, options ...cluster.Option) *world {
	t.Helper()
	w := &world{T: t, machine: node.New(t), name: "n1", starts: new([]span), program: nodectl}
	w.address = device(t)
	w.cluster = cluster.Start(t, append(options, cluster.Whole(w.address))...)
	t.Cleanup(w.nothingForbidden)
	w.root, w.static = w.machine.RootDir+"-agent", filepath.Join(t.TempDir(), "manifests")
	w.socket = filepath.Join(w.root, "nodectl.sock")
	if err := os.MkdirAll(w.static, 0o700); err != nil {
		t.Fatal(err)
	}
	w.port = strconv.Itoa(node.FreePort(t))
	return w
}

// serve starts the agent with the kubeconfig w.file, and returns when the node is
// ready.
func (w *world) serve(flags ...string) {
	w.Helper()
	args := append([]string{
		"serve", "-f", w.static, "--kubeconfig", w.file, "--root-dir", w.root,
		"--runtime-endpoint", w.machine.Endpoint, "--pod-logs-dir", w.machine.LogsDir, "--cgroup-root", w.machine.CgroupParent,
		"--node-name", w.name, "--node-ip", w.address, "--address", w.address, "--port", w.port,
		"--client-ca-file", w.cluster.Authority.File, "--cluster-domain", "cluster.local", "--log-level", "debug",
		"--eviction-hard", "memory.available<100Mi,nodefs.available<1%,imagefs.available<1%", // a disk that others fill taints no node
	}, flags...)
	w.agent = cluster.NewProcess(w, w.program, w.TempDir(), args, w.serves)
	w.agent.SetEnv(w.env...)
	w.agent.Start(w)
	w.Cleanup(w.emptied)
	w.awaitNode("Ready", "True")
}

// emptied waits until the agent has taken away what is left of pods: of those that were
// deleted by force the API server knows nothing any more. What stays is the machine's to
// complain about.
func (w *world) emptied() {
	for end := time.Now().Add(patience / 2); w.agent.Runs() && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if pods, err := os.ReadDir(filepath.Join(w.root, "pods")); err != nil || len(pods) == 0 {
			return
		}
	}
}

// part runs one part of a test that shares its world with others, and says what there
// is when it has failed.
func (w *world) part(name string, run func(*world)) {
	w.Helper()
	if !w.Run(name, func(t *testing.T) {
		of := *w
		of.T = t
		run(&of)
	}) {
		w.Logf("in the end:\n%s", w.everything())
	}
}

// serves reports whether the agent answers.
func (w *world) serves(ctx context.Context) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	if err != nil {
		return err
	}
	return c.Close()
}

// device makes a network device with an address of its own, which pods reach and
// nobody beside this machine does.
func device(t *testing.T) string {
	t.Helper()
	for i := range 200 {
		name, address := fmt.Sprintf("ndk%d", i), fmt.Sprintf("198.18.%d.1", i)
		if exec.Command("ip", "link", "add", name, "type", "veth", "peer", "name", name+"p").Run() != nil {
			continue // somebody else's
		}
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "link", "del", name).CombinedOutput(); err != nil {
				t.Errorf("remove %s: %v: %s", name, err, out)
			}
		})
		for _, args := range [][]string{{"addr", "add", address + "/32", "dev", name}, {"link", "set", name, "up"}, {"link", "set", name + "p", "up"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, out)
			}
		}
		return address
	}
	t.Fatal("no device could be made")
	return ""
}

// kubectl runs kubectl and returns what it prints; the test fails with it.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := w.try(args...)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// try is kubectl where failing is an answer.
func (w *world) try(args ...string) (string, error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	made := w.cluster.Kubectl(w, args...)
	cmd := exec.CommandContext(ctx, made.Path, args...)
	cmd.Env = made.Env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), said.String())
	}
	return out.String(), err
}

// await calls f until it returns nil.
func (w *world) await(f func() error) { w.Helper(); node.Eventually(w, patience, f) }

// awaitOutput waits until kubectl prints want.
func (w *world) awaitOutput(want string, args ...string) {
	w.Helper()
	w.await(func() error {
		got, err := w.try(args...)
		if err == nil && strings.TrimSpace(got) != want {
			err = fmt.Errorf("kubectl %s: %q, want %q", strings.Join(args, " "), strings.TrimSpace(got), want)
		}
		return err
	})
}

// awaitNode waits for a condition of the node.
func (w *world) awaitNode(condition, status string) {
	w.Helper()
	w.awaitOutput(status, "get", "node", w.name, "-o", fmt.Sprintf("jsonpath={.status.conditions[?(@.type==%q)].status}", condition))
}

// request is one line of the audit log.
type request struct {
	Stage          string
	Verb           string
	RequestURI     string
	User           struct{ Username string }
	ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus struct{ Code int }
	StageTimestamp time.Time
}

// requests returns what the API server was asked by the node, and has answered.
func (w *world) requests() []request {
	w.Helper()
	return slices.DeleteFunc(w.audited(), func(r request) bool { return r.Stage != "ResponseComplete" })
}

// audited returns all that the audit log says of the node; a watch is in it when it
// begins, too.
func (w *world) audited() []request {
	w.Helper()
	return slices.DeleteFunc(w.everybodys(), func(r request) bool { return r.User.Username != w.user() })
}

// user is what the API server calls the node.
func (w *world) user() string { return "system:node:" + w.name }

// everybodys returns all that is in the audit log.
func (w *world) everybodys() []request {
	w.Helper()
	f, err := os.Open(w.cluster.AuditLog)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	var all []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var r request
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue // the last line of a server that was killed
		}
		all = append(all, r)
	}
	return all
}

// span is a time in which an API server has not read yet what anybody may do, and
// answers 403 to everybody.
type span struct{ from, to time.Time }

// newborn says that the API server was started at begun and is ready now.
func (w *world) newborn(begun time.Time) {
	*w.starts = append(*w.starts, span{begun, time.Now().Add(time.Second)})
}

func (w *world) nothingForbidden() {
	all := w.audited()
	for i, r := range all {
		if r.ResponseStatus.Code == http.StatusForbidden && r.Stage == "ResponseComplete" && !r.early(all[i+1:]) && !slices.ContainsFunc(*w.starts, func(s span) bool {
			return !r.StageTimestamp.Before(s.from) && !r.StageTimestamp.After(s.to)
		}) {
			w.Errorf("refused with 403: %s %s", r.Verb, r.RequestURI)
		}
	}
	if len(all) == 0 {
		w.Error("the audit log holds no request of the node")
	}
}

// early reports whether r, which was refused, asked for what a pod brings along before
// the API server's node authorizer knew the pod: the same was granted soon after.
func (r request) early(later []request) bool {
	switch r.ObjectRef.Resource {
	case "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims", "persistentvolumes":
	default:
		return false
	}
	return slices.ContainsFunc(later, func(g request) bool {
		return g.Verb == r.Verb && g.ObjectRef == r.ObjectRef && g.ResponseStatus.Code/100 == 2 &&
			g.StageTimestamp.Sub(r.StageTimestamp) < soon
	})
}

// soon is long enough for an agent that was killed meanwhile to come back and ask.
const soon = 30 * time.Second

var errNotYet = errors.New("not yet")

// sum is what md5sum prints of data.
func sum(data []byte) string { return fmt.Sprintf("%x", md5.Sum(data)) }

// nodectl runs a verb against the agent's socket.
func (w *world) nodectl(args ...string) (string, error) {
	w.Helper()
	out, err := exec.Command(nodectl, slices.Concat(args[:1], []string{"--root-dir", w.root, "--node-name", w.name}, args[1:])...).CombinedOutput()
	return string(out), err
}

// TestEarlyIsWhatIsGrantedSoon: of refusals only those are forgiven that were too early.
func TestEarlyIsWhatIsGrantedSoon(t *testing.T) {
	at := time.Now()
	ask := func(resource, name string, code int, after time.Duration) (r request) {
		r.Verb, r.StageTimestamp, r.ResponseStatus.Code = "list", at.Add(after), code
		r.ObjectRef.Resource, r.ObjectRef.Namespace, r.ObjectRef.Name = resource, "default", name
		return r
	}
	refused := ask("configmaps", "a", http.StatusForbidden, 0)
	if !refused.early([]request{refused, ask("configmaps", "a", http.StatusOK, time.Second)}) {
		t.Error("what is granted a second later is not forgiven")
	}
	for what, later := range map[string][]request{
		"never granted":    {refused, refused},
		"granted late":     {ask("configmaps", "a", http.StatusOK, soon+time.Second)},
		"another granted":  {ask("configmaps", "b", http.StatusOK, time.Second)},
		"another resource": {ask("secrets", "a", http.StatusOK, time.Second)},
	} {
		if refused.early(later) {
			t.Errorf("%s: forgiven", what)
		}
	}
	if ask("pods", "a", http.StatusForbidden, 0).early([]request{ask("pods", "a", http.StatusOK, time.Second)}) {
		t.Error("a refusal of what no pod brings along is forgiven")
	}
}
