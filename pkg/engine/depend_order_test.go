package engine

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// orderLoop is a sync loop that knows pods and has no worker.
func orderLoop(cfg Config) *loop {
	cfg.Log = slog.New(slog.DiscardHandler)
	return New(cfg).newLoop(true)
}

// remove adds a terminating pod to the loop.
func (l *loop) remove(s *pod.Spec) *entry {
	e := l.addEntry(s.Key)
	e.admitted, e.lastWant = true, s
	l.noteOrder(e)
	return e
}

// In layers of pods, each of which depends on all pods of the next layer, the number of paths
// grows exponentially. All are removed at once: each name is resolved once, however many
// paths lead to it.
func TestStopOrder_LayersThatNameEachOther_EachNameIsLookedAtOnce(t *testing.T) {
	const layers, wide = 10, 50
	looked := 0
	l := orderLoop(Config{Visible: func(string, string) bool { looked++; return true }})
	var all []*entry
	for layer := range layers {
		var on []pod.Dependency
		if layer > 0 {
			for i := range wide {
				on = append(on, pod.Dependency{Name: fmt.Sprintf("l%d-%d", layer-1, i), Until: pod.Started})
			}
		}
		for i := range wide {
			s := after(fmt.Sprintf("l%d-%d", layer, i), on...)
			s.Origin.Source = fmt.Sprintf("kind-%d", layer) // Visible is called for each name
			all = append(all, l.remove(s))
		}
	}
	for i, e := range all {
		waits, until := l.stopWaits(e)
		above := layers - 1 - i/wide // layers that stop before it
		if (waits != "") != (above > 0) {
			t.Fatalf("%s: %q", e.key, waits)
		}
		if want := time.Duration(above) * (30*time.Second + stopMargin); above > 0 && until.Sub(e.removalSince) != want {
			t.Fatalf("%s waits for %s, want %s", e.key, until.Sub(e.removalSince), want)
		}
	}
	if want := (layers - 1) * wide * wide; looked != want {
		t.Errorf("%d names are looked at, want %d", looked, want)
	}
}

// When two chains lead to the same pod, the longer one bounds how long it may wait, whichever
// comes first.
func TestStopOrder_Diamond_BoundIsTheLongerArm(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		long, short := names[0], names[1]
		l := orderLoop(Config{})
		on := func(name string, grace int64, on ...string) *entry {
			s := mkpod(name, graceSeconds(grace))
			for _, d := range on {
				s.DependsOn = append(s.DependsOn, pod.Dependency{Name: d, Until: pod.Started})
			}
			return l.remove(s)
		}
		db := on("db", 30)
		on(long, 600, "db")
		on(short, 10, "db")
		on("front", 60, long, short) // before both
		on("top", 300, "front")
		if _, until := l.stopWaits(db); until.Sub(db.removalSince) != 960*time.Second+3*stopMargin {
			t.Errorf("%s is the long arm: db waits for %s", long, until.Sub(db.removalSince))
		}
	}
}

// Pods on a cycle do not wait for one another, and those outside wait for all of them.
func TestStopOrder_Cycle_HoldsNothingUp(t *testing.T) {
	l := orderLoop(Config{})
	on := func(name string, on ...string) *entry {
		s := mkpod(name)
		for _, d := range on {
			s.DependsOn = append(s.DependsOn, pod.Dependency{Name: d, Until: pod.Started})
		}
		return l.remove(s)
	}
	a, b, c, d := on("a", "b"), on("b", "c"), on("c", "a", "d"), on("d")
	for _, e := range []*entry{a, b, c} {
		if waits, _ := l.stopWaits(e); waits != "" {
			t.Errorf("%s of a cycle %s", e.key, waits)
		}
	}
	if waits, _ := l.stopWaits(d); waits != "waits until pod c, which depends on it, is removed" {
		t.Errorf("d %s", waits)
	}
	c.ended, l.order.current = true, false
	if waits, _ := l.stopWaits(d); waits != "" {
		t.Errorf("d %s", waits)
	}
}

// A pod that depends on many pods that do not exist costs the loop nothing before it is
// admitted, and little after that: its author chooses the names.
func TestDependencies_NamesOfNoPods_CostLittle(t *testing.T) {
	const pods, names = 1000, 64
	var specs []*pod.Spec
	for i := range pods {
		var on []pod.Dependency
		for j := range names {
			on = append(on, pod.Dependency{Name: fmt.Sprintf("p%d-%d", i, j), Until: pod.Started})
		}
		s := after(fmt.Sprintf("pod-%d", i), on...)
		s.Pod.Spec.NodeName = "n1"
		specs = append(specs, s)
	}
	l := orderLoop(Config{})
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, s := range specs {
		e := l.addEntry(s.Key)
		e.want, e.lastWant = s, s
		l.noteOrder(e)
	}
	if len(l.order.dependents) > 0 {
		t.Errorf("pods that are not admitted have %d keys", len(l.order.dependents))
	}
	before := live()
	for _, e := range l.pods {
		e.admitted = true
		l.noteOrder(e)
	}
	if each := int(live()-before) / (pods * names); each > 400 {
		t.Errorf("%d bytes for each name", each)
	}
	for _, e := range l.pods {
		l.forgetOrder(e)
	}
	if len(l.order.dependents) > 0 {
		t.Errorf("%d keys are left", len(l.order.dependents))
	}
}

// A terminated pod that gets a new instance by a request is noted once for each name: once it
// is gone, no list has it.
func TestStopOrder_NewInstanceByRequest_IsNotedOnce(t *testing.T) {
	l := orderLoop(Config{})
	e := l.addEntry(pod.Key{Namespace: "default", Name: "job"})
	e.lastWant = after("job", pod.Dependency{Name: "db", Until: pod.Started})
	e.want, e.admitted = e.lastWant, true
	l.noteOrder(e)
	e.ended, e.updates = true, make(chan podUpdate, 1)
	l.handleOperation(t.Context(), &operation{key: e.key})
	if list := l.order.dependents[pod.Key{Namespace: "default", Name: "db"}]; !e.admitted || len(list) != 1 {
		t.Errorf("admitted %t, %d times on the list of db", e.admitted, len(list))
	}
}

// A dependency names a pod of its own source. A pod of another source with that name does not
// replace it, unless the policy lets the source name the other one's objects.
func TestDependency_PodOfAnotherSourceHasItsName_IsNotMeant(t *testing.T) {
	onNode := func(p *v1.Pod) { p.Spec.NodeName = "n1" }
	sick := func(p *v1.Pod) {
		p.Spec.Containers[0].Name = "sick"
		p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1, TimeoutSeconds: 1,
			ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}
	}
	for name, c := range map[string]struct {
		own     bool
		visible bool
		starts  int
	}{
		"its own source has one": {own: true, starts: 1},
		"that one comes first":   {own: true, visible: true, starts: 1},
		"no source it may name":  {starts: 0},
		"one that it may name":   {visible: true, starts: 0}, // which is not ready
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.more = newWishes()
				m.more.name = "api:/k"
				m.alter = func(cfg *Config) { cfg.Visible = func(string, string) bool { return c.visible } }
				m.disk.sick["sick"] = true
				app := mkpod("app-n1", onNode)
				app.DependsOn = []pod.Dependency{{Name: "db", Until: pod.Ready}}
				pods := []*pod.Spec{app}
				if c.own {
					pods = append(pods, mkpod("db-n1", onNode))
				}
				m.src.set(pods...)
				m.more.set(of("api", "/k", mkpod("db", onNode, sick)))
				m.arrive()
				m.pass(time.Minute)
				if got := starts(m, "app-n1"); got != c.starts {
					t.Errorf("%d starts, want %d", got, c.starts)
				}
				want := map[bool]string{true: "waits for pod db to be ready", false: "waits for pod db, which no source defines"}[c.visible]
				if status := m.disk.last(in("app-n1")).pod.Status; c.starts == 0 && !strings.Contains(status.ContainerStatuses[0].State.Waiting.Message, want) {
					t.Errorf("it waits for %+v, want %s", status.ContainerStatuses[0].State.Waiting, want)
				}
			})
		})
	}
}
