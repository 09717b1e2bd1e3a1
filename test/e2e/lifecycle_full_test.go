//go:build full

package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestP21_DependsOnARealRuntime: a pod starts only when its dependency is ready, or done.
// When all are removed, the dependency stops last.
//
// Shows: P21
func TestP21_DependsOnARealRuntime(t *testing.T) {
	s := parallelStage(t)
	on := func(text, dependency string) string {
		return strings.Replace(text, "metadata: {", "metadata: {annotations: {nodectl.dev/depends-on: '"+dependency+"'}, ", 1)
	}
	const slowly = `ignore, print, armed, forever` // it uses up its grace period
	s.write("front.yaml", on(manifest("front", []string{container("main", slowly)}, "terminationGracePeriodSeconds: 1"), "web"))
	s.write("web.yaml", on(manifest("web", []string{container("main", slowly)}, "terminationGracePeriodSeconds: 1"), "db:ready, migrate:done"))
	s.write("migrate.yaml", manifest("migrate", []string{container("main", "wait, /x/migrate", scratchMount)}, "restartPolicy: OnFailure", s.scratchVolume()))
	s.write("db.yaml", manifest("db", []string{container("main", "forever", scratchMount,
		"readinessProbe: {exec: {command: [/app, exists, /x/db]}, periodSeconds: 1}")}, s.scratchVolume()))
	s.serve()
	s.awaitRunning("db", "main")
	s.awaitRunning("migrate", "main")
	waits := func(name, words string) {
		t.Helper()
		s.awaitStatus(name, "waits", func(st v1.PodStatus) bool { return strings.Contains(waiting(st, "main").Message, words) })
		if n := len(s.sandboxes()); n != 2 {
			t.Errorf("%d sandboxes, want those of db and migrate", n)
		}
	}
	waits("web", s.full("db")+" to be ready")
	s.touch("db")
	s.awaitReady("db", true)
	waits("web", s.full("migrate"))
	waits("front", s.full("web"))
	s.touch("migrate")
	for _, name := range []string{"web", "front"} {
		s.awaitRunning(name, "main")
		s.awaitLog(name, "main", 0, "armed")
	}
	order := func(of func(life) time.Time) []string {
		var at map[string]time.Time
		s.eventually(func() error { // the runtime sends the event a moment after it lists the exit
			at = make(map[string]time.Time)
			for _, l := range s.lives.of(s.name) {
				if name := strings.TrimSuffix(l.pod, "-"+s.name); name != "migrate" && !of(l).IsZero() {
					at[name] = of(l)
				}
			}
			if len(at) < 3 {
				return fmt.Errorf("the runtime reported %v", at)
			}
			return nil
		})
		return slices.SortedFunc(maps.Keys(at), func(a, b string) int { return at[a].Compare(at[b]) })
	}
	if got := order(func(l life) time.Time { return l.from }); !slices.Equal(got, []string{"db", "web", "front"}) {
		t.Errorf("they started in the order %v", got)
	}
	if done := s.awaitEnded("migrate", "main", 1); len(done) != 1 || s.awaitLives("web", 1)[0].from.Before(done[0].to) {
		t.Errorf("web began before %+v had ended", done)
	}
	// Dependents first: a pod that is removed alone waits for no other.
	all := []string{"front", "web", "migrate", "db"}
	for _, name := range all {
		s.remove(name + ".yaml")
	}
	for _, name := range all {
		s.awaitGone(name)
	}
	if got := order(func(l life) time.Time { return l.to }); !slices.Equal(got, []string{"front", "web", "db"}) {
		t.Errorf("they ended in the order %v", got)
	}
	s.nothingLeft()
}

// TestC_1_29_18_FailedProbesRestart: the agent stops a container whose liveness probe fails,
// or whose startup probe does not succeed in time, with the probe's own grace period instead
// of the pod's, and restarts it. The pod's other container runs on.
//
// Shows: C-1.29.18
func TestC_1_29_18_FailedProbesRestart(t *testing.T) {
	s := parallelStage(t)
	kinds := []string{"live", "begin"}
	for _, name := range kinds {
		probe := map[string]string{"live": "livenessProbe", "begin": "startupProbe"}[name] +
			": {exec: {command: [/app, exists, /x/well-" + name + "]}, initialDelaySeconds: 2, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1, terminationGracePeriodSeconds: 3}"
		s.write(name+".yaml", manifest(name, []string{
			container("main", "ignore, append, /x/"+name+", forever", scratchMount, probe), container("side", "forever"),
		}, s.scratchVolume(), "terminationGracePeriodSeconds: 600"))
		s.excuse(name) // the agent stops its container
	}
	s.serve()
	asked := make(map[string]time.Time)
	sides := make(map[string]running)
	for _, name := range kinds {
		s.awaitLog(name, "main", 0, "SIGTERM")
		s.touch("well-" + name) // within its grace period: the next run passes its probe
		sides[name] = s.awaitRunning(name, "main", "side")["side"]
		text, err := s.log(name, "main", 0)
		m := regexp.MustCompile(`SIGTERM (\d+)`).FindStringSubmatch(text)
		if err != nil || m == nil {
			t.Fatalf("log of %s: %q, %v", name, text, err)
		}
		at, err := strconv.ParseInt(m[1], 10, 64)
		s.must(err)
		asked[name] = time.Unix(0, at)
	}
	for _, name := range kinds {
		st := s.awaitStatus(name, "restarted and ready", func(st v1.PodStatus) bool {
			return ready(st) && containerStatus(st, "main").RestartCount == 1
		})
		if end := containerStatus(st, "main").LastTerminationState.Terminated; end == nil || end.ExitCode != 137 {
			t.Errorf("%s: last end %+v", name, end)
		}
		all := s.awaitEnded(name, "main", 1)
		if len(all) != 1 {
			t.Fatalf("%s: lives that are over: %+v", name, all)
		}
		if grace := all[0].to.Sub(asked[name]); grace < 2900*time.Millisecond {
			t.Errorf("%s was killed %s after its SIGTERM, the probe's grace is 3s", name, grace)
		}
		if now := s.awaitRunning(name, "main", "side"); now["side"] != sides[name] {
			t.Errorf("%s: side was %+v, is %+v", name, sides[name], now["side"])
		}
		s.awaitStamps(name, 2)
	}
}
