// Package nodeapi tests a node with a real API server that authorizes as a cluster does, and
// reads the node's requests in its audit log.
package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/node/apiserver"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

// policy makes the API server log each request and its user.
const policy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived","ResponseStarted"],"rules":[{"level":"Metadata"}]}`

// audited is a cluster that authorizes as a real one does, and its audit log.
type audited struct {
	*cluster.Cluster
	admin kubernetes.Interface
	log   string
}

// server is shared by all tests, each of which has its own node.
var server = suite.Once(func(t testing.TB) audited {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	a := audited{log: filepath.Join(dir, "audit.log")}
	a.Cluster = cluster.Start(t, cluster.RBAC(), cluster.APIServerArgs("--audit-policy-file="+file, "--audit-log-path="+a.log, "--audit-log-mode=blocking"))
	var err error
	if a.admin, err = kubernetes.NewForConfig(a.Config(t, a.AdminKubeconfig(t))); err != nil {
		t.Fatal(err)
	}
	return a
})

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// request is one line of the audit log.
type request struct {
	Verb string
	User struct{ Username string }
	Ref  struct{ Resource, Subresource, Name, Namespace string } `json:"objectRef"`
	Code struct{ Code int }                                      `json:"responseStatus"`
	URI  string                                                  `json:"requestURI"`
}

// asked returns the node's requests.
func (a audited) asked(t *testing.T, node string) []request {
	t.Helper()
	log, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	var all []request
	for line := range bytes.Lines(log) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the last one is being written
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}
		if r.User.Username == "system:node:"+node {
			all = append(all, r)
		}
	}
	return all
}

// count returns how often the node made that request ("patch status").
func count(all []request, verb, resource, subresource string) (n int) {
	for _, r := range all {
		if r.Verb == verb && r.Ref.Resource == resource && r.Ref.Subresource == subresource {
			n++
		}
	}
	return n
}

// nobodyRefused fails for every answer that denies the node a permission (401 or 403).
func (a audited) nobodyRefused(t *testing.T, node string) {
	t.Helper()
	all := a.asked(t, node)
	if len(all) == 0 {
		t.Errorf("node %s asked for nothing", node)
	}
	for _, r := range all {
		if r.Code.Code == 401 || r.Code.Code == 403 {
			t.Errorf("%d for %s %s", r.Code.Code, r.Verb, r.URI)
		}
	}
}

// member is one node at the API server.
type member struct {
	*apiserver.Heartbeat
	runtime *critest.Runtime
	stop    func()

	mu     sync.Mutex
	events []string
	seen   []*v1.Node
}

func (m *member) said() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

type option func(*apiserver.Config, *node.ObserverConfig)

func (a audited) join(t *testing.T, name string, options ...option) *member {
	t.Helper()
	client, err := apiclient.Open(apiclient.Config{File: a.NodeKubeconfig(t, name), UserAgent: "nodectl/test"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	facts, err := node.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	thresholds, err := pod.ParseThresholds([]string{"memory.available<1Mi,nodefs.available<1%"})
	if err != nil {
		t.Fatal(err)
	}
	allocatable, err := facts.Allocatable(facts.HardEvictionReservation(thresholds))
	if err != nil {
		t.Fatal(err)
	}
	m := &member{runtime: critest.New()}
	labels := map[string]string{"disk": "ssd", "node.kubernetes.io/pool": "blue"}
	o := node.ObserverConfig{
		Settings: node.Settings{
			Name: name, Labels: facts.Labels(name, labels), Port: 10250, MaxPods: 110, MaxImages: 50, Allocatable: allocatable, ProviderID: "test://" + name,
			Taints: []v1.Taint{{Key: "new", Value: "yes", Effect: v1.TaintEffectNoSchedule}},
		},
		Facts:   facts,
		Runtime: m.runtime.CRI(cri.Config{Node: name}),
		HostIPs: []string{"192.0.2.7"}, // whatever this machine has
	}
	c := apiserver.Config{
		REST: client.REST(), Labels: labels, Register: true, UpdateFrequency: 300 * time.Millisecond, LeaseDuration: 4 * time.Second,
		RequestTimeout: wait.Limit, // a late answer of a busy server causes no second request
		Event: func(reason, _, _ string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events = append(m.events, reason)
		},
		OnNode: func(n *v1.Node) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.seen = append(m.seen, n)
		},
	}
	for _, set := range options {
		set(&c, &o)
	}
	c.Observer = node.NewObserver(o)
	if m.Heartbeat, err = apiserver.New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	m.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); client.Close() })
	t.Cleanup(m.stop)
	return m
}

// until waits until the API server's Node is accepted by ok.
func (a audited) until(t *testing.T, name, what string, ok func(*v1.Node) bool) (n *v1.Node) {
	t.Helper()
	so(t, func() (err error) {
		if n, err = a.admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err == nil && !ok(n) {
			err = fmt.Errorf("node %s: not %s; it is %+v", name, what, n)
		}
		return err
	})
	return n
}

func (a audited) lease(t *testing.T, name, what string, ok func(*coordinationv1.Lease) bool) (l *coordinationv1.Lease) {
	t.Helper()
	so(t, func() (err error) {
		if l, err = a.admin.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), name, metav1.GetOptions{}); err == nil && !ok(l) {
			err = fmt.Errorf("lease %s: not %s; it is %+v", name, what, l)
		}
		return err
	})
	return l
}

// so waits until f returns nil.
func so(t *testing.T, f func() error) { t.Helper(); wait.NoError(t, f) }

func ready(n *v1.Node) bool { return node.Condition(n, v1.NodeReady).Status == v1.ConditionTrue }

func anyLease(*coordinationv1.Lease) bool { return true }
