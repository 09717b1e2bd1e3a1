package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/wait"
)

// TestSocket_ConnectionAboveTheLimit_IsClosed: idle connections count too; one above the limit
// is closed at once, which is logged once, and when others leave there is room again.
//
// Shows: F10
func TestSocket_ConnectionAboveTheLimit_IsClosed(t *testing.T) {
	t.Parallel()
	log := new(said.Log)
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Connections, cfg.Log = 4, slog.New(slog.NewTextHandler(log, nil))
	web, _ := started(t, cfg)
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/pods", ""); code != http.StatusOK {
		t.Fatalf("%d", code)
	}
	web.CloseIdleConnections()
	dial := func() net.Conn {
		t.Helper()
		c, err := Dial(t.Context(), cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	// asks reports whether a connection gets an answer.
	asks := func(c net.Conn) bool {
		t.Helper()
		_, _ = io.WriteString(c, "GET /v1/pods HTTP/1.1\r\nHost: nodectl\r\n\r\n") // the read fails if the server hung up
		var answer [12]byte
		_, err := io.ReadFull(c, answer[:])
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			t.Fatal("neither an answer nor the end")
		}
		return err == nil && string(answer[:]) == "HTTP/1.1 200"
	}
	for range 2 {
		var crowd []net.Conn
		for len(crowd) < 4 {
			c := dial()
			defer c.Close()
			if !asks(c) { // the server may still count a closed one
				continue
			}
			crowd = append(crowd, c)
		}
		for range 20 {
			late := dial()
			if asks(late) {
				t.Error("a fifth connection is answered")
			}
			_ = late.Close()
		}
		for _, c := range crowd {
			_ = c.Close()
		}
		for !func() bool { c := dial(); defer c.Close(); return asks(c) }() {
		}
	}
	if n := log.Count("Too many connections"); n < 1 || n > 2 {
		t.Errorf("logged %d times for two overloads", n)
	}
}

// TestNew_LowDescriptorLimit_LowersTheLimits: a low limit of file descriptors allows few readers.
//
// Shows: F10
func TestNew_LowDescriptorLimit_LowersTheLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		have Config
		want [3]int
	}{
		{Config{Connections: 32}, [3]int{32, 16, 8}},
		{Config{Connections: 4096}, [3]int{4096, 256, 64}},
		{Config{Connections: 32, Streams: 30}, [3]int{32, 30, 8}},
	} {
		got := New(c.have).cfg
		if now := [3]int{got.Connections, got.Streams, got.Requests}; now != c.want {
			t.Errorf("%v, want %v", now, c.want)
		}
	}
	if got := New(Config{}).cfg; got.Connections > descriptors()/2 || got.Connections > 512 || got.Connections < 1 {
		t.Errorf("%d connections of %d descriptors", got.Connections, descriptors())
	}
}

// Connections from all addresses of an IPv6 host count for one peer.
func TestPeer_AddressesOfOneHost_AreOnePeer(t *testing.T) {
	t.Parallel()
	c := New(Config{}).limitListener(nil, "port", 100, 3)
	entered := 0
	for i := range 50 {
		if c.enter(Peer(fmt.Sprintf("[2001:db8::%x]:4%03d", i+1, i))) {
			entered++
		}
	}
	if entered != 3 {
		t.Errorf("%d connections of one network", entered)
	}
	for _, other := range []string{"[2001:db8:0:1::1]:1", "10.0.0.1:1", "[::ffff:10.0.0.2]:1"} {
		if !c.enter(Peer(other)) {
			t.Errorf("%s is another peer", other)
		}
	}
	if Peer("10.0.0.2:7") != Peer("[::ffff:10.0.0.2]:1") {
		t.Error("one IPv4 address is two peers")
	}
}

// Two callers with any right hold as many connections as they can, and the API server has
// places.
//
// Shows: D2
func TestConnections_TwoAuthorizedCallers_OthersConnect(t *testing.T) {
	t.Parallel()
	c := New(Config{}).limitListener(nil, "port", 64, 4)
	connect := func(address, caller string) *countedConn {
		peer := Peer(address)
		if !c.enter(peer) {
			return nil
		}
		conn := &countedConn{in: c, holder: peer}
		c.countForCaller(conn, caller)
		return conn
	}
	var greedy []*countedConn
	for address, caller := range map[string]string{"10.0.0.1:1": "greedy", "10.0.0.3:1": "greedier"} {
		for range 100 {
			if conn := connect(address, caller); conn != nil {
				greedy = append(greedy, conn)
			}
		}
	}
	if len(greedy) != 24+4+12+4 {
		t.Errorf("two callers have %d of 64 connections", len(greedy))
	}
	for range 6 + 4 {
		if connect("10.0.0.2:1", "kube-apiserver-kubelet-client") == nil {
			t.Fatal("the API server has no place")
		}
	}
	for range 2 { // a connection may be closed twice
		for _, conn := range greedy {
			c.release(conn)
		}
	}
	for connect("10.0.0.1:1", "greedy") != nil {
	}
	if c.count != 10+21+4 || c.counts["greedy"] != 21 || c.callers != 6+21 || c.counts[Peer("10.0.0.1:1")] != 4 || len(c.counts) != 4 {
		t.Errorf("places are not given back: %d, %d, %v", c.count, c.callers, c.counts)
	}
}

// A crowd that comes and goes is logged once in ten seconds.
func TestConnections_ManyOpenAndClose_AreLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := new(said.Log)
		c := New(Config{Log: log.Logger()}).limitListener(nil, "port", 4, 0)
		peer := Peer("10.0.0.1:1")
		for range 3 {
			for range 1000 {
				for range 6 {
					c.enter(peer)
				}
				for range 4 {
					c.release(&countedConn{holder: peer})
				}
			}
			time.Sleep(warningInterval)
		}
		if n := log.Count("Too many connections"); n != 3 {
			t.Errorf("logged %d times in 30 seconds", n)
		}
		if log.Count("notLogged=1999") != 2 {
			t.Errorf("the others are not counted: %s", log.String())
		}
	})
}

// Streams of one pod leave places for other pods.
func TestStreams_OfOnePod_UseAtMostAQuarter(t *testing.T) {
	t.Parallel()
	g := newRequestLimiter(64, 64)
	of := func(pod string) *request { return &request{values: map[string]string{"namespace": "ns", "pod": pod}} }
	var all []func()
	for range 64 {
		if release, ok := g.streams.enter(of("greedy")); ok {
			all = append(all, release)
		}
	}
	if len(all) != 16 {
		t.Errorf("%d streams of one pod", len(all))
	}
	if _, ok := g.streams.enter(of("other")); !ok {
		t.Error("another pod has no place")
	}
	for _, release := range all {
		release()
	}
	if _, ok := g.streams.enter(of("greedy")); !ok || len(g.streams.of) != 3 || g.streams.all != 2 {
		t.Errorf("places are not given back: %v", g.streams.of)
	}
}

// A tenant with rights on all pods of a namespace leaves a quarter of the streams, and of the
// forwarded connections, to the other namespaces.
//
// Shows: D2
func TestStreams_OfOneNamespace_LeaveAQuarter(t *testing.T) {
	t.Parallel()
	g := newRequestLimiter(64, 64)
	of := func(namespace, pod string) *request {
		return &request{values: map[string]string{"namespace": namespace, "pod": pod}}
	}
	for _, p := range []*places{&g.streams, &g.forwards} {
		var all []func()
		for i := range 8 * p.limit {
			if release, ok := p.enter(of("greedy", fmt.Sprint(i%8))); ok {
				all = append(all, release)
			}
		}
		if n := len(all); n != p.limit-p.limit/4 {
			t.Errorf("%d of %d places are one namespace's", n, p.limit)
		}
		for range p.limit / 4 {
			if _, ok := p.enter(of("other", "p")); !ok {
				t.Fatal("another namespace has no place")
			}
		}
		for _, release := range all {
			release()
		}
		if _, ok := p.enter(of("greedy", "0")); !ok || p.all != p.limit/4+1 {
			t.Errorf("places are not given back: %v", p.of)
		}
	}
}

// A user of the API server opens streams to all pods of a namespace. The API server is one
// caller for all its users, and has places left for the pods of another namespace.
//
// Shows: D2
func TestStreams_OneCallerInOneNamespace_OtherNamespacesHavePlaces(t *testing.T) {
	t.Parallel()
	g := newRequestLimiter(64, 64)
	of := func(namespace, pod string) *request {
		return &request{caller: Caller{Name: "kube-apiserver-kubelet-client"}, values: map[string]string{"namespace": namespace, "pod": pod}}
	}
	for _, p := range []*places{&g.streams, &g.forwards} {
		had := 0
		for i := range 8 * p.limit {
			if _, ok := p.enter(of("greedy", fmt.Sprint(i%8))); ok {
				had++
			}
		}
		if caller := p.limit - p.limit/4; had != caller-caller/4 {
			t.Errorf("%d of %d places of the caller are one namespace's", had, caller)
		}
		if _, ok := p.enter(of("other", "p")); !ok {
			t.Error("another namespace has no place through the same caller")
		}
	}
}

// A caller with a right on all pods of the node, as to read logs, leaves a quarter of the
// streams and of the forwarded connections to others. Local callers have all.
//
// Shows: D2
func TestStreams_OfOneCaller_LeaveAQuarter(t *testing.T) {
	t.Parallel()
	g := newRequestLimiter(64, 64)
	for _, p := range []*places{&g.streams, &g.forwards} {
		enter := func(c Caller, n int) (all []func()) {
			for i := range n {
				name := fmt.Sprint(i % 16)
				if release, ok := p.enter(&request{caller: c, values: map[string]string{"namespace": name, "pod": name}}); ok {
					all = append(all, release)
				}
			}
			return all
		}
		greedy, others := enter(Caller{Name: "collector"}, 2*p.limit), enter(Caller{Name: "apiserver"}, p.limit)
		if len(greedy) != p.limit-p.limit/4 || len(others) != p.limit/4 {
			t.Errorf("of %d places one caller has %d, and another one %d", p.limit, len(greedy), len(others))
		}
		for _, release := range append(greedy, others...) {
			release()
		}
		if len(p.of) != 0 || p.all != 0 {
			t.Errorf("places are not given back: %v", p.of)
		}
		if all := enter(Caller{Name: "root", Local: true}, p.limit); len(all) != p.limit {
			t.Errorf("local callers have %d of %d places", len(all), p.limit)
		}
	}
}

// A check that fails is logged seldom, however often it is asked for.
func TestHealth_FailingCheckAskedOften_IsLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := new(said.Log)
		s := New(Config{Log: log.Logger(), Checks: map[string]func(context.Context) error{
			"one": func(context.Context) error { return errors.New("ill") }, "other": func(context.Context) error { return errors.New("ill") },
		}})
		for range 100 {
			r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
			_ = s.healthz(httptest.NewRecorder(), &request{Request: r, route: &route{path: "/healthz"}})
		}
		if log.Count("check=one") != 1 || log.Count("check=other") != 1 {
			t.Errorf("logged: %s", log.String())
		}
	})
}

// Any number of callers with a right hold three quarters of the connections at most.
//
// Shows: D2
func TestConnections_ManyAuthorizedCallers_LeaveAQuarter(t *testing.T) {
	t.Parallel()
	c := New(Config{}).limitListener(nil, "port", 64, 4)
	for i := range 200 {
		peer := Peer(fmt.Sprintf("10.0.0.%d:1", i%8))
		if c.enter(peer) {
			c.countForCaller(&countedConn{in: c, holder: peer}, fmt.Sprint("caller-", i))
		}
	}
	if c.callers != 48 {
		t.Errorf("callers have %d of 64 connections", c.callers)
	}
}

// hangingAccess authenticates the caller of a header, and does not decide for guests.
type hangingAccess struct{ asked chan struct{} }

func (hangingAccess) Authenticate(r *http.Request) (Caller, bool, error) {
	return Caller{Name: r.Header.Get("User")}, true, nil
}

func (a hangingAccess) Authorize(ctx context.Context, c Caller, _ string, _ ...string) (bool, string, error) {
	if c.Name != "guest" {
		return true, "", nil
	}
	a.asked <- struct{}{}
	<-ctx.Done()
	return false, "", ctx.Err()
}

// TestRequests_AccessReviewPending_UseNoPlace: callers whose rights are still being
// reviewed leave all places for requests and streams to those who have them.
//
// Shows: D2
func TestRequests_AccessReviewPending_UseNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Access: hangingAccess{make(chan struct{}, 100)}, Health: "127.0.0.1:0"})
		f := &listenerHandler{Server: s, limiter: newRequestLimiter(4, 4), authenticate: s.authenticateTLS, serves: func(*route) bool { return true }}
		get := func(user string) int {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil)
			r.Header.Set("User", user)
			f.ServeHTTP(w, r)
			return w.Code
		}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if code := get("guest"); code != http.StatusInternalServerError {
					t.Errorf("guest: %d", code)
				}
			})
		}
		synctest.Wait()
		if n := len(s.cfg.Access.(hangingAccess).asked); n != 100 {
			t.Errorf("%d guests wait", n)
		}
		if code := get("anna"); code != http.StatusOK {
			t.Errorf("anna: %d", code)
		}
		wg.Wait()
	})
}
