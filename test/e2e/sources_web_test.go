package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// web is a server of manifests with answers that a scenario chooses. It keeps its address
// over down and up.
type web struct {
	*stage
	URL string

	server *httptest.Server // nil while it is down
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  int
}

// newWeb starts a server that answers with a text.
func (s *stage) newWeb(text string) *web {
	s.Helper()
	w := &web{stage: s, answer: says(text)}
	w.start("127.0.0.1:0")
	w.URL = w.server.URL + "/pods.yaml"
	s.Cleanup(func() {
		if w.server != nil {
			w.down()
		}
	})
	return w
}

func (w *web) start(address string) {
	w.Helper()
	l, err := net.Listen("tcp", address)
	w.must(err)
	w.server = httptest.NewUnstartedServer(w)
	w.server.Listener.Close()
	w.server.Listener = l
	w.server.Start()
}

// down makes the server refuse connections from now on.
func (w *web) down() {
	w.server.CloseClientConnections()
	w.server.Close()
	w.server = nil
}

// up ends down.
func (w *web) up() {
	w.Helper()
	address, _ := strings.CutSuffix(strings.TrimPrefix(w.URL, "http://"), "/pods.yaml")
	w.start(address)
}

// ServeHTTP implements http.Handler.
func (w *web) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.asked++
	answer := w.answer
	w.mu.Unlock()
	answer(to, r)
}

// serves sets the answer from now on.
func (w *web) serves(answer http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

// requests returns the number of requests.
func (w *web) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

// awaitRequests returns after so many more requests.
func (w *web) awaitRequests(times int) {
	w.Helper()
	begin := w.requests()
	w.eventually(func() error {
		if n := w.requests() - begin; n < times {
			return fmt.Errorf("the server was asked %d times, want %d", n, times)
		}
		return nil
	})
}

func says(text string) http.HandlerFunc {
	return func(to http.ResponseWriter, _ *http.Request) { fmt.Fprint(to, text) }
}

func refuses(code int) http.HandlerFunc {
	return func(to http.ResponseWriter, _ *http.Request) { to.WriteHeader(code) }
}

// documents joins manifests into one.
func documents(all ...string) string { return strings.Join(all, "---\n") }
