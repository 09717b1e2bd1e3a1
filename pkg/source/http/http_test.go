package http

import (
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

const often = 5 * time.Millisecond

func parse(data []byte, file string) (source.File, []pod.Problem) {
	return sourcetest.Parse("http", file)(data, file)
}

// site is a server whose answer a test can change during polls.
type site struct {
	*httptest.Server
	mu     sync.Mutex // guards the fields below
	answer nethttp.HandlerFunc
	asked  []*nethttp.Request
	more   chan struct{} // capacity 0, closed at the next request
}

func newSite(t testing.TB) *site {
	s := &site{more: make(chan struct{})}
	s.says("# nothing\n")
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *site) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	s.mu.Lock()
	answer := s.answer
	s.asked = append(s.asked, r)
	close(s.more)
	s.more = make(chan struct{})
	s.mu.Unlock()
	answer(w, r)
}

// does replaces the answer.
func (s *site) does(answer nethttp.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *site) says(text string) {
	s.does(func(w nethttp.ResponseWriter, _ *nethttp.Request) { _, _ = fmt.Fprint(w, text) })
}

func (s *site) fails(status int) {
	s.does(func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(status) })
}

// waits returns once n more requests have come, the last of them.
func (s *site) waits(t testing.TB, n int) *nethttp.Request {
	t.Helper()
	deadline := time.After(wait.Limit)
	s.mu.Lock()
	want := len(s.asked) + n
	for len(s.asked) < want {
		more := s.more
		s.mu.Unlock()
		select {
		case <-more:
		case <-deadline:
			t.Fatal("no request arrived")
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	return s.asked[len(s.asked)-1]
}

func (s *site) source(t testing.TB, change ...func(*Config)) *Source {
	t.Helper()
	c := Config{URL: s.URL + "/pods", CheckFrequency: often, Parse: parse}
	for _, f := range change {
		f(&c)
	}
	src, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestURLConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		s := newSite(t)
		doc := sourcetest.Document{}
		return sourcetest.Fixture{
			Source: s.source(t),
			Put:    func(name, text string) { doc[name] = text; s.says(doc.Text()) },
			Remove: func(name string) { delete(doc, name); s.says(doc.Text()) },
			Break:  func() { s.fails(503) },
			Mend:   func() { s.says(doc.Text()) },
			Looked: func() { s.waits(t, 3) },
		}
	})
}
