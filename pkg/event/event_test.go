package event

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/suite"
)

// of is an event of one of the pods web and db.
func of(name, reason, message string) pod.Event {
	return pod.Event{
		Key: pod.Key{Namespace: "default", Name: name}, UID: "uid-" + name, Container: "spec.containers{app}",
		Type: pod.EventNormal, Reason: reason, Message: message,
	}
}

// text is a list of events for a person, one line each.
func text(list []v1.Event) string {
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%s/%s %s x%d %s\n", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Count, e.Message)
	}
	return b.String()
}

// running writes a store's file until the returned function is called.
func running(s *Store) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	return func() { cancel(); wg.Wait() }
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	return Open(Config{Path: path, Node: "n1"})
}

// TestEvent_Annotations_AreKept: also for a reader of the file, and when the event happens again.
//
// Shows: Appendix D
func TestEvent_Annotations_AreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	s := open(t, path)
	stop := running(s)
	evicted := of("web", "Evicted", "The node was low on resource: memory.")
	evicted.Annotations = map[string]string{"starved_resource": "memory"}
	s.Event(evicted)
	s.Event(evicted)
	s.Event(of("db", "Started", "Container started"))
	stop()
	for name, s := range map[string]*Store{"the store": s, "the next agent's": open(t, path)} {
		list := s.List(Filter{Name: "web"})
		if len(list) != 1 || list[0].Count != 2 || list[0].Annotations["starved_resource"] != "memory" {
			t.Errorf("%s: %+v", name, list)
		}
		if list := s.List(Filter{Name: "db"}); len(list) != 1 || list[0].Annotations != nil {
			t.Errorf("%s: %+v", name, list)
		}
	}
}

// TestC_D_RepeatsAreCounted: a repeated event of a container is one event, which moves to
// the end; all others are separate.
//
// Shows: Appendix D
func TestC_D_RepeatsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := Open(Config{Node: "n1"})
		first := time.Now()
		for range 3 {
			s.Event(of("web", "BackOff", "Back-off"))
			s.Event(of("db", "Started", "Container started"))
			time.Sleep(time.Minute)
		}
		side := of("web", "BackOff", "Back-off")
		side.Container = "spec.containers{side}"
		s.Event(side)
		s.Event(of("web", "BackOff", "Back-off"))
		if got, want := text(s.List(Filter{})), "Pod/db Started x3 Container started\nPod/web BackOff x1 Back-off\nPod/web BackOff x4 Back-off\n"; got != want {
			t.Errorf("%s", got)
		}
		e := s.List(Filter{Name: "web", UID: "uid-web"})[1]
		if !e.FirstTimestamp.Time.Equal(first) || !e.LastTimestamp.Time.Equal(first.Add(3*time.Minute)) {
			t.Errorf("from %s to %s", e.FirstTimestamp, e.LastTimestamp)
		}
		if e.Namespace != "default" || !strings.HasPrefix(e.Name, "web.") || e.Source.Host != "n1" || e.InvolvedObject.FieldPath != "spec.containers{app}" || e.Type != v1.EventTypeNormal {
			t.Errorf("%+v", e)
		}
		names := map[string]bool{}
		for _, e := range s.List(Filter{}) {
			names[e.Name] = true
		}
		if len(names) != 3 {
			t.Errorf("names: %v", names)
		}
	})
}

// TestC_D_SimilarEventsAreCombined: many events that differ only in their message become
// one event.
//
// Shows: Appendix D
func TestC_D_SimilarEventsAreCombined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := Open(Config{Node: "n1"})
		for i := range 50 {
			s.Event(of("web", "Unhealthy", fmt.Sprintf("Readiness probe failed: try %d", i)))
		}
		list := s.List(Filter{})
		last := list[len(list)-1]
		if len(list) != 11 || last.Count != 40 || last.Message != "(combined from similar events): Readiness probe failed: try 49" {
			t.Errorf("%d events:\n%s", len(list), text(list))
		}
		time.Sleep(11 * time.Minute)
		s.Event(of("web", "Unhealthy", "another day"))
		if list := s.List(Filter{}); len(list) != 12 {
			t.Errorf("%d events after a while", len(list))
		}
	})
}

// Shows: I5
func TestBounds(t *testing.T) {
	t.Parallel()
	s := Open(Config{Node: "n1"})
	for i := range 3000 {
		s.Event(of(fmt.Sprintf("p%d", i), "Started", "Container started"))
	}
	list := s.List(Filter{})
	if len(list) > maxEvents || len(list) < maxEvents/2 || list[len(list)-1].InvolvedObject.Name != "p2999" {
		t.Errorf("%d events, the last of %s", len(list), list[len(list)-1].InvolvedObject.Name)
	}
	for i := range 3000 {
		s.Event(of(fmt.Sprintf("p%d", i), "Failed", strings.Repeat("x", 5000)))
	}
	sum := 0
	for _, e := range s.List(Filter{}) {
		if len(e.Message) > maxMessage {
			t.Fatalf("a message of %d bytes", len(e.Message))
		}
		sum += len(encode(&e))
	}
	if sum > maxBytes || sum < maxBytes/2 {
		t.Errorf("%d bytes", sum)
	}
}

// TestF1_EventsSurviveTheAgent: the file is never closed; the next agent continues the
// counts.
//
// Shows: F1
func TestF1_EventsSurviveTheAgent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "root", "events.jsonl")
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path)
		stop := running(s)
		s.Event(of("web", "Created", "Container created"))
		s.NodeEvent("Starting", pod.EventNormal, "Starting kubelet.")
		time.Sleep(time.Second)
		s.Event(of("web", "BackOff", "Back-off"))
		time.Sleep(time.Second)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if err := os.WriteFile(path, append(before, `{"metadata":{"name":"torn`...), 0o644); err != nil {
			t.Fatal(err)
		}
		s = open(t, path)
		stop = running(s)
		time.Sleep(time.Second)
		s.Event(of("web", "BackOff", "Back-off"))
		time.Sleep(time.Second)
		stop()
		want := "Pod/web Created x1 Container created\nNode/n1 Starting x1 Starting kubelet.\nPod/web BackOff x2 Back-off\n"
		if got := text(s.List(Filter{})); got != want {
			t.Errorf("listed:\n%s", got)
		}
		list, err := Read(path)
		if got := text(list); got != want || err != nil {
			t.Errorf("read: %v\n%s", err, got)
		}
		if info, _ := os.Stat(path); info.Mode() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		if got := text(s.List(Filter{Kind: "Node"})); got != "Node/n1 Starting x1 Starting kubelet.\n" {
			t.Errorf("of nodes:\n%s", got)
		}
	})
	if list, err := Read(filepath.Join(t.TempDir(), "none")); list != nil || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

// TestFileIsBounded: the file stays small however many events there are.
//
// Shows: I5
func TestFileIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path)
		stop := running(s)
		most := int64(0)
		for i := range 400 {
			for p := range 30 {
				s.Event(of(fmt.Sprintf("p%d", p), "Unhealthy", "Readiness probe failed: "+strings.Repeat("y", 300)))
				s.Event(of(fmt.Sprintf("q%d-%d", i, p), "Started", "Container started"))
			}
			time.Sleep(time.Second)
			if info, err := os.Stat(path); err == nil {
				most = max(most, info.Size())
			}
		}
		stop()
		if most > maxBytes {
			t.Errorf("the file had %d bytes", most)
		}
		list, err := Read(path)
		if got := s.List(Filter{}); err != nil || text(list) != text(got) {
			t.Errorf("%v: %d events in the file, %d in memory", err, len(list), len(got))
		}
	})
}

// TestF12_FullDiskCostsEventsOnly: events stay in memory, and are written when there is
// room.
//
// Shows: F12
func TestF12_FullDiskCostsEventsOnly(t *testing.T) {
	suite.NeedsRoot(t, "the test mounts a small file system")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	path, filler := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "filler")
	synctest.Test(t, func(t *testing.T) {
		s := open(t, path)
		stop := running(s)
		s.Event(of("web", "Created", "Container created"))
		time.Sleep(time.Second)
		os.WriteFile(filler, make([]byte, 1<<20), 0o600) // fills the disk
		for i := range 40 {
			s.Event(of(fmt.Sprintf("p%d", i), "Started", "Container started"))
		}
		time.Sleep(time.Minute)
		if n := len(s.List(Filter{})); n != 41 {
			t.Errorf("%d events remembered", n)
		}
		if list, err := Read(path); err != nil || len(list) > 30 {
			t.Errorf("%d events in the file: %v", len(list), err)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1m"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		stop()
		if list, err := Read(path); err != nil || len(list) != 41 {
			t.Errorf("%d events in the file when there is room: %v", len(list), err)
		}
	})
}

// TestWatch: present events, new events, repeats; a slow reader gets the newest.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := Open(Config{Node: "n1"})
		s.Event(of("web", "Created", "Container created"))
		s.Event(of("db", "Created", "Container created"))
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan string)
		var wg sync.WaitGroup
		wg.Go(func() {
			for how, e := range s.Watch(ctx, Filter{Namespace: "default", Name: "web"}) {
				select {
				case seen <- fmt.Sprintf("%s %s x%d", how, e.Reason, e.Count):
				case <-ctx.Done():
				}
			}
		})
		next := func(want string) {
			t.Helper()
			if got := <-seen; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		next("ADDED Created x1")
		s.Event(of("web", "BackOff", "Back-off"))
		next("ADDED BackOff x1")
		s.Event(of("web", "Started", "Container started")) // pending: its reader does not read
		synctest.Wait()
		for range 5000 {
			s.Event(of("web", "BackOff", "Back-off"))
			s.Event(of("db", "BackOff", "Back-off"))
		}
		next("ADDED Started x1")
		next("MODIFIED BackOff x5001")
		cancel()
		wg.Wait()
		if len(s.readers) != 0 {
			t.Error("a reader is left")
		}
	})
}
