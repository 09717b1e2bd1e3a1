//go:build full

package kube

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// shopPage is the shop's page.
const shopPage = "<h1>The corner shop</h1>\n<ul><li>apples</li><li>bread</li><li>cheese</li></ul>"

// TestShop_OnACluster: the shop as Deployments that find one another by the environment of
// their Services, on a nodectl node. Every component is killed and comes back, in any order,
// and the page is served without interruption.
//
// Shows: F1, F21, F70
func TestShop_OnACluster(t *testing.T) {
	w := newWorld(t)
	w.importImages()
	archives, err := node.Images()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range archives {
		w.machine.Import(t, a.File)
	}
	proxy := w.cluster.KubeProxy(t, w.name)
	text, err := os.ReadFile(filepath.Join(node.Repo(), "examples/shop/cluster/shop.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "shop")
	w.apply(strings.Replace(string(text), "path: /var/lib/shop,", fmt.Sprintf("path: %q,", disk), 1))
	w.awaitRollout("deployment/shop-db")
	w.awaitOutput("True", "get", "job", "shop-migrate", "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].status}`)
	w.awaitRollout("deployment/shop-web")
	address := w.kubectl("get", "service", "shop-web", "-o", "jsonpath={.spec.clusterIP}")
	page := func() (string, error) {
		// A refused connection is an error at once. Each visit has its own connection: one
		// made before the service had its rules never reaches the service.
		client := http.Client{Timeout: wait.Limit, Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Get("http://" + address + "/")
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", r.Status, text)
		}
		return strings.TrimSpace(string(text)), err
	}
	w.await(func() error {
		got, err := page()
		if err == nil && got != shopPage {
			err = fmt.Errorf("the page is %q", got)
		}
		return err
	})
	w.await(func() error { // its sidecar, a restartable init container
		out, err := w.try("logs", "deployment/shop-web", "-c", "notes")
		if err == nil && !strings.Contains(out, "visit from") {
			err = fmt.Errorf("notes: %q", out)
		}
		return err
	})
	containers := func() string {
		return w.kubectl("get", "pods", "-l", "app in (shop-db,shop-web)", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	}
	before := containers()
	parts := []struct {
		name    string
		restart func()
	}{
		{"nodectl", func() { w.agent.Restart(w) }},
		{"containerd", func() { w.machine.Kill(w); w.machine.Restart(w) }},
		{"kube-apiserver", func() { w.cluster.APIServer.Restart(w) }},
		{"etcd and kube-apiserver", func() { w.cluster.Restart(w) }},
		{"kube-controller-manager", func() { w.cluster.Controllers.Restart(w) }},
		{"kube-scheduler", func() { w.cluster.Scheduler.Restart(w) }},
		{"kube-proxy", func() { proxy.Restart(w) }},
	}
	revive := func() {
		for _, p := range []*cluster.Process{w.cluster.Controllers, w.cluster.Scheduler} {
			if !p.Runs() { // it exits if the API server is just starting, and is restarted here
				p.Start(t)
			}
		}
	}
	seed := rand.Uint64()
	t.Logf("seed of the order: %d", seed)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, part := range parts {
		begun := time.Now()
		part.restart()
		if strings.Contains(part.name, "kube-apiserver") {
			w.newborn(begun)
		}
		revive()
		if got, err := page(); err != nil || got != shopPage {
			t.Errorf("after a restart of %s the page is %q: %v", part.name, got, err)
		}
		w.awaitNode("Ready", "True")
		t.Logf("restarted %s", part.name)
	}
	if now := containers(); now != before {
		t.Errorf("containers were\n%snow\n%s", before, now)
	}
	// An edit of what the page shows; then the database pod is replaced and has kept its
	// data.
	w.kubectl("patch", "configmap", "shop", "--type=merge", "-p", `{"data": {"page.html": "<h1>closed</h1>\n"}}`)
	w.await(func() error {
		got, err := page()
		if err == nil && got != "<h1>closed</h1>" {
			err = fmt.Errorf("the page is %q", got)
		}
		return err
	})
	w.kubectl("rollout", "restart", "deployment/shop-db")
	w.await(func() error {
		revive() // it may have exited since the last check
		_, err := w.try("rollout", "status", "deployment/shop-db", "--timeout=10s")
		return err
	})
	w.kubectl("patch", "configmap", "shop", "--type=merge", "-p", `{"data": {"page.html": "<ul>{{range .Items}}<li>{{.}}</li>{{end}}</ul>\n"}}`)
	w.await(func() error {
		got, err := page()
		if err == nil && got != "<ul><li>apples</li><li>bread</li><li>cheese</li></ul>" {
			err = fmt.Errorf("the page is %q", got)
		}
		return err
	})
}

// restarting has a pod that exits every few seconds, and one that runs on.
const restarting = `apiVersion: v1
kind: Pod
metadata: {name: falls}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "sleep 3; exit 1"]}]
`

// TestF70_TheServerIsAway: for a minute the API server is down. Pods run, exited containers
// restart, and afterwards the newest status of each pod arrives, once.
//
// Shows: F70
func TestF70_TheServerIsAway(t *testing.T) { serverAway(t, 5) }

// TestF70_TheServerIsAway_Long: the same for ten minutes.
//
// Shows: F70
func TestF70_TheServerIsAway_Long(t *testing.T) { serverAway(t, 60) }

// serverAway kills the API server until a container has been restarted so many times.
func serverAway(t *testing.T, restarts int32) {
	w := newWorld(t, "--max-container-restart-period", "5s")
	w.importImages()
	w.pod("stands", sleeps)
	w.apply(restarting)
	w.apply(strings.Replace(shell("ends", "while [ ! -e /tmp/end ]; do sleep 0.1; done"), "spec:\n", "spec:\n  restartPolicy: Never\n", 1))
	w.awaitReady("ends")
	w.await(func() error {
		if p := w.report("falls"); p == nil || len(p.Status.ContainerStatuses) == 0 {
			return errNotYet
		}
		return nil
	})
	count := func() int32 { return w.report("falls").Status.ContainerStatuses[0].RestartCount }
	uid := w.path("stands", "{.status.containerStatuses[0].containerID}")
	w.cluster.APIServer.Kill(t)
	w.execLocally("ends", "touch", "/tmp/end")
	before := count()
	for n := range restarts {
		wait.Until(t, "the pod is restarted once more", func() (int32, bool) { now := count(); return now, now > before+n })
	}
	begun := time.Now()
	w.cluster.APIServer.Start(t)
	w.newborn(begun)
	w.awaitOutput("Succeeded", "get", "pod", "ends", "-o", "jsonpath={.status.phase}")
	w.awaitNode("Ready", "True")
	w.await(func() error {
		var n int32
		_, _ = fmt.Sscan(w.path("falls", "{.status.containerStatuses[0].restartCount}"), &n)
		if n < before+restarts {
			return fmt.Errorf("%d restarts before, %d now", before, n)
		}
		return nil
	})
	if now := w.path("stands", "{.status.containerStatuses[0].containerID}"); now != uid {
		t.Errorf("the pod that stood was restarted: %s, %s: %s", uid, now, w.path("stands", "{.status}"))
	}
	patches, wrongs := map[string]int{}, 0
	for _, r := range w.audited() {
		switch {
		case r.StageTimestamp.Before(begun) || r.Stage != "ResponseComplete" || r.ObjectRef.Resource != "pods" || r.ResponseStatus.Code != http.StatusOK:
		case r.User.Username == w.user():
			if r.Verb == "patch" {
				patches[r.ObjectRef.Name]++
			}
		case r.ObjectRef.Name == "stands" && r.ObjectRef.Subresource == "status":
			wrongs++
		}
	}
	// The node controller may have set the pods of an unreachable node not ready: each time
	// the agent corrects that by one patch.
	if patches["ends"] != 1 || patches["stands"] > wrongs {
		t.Errorf("patches after the outage: %v; want one for the pod that ended, at most %d for the one that stood", patches, wrongs)
	}
	// The end of a pod during the outage arrived in order: its containers exited before it
	// ended.
	if out := w.kubectl("get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"); out != "0" {
		t.Errorf("exit code %q", out)
	}
}

// newborn records that the API server was started at begun and is ready now.
func (w *world) newborn(begun time.Time) {
	*w.starts = append(*w.starts, span{begun, time.Now().Add(time.Second)})
}

// nodectl runs a verb against the agent's socket.
func (w *world) nodectl(args ...string) (string, error) {
	w.Helper()
	out, err := exec.Command(w.program, slices.Concat(args[:1], []string{"--root-dir", w.root, "--node-name", w.name}, args[1:])...).CombinedOutput()
	return string(out), err
}

// execLocally runs a command in a pod's container by the agent's own socket.
func (w *world) execLocally(pod string, command ...string) {
	w.Helper()
	out, err := w.nodectl(append([]string{"exec", pod, "--"}, command...)...)
	if err != nil {
		w.Fatalf("nodectl exec: %v: %s", err, out)
	}
}
