//go:build full

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// TestF72_Faults: faults between a node and its cluster, and below the node. The node
// connects to its API server over a wire that can be cut.
//
// Shows: F72
func TestF72_Faults(t *testing.T) {
	w := &wired{world: bareWorld(t)}
	w.importImages()
	w.wire = newWire(t, w.cluster, w.address)
	w.file = w.wire.through(t, w.cluster, w.cluster.NodeKubeconfig(t, w.name), filepath.Join(t.TempDir(), "node.kubeconfig"))
	w.serve("--offline-start", "api")
	w.pod("stands", sleeps)
	stands := func() string {
		return w.path("stands", "{.status.containerStatuses[0]['containerID','restartCount']}")
	}
	first := stands()
	for _, part := range []struct {
		name string
		run  func(*wired)
	}{
		{"F71_WatchesAreCut", (*wired).watchCut},
		{"F72_ExpiredCertificate", (*wired).expired},
		{"F72_AnotherAuthority", (*wired).otherAuthority},
		{"F74_DeletedBeforeStart", (*wired).deletedBeforeStart},
		{"F74_DeletedWhileAway", (*wired).deletedWhileAway},
		{"RuntimeKilledInARollout", (*wired).runtimeKilled},
		{"AgentKilledInARollout", (*wired).agentKilled},
		{"F70_RestartWithoutAServer", (*wired).offlineRestart},
		{"D1_DecisionsWhileAway", (*wired).decisionsWhileAway},
	} {
		t.Run(part.name, func(t *testing.T) {
			of := *w
			of.world = w.in(t, "default")
			part.run(&of)
			if now := stands(); now != first {
				t.Errorf("the pod that has nothing to do with it was %s, is %s", first, now)
			}
		})
	}
}

// wired is a world whose node connects to its API server over a wire.
type wired struct {
	*world
	wire *wire
}

// rounds is how often each repeated fault happens.
const rounds = 40

// watchCut: every connection is cut again and again while pods come and go.
func (w *wired) watchCut() {
	cuts := 0
	cut := func() {
		w.await(func() error {
			n := w.wire.cut(false)
			if cuts += n; n == 0 {
				return errors.New("no connection is open")
			}
			return nil
		})
	}
	var made, kept []string
	for i := range rounds {
		cut()
		name := fmt.Sprintf("cut-%d", i)
		w.apply(shell(name, sleeps))
		cut()
		if made, kept = append(made, name), append(kept, name); len(made)%2 == 0 { // the one before goes
			gone := made[len(made)-2]
			w.kubectl("delete", "pod", gone, "--wait=false")
			kept = slices.DeleteFunc(kept, func(n string) bool { return n == gone })
		}
	}
	w.Logf("%d connections were cut; %d pods were made, %d are kept", cuts, len(made), len(kept))
	w.await(func() error {
		var left []string
		for line := range strings.Lines(w.kubectl("get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp} {.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)) {
			name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			if !strings.HasPrefix(name, "cut-") {
				continue
			}
			if left = append(left, name); rest != " True 0" {
				return fmt.Errorf("%s: %q", name, rest)
			}
		}
		if !slices.Equal(slices.Sorted(slices.Values(left)), slices.Sorted(slices.Values(kept))) {
			return fmt.Errorf("there are %v, want %v", left, kept)
		}
		return nil
	})
	w.awaitNode("Ready", "True")
	w.kubectl(append([]string{"delete", "pod", "--timeout=" + wait.Limit.String()}, kept...)...)
	for _, name := range made {
		w.awaitNothingOf(name)
	}
}

// refusals counts the agent's log lines about 401.
func (w *wired) refusals() int { return strings.Count(w.agent.Log(w), "Unauthorized") }

// unknownFor waits until the API server has refused the node more often than seen, and then
// creates a pod for it: that pod does not start, and running ones stay.
func (w *wired) unknownFor(name string, seen int) {
	w.Helper()
	w.await(func() error {
		if w.refusals() == seen {
			return errNotYet
		}
		return nil
	})
	w.apply(shell(name, sleeps))
	w.execLocally("stands", "true")
	if out := w.path(name, "{.status.phase}"); out != "Pending" {
		w.Errorf("a node without a right to read it runs %s: %s", name, out)
	}
}

// known writes a valid kubeconfig; the running agent loads it.
func (w *wired) known(name string) {
	w.Helper()
	pid := w.agent.PID()
	w.wire.through(w, w.cluster, w.cluster.NodeKubeconfig(w, w.name), w.file)
	w.awaitReady(name)
	w.awaitNode("Ready", "True")
	if w.agent.PID() != pid {
		w.Error("the agent was restarted")
	}
	w.kubectl("delete", "pod", name, "--timeout="+wait.Limit.String())
}

// expired: the node's certificate has expired; pods run on, and a new kubeconfig is enough.
func (w *wired) expired() {
	seen := w.refusals()
	short := w.cluster.Kubeconfig(w, cluster.Identity{User: "system:node:" + w.name, Groups: []string{"system:nodes"}, NotAfter: time.Now().Add(-time.Minute)})
	w.wire.through(w, w.cluster, short, w.file)
	w.unknownFor("after-expiry", seen)
	w.known("after-expiry")
}

// otherAuthority: the API server does not know the signer of the node's certificate.
func (w *wired) otherAuthority() {
	seen := w.refusals()
	other := cluster.NewAuthority(w, w.TempDir(), "other")
	pair := other.Issue(w, "node", cluster.Identity{User: "system:node:" + w.name, Groups: []string{"system:nodes"}})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: node, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: test, context: {cluster: test, user: node}}]
current-context: test
`, w.cluster.URL, w.cluster.Authority.File, pair.CertFile, pair.KeyFile)
	file := filepath.Join(w.TempDir(), "other.kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	w.wire.through(w, w.cluster, file, w.file)
	w.unknownFor("after-refusal", seen)
	w.known("after-refusal")
}

// deletedBeforeStart: a pod that is bound and deleted before the node sees it never starts,
// and is removed.
func (w *wired) deletedBeforeStart() {
	w.wire.cut(true)
	w.apply(strings.Replace(shell("unborn", sleeps), "spec:\n", "spec:\n  nodeName: "+w.name+"\n", 1))
	w.kubectl("delete", "pod", "unborn", "--grace-period=30", "--wait=false")
	if out := w.path("unborn", "{.metadata.deletionTimestamp}"); out == "" {
		w.Fatal("the pod is not being deleted")
	}
	w.wire.mend()
	w.awaitOutput("", "get", "pod", "unborn", "--ignore-not-found", "-o", "name")
	w.awaitNothingOf("unborn")
	if out := w.kubectl("get", "events", "--field-selector", "involvedObject.name=unborn,reason=Started", "-o", "name"); out != "" {
		w.Errorf("it was started: %s", out)
	}
}

// deletedWhileAway: of two running pods, one is deleted while the node is cut off, by force
// so that the object is gone when the node is back; another takes its name.
func (w *wired) deletedWhileAway() {
	w.pod("replaced", sleeps)
	old := w.path("replaced", "{.metadata.uid}")
	w.wire.cut(true)
	w.kubectl("delete", "pod", "replaced", "--grace-period=0", "--force")
	w.apply(shell("replaced", sleeps))
	w.wire.mend()
	w.awaitReady("replaced")
	uid := w.path("replaced", "{.metadata.uid}")
	if uid == old {
		w.Fatal("it is the same pod")
	}
	w.await(func() error {
		for _, c := range w.machine.Containers(w) {
			if c.Labels["io.kubernetes.pod.uid"] == old {
				return fmt.Errorf("a container of the pod before is there: %s", c.State)
			}
		}
		return nil
	})
	w.kubectl("delete", "pod", "replaced")
}

// rollout makes a Deployment and starts to replace its pods.
func (w *wired) rollout(name string, replicas int) {
	w.Helper()
	w.apply(fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %s, env: [{name: TURN, value: "1"}], command: [sh, -c, %q]}]
`, name, replicas, name, name, busybox, sleeps))
	w.awaitRollout("deployment/" + name)
	w.kubectl("set", "env", "deployment/"+name, "TURN=2")
}

// rolledOut waits until the pods of a Deployment are the desired ones, and the runtime has
// nothing else of it: each pod once, each container once. A start may have been interrupted
// with its call: the runtime ends such a container with 128, and it restarts.
func (w *wired) rolledOut(name string, replicas int) {
	w.Helper()
	w.awaitRollout("deployment/" + name)
	var want []string
	w.await(func() error {
		want = nil
		for line := range strings.Lines(w.kubectl("get", "pods", "-l", "app="+name, "-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.phase} {.spec.containers[0].env[0].value} {.status.containerStatuses[0].restartCount} {.metadata.deletionTimestamp}{"\n"}{end}`)) {
			uid, rest, _ := strings.Cut(line, " ")
			if rest = strings.TrimSpace(rest); !strings.HasPrefix(rest, "Running 2 ") || strings.Count(rest, " ") != 2 { // a third word is its deletion time
				return fmt.Errorf("a pod is %s", strings.TrimSpace(line))
			}
			want = append(want, uid)
		}
		if len(want) != replicas {
			return fmt.Errorf("%d pods", len(want))
		}
		return nil
	})
	slices.Sort(want)
	w.await(func() error {
		var sandboxes, containers []string
		for _, s := range w.machine.Sandboxes(w) {
			if s.Labels["app"] == name {
				sandboxes = append(sandboxes, s.Metadata.Uid)
			}
		}
		for _, c := range w.machine.Containers(w) {
			if strings.HasPrefix(c.Labels["io.kubernetes.pod.name"], name+"-") && c.State != cri.ContainerState_CONTAINER_EXITED {
				containers = append(containers, c.Labels["io.kubernetes.pod.uid"])
			}
		}
		slices.Sort(sandboxes)
		slices.Sort(containers)
		if !slices.Equal(sandboxes, want) || !slices.Equal(containers, want) {
			return fmt.Errorf("wanted %v, sandboxes of %v, containers of %v", want, sandboxes, containers)
		}
		return nil
	})
	w.kubectl("delete", "deployment", name, "--timeout="+wait.Limit.String())
	w.awaitOutput("stands", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
}

// runtimeKilled: containerd is killed in the middle of a rollout, and comes back.
func (w *wired) runtimeKilled() {
	w.rollout("runtime", 3)
	seen := map[string]bool{}
	for range 2 {
		w.await(func() error { // until another sandbox is made
			fresh := false
			for _, s := range w.machine.Sandboxes(w) {
				if s.Labels["app"] == "runtime" && !seen[s.Id] {
					seen[s.Id], fresh = true, true
				}
			}
			if !fresh {
				return errNotYet
			}
			return nil
		})
		w.machine.Kill(w)
		w.machine.Restart(w)
	}
	w.rolledOut("runtime", 3)
}

// agentKilled: nodectl is killed again and again while six pods are replaced.
func (w *wired) agentKilled() {
	w.rollout("agent", 6)
	for range 2 * rounds {
		w.agent.Restart(w)
	}
	w.rolledOut("agent", 6)
	w.awaitNode("Ready", "True")
}

// offlineRestart: nodectl restarts while the API server is unreachable. Ten pods run on, and
// one that exits meanwhile is restarted.
func (w *wired) offlineRestart() {
	w.kubectl("create", "deployment", "ten", "--image="+busybox, "--replicas=10", "--", "sh", "-c", sleeps)
	w.awaitRollout("deployment/ten")
	containers := func() string {
		return w.kubectl("get", "pods", "-l", "app=ten", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0]['containerID','restartCount']}{"\n"}{end}`)
	}
	before := containers()
	one, _, _ := strings.Cut(before, " ")
	w.wire.cut(true)
	w.agent.Kill(w)
	for _, c := range w.machine.Containers(w) {
		if c.Labels["io.kubernetes.pod.name"] == one {
			if _, err := w.machine.Runtime.StopContainer(w.Context(), &cri.StopContainerRequest{ContainerId: c.Id}); err != nil {
				w.Fatal(err)
			}
		}
	}
	w.agent.Start(w)
	w.await(func() error {
		runs := 0
		for _, c := range w.machine.Containers(w) {
			if strings.HasPrefix(c.Labels["io.kubernetes.pod.name"], "ten-") && c.State == cri.ContainerState_CONTAINER_RUNNING {
				runs++
			}
		}
		if runs != 10 {
			return fmt.Errorf("%d containers run", runs)
		}
		return nil
	})
	w.wire.mend()
	w.awaitNode("Ready", "True")
	w.awaitOutput("1", "get", "pod", one, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
	after := containers()
	for line := range strings.Lines(before) {
		if !strings.HasPrefix(line, one+" ") && !strings.Contains(after, line) {
			w.Errorf("was %safterwards\n%s", line, after)
		}
	}
	w.kubectl("delete", "deployment", "ten", "--timeout="+wait.Limit.String())
	w.awaitOutput("stands", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
}

// decisionsWhileAway: requests that the API server has allowed stay allowed while it is
// unreachable, and no others are.
func (w *wired) decisionsWhileAway() {
	w.grant("scrapes", "get", "nodes/metrics,nodes/stats")
	known, late := w.caller(w.issue("scrapes")), w.caller(w.issue("root", "system:masters"))
	if code, text := w.asks(known, "GET", "/metrics/resource", ""); code != http.StatusOK {
		w.Fatalf("while it can be asked: %d %s", code, text)
	}
	if code, _ := w.asks(known, "GET", "/pods", ""); code != http.StatusForbidden {
		w.Fatalf("what is not granted: %d", code)
	}
	w.wire.cut(true)
	defer w.wire.mend()
	if code, text := w.asks(known, "GET", "/metrics/resource", ""); code != http.StatusOK {
		w.Errorf("what was allowed is forgotten: %d %s", code, text)
	}
	for _, path := range []string{"/stats/summary", "/configz", "/pods"} {
		if code, _ := w.asks(known, "GET", path, ""); code != http.StatusForbidden && code != http.StatusInternalServerError {
			w.Errorf("what cannot be asked, %s: %d", path, code)
		}
	}
	for _, wrong := range w.everyWay(late, http.StatusInternalServerError) {
		w.Errorf("who was never asked for: %s", wrong)
	}
}
