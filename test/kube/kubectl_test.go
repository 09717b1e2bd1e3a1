package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/wait"
)

// TestC_1_25_ANodeOfACluster: the usual commands of kubectl, on a cluster whose only node is
// nodectl.
//
// Shows: C-1.25
func TestC_1_25_ANodeOfACluster(t *testing.T) {
	t.Parallel()
	shared(t).beside(t,
		part{"C_1_25_2_Node", (*world).nodeObject},
		part{"C_1_40_8_Logs", (*world).logsOfAPod},
		part{"C_1_40_9_Exec", (*world).exec},
		part{"C_1_40_9_AttachAndPortForward", (*world).attachAndForward},
		part{"Copy", (*world).copies},
		part{"C_1_19_4_Debug", (*world).debug},
		part{"C_1_13_MirrorPods", (*world).mirrors},
		part{"Deployment", (*world).deployment},
		part{"Job", (*world).job},
		part{"StatefulSet", (*world).statefulSet},
		part{"DaemonSet", (*world).daemonSet},
		part{"Events", (*world).events},
	)
}

// everything describes the state, for the search for a failure's cause.
func (w *world) everything() string {
	pods, _ := w.cluster.Kubectl(w, "get", "pods", "-A", "-o", "wide").CombinedOutput()
	events, _ := w.cluster.Kubectl(w, "get", "events", "-n", w.namespace, "--sort-by=.lastTimestamp").CombinedOutput()
	return string(pods) + string(events)
}

// shell is a pod of a shell that runs script.
func shell(name, script string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    command: [sh, -c, %q]
`, name, busybox, script)
}

const sleeps = "trap exit TERM; sleep 1000000 & wait"

// ignores is a script that only SIGKILL ends.
const ignores = "trap '' TERM; while :; do sleep 1000000; done"

// pod makes a pod of a shell and waits until it is ready; it is deleted with the namespace.
func (w *world) pod(name, script string) {
	w.Helper()
	w.apply(shell(name, script))
	w.awaitReady(name)
}

func (w *world) nodeObject() {
	for path, want := range map[string]string{
		"{.status.nodeInfo.kubeletVersion}":                             "v1.36.3",
		"{.status.nodeInfo.operatingSystem}":                            "linux",
		"{.metadata.labels.kubernetes\\.io/hostname}":                   w.name,
		"{.status.addresses[?(@.type==\"InternalIP\")].address}":        w.address,
		"{.status.daemonEndpoints.kubeletEndpoint.Port}":                w.port,
		"{.status.conditions[*].type}":                                  "MemoryPressure DiskPressure PIDPressure Ready",
		"{.status.conditions[?(@.type==\"Ready\")].reason}":             "KubeletReady",
		"{.status.conditions[?(@.type==\"MemoryPressure\")].reason}":    "KubeletHasSufficientMemory",
		"{.status.allocatable.pods}":                                    "110",
		"{.status.nodeInfo.containerRuntimeVersion}":                    strings.TrimSpace(w.kubectl("get", "node", w.name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")),
		"{.status.images[?(@.names[0]==\"" + busybox + "\")].names[0]}": busybox,
	} {
		w.awaitOutput(want, "get", "node", w.name, "-o", "jsonpath="+path)
	}
	holder := func() string {
		return w.kubectl("get", "lease", "-n", "kube-node-lease", w.name, "-o", "jsonpath={.spec.holderIdentity} {.spec.leaseDurationSeconds} {.spec.renewTime}")
	}
	first := holder()
	if !strings.HasPrefix(first, w.name+" 40 ") {
		w.Errorf("lease %q", first)
	}
	w.await(func() error { // renewed every 10 s
		if holder() == first {
			return errNotYet
		}
		return nil
	})
}

// vanishes: the Node is deleted, and the agent registers it again (F73).
func (w *world) vanishes() {
	uid := w.kubectl("get", "node", w.name, "-o", "jsonpath={.metadata.uid}")
	w.kubectl("delete", "node", w.name)
	w.await(func() error {
		now, err := w.try("get", "node", w.name, "-o", "jsonpath={.metadata.uid}")
		if err == nil && (now == "" || now == uid) {
			err = errNotYet
		}
		return err
	})
	w.awaitNode("Ready", "True")
}

func (w *world) logsOfAPod() {
	w.pod("logs", `echo one; echo two >&2; i=0; while [ ! -e /tmp/end ]; do i=$((i+1)); [ $i -lt 30 ] && echo tick $i; sleep 0.1; done; echo last; exit 3`)
	w.await(func() error {
		out := w.kubectl("logs", "logs")
		for _, line := range []string{"one", "two", "tick 1"} { // the two streams have no order
			if !strings.Contains("\n"+out, "\n"+line+"\n") {
				return fmt.Errorf("the log is %q", out)
			}
		}
		return nil
	})
	if out := w.kubectl("logs", "logs", "--tail=1", "--timestamps"); !regexp.MustCompile(`^\S+Z (two|tick \d+)\n$`).MatchString(out) {
		w.Errorf("the last line is %q", out)
	}
	if out := w.kubectl("logs", "logs", "--limit-bytes=3"); len(out) != 3 {
		w.Errorf("3 bytes are %q", out)
	}
	if out, err := w.try("logs", "logs", "-c", "missing"); err == nil || !strings.Contains(err.Error(), "container missing is not valid for pod logs") {
		w.Errorf("the log of an unknown container: %q, %v", out, err)
	}
	follow := w.command("logs", "-f", "logs")
	var out said.Log
	follow.Stdout = &out
	if err := follow.Start(); err != nil {
		w.Fatal(err)
	}
	late := time.AfterFunc(wait.Limit, func() { _ = follow.Process.Kill() })
	defer func() { late.Stop(); _ = follow.Process.Kill() }()
	out.Has(w, 1, "one\n") // else it may follow the next run
	w.kubectl("exec", "logs", "--", "touch", "/tmp/end")
	if err := follow.Wait(); err != nil || !strings.HasSuffix(out.String(), "\nlast\n") {
		w.Errorf("followed to the end: %v, %q", err, out.String())
	}
	w.await(func() error {
		out, err := w.try("logs", "logs", "--previous")
		if err == nil && !strings.HasSuffix(out, "\nlast\n") {
			err = fmt.Errorf("the log of the life before is %q", out)
		}
		return err
	})
	w.awaitOutput("3", "get", "pod", "logs", "-o", "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}")
}

func (w *world) exec() {
	w.pod("exec", sleeps)
	if out := w.kubectl("exec", "exec", "--", "sh", "-c", "echo out; echo err >&2"); out != "out\n" {
		w.Errorf("standard output %q", out)
	}
	cmd := w.command("exec", "exec", "--", "sh", "-c", "exit 42")
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 42 {
		w.Errorf("exit code %v", err)
	}
	cmd = w.command("exec", "-i", "exec", "--", "md5sum")
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB through standard input, and its end
	cmd.Stdin = bytes.NewReader(big)
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), sum(big)) {
		w.Errorf("4 MiB of standard input: %v %q", err, out)
	}
	// By SPDY too, as older clients.
	cmd = w.command("exec", "-i", "exec", "--", "wc", "-c")
	cmd.Env = append(cmd.Env, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false")
	cmd.Stdin = bytes.NewReader(big)
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(len(big)) {
		w.Errorf("by SPDY: %v %q", err, out)
	}
	// A terminal.
	cmd = exec.Command("script", "-qec", strings.Join(append([]string{"stty cols 97 rows 13;"}, w.command("exec", "-it", "exec", "--", "sh", "-c", "'for i in $(seq 50); do stty size 2>/dev/null | grep -q 97 && break; sleep 0.1; done; stty size'").Args...), " "), "/dev/null")
	cmd.Env = w.command("version").Env
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "13 97") {
		w.Errorf("a terminal: %v %q", err, out)
	}
	if _, err := w.try("exec", "exec", "--", "no-such-program"); err == nil {
		w.Error("a program that is not there runs")
	}
}

func (w *world) attachAndForward() {
	w.apply(`apiVersion: v1
kind: Pod
metadata: {name: attach}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: ` + busybox + `, stdin: true, stdinOnce: true, command: [sh, -c, "while read line; do echo got $line; done; echo end"]}
  - {name: web, image: ` + busybox + `, command: [sh, -c, "mkdir -p /tmp/w && echo hello > /tmp/w/index.html && exec httpd -f -p 127.0.0.1:8080 -h /tmp/w"],
     readinessProbe: {exec: {command: [wget, -qO-, "http://127.0.0.1:8080/"]}, periodSeconds: 1, timeoutSeconds: 60}}
`)
	w.awaitReady("attach")
	for _, websockets := range []string{"true", "false"} {
		port := strconv.Itoa(node.FreePort(w))
		forward := w.command("port-forward", "pod/attach", port+":8080")
		forward.Env = append(forward.Env, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+websockets)
		var said bytes.Buffer
		forward.Stderr = &said
		if err := forward.Start(); err != nil {
			w.Fatal(err)
		}
		w.await(func() error {
			c, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
		for range 3 {
			r, err := http.Get("http://127.0.0.1:" + port + "/")
			if err != nil {
				w.Fatalf("through port-forward (websockets %s): %v\n%s", websockets, err, said.String())
			}
			if text, _ := io.ReadAll(r.Body); string(text) != "hello\n" {
				w.Errorf("through port-forward: %q", text)
			}
			_ = r.Body.Close()
		}
		_ = forward.Process.Signal(os.Interrupt)
		_ = forward.Wait()
	}
	cmd := w.command("attach", "-i", "attach", "-c", "main")
	cmd.Stdin = strings.NewReader("some words\n")
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	if out, err := cmd.Output(); !strings.Contains(string(out), "got some words\n") {
		w.Errorf("attached: %v %q", err, out)
	}
}

func (w *world) copies() {
	w.pod("copy", sleeps)
	dir := w.TempDir()
	from := filepath.Join(dir, "from")
	big := bytes.Repeat([]byte("copy"), 1<<18)
	if err := os.MkdirAll(filepath.Join(from, "below"), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "below/big"), big, 0o640); err != nil {
		w.Fatal(err)
	}
	w.kubectl("cp", from, "copy:/tmp/there")
	w.kubectl("cp", "copy:/tmp/there", filepath.Join(dir, "back"))
	got, err := os.ReadFile(filepath.Join(dir, "back/below/big"))
	if err != nil || !bytes.Equal(got, big) {
		w.Errorf("there and back: %d bytes, %v", len(got), err)
	}
}

func (w *world) debug() {
	w.pod("debugged", "echo in the pod > /tmp/note; "+sleeps)
	out := w.kubectl("debug", "debugged", "--image="+busybox, "--image-pull-policy=Never", "--target=main", "-c", "eye", "--profile=general", "--attach=false", "--", "sh", "-c", "ps; hostname")
	w.awaitOutput("0", "get", "pod", "debugged", "-o", "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}")
	text := w.kubectl("logs", "debugged", "-c", "eye")
	if !strings.Contains(text, "sleep 1000000") || !strings.HasSuffix(text, "debugged\n") {
		w.Errorf("the ephemeral container does not see its target: %q %q", out, text)
	}
}

// local returns the manifest of a static pod in the namespace.
func (w *world) local(manifest string) string {
	return strings.Replace(manifest, "metadata: {", "metadata: {namespace: "+w.namespace+", ", 1)
}

func (w *world) mirrors() {
	w.manifest("static", w.local(shell("static", "echo static; "+sleeps)))
	name := "static-" + w.name
	w.awaitReady(name)
	uid := func() string { return w.kubectl("get", "pod", name, "-o", "jsonpath={.metadata.uid}") }
	first := uid()
	w.awaitOutput("Node", "get", "pod", name, "-o", "jsonpath={.metadata.ownerReferences[0].kind}")
	w.awaitOutput("static", "logs", name) // it may be ready before it has written anything
	if out := w.kubectl("exec", name, "--", "echo", "here"); out != "here\n" {
		w.Errorf("exec %q", out)
	}
	started := w.kubectl("get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	w.kubectl("delete", "pod", name)
	w.await(func() error {
		out, err := w.try("get", "pod", name, "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID}")
		if err == nil && (strings.HasPrefix(out, first) || !strings.HasSuffix(out, " "+started)) {
			err = fmt.Errorf("mirror %q, was %s; container %s", out, first, started)
		}
		return err
	})
	w.unmanifest("static")
	w.awaitOutput("", "get", "pod", name, "--ignore-not-found", "-o", "name")
}

// nameTaken: a static pod takes the name of a running pod, which the cluster then sees as
// Failed.
func (w *world) nameTaken() {
	name := "same-" + w.name
	w.pod(name, "echo api; "+sleeps)
	// It has to wait at first, and the pod of its name is still removed.
	static := w.local(shell("same", "echo static; "+sleeps))
	w.manifest("same", strings.Replace(static, "name: same}", "name: same, annotations: {nodectl.dev/depends-on: missing}}", 1))
	w.awaitOutput("Failed NameTaken False", "get", "pod", name, "-o", `jsonpath={.status.phase} {.status.reason} {.status.conditions[?(@.type=="Ready")].status}`)
	w.manifest("same", static)
	w.kubectl("delete", "pod", name)
	w.awaitOutput("Node True", "get", "pod", name, "-o", `jsonpath={.metadata.ownerReferences[0].kind} {.status.conditions[?(@.type=="Ready")].status}`)
	w.awaitOutput("static", "logs", name)
	w.unmanifest("same")
	w.awaitOutput("", "get", "pod", name, "--ignore-not-found", "-o", "name")
}

func (w *world) deployment() {
	w.apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: ` + busybox + `
        env: [{name: TEXT, value: one}]
        command: [sh, -c, "mkdir -p /tmp/w && echo $TEXT > /tmp/w/index.html && exec httpd -f -p 8080 -h /tmp/w"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 60}
`)
	w.awaitRollout("deployment/web")
	w.kubectl("set", "env", "deployment/web", "TEXT=two")
	w.awaitRollout("deployment/web")
	w.await(func() error { // the old ones are removed
		if names := strings.Fields(w.kubectl("get", "pods", "-l", "app=web", "-o", "name")); len(names) != 3 {
			return fmt.Errorf("%v", names)
		}
		return nil
	})
	if out := w.kubectl("exec", "deployment/web", "--", "wget", "-qO-", "http://127.0.0.1:8080/"); out != "two\n" {
		w.Errorf("after the rollout it says %q", out)
	}
	w.kubectl("rollout", "undo", "deployment/web")
	w.awaitRollout("deployment/web")
	w.kubectl("scale", "deployment/web", "--replicas=0")
	w.awaitOutput("", "get", "pods", "-l", "app=web", "-o", "name")
}

func (w *world) job() {
	w.apply(`apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  completions: 3
  parallelism: 2
  backoffLimit: 4
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "echo $((40+2))"]}]
`)
	w.awaitOutput("True", "get", "job", "sum", "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].status}`)
	if out := w.kubectl("logs", "job/sum"); strings.TrimSpace(out) != "42" {
		w.Errorf("the job says %q", out)
	}
}

func (w *world) statefulSet() {
	w.apply(`apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "` + sleeps + `"]}]
`)
	w.awaitRollout("statefulset/db")
	if out := w.kubectl("exec", "db-1", "--", "hostname", "-f"); out != "db-1.db."+w.namespace+".svc.cluster.local\n" {
		w.Errorf("host name %q", out)
	}
	uid := w.kubectl("get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}")
	w.kubectl("delete", "pod", "db-0", "--timeout=60s")
	w.await(func() error { // the same name, another pod
		out, err := w.try("get", "pod", "db-0", "-o", `jsonpath={.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && (strings.HasPrefix(out, uid) || !strings.HasSuffix(out, "True")) {
			err = errNotYet
		}
		return err
	})
}

func (w *world) daemonSet() {
	w.apply(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      terminationGracePeriodSeconds: 1
      hostNetwork: true
      containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "` + sleeps + `"]}]
`)
	w.awaitRollout("daemonset/everywhere")
	w.awaitOutput(w.address, "get", "pods", "-l", "app=everywhere", "-o", "jsonpath={.items[0].status.podIP}")
}

func (w *world) events() {
	w.pod("reasons", sleeps)
	for _, reason := range []string{"Scheduled", "Pulled", "Created", "Started"} {
		w.await(func() error {
			out := w.kubectl("get", "events", "--field-selector", "involvedObject.name=reasons,reason="+reason, "-o", "jsonpath={.items[*].type}")
			if out != "Normal" {
				return fmt.Errorf("%s: %q", reason, out)
			}
			return nil
		})
	}
	w.apply(strings.Replace(shell("unpulled", "true"), busybox, "nodectl.dev/test/missing:1\n    imagePullPolicy: Never", 1))
	w.awaitOutput("ErrImageNeverPull", "get", "pod", "unpulled", "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}")
	if out := w.kubectl("describe", "pod", "unpulled"); !strings.Contains(out, "ErrImageNeverPull") {
		w.Errorf("describe says %s", out)
	}
}

// recreated: an object is deleted and made again under its name; the new pod waits for the
// old one, and the two are not confused (F73).
func (w *world) recreated() {
	w.pod("again", ignores)
	old := w.kubectl("get", "pod", "again", "-o", "jsonpath={.metadata.uid}")
	w.kubectl("delete", "pod", "again", "--grace-period=0", "--force")
	w.apply(shell("again", sleeps))
	w.awaitOutput("True", "get", "pod", "again", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if now := w.kubectl("get", "pod", "again", "-o", "jsonpath={.metadata.uid}"); now == old {
		w.Errorf("it is the same pod: %s", now)
	}
}

// drain: a node is emptied for maintenance, and has pods again afterwards.
func (w *world) drain() {
	w.kubectl("create", "deployment", "drained", "--image="+busybox, "--replicas=2", "--", "sh", "-c", sleeps)
	w.awaitRollout("deployment/drained")
	w.Cleanup(func() { w.kubectl("uncordon", w.name) })
	w.kubectl("drain", w.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout="+wait.Limit.String())
	w.awaitOutput("2", "get", "deployment", "drained", "-o", "jsonpath={.status.unavailableReplicas}")
	w.kubectl("uncordon", w.name)
	w.awaitRollout("deployment/drained")
}

// disruptionBudget: a drain waits for a disruption budget, and continues without it.
func (w *world) disruptionBudget() {
	w.kubectl("create", "deployment", "few", "--image="+busybox, "--replicas=2", "--", "sh", "-c", sleeps)
	w.kubectl("create", "pdb", "few", "--selector=app=few", "--min-available=1")
	w.awaitRollout("deployment/few")
	w.awaitOutput("1", "get", "poddisruptionbudget", "few", "-o", "jsonpath={.status.disruptionsAllowed}")
	w.Cleanup(func() { w.kubectl("uncordon", w.name) })
	drain := w.command("drain", w.name, "--ignore-daemonsets", "--force", "--pod-selector=app=few", "--timeout="+wait.Limit.String())
	var out said.Log
	drain.Stdout, drain.Stderr = &out, &out
	if err := drain.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = drain.Process.Kill() })
	// The new pod has no node, so that only one is ready and none may be evicted.
	out.Has(w, 1, "disruption budget")
	w.awaitOutput("1", "get", "deployment", "few", "-o", "jsonpath={.status.readyReplicas}")
	w.kubectl("delete", "pdb", "few")
	if err := drain.Wait(); err != nil {
		w.Errorf("the drain: %v\n%s", err, out.String())
	}
	w.kubectl("uncordon", w.name)
	w.awaitRollout("deployment/few")
}
