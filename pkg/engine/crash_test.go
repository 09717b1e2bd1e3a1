package engine

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// stories are lives of pods; each is told once without a fault, and then once
// per call of its transcript with the agent killed right after that call.
var stories = map[string]func(m *machine, kills func()){
	"start with init": func(m *machine, live func()) {
		m.src.set(mkpod("web", initContainer("exit-0-after-2s")))
		live()
	},
	"crash loop": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("exit-1-after-3s")))
		live()
	},
	"job": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("exit-0-after-1s"), policy(v1.RestartPolicyOnFailure)))
		live()
	},
	"stop": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.src.set()
		live()
	},
	"replace the pod": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.src.set(mkpod("web", image("slow-term-2s"), func(p *v1.Pod) { p.Spec.HostNetwork = true }))
		live()
	},
	"replace one container": func(m *machine, live func()) {
		two := func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1"})
		}
		m.src.set(mkpod("web", two))
		live()
		m.src.set(mkpod("web", two, image("app:2")))
		live()
	},
	"remove and add again": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.src.set()
		m.pass(time.Second)
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
	},
}

// chapter is how long each part of a story is given.
const chapter = 90 * time.Second

// TestF1_KillAfterEveryCall: kill -9 after any call, and another agent, lead to
// the same end, with never two of one container (I1, I3, I4).
func TestF1_KillAfterEveryCall(t *testing.T) {
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			want, calls := tell(t, story, nil)
			if calls < 4 {
				t.Fatalf("the story took %d calls: it was not played", calls)
			}
			for n := 1; n <= calls; n++ {
				kills := map[int]bool{n: true}
				if got, _ := tell(t, story, kills); got != want {
					t.Errorf("killed after call %d, the end is\n%s\nwant\n%s", n, got, want)
				}
				// And the next agent too, right after its own first call.
				kills[n+1] = true
				if got, _ := tell(t, story, kills); got != want {
					t.Errorf("killed after calls %d and %d, the end is\n%s\nwant\n%s", n, n+1, got, want)
				}
			}
		})
	}
}

// tell plays a story, kills the agent after the given calls, and returns how it
// ends (attempts left out: they may differ) and how many calls it took.
func tell(t *testing.T, story func(*machine, func()), kills map[int]bool) (end string, calls int) {
	kills = maps.Clone(kills)
	bubble(t, func(t *testing.T, m *machine) {
		killed := make(chan struct{}, 16)
		m.rt.AfterEach(func(n int, _ string) {
			if kills[n] {
				m.agent.conn.Cut()
				killed <- struct{}{}
			}
		})
		m.arrive()
		live := func() {
			over := time.After(chapter)
			for {
				select {
				case <-killed:
					m.die()
					m.pass(time.Second)
					m.arrive()
				case <-over:
					m.settle()
					return
				}
			}
		}
		story(m, live)
		end = shape(m)
		calls = len(m.rt.Transcript())
		for i, line := range m.rt.Transcript() {
			if strings.Contains(line, "->") && !strings.Contains(line, "Unavailable") {
				t.Errorf("call %d failed: %s", i+1, line)
			}
		}
	})
	return end, calls
}

// shape is the end of a story without the numbers that a crash may raise.
func shape(m *machine) string {
	var b strings.Builder
	for line := range strings.Lines(m.rt.State()) {
		for f := range strings.FieldsSeq(line) {
			if !strings.HasPrefix(f, "attempt=") {
				b.WriteString(f + " ")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "phase %s\nrecords %d volumes %d\n", m.phase("web"), len(m.disk.records), len(m.disk.volumes))
	return b.String()
}
