package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// mergePlan is what merge --dry-run -o json says.
type mergePlan struct {
	Summary struct {
		Changed                                 bool
		Add, Update, Remove, Unchanged, Restart int
		Delete, Reject, Conflict, Reconcile     int
	}
	Sources []struct {
		Source, Location, Error string
		Stale                   bool
	}
	Changes []struct {
		Op      string
		Pod     struct{ Namespace, Name, UID string }
		Restart struct {
			Pod        bool
			Containers []string
			Reason     string
		}
		Fields []struct{ Path, Old, New string }
	}
}

// dryRun asks what serving the stage's directories would change on its node.
func (s *stage) dryRun(layers ...string) mergePlan {
	s.Helper()
	args := []string{"merge", "--dry-run", "--against", "runtime", "-o", "json"}
	for _, l := range layers {
		args = append(args, "-f", l)
	}
	r := s.run(args...)
	var p mergePlan
	if err := json.Unmarshal([]byte(r.out), &p); err != nil {
		s.Fatalf("%v: exit code %d, %v\n%s%s", args, r.code, err, r.out, r.err)
	}
	want := 0
	switch {
	case p.Summary.Reject > 0:
		want = 3
	case p.Summary.Changed:
		want = 1
	}
	if r.code != want {
		s.Errorf("%v: exit code %d, want %d\n%s%s", args, r.code, want, r.out, r.err)
	}
	return p
}

// words says a plan on one line: what becomes of each pod, by name without the
// node's suffix, and what restarts of it.
func (p mergePlan) words() string {
	var all []string
	for _, c := range p.Changes {
		name := c.Pod.Name[:strings.LastIndexByte(c.Pod.Name, '-')]
		line := c.Op + " " + name
		if c.Restart.Pod {
			line += " pod"
		} else if len(c.Restart.Containers) > 0 {
			line += " " + strings.Join(c.Restart.Containers, ",")
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// inRuntime is what CRI shows of a stage: the newest life of every container by
// "pod/container", and the newest sandbox of every pod by "pod".
type inRuntime map[string]struct {
	id      string
	attempt uint32
	runs    bool
}

func (s *stage) inRuntime() inRuntime {
	s.Helper()
	now := make(inRuntime)
	note := func(name, id string, attempt uint32, runs bool) {
		if old, known := now[name]; !known || attempt >= old.attempt {
			now[name] = struct {
				id      string
				attempt uint32
				runs    bool
			}{id, attempt, runs}
		}
	}
	short := func(name string) string { return strings.TrimSuffix(name, "-"+s.name) }
	for _, b := range s.sandboxes() {
		note(short(b.Metadata.Name), b.Id, b.Metadata.Attempt, b.State == cri.PodSandboxState_SANDBOX_READY)
	}
	for _, c := range s.containers("") {
		name := short(c.Labels["io.kubernetes.pod.name"]) + "/" + c.Metadata.Name
		note(name, c.Id, c.Metadata.Attempt, c.State == cri.ContainerState_CONTAINER_RUNNING)
	}
	return now
}

// changes returns what differs between two looks, sorted: of what is in both,
// "restarted" where it is another one, "stopped" where it runs no more; "new" and
// "gone" for the others.
func (before inRuntime) changes(after inRuntime) []string {
	var all []string
	for name, b := range before {
		switch a, there := after[name]; {
		case !there:
			all = append(all, "gone "+name)
		case a.id != b.id:
			all = append(all, "restarted "+name)
		case b.runs && !a.runs:
			all = append(all, "stopped "+name)
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			all = append(all, "new "+name)
		}
	}
	slices.Sort(all)
	return all
}

// promised returns the changes that a plan promises for what is in the runtime,
// as far as it names containers: those that a pod gets or loses beside are told
// by the case.
func (p mergePlan) promised(before inRuntime) []string {
	var all []string
	for _, c := range p.Changes {
		name := c.Pod.Name[:strings.LastIndexByte(c.Pod.Name, '-')]
		for has := range maps.Keys(before) {
			of, container, inside := strings.Cut(has, "/")
			switch {
			case of != name:
			case c.Op == "REMOVE":
				all = append(all, "gone "+has)
			case c.Restart.Pod, inside && slices.Contains(c.Restart.Containers, container):
				all = append(all, "restarted "+has)
			}
		}
	}
	return all
}

// TestForecast_OnContainerd makes one edit after the other. Before the agent may
// see it, merge --dry-run says what will come of it; when the agent is done, CRI
// shows that exactly this came of it: the containers that are others now are the
// ones the plan named, and nothing else was touched.
func TestForecast_OnContainerd(t *testing.T) {
	s := parallelStage(t)
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
		beside []string // what comes of it beside what the plan names as restarted or removed
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
		{"moved to another layer", func() { s.must(os.Rename(filepath.Join(s.manifests, "a.yaml"), filepath.Join(second, "web.yaml"))) }, "", nil},
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
			s.eventually(func() error { // the job ends by itself, and that is no edit's doing
				if now := s.inRuntime(); now["job"].runs || now["job/main"].runs {
					return errors.New("the job runs")
				}
				return nil
			})
			before := s.inRuntime()
			s.must(a.cmd.Process.Signal(syscall.SIGSTOP)) // it is looked at before the agent sees it
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
				if left := s.dryRun(s.manifests, second); left.Summary.Changed {
					return fmt.Errorf("still to do: %s", left.words())
				}
				if got := before.changes(s.inRuntime()); !slices.Equal(got, want) {
					return fmt.Errorf("came of it: %v; planned: %v", got, want)
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
