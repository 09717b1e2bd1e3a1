package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

func configMap(name, content string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"k": content}}
}

func secret(name, content string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"k": []byte(content)}}
}

// naming has a pod name ConfigMaps, and Secrets with a "!" before them.
func naming(names ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, name := range names {
			from := v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}
			if is, secret := strings.CutPrefix(name, "!"); secret {
				from = v1.EnvFromSource{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: is}}}
			}
			p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, from)
		}
	}
}

// holds returns the objects of a set as "configmap/default/a=content", and files
// that cannot be read as "!configmap/default/a".
func holds(w sourcetest.Result) string {
	var out []string
	for f := range w.Files.All() {
		_, name, _ := strings.Cut(f.File, "#")
		if f.Incomplete {
			out = append(out, "!"+name)
		}
		for _, o := range f.Objects {
			text := name + "=" + string(o.Values()["k"])
			if o.Origin.Source != "api" || o.Origin.File != f.File || name != strings.ToLower(o.Kind)+"/"+o.Key.String() {
				text += fmt.Sprintf(" from %+v", o)
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (s *server) asksFor(what string) int {
	return s.count(func(r *http.Request) bool { return plural(r) == what })
}

// becomes waits for a set with these objects.
func becomes(t *testing.T, l *sourcetest.Listener, want string) sourcetest.Result {
	t.Helper()
	for deadline := time.Now().Add(wait.Limit); ; {
		w := l.Set()
		if got := holds(w); got == want {
			return w
		} else if time.Now().After(deadline) {
			t.Fatalf("objects %q, want %q", got, want)
		}
	}
}

// The objects that a pod names are in one set with it; the source reads them one by
// one, as a node may. It yields their change, deletion and recreation.
//
// Shows: C-1.38.10
func TestC_1_38_10_ObjectsComeWithThePodsThatNameThem(t *testing.T) {
	for _, json := range []bool{false, true} {
		s := newServer(t)
		s.json = json
		s.keep("configmaps", configMap("a", "1"), configMap("other", "x"))
		s.keep("secrets", secret("a", "2"))
		s.put(boundPod("one", "x", naming("a", "!a", "a", "missing", "Not_A_Name", "../secrets")))
		l := sourcetest.Listen(t, s.source(t))
		w := l.Set()
		w.Holds(t, "one")
		if got, want := holds(w), "configmap/default/a=1 secret/default/a=2"; got != want {
			t.Fatalf("objects %q, want %q", got, want)
		}
		for f := range w.Files.All() {
			for _, o := range f.Objects {
				if m, is := o.Object.(*v1.ConfigMap); is && m.ManagedFields != nil {
					t.Error("managed fields are kept")
				}
			}
		}
		for _, r := range s.requests() {
			if name := r.URL.Query().Get("fieldSelector"); plural(r) != "pods" && plural(r) != "selfsubjectaccessreviews" &&
				(!strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/default/") || name != "metadata.name=a" && name != "metadata.name=missing") {
				t.Errorf("asked for %s", r.URL)
			}
		}
		s.until(t, "three watches", func() bool { return s.live["configmaps"] == 2 && s.live["secrets"] == 1 })
		s.keep("configmaps", configMap("a", "3"))
		changed := becomes(t, l, "configmap/default/a=3 secret/default/a=2")
		if changed.Pod("one") != w.Pod("one") {
			t.Error("the pod is another pointer")
		}
		s.lose("secrets", "a")
		becomes(t, l, "configmap/default/a=3")
		s.keep("configmaps", configMap("missing", "4"))
		becomes(t, l, "configmap/default/a=3 configmap/default/missing=4")
	}
}

// An object is read from when the first pod names it until the last one goes.
//
// Shows: C-1.38.10
func TestC_1_38_10_ObjectsAreReadWhileSomePodNamesThem(t *testing.T) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"))
	s.put(boundPod("one", "x", naming("a")))
	l := sourcetest.Listen(t, s.source(t))
	becomes(t, l, "configmap/default/a=1")
	s.until(t, "a watch", func() bool { return s.live["configmaps"] == 1 })
	s.watched(t, 1)
	s.put(boundPod("two", "x", naming("a")))
	becomes(t, l, "configmap/default/a=1").Holds(t, "one", "two")
	s.drop("one")
	becomes(t, l, "configmap/default/a=1").Holds(t, "two")
	if n := s.asksFor("configmaps"); n != 2 {
		t.Errorf("%d requests for one object, want a list and a watch", n)
	}
	s.drop("two")
	becomes(t, l, "").Holds(t)
	s.until(t, "the watch ends", func() bool { return s.live["configmaps"] == 0 })
	s.put(boundPod("one", "y", naming("a")))
	becomes(t, l, "configmap/default/a=1").Holds(t, "one")
	s.put(boundPod("one", "y")) // names it no more
	becomes(t, l, "").Holds(t, "one")
	s.until(t, "the watch ends again", func() bool { return s.live["configmaps"] == 0 })
}

// Shows: C-1.38.10
func TestC_1_38_10_ImmutableObjectsAreNotWatched(t *testing.T) {
	s := newServer(t)
	fixed, yes := configMap("a", "1"), true
	fixed.Immutable = &yes
	s.keep("configmaps", fixed, configMap("b", "1"))
	s.put(boundPod("one", "x", naming("a", "b")))
	l := sourcetest.Listen(t, s.source(t))
	becomes(t, l, "configmap/default/a=1 configmap/default/b=1")
	s.until(t, "one watch", func() bool { return s.live["configmaps"] == 1 })
	becameFixed := configMap("b", "2")
	becameFixed.Immutable = &yes
	s.keep("configmaps", becameFixed)
	becomes(t, l, "configmap/default/a=1 configmap/default/b=2")
	s.until(t, "no watch", func() bool { return s.live["configmaps"] == 0 })
	if n := s.asksFor("configmaps"); n != 3 {
		t.Errorf("%d requests, want two lists and one watch", n)
	}
}

// An object that the node may not read is reported, and read once the node may; the set does
// not wait for it.
//
// Shows: C-1.38.10
func TestC_1_38_10_RefusedObjectIsReported(t *testing.T) {
	s := newServer(t)
	s.keep("secrets", secret("a", "hunter2"))
	s.put(boundPod("one", "x", naming("!a")))
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "secrets" {
			http.Error(w, "hunter2", http.StatusForbidden)
		}
		return plural(r) == "secrets"
	})
	l := sourcetest.Listen(t, s.source(t))
	w := l.Set()
	if got := holds(w); got != "!secret/default/a" {
		t.Fatalf("objects %q", got)
	}
	for f := range w.Files.All() {
		for _, p := range f.Problems {
			if !strings.Contains(p.Msg, "HTTP 403: the server denies permission to read secret/default/a") || strings.Contains(p.Msg, "hunter2") {
				t.Errorf("problem %q", p.Msg)
			}
		}
	}
	w.Holds(t, "!", "one")
	s.says(nil)
	becomes(t, l, "secret/default/a=hunter2")
}

// A pod names those of its objects that could not be read, as long as they cannot be.
func TestObjects_ThatCannotBeRead_AreNamedByTheirPods(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x", naming("!a", "absent")), boundPod("two", "x", naming("absent")))
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "secrets" {
			http.Error(w, "", http.StatusForbidden)
		}
		return plural(r) == "secrets"
	})
	l := sourcetest.Listen(t, s.source(t))
	w := l.Set()
	if got := w.Pod("one").Unread; !slices.Equal(got, []pod.ObjectID{{Kind: pod.KindSecret, Name: "a"}}) || len(w.Pod("two").Unread) > 0 {
		t.Errorf("unread: %v and %v", got, w.Pod("two").Unread)
	}
	s.says(nil) // the Secret is not there
	for deadline := time.Now().Add(wait.Limit); len(w.Pod("one").Unread) > 0; w = l.Set() {
		if time.Now().After(deadline) {
			t.Fatal("the Secret stays unread")
		}
	}
}

// A server that does not answer about an object delays pods only for a moment, and the
// object does not count as deleted.
//
// Shows: C-1.38.10
func TestC_1_38_10_UnansweredReadDelaysPodsBriefly(t *testing.T) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"))
	s.put(boundPod("one", "x", naming("a")), boundPod("two", "x"))
	hang := make(chan struct{}) // closed when the server answers again
	s.says(func(_ http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "configmaps" {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}
		return false
	})
	src := s.source(t)
	src.first = 50 * time.Millisecond
	l := sourcetest.Listen(t, src)
	w := l.Set()
	w.Holds(t, "!", "one", "two")
	if got := holds(w); got != "!configmap/default/a" {
		t.Errorf("objects %q", got)
	}
	s.put(boundPod("three", "x"))
	l.Set().Holds(t, "!", "one", "three", "two")
	close(hang)
	becomes(t, l, "configmap/default/a=1")
}

// A later pod waits for its objects as the first ones do, and delays nothing for longer
// than a moment.
//
// Shows: C-1.38.10
func TestC_1_38_10_LaterPodsWaitForWhatTheyName(t *testing.T) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"))
	answer := make(chan struct{}) // closed when the server answers
	s.says(func(_ http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "configmaps" {
			<-answer
		}
		return false
	})
	l := sourcetest.Listen(t, s.source(t))
	l.Set().Holds(t)
	s.watched(t, 1)
	s.put(boundPod("one", "x", naming("a")))
	s.waits(t, 1, func(r *http.Request) bool { return plural(r) == "configmaps" })
	close(answer)
	w := l.Set()
	w.Holds(t, "one")
	if got := holds(w); got != "configmap/default/a=1" {
		t.Errorf("with the pod come %q", got)
	}
}

// The set does not change until the objects of a later pod are read, however often
// events are gathered meanwhile.
//
// Shows: C-1.38.10
func TestC_1_38_10_LaterPodIsHeldForItsObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &Source{cfg: Config{Node: node, Spec: spec("k"), Kubeconfig: "k"}, linger: lingerFor, first: time.Hour}
		var sets []source.Snapshot
		r := &run{
			Source: src, pods: newPods(src), yield: func(s source.Snapshot, _ error) bool { sets = append(sets, s); return true },
			// Nothing is read: the test answers in the reader's place.
			objects: newObjects(func(func(context.Context)) func() { return func() {} }),
		}
		events, ended := make(chan apiclient.Event), make(chan error) // cap 0: the test and drain take turns
		go func() { ended <- r.drain(t.Context(), events) }()
		one := boundPod("one", "x", naming("a"))
		one.ResourceVersion, one.UID = "1", "u"
		events <- apiclient.Event{Type: "ADDED", Object: one}
		time.Sleep(1000 * lingerFor)
		synctest.Wait()
		if len(sets) > 0 {
			t.Errorf("%d sets lack the objects that the pod names", len(sets))
		}
		r.answers <- answer{from: r.readers[objectID{pod.KindConfigMap, pod.Key{Namespace: "default", Name: "a"}}]}
		time.Sleep(10 * lingerFor)
		synctest.Wait()
		if len(sets) != 1 {
			t.Errorf("%d sets once it is known that nothing is there, want 1", len(sets))
		}
		over := errors.New("over")
		events <- apiclient.Event{Err: over}
		if err := <-ended; !errors.Is(err, over) {
			t.Error(err)
		}
	})
}

// Objects stay during an outage; changes in between come after it.
//
// Shows: F70
func TestF70_OutageKeepsObjects(t *testing.T) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"), configMap("b", "1"))
	s.put(boundPod("one", "x", naming("a", "b")))
	l := sourcetest.Listen(t, s.source(t))
	becomes(t, l, "configmap/default/a=1 configmap/default/b=1")
	s.until(t, "two watches", func() bool { return s.live["configmaps"] == 2 })
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "configmaps" {
			w.WriteHeader(http.StatusForbidden)
		}
		return plural(r) == "configmaps"
	})
	s.waits(t, s.asksFor("configmaps")+6, func(r *http.Request) bool { return plural(r) == "configmaps" })
	s.put(boundPod("two", "x"))
	if w := l.Set(); holds(w) != "configmap/default/a=1 configmap/default/b=1" {
		t.Errorf("while they cannot be read: %q", holds(w))
	}
	s.drop("two")
	l.Set().Holds(t, "one")
	s.fails(http.StatusServiceUnavailable)
	_ = l.Error()
	before := s.asksFor("configmaps")
	s.waits(t, before+5, func(r *http.Request) bool { return plural(r) == "configmaps" })
	s.change(func() {
		s.keeps("configmaps", configMap("a", "2"))
		s.loses("configmaps", "b")
		s.answer = nil
	})
	for {
		w := l.Set()
		if got := holds(w); got == "configmap/default/a=2" {
			w.Holds(t, "one")
			return
		} else if !strings.HasPrefix(got, "configmap/default/a=") {
			t.Fatalf("objects %q", got)
		}
	}
}

// One list that lacks an object which was there takes nothing away.
//
// Shows: F71
func TestF71_OneListLosesNoObject(t *testing.T) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"))
	s.put(boundPod("one", "x", naming("a")))
	l := sourcetest.Listen(t, s.source(t))
	becomes(t, l, "configmap/default/a=1")
	s.until(t, "a watch", func() bool { return s.live["configmaps"] == 1 })
	lists := func(r *http.Request) bool { return plural(r) == "configmaps" && !watches(r) }
	had := s.count(lists)
	s.change(func() { s.rv++; s.log, s.compacted = nil, s.rv }) // and a cut watch cannot continue
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if !lists(r) || s.count(lists) > had+1 {
			return false
		}
		w.Header().Set("Content-Type", protobufType)
		_, _ = w.Write(wrap("ConfigMapList", must((&v1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "900"}}).Marshal())))
		return true
	})
	s.waits(t, had+2, lists)
	s.put(boundPod("two", "x"))
	for w := l.Set(); w.Pod("two") == nil || w.Pod("one") == nil; w = l.Set() {
		if got := holds(w); got != "configmap/default/a=1" {
			t.Fatalf("objects %q", got)
		}
	}
	s.until(t, "a watch again", func() bool { return s.live["configmaps"] == 1 })
	s.change(func() { // without an event
		delete(s.others["configmaps"], pod.Key{Namespace: "default", Name: "a"})
		s.forgets()
	})
	becomes(t, l, "") // two lists agree
}

// A rejected pod affects no other, and the source reads none of its objects.
//
// Shows: C-1.38.10
func TestC_1_38_10_RejectedPodsAskForNothing(t *testing.T) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"))
	s.put(boundPod("one", "x", naming("a"), func(p *v1.Pod) { p.Annotations[rejects] = "no" }), boundPod("two", "x"))
	l := sourcetest.Listen(t, s.source(t))
	l.Set().Holds(t, "?one", "two")
	if n := s.asksFor("configmaps"); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestObjects_PodNamesThousands_FewAreReadAtATime: an API server sends a pod that names
// thousands of objects. If it deletes the pod at once, which makes it accepted, the
// source reads few of them; few lists are in flight at a time.
func TestObjects_PodNamesThousands_FewAreReadAtATime(t *testing.T) {
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprint("o", i))
	}
	if got := len(objectsOf(boundPod("one", "x", naming(names...)))); got != pod.MaxObjects {
		t.Errorf("%d objects of a pod are read, want %d", got, pod.MaxObjects)
	}
	names = names[:5*apiclient.MaxNamespaceRequests]
	s := newServer(t)
	for _, name := range names {
		s.keep("configmaps", configMap(name, "1"))
	}
	var mu sync.Mutex
	underWay, release := 0, make(chan struct{})
	s.says(func(_ http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "pods" || watches(r) || r.Method != http.MethodGet {
			return false
		}
		mu.Lock()
		underWay++
		mu.Unlock()
		select {
		case <-release:
		case <-r.Context().Done(): // given up on a slow machine
		}
		mu.Lock()
		underWay--
		mu.Unlock()
		return false
	})
	s.put(boundPod("one", "x", naming(names...)))
	l := sourcetest.Listen(t, s.source(t))
	// More would stay under way. A request that was given up may end here after the next has begun.
	s.until(t, "as many questions as may be, and no more", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return underWay == apiclient.MaxNamespaceRequests
	})
	close(release)
	for w := l.Set(); strings.Count(holds(w), "=1") < len(names); w = l.Set() {
	}
}
