package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestF12_SetIsWrittenOnceThereIsRoom: a source may not change for weeks.
//
// Shows: F12
func TestF12_SetIsWrittenOnceThereIsRoom(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.disk.refuse(true)
		m.arrive()
		m.src.set(mkpod("a"))
		m.pass(5 * time.Minute)
		m.disk.refuse(false)
		m.pass(2 * time.Minute)
		if n := len(m.disk.restored()["file:/m"].Files); n != 1 {
			t.Errorf("%d files are kept once there is room", n)
		}
		if n := strings.Count(m.log.String(), "Failed to write last good set"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if n := strings.Count(m.log.String(), "Writing last good sets succeeds again"); n != 1 {
			t.Errorf("the end of the failure was logged %d times", n)
		}
	})
}

// TestF12_SetIsWrittenWhenTheAgentLeaves: the agent writes it once more as it ends.
//
// Shows: F12
func TestF12_SetIsWrittenWhenTheAgentLeaves(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.disk.refuse(true)
		m.arrive()
		m.src.set(mkpod("a"))
		m.pass(5 * time.Second)
		m.disk.refuse(false)
		m.leave()
		if n := len(m.disk.restored()["file:/m"].Files); n != 1 {
			t.Errorf("%d files are kept", n)
		}
	})
}

// TestSetsOfOtherSourcesAreForgottenOnlyWhenAllSourcesHaveAnswered: starting an agent with a
// wrong -f, and then with the right one, loses no set.
func TestSetsOfOtherSourcesAreForgottenOnlyWhenAllSourcesHaveAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.wrote("http:u", of("http", "u", mkpod("b")))
		layers := func() []string {
			var names []string
			for name := range m.disk.restored() {
				names = append(names, name)
			}
			slices.Sort(names)
			return names
		}
		m.src.fail(errSilent)
		m.arrive()
		m.pass(time.Minute)
		if got := layers(); !slices.Equal(got, []string{"http:u"}) {
			t.Errorf("while its own source cannot be read: sets of %q", got)
		}
		m.src.set(mkpod("a"))
		m.pass(time.Minute)
		if got := layers(); !slices.Equal(got, []string{"file:/m"}) {
			t.Errorf("once it was read: sets of %q", got)
		}
	})
}

// TestF1_KilledBetweenSetAndRecordNothingGoesBack: a slow disk writes sets, the agent is
// killed at any moment, and the next one starts without its source. Running pods continue,
// none in an older version.
//
// Shows: F1
func TestF1_KilledBetweenSetAndRecordNothingGoesBack(t *testing.T) { killedBetweenSetAndRecord(t, 6) }

// killedBetweenSetAndRecord runs as many sequences as seeds says, each from its own seed.
func killedBetweenSetAndRecord(t *testing.T, seeds uint64) {
	for seed := range seeds {
		bubble(t, func(t *testing.T, m *machine) {
			r := rand.New(rand.NewPCG(seed, 1))
			m.disk.keepSets()
			m.disk.slow = time.Duration(r.IntN(4000)) * time.Millisecond
			m.src.name = []string{"file:/m", "api:/k"}[seed%2]
			source, location, _ := strings.Cut(m.src.name, ":")
			version := map[string]int{}
			m.arrive()
			for range 2 + r.IntN(4) {
				var all []*pod.Spec
				for _, name := range []string{"a", "b", "c"} {
					version[name] += r.IntN(2)
					all = append(all, of(source, location, mkpod(name, image(fmt.Sprintf("app:%d", version[name])), graceSeconds(2))))
				}
				m.src.set(all...)
				m.pass(time.Duration(r.IntN(5000)) * time.Millisecond)
			}
			before := m.versions()
			m.die()
			m.src.fail(errSilent)
			f := m.forecast(said{name: m.src.name, err: errSilent})
			m.rt.Reset()
			m.arrive()
			m.pass(time.Minute)
			did := executed(m.rt.Transcript())
			for _, c := range f.Changes {
				if want, got := calls(c.Key, c.Steps), did[c.Key]; !slices.Equal(want, got) {
					t.Errorf("seed %d: %s %s: the plan said %q, serve did %q", seed, c.Op, c.Key, want, got)
				}
				delete(did, c.Key)
			}
			if len(did) > 0 {
				t.Errorf("seed %d: no plan (notices %q), and serve did %q", seed, f.Notices, did)
			}
			after := m.versions()
			for name, v := range before {
				if now, runs := after[name]; !runs || now < v {
					t.Errorf("seed %d: %s ran in version %d, and now in %d", seed, name, v, after[name])
				}
			}
		})
	}
}

// versions returns the version of the image that each pod runs.
func (m *machine) versions() map[string]int {
	conn := m.rt.Connect()
	defer conn.Cut()
	all, err := m.config(conn).Runtime.Pods(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	out := map[string]int{}
	for _, a := range all {
		for v := range 10 {
			made := mkpod(a.Key.Name, image(fmt.Sprintf("app:%d", v)))
			if c := a.Containers["app"]; c.State == pod.StateRunning && c.Hash == made.ContainerHash("app") {
				out[a.Key.Name] = v
			}
		}
	}
	return out
}
