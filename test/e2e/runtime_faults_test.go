package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/criproxy"
)

// stamping is a pod of one container that runs forever and stamps each run; it contains a
// secret, as most pods of these tests do.
func (s *stage) stamping(name string, lines ...string) string {
	return manifest(name, []string{container("main", "append, /x/"+name+", forever", scratchMount, secret)},
		append([]string{s.scratchVolume()}, lines...)...)
}

// awaitLives returns the runs of a pod's container main when there were n and the last one is
// running.
func (s *stage) awaitLives(name string, n int) []life {
	s.Helper()
	var all []life
	s.eventually(func() error {
		all = nil
		for _, l := range s.lives.of(s.name) {
			if l.pod == s.full(name) && l.name == "main" {
				all = append(all, l)
			}
		}
		if len(all) < n || !all[len(all)-1].to.IsZero() {
			return fmt.Errorf("pod %s has had %d lives, want %d: %v", name, len(all), n, all)
		}
		return nil
	})
	return all
}

// crash kills the process of a container from outside.
func (s *stage) crash(id string) {
	s.Helper()
	for _, p := range s.node.Processes(id) {
		if err := unix.Kill(p.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			s.Fatal(err)
		}
	}
}

// sequence returns the mutating calls about a pod, in order of arrival.
func sequence(f *criproxy.Fault) []string {
	var all []string
	for _, c := range f.Calls() {
		if criproxy.Mutating(c.Method) {
			all = append(all, strings.TrimSpace(c.Method+" "+c.Container))
		}
	}
	return all
}

// TestF23_SlowRuntime: with a runtime that is slow for every call, pods start and stop late,
// but with the usual calls: none twice, none in parallel with another of the same pod, and no
// more reads than each step needs.
//
// Shows: F23
func TestF23_SlowRuntime(t *testing.T) { parallelStage(t).slowRuntime(200 * time.Millisecond) }

func (s *stage) slowRuntime(each time.Duration) {
	t := s.T
	p := s.through(criproxy.Hooks{})
	s.serve().await("Status of every pod is known")
	slow := p.Fault(criproxy.Rule{Delay: each})
	pods := []string{"one", "two"}
	watch := make(map[string]*criproxy.Fault)
	for _, name := range pods {
		watch[name] = p.Fault(criproxy.Rule{Pod: s.full(name)})
		s.write(name+".yaml", s.stamping(name))
	}
	for _, name := range pods {
		s.awaitReady(name, true)
		s.awaitStamps(name, 1)
		if got, want := sequence(watch[name]), []string{"RunPodSandbox", "CreateContainer main", "StartContainer main"}; !slices.Equal(got, want) {
			t.Errorf("calls for pod %s: %v, want %v", name, got, want)
		}
	}
	for _, name := range pods {
		s.remove(name + ".yaml")
	}
	s.eventually(func() error {
		if n := len(s.sandboxes()); n > 0 {
			return fmt.Errorf("%d sandboxes are there", n)
		}
		return nil
	})
	slow.Lift()
	for _, name := range pods {
		s.awaitGone(name)
		want := []string{"RunPodSandbox", "CreateContainer main", "StartContainer main", "StopContainer main", "StopPodSandbox", "RemoveContainer main", "RemovePodSandbox"}
		if got := sequence(watch[name]); !slices.Equal(got, want) {
			t.Errorf("calls for pod %s: %v, want %v", name, got, want)
		}
		calls := watch[name].Calls()
		if n := len(calls); n > 50 {
			t.Errorf("%d calls for the life of pod %s, want 50 at most", n, name)
		}
		for i, c := range calls {
			for _, d := range calls[i+1:] {
				if criproxy.Mutating(c.Method) && criproxy.Mutating(d.Method) && d.Began.Before(c.Ended) {
					t.Errorf("pod %s: %s began while %s was on its way", name, d.Method, c.Method)
				}
			}
		}
	}
	s.nothingLeft()
}
