//go:build full

package kube

import (
	"errors"
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
const shopPage = "<h1>The corner shop</h1>\n<ul><li>apples</li><li>bread</li><li>cheese</li></ul>\n<p>version 1</p>"

// shopAlone runs the files of examples/shop on the machine before it joins the cluster. An agent with a
// kubeconfig does not start then, and names them. It returns the directory of the database.
func (w *world) shopAlone() (data string) {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(node.Repo(), "examples/shop/*.yaml"))
	for _, file := range files {
		text, bad := os.ReadFile(file)
		err = errors.Join(err, bad, os.WriteFile(filepath.Join(w.static, filepath.Base(file)), text, 0o600))
	}
	if err != nil || len(files) == 0 {
		w.Fatal(files, err)
	}
	args := []string{
		"serve", "-f", w.static, "--root-dir", w.root, "--runtime-endpoint", w.machine.Endpoint, "--pod-logs-dir", w.logs,
		"--cgroup-root", w.group, "--node-name", w.name, "--eviction-hard", "memory.available<100Mi,nodefs.available<1%,imagefs.available<1%",
	}
	// The tests' network has a route to the range that is the default of --service-cidr.
	alone := cluster.NewProcess(w, w.program, w.TempDir(), append(slices.Clone(args), "--service-cidr", "10.97.0.0/24"), w.serves)
	alone.Start(w)
	w.await(func() error {
		got, err := visit("127.0.0.1:30080")
		if err == nil && got != shopPage {
			err = fmt.Errorf("without a cluster, the page is %q", got)
		}
		return err
	})
	alone.Terminate(w)
	out, err := exec.Command(w.program, append(args, "--kubeconfig", w.file)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "deployment default/shop-web") {
		w.Errorf("serve with a kubeconfig: %v: %s", err, out)
	}
	for _, file := range files {
		if err := os.Remove(filepath.Join(w.static, filepath.Base(file))); err != nil {
			w.Fatal(err)
		}
	}
	return filepath.Join(w.root, "volumes/default/data-shop-db-0/data")
}

// visit returns the page of the shop. A refused connection is an error at once. Each visit has its own
// connection: one made before the service had its rules never reaches the service.
func visit(address string) (string, error) {
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

// shopDisk is a volume for a claim of the shop: the cluster has no provisioner.
func shopDisk(claim, dir string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: default, name: %[1]s}
  hostPath: {path: %[2]q, type: Directory}
---
`, claim, dir)
}

// shopWithSlowProxy returns a copy of examples/shop whose web pods end half a minute after their deletion
// instead of two seconds. On a busy machine the EndpointSlice controller and kube-proxy need more than
// two seconds to learn of the deletion, and send visits to the pod until then.
func (w *world) shopWithSlowProxy() (dir string) {
	w.Helper()
	dir = w.TempDir()
	web := filepath.Join(dir, "web.yaml")
	err := os.CopyFS(dir, os.DirFS(filepath.Join(node.Repo(), "examples/shop")))
	text, bad := os.ReadFile(web)
	longer := strings.NewReplacer("sleep: {seconds: 2}", "sleep: {seconds: 30}", "terminationGracePeriodSeconds: 10", "terminationGracePeriodSeconds: 60").Replace(string(text))
	err = errors.Join(err, bad, os.WriteFile(web, []byte(longer), 0o600))
	if err != nil || strings.Count(longer, "seconds: 30}")+strings.Count(longer, "Seconds: 60") != 2 {
		w.Fatalf("%v: no preStop hook is longer in\n%s", err, longer)
	}
	return dir
}

// TestShop_OnACluster: the files of examples/shop run on a machine, which then joins a cluster. The same
// files run there on the nodectl node with their data, but with a longer preStop hook. Pods find one
// another by the names of Services. Every component is killed and comes back, in any order, and the page is served without
// interruption. The database keeps its data when its pod is replaced, a new version is rolled out
// without a failed visit, and a Job of the CronJob makes a backup.
//
// Shows: F1, F21, F70
func TestShop_OnACluster(t *testing.T) {
	w := bareWorld(t)
	cluster.WithoutKubeProxy(t)
	w.importImages()
	archives, err := node.Images()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range archives {
		w.machine.Import(t, a.File)
	}
	w.file = w.cluster.NodeKubeconfig(t, w.name)
	data, backups := w.shopAlone(), filepath.Join(t.TempDir(), "backups")
	if err := errors.Join(os.Mkdir(backups, 0o700), os.Chmod(backups, 0o777)); err != nil {
		t.Fatal(err)
	}
	w.serve("--cluster-dns", dnsAddress, "--workloads", "stop")
	proxy := w.cluster.KubeProxy(t, w.name)
	w.apply(dnsManifests + "---\n" + shopDisk("data-shop-db-0", data) + shopDisk("shop-backup", backups))
	w.kubectl("apply", "-f", w.shopWithSlowProxy())
	w.kubectl("patch", "cronjob", "shop-backup", "-p", `{"spec": {"suspend": true}}`) // it may be due
	w.awaitRollout("statefulset/shop-db")
	w.awaitOutput("True", "get", "job", "shop-migrate", "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].status}`)
	if out := w.kubectl("logs", "job/shop-migrate"); !strings.Contains(out, "added 0 items") {
		t.Errorf("the data did not move: %s", out)
	}
	w.awaitRollout("deployment/shop-web")
	address := w.kubectl("get", "service", "shop-web", "-o", "jsonpath={.spec.clusterIP}")
	page := func() (string, error) { return visit(address) }
	w.await(func() error {
		got, err := page()
		if err == nil && got != shopPage {
			err = fmt.Errorf("the page is %q", got)
		}
		return err
	})
	w.await(func() error { // its sidecar, a restartable init container
		out, err := w.try("logs", "-l", "app=shop-web", "-c", "notes")
		if err == nil && !strings.Contains(out, "visit from") {
			err = fmt.Errorf("notes: %q", out)
		}
		return err
	})
	revive := func() {
		for _, p := range []*cluster.Process{w.cluster.Controllers, w.cluster.Scheduler} {
			if !p.Runs() { // it exits if the API server is just starting, and is restarted here
				p.Start(t)
			}
		}
	}
	w.shopRestarts(proxy, page, revive)
	w.shopChanges(page, revive)
}

// shopRestarts restarts every component. No container of the shop changes, and page succeeds.
func (w *world) shopRestarts(proxy *cluster.Process, page func() (string, error), revive func()) {
	w.Helper()
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
	seed := rand.Uint64()
	w.Logf("seed of the order: %d", seed)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, part := range parts {
		begun := time.Now()
		part.restart()
		if strings.Contains(part.name, "kube-apiserver") {
			w.newborn(begun)
		}
		revive()
		if got, err := page(); err != nil || got != shopPage {
			w.Errorf("after a restart of %s the page is %q: %v", part.name, got, err)
		}
		w.awaitNode("Ready", "True")
		w.Logf("restarted %s", part.name)
	}
	if now := containers(); now != before {
		w.Errorf("containers were\n%snow\n%s", before, now)
	}
}

// shopChanges edits the page, replaces the pod of the database, rolls out a new version and makes a
// backup. page visits the shop; revive starts controllers that have exited.
func (w *world) shopChanges(page func() (string, error), revive func()) {
	w.Helper()
	shows := func(want string) {
		w.Helper()
		w.await(func() error {
			got, err := page()
			if err == nil && got != want {
				err = fmt.Errorf("the page is %q, not %q", got, want)
			}
			return err
		})
	}
	w.kubectl("patch", "configmap", "shop", "--type=merge", "-p", `{"data": {"page.html": "<h1>closed</h1>\n"}}`)
	shows("<h1>closed</h1>")
	w.kubectl("rollout", "restart", "statefulset/shop-db")
	w.await(func() error {
		revive() // it may have exited since the last check
		_, err := w.try("rollout", "status", "statefulset/shop-db", "--timeout=10s")
		return err
	})
	w.kubectl("patch", "configmap", "shop", "--type=merge", "-p", `{"data": {"page.html": "{{.Version}}<ul>{{range .Items}}<li>{{.}}</li>{{end}}</ul>\n"}}`)
	shows("1<ul><li>apples</li><li>bread</li><li>cheese</li></ul>")
	// Pods that were without their database can turn unready after it has returned: a probe sees it late.
	w.kubectl("rollout", "restart", "deployment/shop-web")
	w.awaitRollout("deployment/shop-web")
	w.kubectl("set", "env", "deployment/shop-web", "-c", "web", "VERSION=2")
	w.await(func() error {
		revive()
		if _, err := page(); err != nil {
			w.Errorf("during the rollout: %v", err)
		}
		out, err := w.try("rollout", "status", "deployment/shop-web", "--watch=false")
		if err == nil && !strings.Contains(out, "successfully rolled out") {
			err = errors.New(out)
		}
		return err
	})
	shows("2<ul><li>apples</li><li>bread</li><li>cheese</li></ul>")
	w.kubectl("create", "job", "shop-now", "--from=cronjob/shop-backup")
	w.await(func() error {
		revive()
		return w.gets("True", []string{"get", "job", "shop-now", "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].status}`})
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

// TestF70_TheServerIsAway: the API server is down for minutes, until a container has been
// restarted thirty times. Pods run, exited containers restart, and afterwards the newest status
// of each pod arrives, once.
//
// Shows: F70
func TestF70_TheServerIsAway(t *testing.T) {
	const restarts int32 = 30
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
