package apiclient

import (
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"
	"time"
)

// fakeServer is an API server that answers as a test says, and 404 otherwise.
type fakeServer struct {
	*httptest.Server

	mu     sync.Mutex // guards the fields below
	answer func(w http.ResponseWriter, r *http.Request) bool
	asked  []*http.Request
}

func newFakeServer(t testing.TB) *fakeServer {
	s := &fakeServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		answer := s.answer
		s.mu.Unlock()
		if answer == nil || !answer(w, r) {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// says sets the answer; it is true if it has answered.
func (s *fakeServer) says(answer func(w http.ResponseWriter, r *http.Request) bool) {
	s.change(func() { s.answer = answer })
}

func (s *fakeServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeServer) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *fakeServer) count(is func(*http.Request) bool) (n int) {
	for _, r := range s.requests() {
		if is(r) {
			n++
		}
	}
	return n
}

// reader returns a reader of the server, with less time than others.
func (s *fakeServer) reader(t testing.TB, change ...func(*ReaderConfig)) *Reader {
	t.Helper()
	c := ReaderConfig{Client: opened(t, kubeconfigOf(t, s.URL, "", ""))}
	for _, f := range change {
		f(&c)
	}
	r := NewReader(c)
	r.Tuning.FirstRetry, r.Tuning.LastRetry, r.Tuning.Confirm = 5*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	return r
}

// plural is the last part of the path of r: the resource, or the name.
func plural(r *http.Request) string { return path.Base(r.URL.Path) }
