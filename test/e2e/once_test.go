package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// result is the result of a command that exits by itself.
type result struct {
	code     int
	out, err string
}

// run runs nodectl to its end.
func (s *stage) run(args ...string) result {
	s.Helper()
	return s.finish(s.command(args...))
}

// finish runs a command to its end.
func (s *stage) finish(cmd *exec.Cmd) result {
	s.Helper()
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	late := time.AfterFunc(wait.Limit, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait() // the caller checks the exit code
	return result{cmd.ProcessState.ExitCode(), out.String(), said.String()}
}

// runonce runs nodectl runonce for the stage's manifests and reads its report.
func (s *stage) runonce(want int, args ...string) runReport {
	s.Helper()
	r := s.run(append([]string{"runonce", "-f", s.manifests, "-o", "json"}, args...)...)
	if r.code != want {
		s.Fatalf("runonce %v: exit code %d, want %d\n%s%s", args, r.code, want, r.out, r.err)
	}
	var report runReport
	if err := json.Unmarshal([]byte(r.out), &report); err != nil && r.out != "" {
		s.Fatalf("runonce %v: %v\n%s", args, err, r.out)
	}
	return report
}

type runReport struct {
	APIVersion, Kind string
	Summary          struct {
		OK                    bool
		Pods, Failed, Timeout int
	}
	Pods []struct {
		Namespace, Name, UID, Phase, Result, Reason, Message string
		Containers                                           []struct {
			Name, State, Reason string
			ExitCode, Restarts  int
		}
	}
	Workloads []struct{ Kind, Namespace, Name, Result, Reason, Message string }
}

// results returns result by pod.
func (r runReport) results() map[string]string {
	m := make(map[string]string)
	for _, p := range r.Pods {
		name, _, _ := strings.Cut(p.Name, "-")
		m[name] = p.Result
	}
	return m
}

// TestRunonce_PodsStay: runonce starts pods and leaves them running; a second one, and a
// serve after it, touch nothing; --down removes exactly these pods.
func TestRunonce_PodsStay(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	p := s.through(criproxy.Hooks{})
	// The job has succeeded before web starts.
	s.write("web.yaml", strings.Replace(manifest("web", []string{container("main", `ready, 1500ms, serve, ":8080", forever`,
		"readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}")}), "metadata: {", "metadata: {annotations: {nodectl.dev/depends-on: 'job:done'}, ", 1))
	s.write("job.yaml", manifest("job", []string{container("main", "append, /x/job", scratchMount)}, "restartPolicy: OnFailure", s.scratchVolume()))
	r := s.runonce(0, "--until", "ready")
	if got := fmt.Sprint(r.results()); got != "map[job:done web:ready]" || !r.Summary.OK || r.Summary.Pods != 2 || r.Kind != "RunReport" {
		t.Errorf("report: %+v", r)
	}
	was := s.awaitRunning("web", "main")
	s.awaitSandboxEnded("job") // nothing of a finished job runs on
	before := len(p.Mutations())
	s.runonce(0, "--until", "ready")
	a := s.serve()
	a.await("Status of every pod is known", "pods=2")
	s.awaitReady("web", true)
	s.quiet(p)
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls for pods that are there: %v", made)
	}
	s.untouched("web", was)

	// While a serve holds the root, runonce refuses to run with any flags.
	for _, args := range [][]string{{}, {"--down"}} {
		r := s.run(append([]string{"runonce", "-f", s.manifests}, args...)...)
		if r.code != 1 || !strings.Contains(r.err, fmt.Sprint("process ", a.cmd.Process.Pid)) {
			t.Errorf("runonce %v beside serve: %d, %s", args, r.code, r.err)
		}
	}
	s.untouched("web", was)
	a.leave()
	for _, f := range s.files() {
		s.noteRemove(f) // --down has the same effect
	}
	s.runonce(0, "--down")
	s.awaitGone("web")
	s.awaitGone("job")
	s.nothingLeft()
	if n := s.stamps("job"); n != 1 {
		t.Errorf("the job ran %d times", n)
	}
}

// TestRunonce_SweepsNothing: runonce leaves pods of other manifests alone.
func TestRunonce_SweepsNothing(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", simple("web"))
	s.runonce(0)
	was := s.awaitRunning("web", "main")
	s.remove("web.yaml")
	s.write("other.yaml", simple("other"))
	s.runonce(0)
	s.untouched("web", was)
	s.noteRemove("other.yaml") // --down has the same effect
	s.runonce(0, "--down")
	s.awaitGone("other")
	s.untouched("web", was)
}

// TestGetPods: get shows what CRI lists, with a running serve and without one, and changes
// nothing.
func TestGetPods(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	p := s.through(criproxy.Hooks{})
	s.write("web.yaml", simple("web"))
	s.write("job.yaml", manifest("job", []string{container("main", "print, done")}, "restartPolicy: Never"))
	a := s.serve()
	main := s.awaitRunning("web", "main")["main"]
	s.awaitReady("web", true)
	s.awaitPhase("job", v1.PodSucceeded)
	s.awaitSandboxEnded("job")
	s.quiet(p)
	before := len(p.Mutations())
	for _, beside := range []bool{true, false} {
		if !beside {
			a.kill()
		}
		r := s.run("get", "pods", "-o", "json")
		var list v1.PodList
		if err := json.Unmarshal([]byte(r.out), &list); err != nil || r.code != 0 || len(list.Items) != 2 {
			t.Fatalf("get pods: %+v, %v", r, err)
		}
		job, web := list.Items[0], list.Items[1]
		if web.Name != s.full("web") || !ready(web.Status) || web.Status.PodIP != s.sandbox("web").Network.GetIp() ||
			containerStatus(web.Status, "main").ContainerID != "containerd://"+main.id {
			t.Errorf("web: %s, %s", web.Name, describe(web.Status))
		}
		if job.Status.Phase != v1.PodSucceeded {
			t.Errorf("job: %s", describe(job.Status))
		}
		if r := s.run("get", "pods"); !strings.Contains(r.out, s.full("web")) || !strings.Contains(r.out, "Running") || !strings.Contains(r.out, "Completed") {
			t.Errorf("table:\n%s%s", r.out, r.err)
		}
		if r := s.run("get", "pods", "web", "-o", "name"); r.out != "pod/"+s.full("web")+"\n" {
			t.Errorf("name: %+v", r)
		}
		if r := s.run("get", "pods", "missing"); r.code != 1 || !strings.Contains(r.err, "missing") {
			t.Errorf("a pod that is not there: %+v", r)
		}
	}
	// Without an agent, get reads later changes from the runtime.
	if _, err := s.node.Runtime.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: main.id}); err != nil {
		t.Fatal(err)
	}
	var list v1.PodList
	if err := json.Unmarshal([]byte(s.run("get", "pods", "web", "-o", "json").out), &list); err != nil || len(list.Items) != 1 ||
		containerStatus(list.Items[0].Status, "main").State.Terminated == nil {
		t.Errorf("after the container's end: %v, %+v", err, list)
	}
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
}

// TestDryRun_AgainstRuntime: merge --dry-run predicts the effects of serving for running pods, and
// changes nothing itself.
func TestDryRun_AgainstRuntime(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	two := manifest("web", []string{container("main", "forever"), container("side", "forever")})
	s.write("web.yaml", two)
	s.write("old.yaml", simple("old"))
	a := s.serve()
	was := s.awaitRunning("web", "main", "side")
	s.awaitRunning("old", "main")
	s.awaitReady("web", true)
	s.awaitReady("old", true)
	a.leave()
	before := len(p.Mutations())
	dry := func() result { return s.run("merge", "--dry-run", "-f", s.manifests, "--against", "runtime") }
	if r := dry(); r.code != 0 || !strings.Contains(r.out, "2 unchanged") {
		t.Errorf("without an edit: %+v", r)
	}
	s.write("web.yaml", strings.Replace(two, "[forever]", "[print, again, forever]", 1))
	s.remove("old.yaml")
	s.write("new.yaml", simple("new"))
	r := dry()
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
	for _, words := range [][]string{
		{"ADD", "default/" + s.full("new")}, {"REMOVE", "default/" + s.full("old")},
		{"UPDATE", "default/" + s.full("web"), "restart: container main"}, {"spec.containers[main].args"},
		{"Plan: 1 to add, 1 to update (1 restart), 1 to remove"},
	} {
		if !slices.ContainsFunc(strings.Split(r.out, "\n"), func(l string) bool { return holds(l, words) }) {
			t.Errorf("no line with %q in\n%s", words, r.out)
		}
	}
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls of a dry run: %v", made)
	}
	s.serve()
	s.awaitGone("old")
	s.awaitRunning("new", "main")
	s.awaitLog("web", "main", 1, "again")
	if now := s.awaitRunning("web", "main", "side"); now["side"] != was["side"] {
		t.Errorf("side was %+v, is %+v", was["side"], now["side"])
	}
	if made := p.Mutations()[before:]; len(made) == 0 {
		t.Error("serve made no call")
	}
}

// TestI8_SecretsStayOut: a value of a pod's environment is in no log, at any level, whatever
// happens to the pod; files on disk that contain it are readable by root only.
//
// Shows: I8
func TestI8_SecretsStayOut(t *testing.T) {
	s := parallelStage(t)
	const canary = "s3cr3t-5d9f0c"
	env := "env: [{name: PASSWORD, value: " + canary + "}]"
	s.write("web.yaml", manifest("web", []string{
		container("main", "forever", env), container("bad", "forever", "command: [/nope]", env), container("loop", `exit, "1"`, env),
	}))
	s.write("broken.yaml", manifest("broken", []string{container("main", "forever", "env: [{name: PASSWORD, valu: "+canary+"}]")}))
	a := s.serve("--log-level", "debug")
	a.await("Rejecting pod", "broken.yaml:7")
	s.awaitRunning("web", "main")
	s.awaitStatus("web", "crashed", func(st v1.PodStatus) bool { return waiting(st, "loop").Reason == "CrashLoopBackOff" })
	var before string
	s.awaitStatus("web", "main runs", func(st v1.PodStatus) bool {
		before = containerStatus(st, "main").ContainerID
		return before != ""
	})
	s.write("web.yaml", manifest("web", []string{container("main", "forever", "env: [{name: PASSWORD, value: other-"+canary+"}]")}))
	s.awaitStatus("web", "the edited main runs", func(st v1.PodStatus) bool {
		c := containerStatus(st, "main")
		return c.State.Running != nil && c.ContainerID != before
	})
	a.leave()
	if strings.Contains(a.said(), canary) {
		t.Error("the value is in the log")
	}
	// A container of any user writes its termination message and reads its hosts file: these
	// are world-accessible, the pod's directory is not. The directories of plugins are open to
	// root's group, as the kubelet's are, and hold no data.
	message := regexp.MustCompile(`/pods/[^/]+/(containers/[^/]+(/\d+)?|\d+/etc-hosts)$`)
	plugins := filepath.Join(s.root, "kubelet")
	err := filepath.Walk(s.root, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Type() == os.ModeSymlink {
			return nil // the socket's old path; a link has no permissions of its own
		}
		others := os.FileMode(0o077)
		if strings.HasPrefix(path, plugins) && err == nil && info.IsDir() {
			others = 0o027
		}
		if err == nil && info.Mode().Perm()&others != 0 && !strings.Contains(path, "/volumes/") && !message.MatchString(path) {
			t.Errorf("%s is %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
