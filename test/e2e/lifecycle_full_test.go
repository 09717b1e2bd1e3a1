//go:build full

package e2e

import (
	"fmt"
	"maps"
	"slices"
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
				return fmt.Errorf("the runtime told of %v", at)
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
