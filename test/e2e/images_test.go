package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/registry"
)

// TestI8_SecretsInEveryUse: a Secret that a pod mounts, has in its environment and
// pulls with is told nowhere: in no log, journal, record, table, dry run or answer of
// the socket; not even where the pull fails, or the key is missing.
func TestI8_SecretsInEveryUse(t *testing.T) {
	s := parallelStage(t)
	r := registry.New(t, registry.Options{User: "u", Password: canary})
	image := r.Push(t, "data:1", 1, 1000)
	login := func(name, password string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/dockerconfigjson\nmetadata: {name: %s}\nstringData: {.dockerconfigjson: '{\"auths\":{%q:{\"username\":\"u\",\"password\":%q}}}'}\n", name, r.Host, password)
	}
	s.write("secrets.yaml", documents(login("good", canary), login("bad", canary+"-not"), secretOf("keys", "token", canary, "bad key", canary)))
	s.write("keys.yaml", secretOf("keys", "token", canary))
	pulling := func(name, secret string) string {
		return manifest(name, []string{
			container("main", "forever", "volumeMounts: [{name: i, mountPath: /i}, {name: s, mountPath: /s}]", "envFrom: [{secretRef: {name: keys}, prefix: P_}]",
				"env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: token}}}]"),
		}, "imagePullSecrets: [{name: "+secret+"}]", "volumes: [{name: i, image: {reference: '"+image+"'}}, {name: s, secret: {secretName: keys}}]")
	}
	s.excuse("refused", "lost")
	s.write("refused.yaml", pulling("refused", "bad"))
	s.write("lost.yaml", manifest("lost", []string{container("main", "forever", "env: [{name: A, valueFrom: {secretKeyRef: {name: keys, key: gone}}}]")}))
	a := s.serve("--log-level", "debug")
	s.awaitRejected("file", "secrets.yaml", "config key")
	s.awaitRejected("file", "lost.yaml", "gone")
	// The file of all Secrets becomes right.
	s.write("secrets.yaml", documents(login("good", canary), login("bad", canary+"-not")))
	st := s.awaitStatus("refused", "the pull fails", func(st v1.PodStatus) bool {
		return strings.Contains(describe(st), "ImagePull")
	})
	if strings.Contains(describe(st), canary) {
		t.Error("the status tells the password")
	}
	s.write("web.yaml", pulling("web", "good"))
	main := s.awaitRunning("web", "main")["main"]
	s.awaitReady("web", true)
	s.awaitLog("web", "main", 0, "started")
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", main.pid)); err != nil || !holds(string(env), []string{"\x00TOKEN=" + canary, "\x00P_token=" + canary}) {
		t.Errorf("the container's environment: %d bytes, %v", len(env), err)
	}
	if files, err := os.ReadDir(main.inside("/i")); err != nil || len(files) == 0 {
		t.Errorf("the image volume holds %v, %v", files, err)
	}
	s.secretsStay(canary)
	// What a change would do is told, not what it is.
	other := filepath.Join(s.dir, "other")
	s.must(os.CopyFS(other, os.DirFS(s.manifests)), os.WriteFile(filepath.Join(other, "keys.yaml"), []byte(secretOf("keys", "token", canary+"-changed")), 0o600))
	if r := s.run("merge", "--dry-run", "--against", "runtime", "-f", other); !strings.Contains(r.out, "redacted") || strings.Contains(r.out+r.err, canary) {
		t.Errorf("a dry run of another Secret says:\n%s%s", r.out, r.err)
	}
	s.write("keys.yaml", secretOf("keys", "token", canary+"-changed"))
	s.shows(main, "/s/token", canary+"-changed")
	s.secretsStay(canary)
	for _, l := range a.linesWith(canary) {
		t.Errorf("the agent says: %s", l)
	}
	for _, f := range []string{"web", "refused"} {
		s.remove(f + ".yaml")
		s.awaitGone(f)
	}
	s.secretsStay(canary)
}

// idling is what an agent has and does while nothing happens to its pods.
type idling struct {
	goroutines, wakeups int
	least, most         map[string]int // calls of each method, in a window
}

// measureIdle runs pods by one agent, and looks at it while nothing happens.
func measureIdle(t *testing.T, n int, objects string, text func(name string) string) (of idling) {
	s := newStage(t, shared)
	if objects != "" {
		s.write("objects.yaml", objects)
	}
	for i := range n {
		name := fmt.Sprint("p", i)
		s.write(name+".yaml", text(name))
	}
	a := s.serve()
	for i := range n {
		s.eventually(func() error { // the many may take longer than one has patience
			if p := s.status(fmt.Sprint("p", i)); p == nil || !ready(p.Status) {
				return fmt.Errorf("pod %d of %d is not ready", i, n)
			}
			return nil
		})
	}
	s.quiet(s.front)
	switches := func() (n int) {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", a.cmd.Process.Pid))
		s.must(err)
		for _, f := range all {
			text, _ := os.ReadFile(f)
			for _, m := range regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s+(\d+)`).FindAllStringSubmatch(string(text), -1) {
				var k int
				_, _ = fmt.Sscan(m[1], &k)
				n += k
			}
		}
		return n
	}
	of.least, of.most = make(map[string]int), make(map[string]int)
	// Of all windows the quietest counts: the machine is busy, and what Go gives back of a
	// start's memory it gives back in many small steps.
	for window := 0; window < 3 || window < 8 && of.wakeups > 100; window++ {
		before, calls := switches(), s.front.Counts()
		<-time.After(4 * time.Second)
		if n := switches() - before; window == 0 || n < of.wakeups {
			of.wakeups = n
		}
		for method, n := range s.front.Counts() {
			n -= calls[method]
			of.most[method] = max(of.most[method], n)
			if window > 0 {
				n = min(n, of.least[method])
			}
			of.least[method] = n
		}
	}
	for _, calls := range []map[string]int{of.least, of.most} {
		maps.DeleteFunc(calls, func(_ string, n int) bool { return n == 0 })
	}
	s.invariants()
	s.judged = true
	a.settle()
	a.asked.Store(true)
	s.must(a.cmd.Process.Signal(syscall.SIGQUIT)) // and it says what each of its goroutines does
	<-a.done
	a.read.Wait()
	of.goroutines = len(regexp.MustCompile(`(?m)^goroutine \d+`).FindAllString(a.said(), -1))
	return of
}

// TestIdleVolumes: pods with four volumes each cost an agent that idles no goroutine,
// no wakeup and no call more than pods without.
func TestIdleVolumes(t *testing.T) {
	t.Parallel()
	n := 12
	if long {
		n = 110
	}
	var plain, volumes idling
	t.Run("agents", func(t *testing.T) {
		t.Run("without volumes", func(t *testing.T) {
			t.Parallel()
			plain = measureIdle(t, n, "", func(name string) string {
				return manifest(name, []string{container("main", "forever")}, "hostNetwork: true")
			})
		})
		t.Run("with volumes", func(t *testing.T) {
			t.Parallel()
			volumes = measureIdle(t, n, documents(configMap("conf", "k", "v"), secretOf("keys", "token", canary)), func(name string) string {
				return manifest(name, []string{
					container("main", "forever", "volumeMounts: [{name: a, mountPath: /a}, {name: b, mountPath: /b}, {name: c, mountPath: /c}, {name: d, mountPath: /d}]"),
				}, "hostNetwork: true", "volumes:", "- {name: a, emptyDir: {}}", "- {name: b, configMap: {name: conf}}", "- {name: c, secret: {secretName: keys}}",
					"- {name: d, projected: {sources: [{configMap: {name: conf}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}")
			})
		})
	})
	t.Logf("%d pods: without volumes %+v, with four each %+v", n, plain, volumes)
	if plain.goroutines == 0 || volumes.goroutines > plain.goroutines+3 {
		t.Errorf("%d goroutines, without volumes %d", volumes.goroutines, plain.goroutines)
	}
	if volumes.wakeups > plain.wakeups*3/2+150 {
		t.Errorf("%d wakeups, without volumes %d", volumes.wakeups, plain.wakeups)
	}
	// A window in which the machine stood still has fewer calls, or more: one of all
	// is as it should be.
	for method, n := range volumes.least {
		if n > plain.most[method]+1 {
			t.Errorf("%d calls of %s, without volumes %d", n, method, plain.most[method])
		}
	}
}
