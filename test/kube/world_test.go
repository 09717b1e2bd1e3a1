// Package kube tests nodectl as the node of a real cluster, where it behaves as a kubelet
// does: a whole control plane, a real containerd, kube-proxy, CoreDNS, and a real kubectl.
//
// The tests of the first tier share one world. Parts that only add pods run in parallel, each
// in its own namespace. A test that changes the node itself is not parallel: it runs before
// the others.
//
// Every world reads the API server's audit log at its end: no request of a node's identity
// may have got 403.
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

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// world is one cluster whose only node is nodectl.
type world struct {
	testing.TB
	cluster   *cluster.Cluster
	machine   *node.Node
	objects   *objects
	config    string // kubeconfig of an administrator, for the namespace below
	namespace string
	address   string // of the machine, for its pods too
	name      string // of the node
	root      string
	logs      string // directory of the pods' logs
	group     string // cgroup of the pods
	socket    string // the agent's local socket
	static    string // directory of manifests
	file      string // the node's kubeconfig
	port      string // of the node's server
	starts    *[]span
	program   string   // the agent's
	env       []string // of the agent, in addition to the usual ones
	agent     *cluster.Process
	second    bool // the cluster has another node, with the controllers' pods
}

// shared is the world of the first tier: one node with the add-ons of a cluster.
var shared = suite.Once(func(t testing.TB) *world {
	w := bareWorld(t)
	w.importImages()
	w.file = w.cluster.NodeKubeconfig(t, w.name)
	w.serve("--cluster-dns", dnsAddress)
	w.cluster.KubeProxy(t, w.name)
	w.apply(dnsManifests + "---\n" + metricsManifests)
	return w
})

// newWorld starts a control plane, a containerd and the agent, and returns when the
// node is ready.
func newWorld(t testing.TB, flags ...string) *world {
	t.Helper()
	w := bareWorld(t)
	w.file = w.cluster.NodeKubeconfig(t, w.name)
	w.serve(flags...)
	return w
}

// bareWorld is newWorld without the agent, which serve starts.
func bareWorld(t testing.TB, options ...cluster.Option) *world {
	t.Helper()
	program, err := node.Slim()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, machine: node.New(t), name: "n1", namespace: "default", starts: new([]span), program: program}
	if err := w.machine.PlainNetwork(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.address = device(t)
	w.cluster = cluster.Start(t, append(options, cluster.Whole(w.address))...)
	w.config = w.cluster.AdminKubeconfig(t)
	w.objects = newObjects(t, w.cluster)
	t.Cleanup(w.nothingForbidden)
	w.place(w.machine.RootDir + "-agent")
	w.logs, w.group = w.machine.LogsDir, w.machine.CgroupParent
	return w
}

// place gives the agent a root directory, a directory of manifests and a port.
func (w *world) place(root string) {
	w.Helper()
	w.root, w.static = root, filepath.Join(w.TempDir(), "manifests")
	w.socket = filepath.Join(w.root, "nodectl.sock")
	if err := os.MkdirAll(w.static, 0o700); err != nil {
		w.Fatal(err)
	}
	w.port = strconv.Itoa(node.FreePort(w))
}

// secondNode returns the world of another node of the cluster: another agent on the same
// containerd, which ends with t. The scheduler gives it no pods.
func (w *world) secondNode(t testing.TB, name string, flags ...string) *world {
	t.Helper()
	of := *w
	of.TB, of.name, of.second = t, name, true
	of.logs, of.group = filepath.Join(t.TempDir(), "logs"), w.machine.CgroupParent+"/"+name
	of.place(filepath.Join(t.TempDir(), "root"))
	of.file = w.cluster.NodeKubeconfig(t, name)
	t.Cleanup(func() { w.machine.RemoveTiers(name) })
	of.serve(append([]string{"--register-with-taints", "test/only=bound:NoSchedule"}, flags...)...)
	return &of
}

// serve starts the agent with the kubeconfig w.file, and returns when the node is
// ready.
func (w *world) serve(flags ...string) {
	w.Helper()
	args := append([]string{
		"serve", "-f", w.static, "--kubeconfig", w.file, "--root-dir", w.root,
		"--runtime-endpoint", w.machine.Endpoint, "--pod-logs-dir", w.logs, "--cgroup-root", w.group,
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

// emptied deletes the remaining workloads and manifests, and waits until the agent has removed all
// of its pods: the API server no longer has pods that were deleted by force.
func (w *world) emptied() {
	if !w.agent.Runs() || !w.cluster.APIServer.Runs() {
		return
	}
	if !w.second {
		w.objects.deleteWorkloads(w, "")
	}
	manifests, err := filepath.Glob(filepath.Join(w.static, "*"))
	for _, file := range manifests {
		err = errors.Join(err, os.Remove(file))
	}
	if err != nil {
		w.Error(err)
	}
	err = wait.Try(func() error {
		w.objects.deleteAll(w, "", "pods", "spec.nodeName="+w.name) // including those that a controller made meanwhile
		pods, err := os.ReadDir(filepath.Join(w.root, "pods"))
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %d pods: %v", len(pods), pods)
		}
		return err
	}, wait.WithoutStall) // many pods use their grace periods at the same time
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Error(err)
	}
}

// part is one part of a test that shares its world with others.
type part struct {
	name string
	run  func(*world)
}

// beside runs parts in parallel, each in its own namespace, and prints the state when one has
// failed.
func (w *world) beside(t *testing.T, parts ...part) {
	t.Helper()
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.run(w.in(t, strings.ToLower(strings.ReplaceAll(p.name, "_", "-"))))
		})
	}
}

// in returns the world for a test with its own namespace; all tests share "default".
func (w *world) in(t testing.TB, namespace string) *world {
	t.Helper()
	of := *w
	of.TB, of.namespace = t, namespace
	t.Cleanup(func() {
		if t.Failed() {
			of.Logf("in the end:\n%s", of.everything())
		}
	})
	if namespace == "default" {
		return &of
	}
	config, err := clientcmd.LoadFromFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Contexts {
		c.Namespace = namespace
	}
	of.config = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, of.config); err != nil {
		t.Fatal(err)
	}
	of.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace + "}}")
	t.Cleanup(func() { w.objects.deleteWorkloads(t, namespace) })
	of.awaitOutput("default", "get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}") // else no pod is admitted
	return &of
}

// serves reports whether the agent answers.
func (w *world) serves(ctx context.Context) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	if err != nil {
		return err
	}
	return c.Close()
}

// device makes a network device with its own address, which only pods and this machine reach.
func device(t testing.TB) string {
	t.Helper()
	for i := range 200 {
		name, address := fmt.Sprintf("ndk%d", i), fmt.Sprintf("198.18.%d.1", i)
		if exec.Command("ip", "link", "add", name, "type", "veth", "peer", "name", name+"p").Run() != nil {
			continue // another process has it
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

// apply creates objects, or updates existing ones.
func (w *world) apply(manifests string) { w.Helper(); w.objects.apply(w, w.namespace, manifests) }

// command returns kubectl for the namespace, ready to run.
func (w *world) command(args ...string) *exec.Cmd {
	w.Helper()
	return w.cluster.KubectlAs(w, w.config, args...)
}

// kubectl runs kubectl and returns its output; the test fails with it.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := w.try(args...)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// try is kubectl, and returns its error. This process itself sends queries to the API server:
// tests repeat them, and a kubectl takes 100 ms of CPU.
func (w *world) try(args ...string) (string, error) {
	w.Helper()
	if isGet(args) {
		q, err := w.objects.query(w.namespace, args[1:])
		var out string
		if err == nil {
			out, _, err = q.get(context.Background())
		}
		if err != nil {
			err = fmt.Errorf("get %s: %w", strings.Join(args[1:], " "), err)
		}
		return out, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	made := w.command(args...)
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

func isGet(args []string) bool { return args[0] == "get" && args[1] != "--raw" }

// await calls f until it returns nil. The pods of all tests queue on one node, so that a test
// may make no progress while others do: only wait.Limit ends the wait.
func (w *world) await(f func() error) {
	w.Helper()
	wait.NoError(w, f, wait.WithoutStall)
}

// awaitOutput waits until kubectl prints want.
func (w *world) awaitOutput(want string, args ...string) {
	w.Helper()
	w.await(func() error {
		if isGet(args) {
			return w.gets(want, args)
		}
		got, err := w.try(args...)
		return differs(args, got, want, err)
	})
}

// gets returns nil if kubectl get prints want. Otherwise it returns an error, and does so
// when the objects have changed.
func (w *world) gets(want string, args []string) error {
	w.Helper()
	q, err := w.objects.query(w.namespace, args[1:])
	if err != nil {
		return err
	}
	got, version, err := q.get(context.Background())
	if err = differs(args, got, want, err); err != nil && version != "" {
		q.changes(context.Background(), version)
	}
	return err
}

func differs(args []string, got, want string, err error) error {
	if err == nil && strings.TrimSpace(got) != want {
		err = fmt.Errorf("kubectl %s: %q, want %q", strings.Join(args, " "), strings.TrimSpace(got), want)
	}
	return err
}

// awaitNode waits for a condition of the node.
func (w *world) awaitNode(condition, status string) {
	w.Helper()
	w.awaitOutput(status, "get", "node", w.name, "-o", fmt.Sprintf("jsonpath={.status.conditions[?(@.type==%q)].status}", condition))
}

// awaitReady waits until pods are ready.
func (w *world) awaitReady(pods ...string) {
	w.Helper()
	for _, name := range pods {
		w.awaitOutput("True", "get", "pod", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	}
}

// awaitRollout waits until a controller has made the desired pods.
func (w *world) awaitRollout(name string, args ...string) {
	w.Helper()
	w.kubectl(append([]string{"rollout", "status", name, "--timeout=" + wait.Limit.String()}, args...)...)
}

// manifest writes a manifest; unmanifest removes it.
func (w *world) manifest(name, text string) {
	w.Helper()
	file := filepath.Join(w.static, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *world) unmanifest(name string) {
	w.Helper()
	if err := os.Remove(filepath.Join(w.static, name+".yaml")); err != nil {
		w.Fatal(err)
	}
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

// user is the node's user name at the API server.
func (w *world) user() string { return "system:node:" + w.name }

// audited returns all lines of the audit log; a watch also has a line when it begins.
func (w *world) audited() []request {
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
			continue // the last line of a killed server
		}
		all = append(all, r)
	}
	return all
}

// span is a time in which an API server has not loaded its RBAC rules yet, and answers 403 to
// every request.
type span struct{ from, to time.Time }

func (w *world) nothingForbidden() {
	all := slices.DeleteFunc(w.audited(), func(r request) bool { return !strings.HasPrefix(r.User.Username, "system:node:") })
	for i, r := range all {
		if r.ResponseStatus.Code == http.StatusForbidden && r.Stage == "ResponseComplete" && !r.early(all[i+1:]) && !slices.ContainsFunc(*w.starts, func(s span) bool {
			return !r.StageTimestamp.Before(s.from) && !r.StageTimestamp.After(s.to)
		}) {
			w.Errorf("refused with 403: %s: %s %s", r.User.Username, r.Verb, r.RequestURI)
		}
	}
	if len(all) == 0 {
		w.Error("the audit log holds no request of a node")
	}
}

// early reports whether r was refused because the node authorizer did not know the pod of the
// requested object yet: the same request was granted soon after.
func (r request) early(later []request) bool {
	switch r.ObjectRef.Resource {
	case "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims", "persistentvolumes":
	default:
		return false
	}
	return slices.ContainsFunc(later, func(g request) bool {
		return g.Verb == r.Verb && g.User == r.User && g.ObjectRef == r.ObjectRef && g.ResponseStatus.Code/100 == 2 &&
			g.StageTimestamp.Sub(r.StageTimestamp) < soon
	})
}

// soon is long enough for an agent that was killed meanwhile to restart and ask again.
const soon = wait.Limit

var errNotYet = errors.New("not yet")

// sum is what md5sum prints of data.
func sum(data []byte) string { return fmt.Sprintf("%x", md5.Sum(data)) }

// TestEarlyIsWhatIsGrantedSoon: only refusals that were too early are excused.
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
