package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wire "github.com/moby/spdystream/spdy"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	served "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/test/wait"
)

// endless repeats a text up to a size, and counts the bytes read.
type endless struct {
	text string
	left int64
	read atomic.Int64
}

func (e *endless) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) && e.left > 0 {
		at := int((e.read.Load() + int64(n)) % int64(len(e.text)))
		k := copy(b[n:min(len(b), n+int(e.left))], e.text[at:])
		n, e.left = n+k, e.left-int64(k)
	}
	e.read.Add(int64(n))
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A terminal size without end is not buffered in memory.
func TestReadSizes_EndlessValue_IsNotKept(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\"aaaaaaaa", "[", " ", "[1,\n"} {
		in := &endless{text: text, left: 64 << 20}
		readSizes(t.Context(), in, make(chan served.TerminalSize))
		if n := in.read.Load(); n > 2*maxSize {
			t.Errorf("%q: %d bytes were read", text, n)
		}
	}
	sizes := make(chan served.TerminalSize, 1000)
	readSizes(t.Context(), strings.NewReader(strings.Repeat(`{"Width":80,"Height":24}`+"\n", 1000)), sizes)
	if n := len(sizes); n != 1000 {
		t.Errorf("%d of 1000 sizes were read", n)
	}
}

// spdyFrames returns SPDY frames as a client sends them.
func spdyFrames(t *testing.T, frames ...wire.Frame) []byte {
	t.Helper()
	var out bytes.Buffer
	framer, err := wire.NewFramer(&out, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := framer.WriteFrame(f); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func synStream(id uint32, headers http.Header) *wire.SynStreamFrame {
	return &wire.SynStreamFrame{StreamId: wire.StreamId(id), Headers: headers}
}

// Frames above a limit do not reach the library. A frame before them does, in full.
func TestReadSPDYFrames_FrameAboveALimit_IsNotForwarded(t *testing.T) {
	t.Parallel()
	bomb := http.Header{}
	for i := range 8 {
		bomb.Set(fmt.Sprint("h", i), strings.Repeat("\x00", 1<<20))
	}
	many := http.Header{}
	for i := range maxHeaders + 1 {
		many.Set(fmt.Sprint("h", i), "v")
	}
	kind := http.Header{"Streamtype": {"stdin"}}
	good := spdyFrames(t, synStream(1, kind))
	for name, bad := range map[string][]byte{
		"compressed zeros":           spdyFrames(t, synStream(1, kind), synStream(3, bomb)),
		"a long header":              spdyFrames(t, synStream(1, kind), synStream(3, http.Header{"H": {strings.Repeat("v", maxHeaderField+1)}})),
		"many headers":               spdyFrames(t, synStream(1, kind), synStream(3, many)),
		"more streams than expected": spdyFrames(t, synStream(1, kind), synStream(3, kind), synStream(5, kind)),
		"a large data frame":         spdyFrames(t, synStream(1, kind), &wire.DataFrame{StreamId: 1, Data: make([]byte, maxDataFrame+1)}),
		"headers alone":              spdyFrames(t, synStream(1, kind), &wire.HeadersFrame{StreamId: 1, Headers: kind}),
		"a reply":                    spdyFrames(t, synStream(1, kind), &wire.SynReplyFrame{StreamId: 1, Headers: kind}),
		"a large control frame":      append(bytes.Clone(good), 0x80, 3, 0, 6, 0, 0xff, 0xff, 0xff),
	} {
		want := good
		if name == "more streams than expected" {
			want = spdyFrames(t, synStream(1, kind), synStream(3, kind))
		}
		in, err := readSPDYFrames(bytes.NewReader(bad), 2)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(in)
		if !errors.Is(err, errFrame) || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes are passed on, want %d: %v", name, len(got), len(want), err)
		}
	}
	whole := spdyFrames(t, synStream(1, kind), &wire.DataFrame{StreamId: 1, Data: make([]byte, maxDataFrame)}, synStream(3, kind), &wire.PingFrame{Id: 1},
		&wire.RstStreamFrame{StreamId: 3, Status: wire.Cancel}, &wire.GoAwayFrame{})
	in, err := readSPDYFrames(bytes.NewReader(whole), 2)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes of %d are passed on: %v", len(got), len(whole), err)
	}
}

// A control frame with a wrong length for its type does not reach the library, which would
// read its rest as further frames. A frame of a type that no client sends does not reach it, either.
func TestReadSPDYFrames_FrameInsideAControlFrame_IsNotForwarded(t *testing.T) {
	t.Parallel()
	header := func(kind, length byte) []byte { return []byte{0x80, 3, 0, kind, 0, 0, 0, length} }
	large := []byte{0, 0, 0, 1, 0, 0xff, 0xff, 0xff} // a data frame of 16 MiB
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	one, two := []byte{0, 0, 0, 1}, []byte{0, 0, 0, 2}
	for name, bad := range map[string][]byte{
		"PING":                   join(header(6, 12), one, large),
		"a short PING":           join(header(6, 0), one),
		"RST_STREAM":             join(header(3, 16), one, two, large),
		"a short RST_STREAM":     join(header(3, 4), one, two),
		"GOAWAY":                 join(header(7, 16), one, two, large),
		"WINDOW_UPDATE":          join(header(9, 16), one, two, large),
		"SETTINGS":               join(header(4, 12), make([]byte, 4), large),
		"SETTINGS with a length": join(header(4, 4), make([]byte, 4)),
		"CREDENTIAL":             join(header(10, 8), large),
		"type 0":                 join(header(0, 8), large),
	} {
		in, err := readSPDYFrames(bytes.NewReader(bad), 2)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(in); !errors.Is(err, errFrame) || len(got) > 0 {
			t.Errorf("%s: %d bytes are passed on: %v", name, len(got), err)
		}
	}
}

// A frame hidden inside a control frame ends the session of its caller.
func TestSPDY_FrameInsideAControlFrame_EndsTheSession(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for _, bad := range []string{
		"\x80\x03\x00\x06\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x01\x00\xff\xff\xff",
		"\x80\x03\x00\x03\x00\x00\x00\x10\x00\x00\x00\x01\x00\x00\x00\x05\x00\x00\x00\x01\x00\xff\xff\xff",
		"\x80\x03\x00\x04\x00\x00\x00\x04\x00\x00\x00\x00",
	} {
		conn := l.upgraded(t, "/portForward/ns/p", "portforward.k8s.io")
		_, _ = io.WriteString(conn, bad)
		_ = conn.SetReadDeadline(time.Now().Add(wait.Limit))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the session goes on", bad)
		}
		_ = conn.Close()
	}
}

// The header of a too large WebSocket frame is enough to refuse it.
func TestReadWebSocketFrames_LargeFrame_IsRefusedUnread(t *testing.T) {
	t.Parallel()
	frame := func(size uint64) *endless {
		header := binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, size)
		return &endless{text: string(append(header, 0, 0, 0, 0)), left: 14 + int64(size)}
	}
	in := frame(32 << 20)
	n, err := io.Copy(io.Discard, readWebSocketFrames(in))
	if !errors.Is(err, errFrame) || n > 0 || in.read.Load() > 14 {
		t.Errorf("32 MiB: %d bytes are read, %d passed on: %v", in.read.Load(), n, err)
	}
	if n, err := io.Copy(io.Discard, readWebSocketFrames(frame(maxWebSocketFrame))); err != nil || n != 14+maxWebSocketFrame {
		t.Errorf("4 MiB: %d bytes are passed on: %v", n, err)
	}
	short := []byte{0x82, 0x83, 0, 0, 0, 0, 1, 2, 3, 0x81, 0xfe, 0, 2, 0, 0, 0, 0, 7, 7, 0x88, 0}
	if got, err := io.ReadAll(readWebSocketFrames(bytes.NewReader(short))); err != nil || !bytes.Equal(got, short) {
		t.Errorf("short frames: %v, %v", got, err)
	}
}

// inside runs f so that the goroutines that it starts, and those that these start, have a
// label. count returns how many of them are in a package.
func inside(t *testing.T, f func()) (count func(in string) int) {
	t.Helper()
	pprof.Do(t.Context(), pprof.Labels("test", t.Name()), func(context.Context) { f() })
	label := fmt.Sprintf("%q:%q", "test", t.Name())
	return func(in string) (all int) {
		var text bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&text, 1)
		for of := range strings.SplitSeq(text.String(), "\n\n") {
			if strings.Contains(of, label) && strings.Contains(of, in) {
				var n int
				line, _, _ := strings.Cut(of, " @ ")
				_, _ = fmt.Sscan(line[strings.LastIndex(line, "\n")+1:], &n)
				all += n
			}
		}
		return all
	}
}

// upgraded opens a SPDY session without the library, and returns its connection.
func (l *fixture) upgraded(t *testing.T, path, protocol string) net.Conn {
	t.Helper()
	conn := l.secure(t, "admin")
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", path, protocol)
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b...) {
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatalf("%q: %v", head, err)
		}
	}
	if !bytes.Contains(head, []byte(" 101 ")) {
		t.Fatalf("%q", head)
	}
	return conn
}

// Invalid streams, and streams that are open when their session ends, leave no goroutine.
func TestSPDY_InvalidStreams_LeaveNoGoroutine(t *testing.T) {
	t.Parallel()
	var l *fixture
	count := inside(t, func() { l = newFixture(t) })
	const exec, v4 = "/exec/ns/p/c?command=cat&input=1&output=1", "v4.channel.k8s.io"
	kind := func(kind string) http.Header { return http.Header{"Streamtype": {kind}} }
	half := func(id int) http.Header {
		return http.Header{"Streamtype": {"error"}, "Port": {"1"}, "Requestid": {fmt.Sprint(id)}}
	}
	var stdin, unread, halves []wire.Frame
	for i := range 7 {
		stdin = append(stdin, synStream(uint32(2*i+1), kind("stdin")))
	}
	for i, k := range []string{"error", "stdin", "stdout", "stderr"} {
		unread = append(unread, synStream(uint32(2*i+1), kind(k)))
	}
	for i := range 300 {
		unread = append(unread, &wire.DataFrame{StreamId: wire.StreamId(2*(i%4) + 1), Data: make([]byte, 100)})
	}
	for i := range 1000 {
		halves = append(halves, synStream(uint32(2*i+1), half(i)))
	}
	const rounds = 2 // this many sessions have an audit line though they open no stream
	for range rounds {
		for _, c := range []struct {
			path, protocol string
			frames         []wire.Frame
		}{
			{exec, v4, stdin},
			{exec, v4, unread},
			{exec, v4, append([]wire.Frame{&wire.GoAwayFrame{}}, stdin...)},
			{"/portForward/ns/p", "portforward.k8s.io", halves},
		} {
			conn := l.upgraded(t, c.path, c.protocol)
			wait.True(t, "goroutines of a session", func() bool { return count("moby/spdystream.") > 0 })
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = conn.Write(spdyFrames(t, c.frames...))
			_ = conn.Close()
		}
	}
	wait.Equal(t, "sessions that ended", 4*rounds, func() int { return l.log.Count("Privileged call") })
	wait.Equal(t, "goroutines of sessions", 0, func() int { return count("moby/spdystream.") })
}

// byProxy returns the fixture behind a proxy that copies bytes, as an API server does, and
// counts those of the caller. cut ends all its connections.
func (l *fixture) byProxy(t *testing.T) (behind *fixture, sent *atomic.Int64, cut func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent = new(atomic.Int64)
	var mu sync.Mutex
	var all []net.Conn
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			// A reset overtakes the data that the server does not read; a FIN would wait until
			// the kernel gives up.
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		cut()
		wg.Wait()
	})
	to := l.address
	wg.Go(func() {
		for {
			caller, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = caller.Close()
				continue
			}
			mu.Lock()
			all = append(all, caller, server)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(caller, server) })
			wg.Go(func() {
				for b := make([]byte, 32<<10); ; {
					n, err := caller.Read(b)
					if _, failed := server.Write(b[:n]); err != nil || failed != nil {
						return
					}
					sent.Add(int64(n))
				}
			})
		}
	})
	here, its := *l, *l.port
	its.address = listener.Addr().String()
	here.port = &its
	return &here, sent, cut
}

// stuck waits until a number has stopped growing for a while. On a busy machine this may be
// too early: the test then shows less, and does not fail.
func stuck(t *testing.T, what string, n *atomic.Int64) {
	t.Helper()
	last, same := int64(0), 0
	wait.Until(t, what, func() (int, bool) {
		now := n.Load()
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		return same, same >= 30
	})
}

// When the caller has left, its session ends, even if the container does not read its stdin or the
// pod does not read its port. The server ends then, too.
//
// Shows: C-1.40.9
func TestStreams_PodReadsNothing_EndWithCallerAndServer(t *testing.T) {
	t.Parallel()
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = deaf.Close() })
	_, port, _ := net.SplitHostPort(deaf.Addr().String())
	for _, name := range []string{"SPDY", "WebSocket 5", "WebSocket 4", "forward SPDY", "forward tunnel"} {
		for _, who := range []string{"caller", "server"} {
			t.Run(name+"/"+who, func(t *testing.T) {
				t.Parallel()
				l := newFixture(t)
				l.rt.OnExec(func(critest.Exec) (critest.Behaviour, bool) {
					return critest.Behaviour{Output: "here", After: time.Hour}, true
				})
				behind, sent, cut := l.byProxy(t)
				in := &endless{text: strings.Repeat("x", 4096), left: 64 << 20}
				ended := make(chan struct{})
				if way, forwards := strings.CutPrefix(name, "forward "); forwards {
					conn, _, err := behind.dialers(t, "admin", "/portForward/ns/p")[way].Dial("portforward.k8s.io")
					if err != nil {
						t.Fatal(err)
					}
					data := opensPair(t, conn, port, 0)
					go func() {
						defer close(ended)
						_, _ = io.Copy(data[0], struct{ io.Reader }{in})
					}()
				} else {
					x := behind.clients(t, "admin", behind.url("/exec/ns/p/c", "command", "deaf", "input", "1", "output", "1"))[name]
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					go func() {
						defer close(ended)
						_ = x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard})
					}()
				}
				stuck(t, "what the caller has sent", sent)
				if who == "caller" {
					cut()
					l.log.Has(t, 1, "Privileged call") // logged when the session is over
				}
				l.stop()
				cut()
				wait.Receive(t, "the end of the caller", ended)
			})
		}
	}
}

// opensPair opens the two streams of a connection and returns them, data first.
func opensPair(t *testing.T, conn httpstream.Connection, port string, id int) [2]httpstream.Stream {
	t.Helper()
	h := http.Header{"Port": {port}, "Requestid": {fmt.Sprint(id)}, "Streamtype": {"error"}}
	errs, err1 := conn.CreateStream(h)
	h = h.Clone()
	h.Set("Streamtype", "data")
	data, err2 := conn.CreateStream(h)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return [2]httpstream.Stream{data, errs}
}

// One URL names a bounded number of ports.
func TestPortForward_ManyPortsInOneURL_IsRefused(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	l := newFixture(t, func(c *Config) {
		c.Containers = of(*c)
		of(*c).portForward = func(context.Context, *v1.Pod) (*url.URL, error) {
			asked <- struct{}{}
			return nil, errors.New("asked")
		}
	})
	path := "/portForward/ns/p?port=" + strings.Repeat("1,", maxPorts) + "1"
	code, text, _ := l.fetch(t, l.web(t, "admin"), http.MethodGet, path, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}})
	if code != http.StatusBadRequest || len(asked) > 0 {
		t.Errorf("%d %s, the runtime was asked %d times", code, text, len(asked))
	}
}

// A session forwards a limited number of connections at a time. One above the limit gets an
// error, and one that ends makes room.
func TestPortForward_ManyConnections_OneTooManyIsRefused(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	accepted := make(chan net.Conn, 2*maxForwards)
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
		for len(accepted) > 0 {
			_ = (<-accepted).Close()
		}
	})
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	transport, upgrader, err := spdy.RoundTripperFor(l.config(t, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, l.url("/portForward/ns/p")).Dial("portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range maxForwards {
		opensPair(t, conn, port, i)
	}
	wait.Equal(t, "connections to the pod", maxForwards, func() int { return len(accepted) })
	late := opensPair(t, conn, port, maxForwards)
	if text, err := io.ReadAll(late[1]); err != nil || !strings.Contains(string(text), errTooManyForwards.Error()) {
		t.Errorf("one too many: %q, %v", text, err)
	}
	_ = (<-accepted).Close()
	id := maxForwards
	wait.Until(t, "a connection in the place of the one that has ended", func() (int, bool) {
		id++
		for _, stream := range opensPair(t, conn, port, id) {
			go func() { _, _ = io.Copy(io.Discard, stream) }() // the client stops reading at unread data
		}
		return len(accepted), len(accepted) == maxForwards
	})
}

// All sessions of a listener together forward a limited number of connections; one pod may
// have a quarter.
func TestForwarder_ManySessions_ShareOneBound(t *testing.T) {
	t.Parallel()
	local, network := newRequestLimiter(64, 64), newRequestLimiter(64, 64)
	open := func(g *requestLimiter, pod string) (open int) {
		q := &request{values: map[string]string{"namespace": pod, "pod": pod}}
		for range 2 * maxForwardsListener / maxForwards {
			f := &forwarder{place: func() (func(), bool) { return g.forwards.enter(q) }}
			for range 2 * maxForwards {
				if _, err := f.enter(); err == nil {
					open++
				}
			}
		}
		return open
	}
	all := 0
	for i := range 4 {
		n := open(network, fmt.Sprint(i))
		if n != maxForwardsListener/4 {
			t.Errorf("%d connections of one pod are forwarded, want %d", n, maxForwardsListener/4)
		}
		all += n
	}
	if all += open(network, "late"); all != maxForwardsListener {
		t.Errorf("%d connections are forwarded, want %d", all, maxForwardsListener)
	}
	if open(local, "0") == 0 {
		t.Error("the other listener forwards none")
	}
}
