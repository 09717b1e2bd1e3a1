package kube

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
)

// shopPage is what the shop shows.
const shopPage = "<h1>The corner shop</h1>\n<ul><li>apples</li><li>bread</li><li>cheese</li></ul>"

// TestShop_OnACluster: the shop as Deployments that find one another by the
// environment of their Services, on a node that is nodectl. Every component is killed
// and comes back, in any order, and whoever looks at the page notices nothing.
func TestShop_OnACluster(t *testing.T) {
	w := newWorld(t)
	w.importImages()
	proxy := w.cluster.KubeProxy(t, w.name)
	text, err := os.ReadFile(filepath.Join(node.Repo(), "examples/shop/cluster/shop.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "shop")
	w.cluster.Apply(t, strings.Replace(string(text), "path: /var/lib/shop,", fmt.Sprintf("path: %q,", disk), 1))
	t.Cleanup(func() {
		w.kubectl("delete", "deployment,job,service,pvc,pv", "--all", "--timeout=120s")
	})
	w.kubectl("rollout", "status", "deployment/shop-db", "--timeout=120s")
	w.kubectl("wait", "--for=condition=Complete", "job/shop-migrate", "--timeout=120s")
	w.kubectl("rollout", "status", "deployment/shop-web", "--timeout=120s")
	address := w.kubectl("get", "service", "shop-web", "-o", "jsonpath={.spec.clusterIP}")
	page := func() (string, error) {
		// A connection that is refused is an error at once. Each visit has its own: one
		// that was made before the service had its rules goes elsewhere as long as it lives.
		client := http.Client{Timeout: patience / 4, Transport: &http.Transport{DisableKeepAlives: true}}
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
			if !p.Runs() { // it does not bear an API server that is just starting; somebody restarts it
				p.Start(t)
			}
		}
	}
	rand.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, part := range parts {
		begun := time.Now()
		part.restart()
		if strings.Contains(part.name, "kube-apiserver") {
			w.newborn(begun)
		}
		revive()
		took := node.Stopwatch(t)
		got, err := page()
		if took := took(); err != nil || got != shopPage || took > 5*time.Second {
			t.Errorf("after a restart of %s the page is %q, after %s: %v", part.name, got, took, err)
		}
		w.awaitNode("Ready", "True")
		t.Logf("restarted %s", part.name)
	}
	if now := containers(); now != before {
		t.Errorf("containers were\n%snow\n%s", before, now)
	}
	// An edit of what the page shows; then the database is made anew and has kept
	// what it was told.
	w.kubectl("patch", "configmap", "shop", "--type=merge", "-p", `{"data": {"page.html": "<h1>closed</h1>\n"}}`)
	w.await(func() error {
		got, err := page()
		if err == nil && got != "<h1>closed</h1>" {
			err = fmt.Errorf("the page is %q", got)
		}
		return err
	})
	w.kubectl("rollout", "restart", "deployment/shop-db")
	node.Eventually(t, 2*patience, func() error {
		revive() // it may have ended after it was looked at last
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

// restarting is a pod that ends every few seconds, and one that runs.
const restarting = `apiVersion: v1
kind: Pod
metadata: {name: falls}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "sleep 3; exit 1"]}]
`

// TestF70_TheServerIsAway: for a minute nobody answers. Pods run, what ends is
// started again, and afterwards the newest status of each pod arrives, once.
func TestF70_TheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--max-container-restart-period", "5s")
	w.importImages()
	w.pod("stands", sleeps)
	w.cluster.Apply(t, restarting)
	w.cluster.Apply(t, strings.Replace(shell("ends", "while [ ! -e /tmp/end ]; do sleep 0.1; done"), "spec:\n", "spec:\n  restartPolicy: Never\n", 1))
	t.Cleanup(func() { w.kubectl("delete", "pod", "falls", "ends", "--timeout=60s") })
	w.kubectl("wait", "--for=condition=Ready", "pod/ends", "--timeout=60s")
	count := func() (n int) {
		_, _ = fmt.Sscan(w.kubectl("get", "pod", "falls", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"), &n)
		return n
	}
	before := count()
	uid := w.kubectl("get", "pod", "stands", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	w.cluster.APIServer.Kill(t)
	away := time.Now()
	w.execLocally("ends", "touch", "/tmp/end")
	time.Sleep(time.Until(away.Add(outage())))
	begun := time.Now()
	w.cluster.APIServer.Start(t)
	w.newborn(begun)
	w.awaitOutput("Succeeded", "get", "pod", "ends", "-o", "jsonpath={.status.phase}")
	w.awaitNode("Ready", "True")
	w.await(func() error {
		if now := count(); now < before+int(outage()/(20*time.Second)) {
			return fmt.Errorf("%d restarts before, %d now", before, now)
		}
		return nil
	})
	if now := w.kubectl("get", "pod", "stands", "-o", "jsonpath={.status.containerStatuses[0].containerID}"); now != uid {
		t.Errorf("the pod that stood was restarted: %s, %s", uid, now)
	}
	patches, wrongs := map[string]int{}, 0
	for _, r := range w.everybodys() {
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
	// The node's controller may have called the pods of a silent node not ready: each time
	// that is put right by one patch.
	if patches["ends"] != 1 || patches["stands"] > wrongs {
		t.Errorf("patches after the outage: %v; want one for the pod that ended, at most %d for the one that stood", patches, wrongs)
	}
	// The end of a pod while the server was away came in order: its containers ended
	// before it did.
	if out := w.kubectl("get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"); out != "0" {
		t.Errorf("exit code %q", out)
	}
}

// outage is how long the server is away: a minute, and ten in the long form.
func outage() time.Duration {
	if os.Getenv("NODECTL_E2E_LONG") != "" {
		return 10 * time.Minute
	}
	return time.Minute
}

// execLocally runs a command in a pod's container by the agent's own socket.
func (w *world) execLocally(pod string, command ...string) {
	w.Helper()
	out, err := w.nodectl(append([]string{"exec", pod, "--"}, command...)...)
	if err != nil {
		w.Fatalf("nodectl exec: %v: %s", err, out)
	}
}

// TestC_1_31_OutOfPods: more pods than the node has room for are bound to it at once.
// As many as there is room for run, and the others have failed, each with its reason.
func TestC_1_31_OutOfPods(t *testing.T) {
	t.Parallel()
	room, pods := 10, 50
	if os.Getenv("NODECTL_E2E_LONG") != "" {
		room, pods = 110, 500
	}
	w := newWorld(t, "--max-pods", fmt.Sprint(room))
	w.importImages()
	var all strings.Builder
	for i := range pods {
		all.WriteString(strings.Replace(shell(fmt.Sprintf("many-%03d", i), sleeps), "spec:\n", "spec:\n  nodeName: "+w.name+"\n", 1) + "---\n")
	}
	w.cluster.Apply(t, all.String())
	t.Cleanup(func() { w.kubectl("delete", "pods", "--all", "--timeout=300s", "--wait") })
	phases := func(selector string) int {
		return len(strings.Fields(w.kubectl("get", "pods", "--field-selector", selector, "-o", "name")))
	}
	node.Eventually(t, 4*time.Minute, func() error {
		if runs, failed := phases("status.phase=Running"), phases("status.phase=Failed"); runs != room || failed != pods-room {
			return fmt.Errorf("%d run, %d have failed", runs, failed)
		}
		return nil
	})
	reasons := strings.Fields(w.kubectl("get", "pods", "--field-selector", "status.phase=Failed", "-o", "jsonpath={.items[*].status.reason}"))
	slices.Sort(reasons)
	if reasons = slices.Compact(reasons); len(reasons) != 1 || reasons[0] != "OutOfpods" {
		t.Errorf("reasons %v", reasons)
	}
}
