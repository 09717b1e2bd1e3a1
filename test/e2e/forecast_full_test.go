//go:build full

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
)

// TestForecast_OnContainerd makes one edit after the other. Before the agent may see an edit,
// merge --dry-run predicts its effect. When the agent is done, CRI shows exactly this effect:
// the replaced containers are those that the plan named, and nothing else was touched.
func TestForecast_OnContainerd(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	second := filepath.Join(s.dir, "second")
	s.must(os.Mkdir(second, 0o700))
	web := func(lines ...string) string {
		return manifest("web", append([]string{container("main", "forever"), container("side", "forever")}, lines...))
	}
	withInit := func(word string) string {
		return manifest("init", []string{container("main", "forever")}, "initContainers:", container("first", "print, "+word), container("second", "print, x"))
	}
	job := func(word string) string {
		return manifest("job", []string{container("main", "print, "+word)}, "restartPolicy: OnFailure")
	}
	net := func(lines ...string) string {
		return manifest("net", []string{container("main", "forever"), container("side", "forever")}, lines...)
	}
	env := strings.Replace(web(), "args: [forever]}", "args: [forever], env: [{name: A, value: b}]}", 1) // of main
	image := strings.Replace(env, node.Stamp, node.Pause, 2)
	image = strings.Replace(image, node.Pause, node.Stamp, 1) // of side
	third := strings.Replace(image, "containers:\n", "containers:\n  "+container("third", "forever")+"\n", 1)
	for file, text := range map[string]string{"web.yaml": web(), "init.yaml": withInit("one"), "job.yaml": job("one"), "net.yaml": net(), "old.yaml": simple("old"), "still.yaml": simple("still")} {
		s.write(file, text)
	}
	a := s.serve("-f", second)
	s.awaitPhase("job", v1.PodSucceeded)
	for name, containers := range map[string][]string{"web": {"main", "side"}, "init": {"main"}, "net": {"main", "side"}, "old": {"main"}, "still": {"main"}} {
		s.awaitRunning(name, containers...)
	}
	s.quiet(s.front)
	write := func(file, text string) func() { return func() { s.write(file, text) } }
	for _, c := range []struct {
		name   string
		edit   func()
		plan   string
		beside []string // effects beside the containers that the plan names as restarted or removed
	}{
		{"label", write("web.yaml", labelled(web(), "one")), "UPDATE web", nil},
		{"env", write("web.yaml", env), "UPDATE web main", nil},
		{"image", write("web.yaml", image), "UPDATE web side", nil},
		{"container added", write("web.yaml", third), "UPDATE web", []string{"new web/third"}},
		{"container removed", write("web.yaml", image), "UPDATE web", []string{"gone web/third"}},
		{"the same text again", write("web.yaml", image), "", nil},
		{"grace and a probe", write("net.yaml", strings.Replace(strings.Replace(net(), "Seconds: 2", "Seconds: 3", 1),
			"args: [forever]}", "args: [forever], readinessProbe: {exec: {command: [/stamp]}, periodSeconds: 300, initialDelaySeconds: 300}}", 1)), "UPDATE net", nil},
		{"host network", write("net.yaml", net("hostNetwork: true")), "UPDATE net pod", nil},
		{"init container", write("init.yaml", withInit("two")), "UPDATE init pod", nil},
		{"job relabelled after its end", write("job.yaml", labelled(job("one"), "one")), "UPDATE job", nil},
		{"job edited after its end", write("job.yaml", job("two")), "UPDATE job pod", nil},
		{"file renamed", func() {
			s.must(os.Rename(filepath.Join(s.manifests, "web.yaml"), filepath.Join(s.manifests, "a.yaml")))
		}, "", nil},
		// A rename would remove the pod from one layer before it appears in the other: docs/merge-semantics.md.
		{"also in another layer", func() { s.must(os.Link(filepath.Join(s.manifests, "a.yaml"), filepath.Join(second, "web.yaml"))) }, "", nil},
		{"moved to another layer", func() { s.remove("a.yaml") }, "", nil},
		{"pod removed", func() { s.remove("old.yaml") }, "REMOVE old", nil},
		{"pod added", write("new.yaml", simple("new")), "ADD new", []string{"new new", "new new/main"}},
		{"several at once", func() {
			s.write("new.yaml", strings.Replace(simple("new"), "forever", "print, again, forever", 1))
			s.write("init.yaml", labelled(withInit("two"), "one"))
			s.write("old.yaml", simple("old"))
			s.remove("job.yaml")
		}, "ADD old; REMOVE job; UPDATE init; UPDATE new main", []string{"new old", "new old/main"}},
		{"broken", write("new.yaml", "kind: ["), "", nil},
	} {
		s.scene(c.name, func() {
			if c.name == "moved to another layer" {
				s.awaitSource("file", "a conflict", func(it sourceState) bool { return len(it.Conflicts) == 1 })
			}
			s.eventually(func() error { // the job ends by itself, whatever the edit
				if now := s.inRuntime(); now["job"].runs || now["job/main"].runs {
					return errors.New("the job runs")
				}
				return nil
			})
			before := s.inRuntime()
			s.must(a.cmd.Process.Signal(syscall.SIGSTOP)) // the dry run precedes the agent
			node.AwaitStill(t, a.cmd.Process.Pid)
			c.edit()
			plan := s.dryRun(s.manifests, second)
			s.must(a.cmd.Process.Signal(syscall.SIGCONT))
			if plan.words() != c.plan {
				s.Errorf("the plan is %q, want %q", plan.words(), c.plan)
			}
			for _, change := range plan.Changes {
				if change.Op == "UPDATE" && len(change.Fields) == 0 {
					s.Errorf("the plan names no field of %s", change.Pod.Name)
				}
			}
			want := append(plan.promised(before), c.beside...)
			slices.Sort(want)
			s.eventually(func() error { // and then there is nothing left to do
				if got := before.changes(s.inRuntime()); !slices.Equal(got, want) {
					return fmt.Errorf("came of it: %v; planned: %v", got, want)
				}
				if left := s.dryRun(s.manifests, second); left.Summary.Changed { // the slower check
					return fmt.Errorf("still to do: %s", left.words())
				}
				return nil
			})
			s.quiet(s.front)
			if got := before.changes(s.inRuntime()); !slices.Equal(got, want) {
				s.Errorf("came of it: %v; planned: %v", got, want)
			}
		})
	}
}
