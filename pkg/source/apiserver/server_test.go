package apiserver

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

const node = "n1"

// The media types of the API, and the prefix of an object in protobuf.
const (
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
	magic        = "k8s\x00"
)

// server is a fake of the parts of an API server that the source uses, and gives false
// answers on demand. It keeps the order of resource versions by default.
type server struct {
	*httptest.Server
	json bool // use JSON instead of protobuf

	mu        sync.Mutex    // guards the fields below
	more      chan struct{} // capacity 0, closed at the next change
	rv        int
	uids      int
	pods      map[pod.Key]*v1.Pod
	others    map[string]map[pod.Key]apiclient.Object // by plural
	log       []logged
	compacted int                                               // older watches are Gone
	cut       int                                               // watches that began before this many cuts end
	clean     bool                                              // they end as if they were due
	answer    func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	asked     []*http.Request
	all       bool           // field selectors are ignored
	live      map[string]int // running watches, by plural
}

type logged struct {
	rv    int
	kind  watch.EventType
	pod   *v1.Pod
	what  string // the plural of other; "" of a pod
	other apiclient.Object
}

func newServer(t testing.TB) *server {
	s := newServerAt(t, httptest.NewUnstartedServer(nil))
	s.Start()
	return s
}

func newServerAt(t testing.TB, h *httptest.Server) *server {
	s := &server{Server: h, more: make(chan struct{}), rv: 100, pods: map[pod.Key]*v1.Pod{}, others: map[string]map[pod.Key]apiclient.Object{}, live: map[string]int{}}
	h.Config.Handler = s
	t.Cleanup(func() {
		s.change(func() { s.cut++; s.answer = nil })
		s.Close()
	})
	return s
}

// change does something in one step.
func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.more)
	s.more = make(chan struct{})
}

// says lets answer handle every request first; nil ends that. It cuts watches.
func (s *server) says(answer func(w http.ResponseWriter, r *http.Request) bool) {
	s.change(func() { s.answer = answer; s.cut++ })
}

// forgets compacts the whole log, so that no watch can continue; call it under change.
func (s *server) forgets() {
	s.rv++
	s.log, s.compacted, s.cut = nil, s.rv, s.cut+1
}

func (s *server) fails(status int) {
	s.says(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true })
}

// puts makes or changes a pod; held under change.
func (s *server) puts(p *v1.Pod) {
	s.rv++
	p = p.DeepCopy()
	p.Namespace = cmp.Or(p.Namespace, "default")
	was := s.pods[pod.KeyOf(p)]
	kind := watch.Added
	if was != nil {
		kind, p.UID = watch.Modified, was.UID
	} else {
		s.uids++
		p.UID = types.UID(fmt.Sprintf("uid-%d", s.uids))
	}
	p.ResourceVersion = strconv.Itoa(s.rv)
	s.pods[pod.KeyOf(p)] = p
	s.log = append(s.log, logged{rv: s.rv, kind: kind, pod: p})
}

// drops deletes a pod; held under change.
func (s *server) drops(k pod.Key) {
	p := s.pods[k]
	if p == nil {
		return
	}
	s.rv++
	p = p.DeepCopy()
	p.ResourceVersion = strconv.Itoa(s.rv)
	delete(s.pods, k)
	s.log = append(s.log, logged{rv: s.rv, kind: watch.Deleted, pod: p})
}

func (s *server) put(pods ...*v1.Pod) {
	s.change(func() {
		for _, p := range pods {
			s.puts(p)
		}
	})
}

func (s *server) drop(name string) {
	s.change(func() { s.drops(pod.Key{Namespace: "default", Name: name}) })
}

// tell sends events as they are to the running watches.
func (s *server) tell(events ...logged) {
	s.change(func() { s.log = append(s.log, events...) })
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r)
	answer, cut := s.answer, s.cut
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	sent := 0 // of the current log: later entries are for this watch
	for sent < len(s.log) && s.log[sent].rv <= from {
		sent++
	}
	close(s.more)
	s.more = make(chan struct{})
	s.mu.Unlock()
	switch {
	case answer != nil && answer(w, r):
	case !s.knows(r):
		w.WriteHeader(http.StatusNotFound)
	case watches(r):
		s.watch(w, r, cut, sent)
	case plural(r) != "pods":
		s.listOthers(w, r)
	default:
		s.list(w, r)
	}
}

// plural is the resource that r requests.
func plural(r *http.Request) string { return path.Base(r.URL.Path) }

func (s *server) mine(p *v1.Pod, r *http.Request) bool {
	return s.all || r.URL.Query().Get("fieldSelector") == "spec.nodeName="+p.Spec.NodeName
}

func (s *server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	l := v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.rv)}}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	after := r.URL.Query().Get("continue")
	for _, k := range slices.SortedFunc(maps.Keys(s.pods), pod.Key.Compare) {
		if p := s.pods[k]; s.mine(p, r) && k.String() > after {
			if limit > 0 && len(l.Items) == limit {
				l.Continue = pod.KeyOf(&l.Items[limit-1]).String()
				break
			}
			l.Items = append(l.Items, *p)
		}
	}
	s.mu.Unlock()
	data := s.encodeList(&l)
	w.Header().Set("Content-Type", s.mediaType(""))
	_, _ = w.Write(data)
}

func (s *server) mediaType(parameters string) string {
	if s.json {
		return jsonType
	}
	return protobufType + parameters
}

func (s *server) encodeList(l *v1.PodList) []byte {
	if s.json {
		l.Kind, l.APIVersion = "PodList", "v1"
		return must(json.Marshal(l))
	}
	return wrap("PodList", must(l.Marshal()))
}

// wrap puts an object into protobuf's envelope.
func wrap(kind string, object []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: object}
	return append([]byte(magic), must(u.Marshal())...)
}

func (s *server) encodeEvent(l logged) []byte {
	e := metav1.WatchEvent{Type: string(l.kind)}
	status := metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "hunter2"}
	switch {
	case s.json && l.kind == watch.Error:
		status.Kind, status.APIVersion = "Status", "v1"
		e.Object.Raw = must(json.Marshal(&status))
	case l.kind == watch.Error:
		e.Object.Raw = wrap("Status", must(status.Marshal()))
	case l.what != "":
		e.Object.Raw = s.encodeOther(l.what, l.other)
	case s.json:
		p := l.pod.DeepCopy()
		p.Kind, p.APIVersion = "Pod", "v1"
		e.Object.Raw = must(json.Marshal(p))
	default:
		e.Object.Raw = wrap("Pod", must(l.pod.Marshal()))
	}
	if s.json {
		return append(must(json.Marshal(&e)), '\n')
	}
	frame := must(e.Marshal())
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}

func (s *server) watch(w http.ResponseWriter, r *http.Request, cut, sent int) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	over := time.After(time.Duration(seconds) * time.Second)
	w.Header().Set("Content-Type", s.mediaType(";stream=watch"))
	s.mu.Lock()
	sent = min(sent, len(s.log))
	if from < s.compacted {
		s.mu.Unlock()
		w.WriteHeader(http.StatusGone)
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	s.live[plural(r)]++
	close(s.more)
	s.more = make(chan struct{})
	defer s.change(func() { s.live[plural(r)]-- })
	for {
		more, cutNow, clean := s.more, s.cut, s.clean
		var out []byte
		for ; sent < len(s.log) && cutNow == cut; sent++ {
			if l := s.log[sent]; s.fits(l, r) {
				out = append(out, s.encodeEvent(l)...)
			}
		}
		s.mu.Unlock()
		if len(out) > 0 {
			_, _ = w.Write(out)
			w.(http.Flusher).Flush()
		}
		switch {
		case cutNow > cut && clean:
			return
		case cutNow > cut:
			panic(http.ErrAbortHandler)
		}
		select {
		case <-more:
		case <-over:
			return
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
	}
}

// waits returns the next request that is wanted, counting from the first.
func (s *server) waits(t testing.TB, n int, is func(*http.Request) bool) *http.Request {
	t.Helper()
	deadline := time.After(wait.Limit)
	for {
		s.mu.Lock()
		more, found := s.more, []*http.Request{}
		for _, r := range s.asked {
			if is(r) {
				found = append(found, r)
			}
		}
		s.mu.Unlock()
		if len(found) >= n {
			return found[n-1]
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%d requests, want %d", len(found), n)
		}
	}
}

// until waits for the server to be so.
func (s *server) until(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.After(wait.Limit)
	for {
		s.mu.Lock()
		more, is := s.more, so()
		s.mu.Unlock()
		if is {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

func (s *server) count(is func(*http.Request) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.asked {
		if is(r) {
			n++
		}
	}
	return n
}

// requests are those of now, in their order.
func (s *server) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func isList(r *http.Request) bool  { return plural(r) == "pods" && !watches(r) }
func isWatch(r *http.Request) bool { return plural(r) == "pods" && watches(r) }
func watches(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

// watched returns once n watches were asked for, the last of them.
func (s *server) watched(t testing.TB, n int) *http.Request { return s.waits(t, n, isWatch) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// leadsTo writes a kubeconfig that leads to url; user is the content of its user.
func leadsTo(t testing.TB, url, cluster, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, url, cluster, user)
	return path
}

func writeKubeconfig(t testing.TB, path, url, cluster, user string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: %q%s}}]
users: [{name: u, user: {%s}}]
`, url, cluster, user)
	write(t, path, text)
}

// write replaces a file in one step.
func write(t testing.TB, path, text string) {
	t.Helper()
	temp := path + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, path); err != nil {
		t.Fatal(err)
	}
}

// source returns the source of the server's pods, with less time than others.
func (s *server) source(t testing.TB, change ...func(*Config)) *Source {
	t.Helper()
	return newSource(t, leadsTo(t, s.URL, "", ""), change...)
}

func newSource(t testing.TB, path string, change ...func(*Config)) *Source {
	t.Helper()
	c := Config{Kubeconfig: path, Node: node, Spec: spec(path)}
	for _, f := range change {
		f(&c)
	}
	if c.Reader == nil {
		c.Reader = newReader(t, path, func(r *apiclient.ReaderConfig) { r.Log = c.Log })
	}
	src, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	src.linger, src.first = 30*time.Millisecond, wait.Limit
	return src
}

// newReader returns a reader of the server that a kubeconfig names, with less time than
// others.
func newReader(t testing.TB, path string, change func(*apiclient.ReaderConfig)) *apiclient.Reader {
	t.Helper()
	var c apiclient.ReaderConfig
	change(&c)
	if c.Client == nil {
		var err error
		if c.Client, err = apiclient.Open(apiclient.Config{File: path, UserAgent: "nodectl/test", Log: c.Log}); err != nil {
			t.Fatal(err)
		}
	}
	r := apiclient.NewReader(c)
	r.Tuning.FirstRetry, r.Tuning.LastRetry, r.Tuning.Confirm = 5*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	return r
}

// gathers has src make one set of events that come together, however slowly this
// process is run.
func gathers(_ *server, src *Source) { src.linger = time.Second }

// gathering is source for a gatherer.
func (s *server) gathering(t testing.TB) *Source {
	t.Helper()
	src := s.source(t)
	gathers(s, src)
	return src
}

// rejects is the annotation that makes spec reject a pod.
const rejects = "test/reject"

func spec(path string) func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem) {
	return func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem) {
		if why, ok := p.Annotations[rejects]; ok {
			return nil, []pod.Problem{{Msg: why}}
		}
		return manifest.FromAPI(p, manifest.Options{Source: "api", Location: path, File: file, Node: node})
	}
}

// boundPod returns a pod bound to node; content is the part that an edit changes.
func boundPod(name, content string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"content": content}},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "image"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// fixture is the suite's place: its manifests become pods of the server.
func (s *server) fixture(t *testing.T) sourcetest.Fixture {
	manifests := sourcetest.Document{}
	show := func() {
		garbage, want := false, map[pod.Key]*v1.Pod{}
		for _, line := range strings.Split(manifests.Text(), "\n") {
			word, rest, _ := strings.Cut(line, " ")
			name, content, _ := strings.Cut(rest, " ")
			p := boundPod(name, content)
			p.Namespace = "default"
			switch word {
			case "pod":
				want[pod.KeyOf(p)] = p
			case "reject":
				p.Annotations = map[string]string{rejects: content}
				want[pod.KeyOf(p)] = p
			case "", "#", "object", "workload":
			default:
				garbage = true
			}
		}
		if garbage {
			s.says(func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte("<html>Please log in</html>"))
				return true
			})
			return
		}
		s.change(func() {
			s.answer = nil
			for k, p := range want {
				if is := s.pods[k]; is == nil || !maps.Equal(is.Annotations, p.Annotations) {
					s.puts(p)
				}
			}
			for k := range s.pods {
				if want[k] == nil {
					s.drops(k)
				}
			}
		})
	}
	return sourcetest.Fixture{
		Source:   s.source(t),
		Put:      func(name, text string) { manifests[name] = text; show() },
		Remove:   func(name string) { delete(manifests, name); show() },
		Break:    func() { s.fails(http.StatusServiceUnavailable) },
		Mend:     show,
		Looked:   func() { s.waits(t, s.count(isWatch)+3, isWatch) },
		PodsOnly: true,
	}
}

// quiet is where a server complains about clients that hang up.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
