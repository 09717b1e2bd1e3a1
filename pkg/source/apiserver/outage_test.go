package apiserver

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// silence returns the address of a server that takes connections and never
// answers.
func silence(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		var taken []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			taken = append(taken, c)
		}
		for _, c := range taken {
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return "http://" + l.Addr().String()
}

// once is another layer: a set, then another.
type once struct{ sets chan source.Snapshot }

func (o once) Name() string { return "file:/manifests" }
func (o once) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		for {
			select {
			case s := <-o.sets:
				if !yield(s, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// A server that accepts the connection and never answers does not make its layer ready, and
// yields no error while it may still answer. It delays neither the arrival nor the removal of
// another layer's pod.
//
// Shows: F50
func TestF50_FilePodsNeverWaitForTheServer(t *testing.T) {
	silent := newSource(t, leadsTo(t, silence(t), "", ""))
	file := once{make(chan source.Snapshot)} // cap 0: the test sends, the layer receives
	ctx, leave := context.WithCancel(t.Context())
	batches := make(chan podconfig.Batch) // cap 0: the reader sends, the test receives
	var reader sync.WaitGroup
	defer reader.Wait()
	defer leave()
	reader.Go(func() {
		for b := range podconfig.New(podconfig.Config{Sources: []source.Source{file, silent}}).Batches(ctx) {
			select {
			case batches <- b:
			case <-ctx.Done():
			}
		}
	})
	var set source.Builder
	for _, step := range []struct {
		change func()
		op     podconfig.Op
	}{
		{func() {
			p := &pod.Spec{Key: pod.Key{Namespace: "default", Name: "static"}, Origin: pod.Origin{Source: "file", Location: "/manifests"}, Pod: boundPod("static", "x")}
			set.Put(source.File{File: "a", Pods: []*pod.Spec{p}}, nil)
		}, podconfig.ADD},
		{func() { set.Remove("a") }, podconfig.REMOVE},
	} {
		step.change()
		file.sets <- set.Snapshot()
		b := <-batches
		if len(b.Updates) != 1 || b.Updates[0].Op != step.op || b.Updates[0].Source != "file" {
			t.Fatalf("updates %+v, want %s of the file layer", b.Updates, step.op)
		}
		if ready, configured := b.State.Ready(silent.Name()); ready || !configured {
			t.Errorf("the layer without an answer: ready %v, configured %v", ready, configured)
		}
	}
}

// The source reports an outage once, without any content of requests or answers. The
// pods stay, and the return needs no full list: the watch continues after one page
// confirms the version.
//
// Shows: F70
func TestF70_OutageKeepsPodsAndReturnCostsNoList(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"), boundPod("two", "x"))
	l := sourcetest.Listen(t, s.gathering(t))
	first := l.Set()
	first.Holds(t, "one", "two")
	s.watched(t, 1)
	s.fails(http.StatusInternalServerError)
	if got, want := l.Error().Error(), s.URL+": HTTP 500: server error"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	s.waits(t, s.count(isWatch)+3, isWatch) // and no second error comes of it
	var back int
	s.change(func() {
		s.puts(boundPod("three", "x"))
		s.answer = nil
		back = len(s.asked)
	})
	w := l.Set()
	w.Holds(t, "one", "three", "two")
	w.Names(t, "three")
	if w.Pod("one") != first.Pod("one") {
		t.Error("the unchanged pod is another pointer")
	}
	for _, r := range s.requests()[back:] {
		if wholeLists(r) {
			t.Errorf("coming back asked for %s", r.URL)
		}
	}
	if n := s.count(glances); n != 1 {
		t.Errorf("coming back took %d pages", n)
	}
}

// A refused watch is an error although lists work, and changes still come with the
// lists.
//
// Shows: F70
func TestF70_RefusedWatchIsReportedAndListsGoOn(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if isWatch(r) {
			w.WriteHeader(http.StatusForbidden)
		}
		return isWatch(r)
	})
	l := sourcetest.Listen(t, s.source(t))
	l.Set().Holds(t, "one")
	if err := l.Error(); !strings.Contains(err.Error(), "403") {
		t.Errorf("error %q", err)
	}
	s.watched(t, 4) // no set and no error in between
	s.put(boundPod("two", "x"))
	l.Set().Holds(t, "one", "two")
	l.Error()
	s.says(nil)
	l.Set().Names(t)
}

// The source abandons a watch without any event, even without an end, soon after it was
// due, and a list shows the missed changes.
//
// Shows: F70
func TestF70_WatchWithoutEventsIsAbandoned(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) {
			return false
		}
		w.Header().Set("Content-Type", protobufType)
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	src := s.source(t)
	src.reader.Tuning.Watch, src.reader.Tuning.WatchGrace = time.Second, 0
	l := sourcetest.Listen(t, src)
	l.Set().Holds(t, "one")
	s.watched(t, 1)
	s.put(boundPod("two", "x"))
	w := l.Next()
	for w.Err != nil || slices.Equal(w.Contents(), []string{"one"}) {
		w = l.Next() // a watch whose answer comes late is an error, and a list from before the second pod ends it
	}
	w.Holds(t, "one", "two")
}

// Every event of a burst is in one set.
func TestBurstIsOneSet(t *testing.T) {
	s := newServer(t)
	l := sourcetest.Listen(t, s.gathering(t))
	l.Set().Holds(t)
	s.watched(t, 1)
	s.change(func() {
		for _, name := range []string{"a", "b", "c", "d"} {
			s.puts(boundPod(name, "x"))
		}
		s.drops(pod.Key{Namespace: "default", Name: "c"})
		s.puts(boundPod("a", "y"))
	})
	w := l.Set()
	w.Holds(t, "a", "b", "d")
	if w.Pod("a").Pod.Annotations["content"] != "y" {
		t.Error("the set does not show the last event of a pod")
	}
}

// A steady stream of events is yielded while it lasts, not only when it ends.
func TestSteadyEventsAreNotWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &Source{cfg: Config{Node: node, Spec: spec("k"), Kubeconfig: "k"}, linger: lingerFor}
		sets := 0
		r := &run{Source: src, pods: newPods(src), objects: newObjects(nil), yield: func(source.Snapshot, error) bool { sets++; return true }}
		events := make(chan apiclient.Event) // cap 0: the feeder sends, drain receives
		var feeder sync.WaitGroup
		feeder.Go(func() {
			for i := range 100 {
				p := boundPod("one", "x")
				p.ResourceVersion, p.UID = string(rune('1'+i%9)), "u"
				p.ResourceVersion = strings.Repeat("1", 1+i)
				events <- apiclient.Event{Type: "MODIFIED", Object: p}
				<-time.After(time.Millisecond)
			}
			events <- apiclient.Event{Err: errors.New("over")}
		})
		_ = r.drain(t.Context(), events)
		feeder.Wait()
		if sets < 15 || sets > 25 {
			t.Errorf("100 events in 100 ms made %d sets", sets)
		}
	})
}

// Neither credentials nor content of the server's answers appear in errors, problems or
// logs (I8).
//
// Shows: F72
func TestF72_CredentialsAndBodiesAreNeverPrinted(t *testing.T) {
	var log bytes.Buffer
	a := newAuthority(t)
	s := a.secure(t)
	path := leadsTo(t, s.URL, a.data(), "token: hunter2")
	s.put(boundPod("one", "x"))
	l := sourcetest.Listen(t, newSource(t, path, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}))
	texts := []string{strings.Join(l.Set().Contents(), " ")}
	for _, answer := range []func(w http.ResponseWriter){
		func(w http.ResponseWriter) { http.Error(w, "hunter2", http.StatusUnauthorized) },
		func(w http.ResponseWriter) { _, _ = w.Write([]byte("hunter2")) },
		func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", jsonType)
			_, _ = w.Write([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"hunter2"},"items":["hunter2"]}`))
		},
		func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://elsewhere.invalid/hunter2")
			w.WriteHeader(http.StatusFound)
		},
	} {
		s.says(func(w http.ResponseWriter, _ *http.Request) bool { answer(w); return true })
		texts = append(texts, l.Error().Error())
	}
	l.Leave()
	l.Ended()
	if all := log.String() + strings.Join(texts, "\n"); strings.Contains(all, "hunter2") || !strings.Contains(all, "401") || !strings.Contains(all, "Listed pods") {
		t.Errorf("the log and the errors:\n%s", all)
	}
	if last := texts[len(texts)-1]; !strings.Contains(last, "HTTP 302: redirects are not followed") {
		t.Errorf("a redirect is %q", last)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.asked[0].Header; h.Get("User-Agent") != "nodectl/test" || h.Get("Authorization") != "Bearer hunter2" {
		t.Errorf("headers %v", h)
	}
}
