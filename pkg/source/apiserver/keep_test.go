package apiserver

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

// wholeLists are requests for a whole collection; one page of one pod is none.
func wholeLists(r *http.Request) bool {
	return r.Method == http.MethodGet && !watches(r) && r.URL.Query().Get("limit") != "1"
}

func glances(r *http.Request) bool { return isList(r) && !wholeLists(r) }

func watchesOf(what string) func(*http.Request) bool {
	return func(r *http.Request) bool { return plural(r) == what && watches(r) }
}

func listsOf(what string) func(*http.Request) bool {
	return func(r *http.Request) bool { return plural(r) == what && wholeLists(r) }
}

// keeping is a server with a pod that names three objects, all of them watched.
func keeping(t *testing.T, change ...func(*server, *Source)) (*server, *sourcetest.Listener) {
	s := newServer(t)
	s.keep("configmaps", configMap("a", "1"), configMap("b", "1"))
	s.keep("secrets", secret("c", "1"))
	s.keep("services", service("default", "web", "10.0.0.1"))
	s.put(boundPod("one", "x", naming("a", "b", "!c")), boundPod("again", "x"), boundPod("gone", "x"))
	src := s.source(t, func(c *Config) { c.Services = true })
	for _, f := range change {
		f(s, src)
	}
	l := sourcetest.Listen(t, src)
	becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=1")
	s.watching(t)
	return s, l
}

func (s *server) watching(t *testing.T) {
	t.Helper()
	s.until(t, "five watches", func() bool {
		return s.live["pods"] == 1 && s.live["configmaps"] == 2 && s.live["secrets"] == 1 && s.live["services"] == 1
	})
}

// When every watch is cut, the source lists nothing: each watch continues at its newest
// resource version. It delivers the changes in between, also deletions and recreated
// objects. That costs one request for each watch, and one for the server's newest
// version.
//
// Shows: F70
func TestF70_CutWatchesGoOnWithoutLists(t *testing.T) {
	for _, json := range []bool{false, true} {
		for _, clean := range []bool{false, true} {
			var src *Source
			s, l := keeping(t, gathers, func(s *server, of *Source) { s.json, src = json, of })
			var before int
			s.change(func() {
				mark := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", ResourceVersion: "500"}}
				s.rv = 500
				s.log = append(s.log, logged{rv: 500, kind: watch.Bookmark, what: "configmaps", other: mark})
			})
			eventually(t, src.reader.NewestVersion, "500")
			s.keep("configmaps", configMap("b", "2"))
			becomes(t, l, "configmap/default/a=1 configmap/default/b=2 secret/default/c=1")
			s.change(func() {
				s.keeps("configmaps", configMap("a", "3"))
				s.loses("configmaps", "b")
				s.loses("secrets", "c")
				s.keeps("secrets", func() apiclient.Object { c := secret("c", "4"); c.UID = "another"; return c }())
				s.drops(key("gone"))
				s.drops(key("again"))
				s.puts(boundPod("again", "y"))
				s.cut, s.clean = s.cut+1, clean
				before = len(s.asked)
			})
			w := becomes(t, l, "configmap/default/a=3 secret/default/c=4")
			for w.Pod("gone") != nil {
				w = l.Set()
			}
			w.Holds(t, "again", "one")
			if p := w.Pod("again").Pod; p.UID != "uid-4" || p.Annotations["content"] != "y" {
				t.Errorf("the pod is %s with %v", p.UID, p.Annotations)
			}
			for f := range w.Files.All() {
				for _, o := range f.Objects {
					if o.Kind == "Secret" && o.Object.(*v1.Secret).UID != "another" {
						t.Errorf("the secret is %+v", o.Object)
					}
				}
			}
			s.watching(t)
			asked := map[string]int{}
			for _, r := range s.requests()[before:] {
				switch {
				case wholeLists(r):
					asked["list "+plural(r)]++
				case watches(r):
					asked["watch "+plural(r)]++
					if rv, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); plural(r) == "configmaps" && rv < 500 {
						t.Errorf("a watch begins at %d", rv)
					}
				case glances(r):
					asked["glance"]++
				}
			}
			for what, want := range map[string]int{"watch pods": 1, "watch configmaps": 2, "watch secrets": 1, "watch services": 1, "glance": 1} {
				if asked[what] != want {
					t.Errorf("json %t, clean %t: %s: %d, want %d", json, clean, what, asked[what], want)
				}
				delete(asked, what)
			}
			if len(asked) > 0 {
				t.Errorf("json %t, clean %t: %v", json, clean, asked)
			}
		}
	}
}

// After a server was down, or too busy for watches, the source requests the same watch
// again, not before Retry-After, and lists nothing.
//
// Shows: F70
func TestF70_BusyServerIsAskedForTheSameWatch(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		s, l := keeping(t, func(_ *server, src *Source) { src.reader.Tuning.LastRetry = 300 * time.Millisecond })
		had := s.count(wholeLists)
		s.says(func(w http.ResponseWriter, r *http.Request) bool {
			if watches(r) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(status)
			}
			return watches(r)
		})
		_ = l.Error()
		begun := time.Now()
		s.waits(t, s.count(watchesOf("secrets"))+3, watchesOf("secrets"))
		if took := time.Since(begun); took < 600*time.Millisecond { // twice the longest wait
			t.Errorf("%d: three tries in %v", status, took)
		}
		s.change(func() { s.loses("secrets", "c"); s.answer = nil })
		becomes(t, l, "configmap/default/a=1 configmap/default/b=1")
		if n := s.count(wholeLists) - had; n != 0 {
			t.Errorf("%d: %d lists", status, n)
		}
	}
}

// Where a server answers that a version has expired, or refuses a watch, each reflector
// that got this answer lists, once.
//
// Shows: F71
func TestF71_OnlyDoubtMakesAList(t *testing.T) {
	status := func(code int) func(*server) {
		return func(s *server) {
			first := true
			s.answer = func(w http.ResponseWriter, r *http.Request) bool { // under s.mu no longer
				s.mu.Lock()
				defer s.mu.Unlock()
				if plural(r) != "secrets" || !watches(r) || !first {
					return false
				}
				first = false
				w.WriteHeader(code)
				return true
			}
			s.cut++
		}
	}
	for _, c := range []struct {
		name  string
		lists int
		does  func(s *server)
	}{
		{"410", 1, status(http.StatusGone)},
		{"403", 1, status(http.StatusForbidden)},
		{"404", 1, status(http.StatusNotFound)},
		{"429", 0, status(http.StatusTooManyRequests)},
		{"500", 0, status(http.StatusInternalServerError)},
		{"an event that says Expired", 1, func(s *server) {
			s.log = append(s.log, logged{kind: watch.Error, what: "secrets", other: secret("c", "")})
		}},
	} {
		s, l := keeping(t)
		had := s.count(listsOf("secrets"))
		watched := s.count(watchesOf("secrets"))
		s.change(func() { c.does(s) })
		s.waits(t, watched+1, watchesOf("secrets"))
		s.watching(t)
		s.keep("secrets", secret("c", "2"))
		becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=2")
		if n := s.count(listsOf("secrets")) - had; n != c.lists {
			t.Errorf("%s: %d lists, want %d", c.name, n, c.lists)
		}
	}
}

// After a long gap since the server's last answer the source lists: events may have
// been lost.
//
// Shows: F71
func TestF71_LongGapIsListed(t *testing.T) {
	s, _ := keeping(t, func(_ *server, src *Source) { src.reader.Tuning.MaxSilence = 0 })
	had := s.count(listsOf("secrets"))
	s.change(func() { s.cut++ })
	s.waits(t, had+1, listsOf("secrets"))
}

// A server whose data were restored accepts a watch of a future version and sends
// nothing: the pods' watch finds that out, and the objects that pods use are listed
// again with them.
//
// Shows: F71
func TestF71_SetBackServerHasObjectsListedAgain(t *testing.T) {
	s, l := keeping(t, gathers)
	s.change(func() { s.rv = 900; s.puts(boundPod("two", "x")); s.keeps("secrets", secret("c", "2")) })
	for w := becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=2"); w.Pod("two") == nil; w = l.Set() {
	}
	s.change(func() {
		s.rv, s.log = 90, nil
		s.drops(key("two"))
		s.keeps("secrets", secret("c", "1"))
		s.log = nil
		s.cut++
	})
	if err := l.Error(); err.Error() != errBackInTime.Error() {
		t.Errorf("error %q", err)
	}
	for w := becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=1"); w.Pod("two") != nil; w = l.Set() {
	}
	s.watching(t)
	s.lose("configmaps", "b")
	becomes(t, l, "configmap/default/a=1 secret/default/c=1")
}

// The same where no pod was written in the lost time: the version of an object is
// enough.
//
// Shows: F71
func TestF71_SetBackOfObjectsAloneIsSeen(t *testing.T) {
	s, l := keeping(t)
	s.change(func() { s.rv = 900; s.keeps("secrets", secret("c", "2")) })
	becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=2")
	s.change(func() {
		s.rv = 500 // newer than all pods
		s.keeps("secrets", secret("c", "1"))
		s.log = nil
		s.cut++
	})
	becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=1")
}

// During a request for pods, another watch may receive a newer version. That does not
// mean that the server was restored, and the source does not list.
//
// Shows: F71
func TestF71_NewsDuringAnAnswerIsNoSetBack(t *testing.T) {
	for _, c := range []struct {
		name string
		late func(*http.Request) bool
		does func(s *server) // has the server asked so
	}{
		{"a page", glances, func(s *server) { s.cut++ }},
		{"a list", func(r *http.Request) bool { return isList(r) && wholeLists(r) }, func(s *server) {
			s.log = append(s.log, logged{kind: watch.Error})
		}},
	} {
		var src *Source
		s, l := keeping(t, func(_ *server, of *Source) { src = of })
		had := s.count(listsOf("secrets"))
		said, goes := make(chan struct{}), make(chan struct{}) // closed each: it was said, and is sent
		once := sync.OnceFunc(func() { close(said) })
		s.change(func() {
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if !c.late(r) {
					return false
				}
				answer := httptest.NewRecorder()
				s.list(answer, r)
				once()
				select {
				case <-goes:
				case <-r.Context().Done():
				}
				w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
				_, _ = w.Write(answer.Body.Bytes())
				return true
			}
			c.does(s)
		})
		select {
		case <-said:
		case <-time.After(wait.Limit):
			t.Fatalf("%s is not requested", c.name)
		}
		s.until(t, "a watch of secrets", func() bool { return s.live["secrets"] == 1 })
		was := src.reader.NewestVersion()
		s.keep("secrets", secret("c", "2"))
		for deadline := time.Now().Add(wait.Limit); src.reader.NewestVersion() == was; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal("the secret was not yielded")
			}
		}
		close(goes)
		becomes(t, l, "configmap/default/a=1 configmap/default/b=1 secret/default/c=2")
		if n := s.count(listsOf("secrets")) - had; n != 0 {
			t.Errorf("%s: %d lists of objects that were read, want none", c.name, n)
		}
	}
}

// The kubeconfig names another server: the source lists its objects, whatever its
// versions are.
//
// Shows: F72
func TestF72_AnotherServerIsListed(t *testing.T) {
	first, second := newServer(t), newServer(t)
	second.change(func() { second.rv = 5000 })
	path := leadsTo(t, first.URL, "", "")
	for i, s := range []*server{first, second} {
		s.keep("configmaps", configMap("a", strconv.Itoa(i+1)))
		s.put(boundPod("one", "x", naming("a", "b")))
	}
	first.keep("configmaps", configMap("b", "1"))
	l := sourcetest.Listen(t, newSource(t, path))
	becomes(t, l, "configmap/default/a=1 configmap/default/b=1")
	first.until(t, "watches", func() bool { return first.live["configmaps"] == 2 && first.live["pods"] == 1 })
	second.change(func() { second.log = nil })
	writeKubeconfig(t, path, second.URL, "", "")
	first.change(func() { first.cut++ })
	becomes(t, l, "configmap/default/a=2")
}
