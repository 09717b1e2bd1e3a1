package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Only panics within a minute count: any number of them that are further apart is logged and
// retried, the third within one minute quarantines the pod.
//
// Shows: F8
func TestF8_PanicsFurtherApartThanAMinuteDoNotQuarantine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at   []time.Duration
		want bool // it is in quarantine after the last
	}{
		"a minute apart":            {[]time.Duration{0, 60 * time.Second, 120 * time.Second, 180 * time.Second}, false},
		"the first is forgotten":    {[]time.Duration{0, 40 * time.Second, 60 * time.Second}, false},
		"the last three count":      {[]time.Duration{0, 40 * time.Second, 60 * time.Second, 99 * time.Second}, true},
		"within less than a minute": {[]time.Duration{0, 30 * time.Second, 59 * time.Second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				v := &trap{disk: m.disk, name: "web"}
				m.alter = func(c *Config) { c.Volumes = v }
				m.src.set(mkpod("web"))
				m.arrive()
				m.pass(time.Second)
				began := time.Now()
				for i, at := range c.at {
					m.pass(at - time.Since(began))
					if i == len(c.at)-1 && strings.Contains(m.stands("web"), "Quarantined") {
						t.Fatal("it was in quarantine before its last panic")
					}
					m.disk.mu.Lock()
					v.left = 1
					m.disk.mu.Unlock()
					m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"edit": fmt.Sprint(i)} })) // makes the worker read the pod
					m.settle()
				}
				m.pass(5 * time.Second)
				if got := strings.Contains(m.stands("web"), "Quarantined"); got != c.want {
					t.Errorf("web is %q", m.stands("web"))
				}
				if n := strings.Count(m.log.String(), "Pod worker panicked"); n != len(c.at) {
					t.Errorf("%d panics, want %d", n, len(c.at))
				}
				m.want("default/web sandbox attempt=0 ready", "default/web/app attempt=0 running")
			})
		})
	}
}

// The containers of a pod in quarantine keep running. No other pod gets their UID, and with
// it their directories and user IDs.
func TestQuarantine_ContainersRun_TheirUIDIsNotFree(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		v := &trap{disk: m.disk, name: "first"}
		m.alter = func(c *Config) { c.Volumes = v }
		m.src.set(mkpod("first", ofUID("own")))
		m.arrive()
		m.expect("first", "Running", true)
		m.disk.mu.Lock()
		v.left = 3
		m.disk.mu.Unlock()
		edited := mkpod("first", ofUID("other"))
		m.src.set(edited)
		m.pass(10 * time.Second)
		m.expect("first", "Running Quarantined", true)
		m.src.set(edited, mkpod("second", ofUID("own")))
		m.pass(time.Minute)
		m.expect("first", "Running Quarantined", true)
		m.expect("second", "Pending DuplicateUID", false)
		m.src.set(mkpod("first", ofUID("other"), image("app:2")), mkpod("second", ofUID("own")))
		m.pass(2 * time.Minute)
		m.expect("first", "Running", true)
		m.expect("second", "Running", true)
	})
}
