package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/cluster"
)

// hurts is how long something that happens again and again does so.
func hurts() time.Duration {
	if os.Getenv("NODECTL_E2E_LONG") != "" {
		return 2 * time.Minute
	}
	return 20 * time.Second
}

// TestF72_Faults: what comes between a node and its cluster, and what ends under it.
// The node speaks to its API server by a wire that can be cut.
func TestF72_Faults(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	w.importImages()
	w.wire = newWire(t, w.cluster, w.address)
	w.file = w.wire.through(t, w.cluster, w.cluster.NodeKubeconfig(t, w.name), filepath.Join(t.TempDir(), "node.kubeconfig"))
	w.serve("--offline-start", "api")
	t.Cleanup(func() {
		w.kubectl("delete", "deployment", "--all", "--timeout=60s")
		w.kubectl("delete", "pods", "--all", "--timeout=60s")
		w.awaitOutput("", "get", "pods", "-A", "-o", "name") // those that a controller made meanwhile too
	})
	w.cluster.Apply(t, shell("stands", sleeps))
	w.kubectl("wait", "--for=condition=Ready", "pod/stands", "--timeout=60s")
	stands := func() string {
		return w.path("stands", "{.status.containerStatuses[0]['containerID','restartCount']}")
	}
	first := stands()
	for _, part := range []struct {
		name string
		run  func(*world)
	}{
		{"F71_WatchCutEverySecond", (*world).watchCut},
		{"F72_ExpiredCertificate", (*world).expired},
		{"F72_AnotherAuthority", (*world).otherAuthority},
		{"F74_DeletedBeforeStart", (*world).deletedBeforeStart},
		{"F74_DeletedWhileAway", (*world).deletedWhileAway},
		{"RuntimeKilledInARollout", (*world).runtimeKilled},
		{"AgentKilledInARollout", (*world).agentKilled},
		{"F70_RestartWithoutAServer", (*world).offlineRestart},
		{"D1_DecisionsWhileAway", (*world).decisionsWhileAway},
	} {
		w.part(part.name, func(w *world) {
			part.run(w)
			if now := stands(); now != first {
				w.Errorf("the pod that has nothing to do with it was %s, is %s", first, now)
			}
		})
	}
}

// watchCut: every connection is cut each second while pods come and go.
func (w *world) watchCut() {
	var cutter sync.WaitGroup
	stop, cuts := make(chan struct{}), 0
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
				cuts += w.wire.cut(false)
			}
		}
	})
	var made, kept []string
	for begun := time.Now(); time.Since(begun) < hurts(); {
		name := fmt.Sprintf("cut-%d", len(made))
		w.cluster.Apply(w, shell(name, sleeps))
		if made, kept = append(made, name), append(kept, name); len(made)%2 == 0 { // the one before goes
			gone := made[len(made)-2]
			w.kubectl("delete", "pod", gone, "--wait=false")
			kept = slices.DeleteFunc(kept, func(n string) bool { return n == gone })
		}
		time.Sleep(1500 * time.Millisecond)
	}
	close(stop)
	cutter.Wait()
	w.Logf("%d connections were cut; %d pods were made, %d are kept", cuts, len(made), len(kept))
	if cuts < 10 {
		w.Errorf("only %d connections were cut", cuts)
	}
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
	w.kubectl(append([]string{"delete", "pod", "--timeout=60s"}, kept...)...)
	for _, name := range made {
		w.awaitNothingOf(name)
	}
}

// refusals counts what the agent has said of 401.
func (w *world) refusals() int { return strings.Count(w.agent.Log(w), "Unauthorized") }

// unknownFor waits until the API server has refused the node more often than seen, and
// gives the node a pod then: nothing becomes of it, and what runs stays.
func (w *world) unknownFor(name string, seen int) {
	w.Helper()
	w.await(func() error {
		if w.refusals() == seen {
			return errNotYet
		}
		return nil
	})
	w.cluster.Apply(w, shell(name, sleeps))
	w.execLocally("stands", "true")
	if out := w.path(name, "{.status.phase}"); out != "Pending" {
		w.Errorf("a node without a right to read it runs %s: %s", name, out)
	}
}

// known puts a good kubeconfig in place; the agent takes it up as it runs.
func (w *world) known(name string) {
	w.Helper()
	pid := w.agent.PID()
	w.wire.through(w.T, w.cluster, w.cluster.NodeKubeconfig(w, w.name), w.file)
	w.kubectl("wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	w.awaitNode("Ready", "True")
	if w.agent.PID() != pid {
		w.Error("the agent was restarted")
	}
	w.kubectl("delete", "pod", name, "--timeout=60s")
}

// expired: the node's certificate ends; pods run on, and a new kubeconfig is enough.
func (w *world) expired() {
	seen := w.refusals()
	short := w.cluster.Kubeconfig(w, cluster.Identity{User: "system:node:" + w.name, Groups: []string{"system:nodes"}, NotAfter: time.Now().Add(3 * time.Second)})
	w.wire.through(w.T, w.cluster, short, w.file)
	w.unknownFor("after-expiry", seen)
	w.known("after-expiry")
}

// otherAuthority: the API server does not know who signed the node's certificate.
func (w *world) otherAuthority() {
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
	w.wire.through(w.T, w.cluster, file, w.file)
	w.unknownFor("after-refusal", seen)
	w.known("after-refusal")
}

// deletedBeforeStart: a pod that is bound and deleted before the node hears of it is
// never started, and goes.
func (w *world) deletedBeforeStart() {
	w.wire.cut(true)
	w.cluster.Apply(w, strings.Replace(shell("unborn", sleeps), "spec:\n", "spec:\n  nodeName: "+w.name+"\n", 1))
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

// deletedWhileAway: of two pods that run, one is deleted while the node is cut off, by
// force so that the object is gone when it is back; another takes its name.
func (w *world) deletedWhileAway() {
	w.pod("replaced", sleeps)
	old := w.path("replaced", "{.metadata.uid}")
	w.wire.cut(true)
	w.kubectl("delete", "pod", "replaced", "--grace-period=0", "--force")
	w.cluster.Apply(w, shell("replaced", sleeps))
	w.wire.mend()
	w.kubectl("wait", "--for=condition=Ready", "pod/replaced", "--timeout=60s")
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
}

// rollout makes a Deployment and begins to replace its pods.
func (w *world) rollout(name string, replicas int) {
	w.Helper()
	w.cluster.Apply(w, fmt.Sprintf(`apiVersion: apps/v1
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
	w.kubectl("rollout", "status", "deployment/"+name, "--timeout=120s")
	w.kubectl("set", "env", "deployment/"+name, "TURN=2")
}

// rolledOut waits until the pods of a Deployment are those that are wanted, and the
// runtime has nothing else of it: each pod once, each container once. A
// start may have been cut short with the call that asked for it: the runtime ends such
// a container with 128, and it is started again.
func (w *world) rolledOut(name string, replicas int) {
	w.Helper()
	w.kubectl("rollout", "status", "deployment/"+name, "--timeout=120s")
	var want []string
	w.await(func() error {
		want = nil
		for line := range strings.Lines(w.kubectl("get", "pods", "-l", "app="+name, "-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.phase} {.spec.containers[0].env[0].value} {.status.containerStatuses[0].restartCount} {.metadata.deletionTimestamp}{"\n"}{end}`)) {
			uid, rest, _ := strings.Cut(line, " ")
			if rest = strings.TrimSpace(rest); !strings.HasPrefix(rest, "Running 2 ") || strings.Count(rest, " ") != 2 { // a third word is the time of its deletion
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
	w.kubectl("delete", "deployment", name, "--timeout=60s")
	w.awaitOutput("stands", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
}

// runtimeKilled: containerd ends in the middle of a rollout, and comes back.
func (w *world) runtimeKilled() {
	w.rollout("runtime", 3)
	for range 2 {
		time.Sleep(700 * time.Millisecond)
		w.machine.Kill(w)
		w.machine.Restart(w)
	}
	w.rolledOut("runtime", 3)
}

// agentKilled: nodectl ends again and again while six pods are replaced.
func (w *world) agentKilled() {
	w.rollout("agent", 6)
	kills := 0
	for begun := time.Now(); time.Since(begun) < hurts(); kills++ {
		at := time.Now()
		w.agent.Restart(w)
		time.Sleep(time.Until(at.Add(700 * time.Millisecond)))
	}
	w.Logf("killed %d times", kills)
	w.rolledOut("agent", 6)
	w.awaitNode("Ready", "True")
}

// offlineRestart: nodectl is restarted while nobody answers it; ten pods run on, and
// one that ends meanwhile is started again.
func (w *world) offlineRestart() {
	w.kubectl("create", "deployment", "ten", "--image="+busybox, "--replicas=10", "--", "sh", "-c", sleeps)
	w.kubectl("rollout", "status", "deployment/ten", "--timeout=120s")
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
	w.kubectl("delete", "deployment", "ten", "--timeout=60s")
	w.awaitOutput("stands", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
}
