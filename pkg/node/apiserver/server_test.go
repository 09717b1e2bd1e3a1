package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// server is a fake of the parts of an API server that a node uses. It needs no network,
// so it works in a synctest bubble. test/nodeapi has a real one.
type server struct {
	t *testing.T

	mu      sync.Mutex
	node    *v1.Node
	lease   *coordinationv1.Lease
	version int
	history []string // the changes of the object, by version
	watches map[chan string]bool
	asked   []call
	fail    func(verb string) int // a code to answer with instead; nil is none
	drops   func(*v1.Node)        // removes the fields that this server drops
}

// call is one request: "create nodes", and when it came.
type call struct {
	what string
	at   time.Time
	body []byte
}

func newServer(t *testing.T) *server { return &server{t: t, watches: map[chan string]bool{}} }

// count returns when something was asked.
func (s *server) count(what string) (at []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.asked {
		if c.what == what {
			at = append(at, c.at)
		}
	}
	return at
}

func (s *server) last(what string) (body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.asked {
		if c.what == what {
			body = c.body
		}
	}
	return body
}

// RoundTrip implements http.RoundTripper.
func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	what := map[string]string{"POST": "create ", "PUT": "update ", "PATCH": "patch ", "GET": "get "}[r.Method]
	kind := "nodes"
	if strings.Contains(r.URL.Path, "/leases") {
		kind = "leases"
	}
	switch {
	case r.URL.Query().Get("watch") != "":
		what = "watch "
	case r.Method == "GET" && strings.HasSuffix(r.URL.Path, "/"+kind):
		what = "list "
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, call{what + kind, time.Now(), body})
	if s.fail != nil {
		switch code := s.fail(what + kind); {
		case code < 0:
			return nil, errors.New("connection refused")
		case code > 0:
			return s.answer(r, code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: int32(code), Reason: reasons[code]})
		}
	}
	if kind == "leases" {
		return s.leases(r, what, body)
	}
	return s.nodes(r, what, body)
}

var reasons = map[int]metav1.StatusReason{404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonAlreadyExists, 410: metav1.StatusReasonExpired, 500: metav1.StatusReasonInternalError}

func (s *server) missing(r *http.Request, code int) (*http.Response, error) {
	return s.answer(r, code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: int32(code), Reason: reasons[code]})
}

func (s *server) nodes(r *http.Request, what string, body []byte) (*http.Response, error) {
	switch what {
	case "list ":
		list := &v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
		if s.node != nil {
			list.Items = append(list.Items, *s.node)
		}
		return s.answer(r, 200, list)
	case "watch ":
		return s.watch(r), nil
	case "create ":
		if s.node != nil {
			return s.missing(r, 409)
		}
		s.put(read[*v1.Node](s.t, body), "ADDED")
		s.node.UID = types.UID("u" + s.node.ResourceVersion)
		return s.answer(r, 201, s.node)
	}
	if s.node == nil {
		return s.missing(r, 404)
	}
	if what == "patch " {
		if !strings.HasSuffix(r.URL.Path, "/status") {
			s.t.Errorf("a patch of %s", r.URL.Path)
		}
		was, _ := json.Marshal(s.node)
		is, err := strategicpatch.StrategicMergePatch(was, body, v1.Node{})
		if err != nil {
			s.t.Errorf("patch %s: %v", body, err)
		}
		now := read[*v1.Node](s.t, is)
		if s.drops != nil {
			s.drops(now)
		}
		s.put(now, "MODIFIED")
	}
	return s.answer(r, 200, s.node)
}

func (s *server) leases(r *http.Request, what string, body []byte) (*http.Response, error) {
	switch {
	case what == "create " && s.lease == nil, what == "update " && s.lease != nil:
		s.lease = read[*coordinationv1.Lease](s.t, body)
	case s.lease == nil:
		return s.missing(r, 404)
	}
	return s.answer(r, 200, s.lease)
}

func read[T runtime.Object](t *testing.T, body []byte) T {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		t.Errorf("body %q: %v", body, err)
	}
	is, ok := o.(T)
	if !ok {
		t.Errorf("a body is a %T", o)
	}
	return is
}

// put keeps an object and tells the watches. mu is held.
func (s *server) put(n *v1.Node, kind string) {
	s.version++
	n = n.DeepCopy()
	n.TypeMeta, n.ResourceVersion = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, strconv.Itoa(s.version)
	if n.UID == "" {
		n.UID = types.UID("u" + n.ResourceVersion)
	}
	if s.node = n; kind == "DELETED" {
		s.node = nil
	}
	text, _ := json.Marshal(map[string]any{"type": kind, "object": n})
	s.history = append(s.history, string(text))
	for w := range s.watches {
		w <- string(text)
	}
}

// remove deletes the object.
func (s *server) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(s.node, "DELETED")
}

// cut ends every watch.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		close(w)
		delete(s.watches, w)
	}
}

// watch answers with a stream. mu is held.
func (s *server) watch(r *http.Request) *http.Response {
	events := make(chan string, 100)
	if since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion")); err == nil {
		for _, e := range s.history[min(since, len(s.history)):] {
			events <- e
		}
	}
	s.watches[events] = true
	out, in := io.Pipe()
	go func() {
		defer in.Close()
		for {
			select {
			case e, ok := <-events:
				if !ok {
					return
				}
				if _, err := in.Write([]byte(e + "\n")); err != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: out, Request: r}
}

func (s *server) answer(r *http.Request, code int, o any) (*http.Response, error) {
	if l, ok := o.(*coordinationv1.Lease); ok {
		l.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	}
	text, err := json.Marshal(o)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(text)), Request: r,
	}, err
}

// object returns the Node that there is.
func (s *server) object() *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// change lets the test be the server's other clients.
func (s *server) change(f func(*v1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node.DeepCopy()
	f(n)
	s.put(n, "MODIFIED")
}
