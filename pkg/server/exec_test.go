package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/wait"
)

// TestC_1_40_9_Exec: stdout, stderr, exit codes, and the end of stdin, with every client
// and protocol.
//
// Shows: C-1.40.9
func TestC_1_40_9_Exec(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.rt.OnExec(func(e critest.Exec) (critest.Behaviour, bool) {
		switch e.Cmd[0] {
		case "hello":
			return critest.Behaviour{Ends: true, Output: "hello\n"}, true
		case "stderr":
			return critest.Behaviour{Ends: true, Output: "oh\n", Code: 3}, true
		}
		return critest.Behaviour{}, false
	})
	for _, path := range []string{"/exec/ns/p/c", "/exec/ns/p/u/c"} {
		for name, x := range l.clients(t, "admin", l.url(path, "command", "hello", "output", "1", "error", "1")) {
			var out, errs bytes.Buffer
			if err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}); err != nil || out.String() != "hello\n" || errs.Len() > 0 {
				t.Errorf("%s: %q, %q, %v", name, out.String(), errs.String(), err)
			}
		}
	}
	for name, x := range l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "stderr", "command", "two words", "output", "1", "error", "1")) {
		var out, errs bytes.Buffer
		err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
		var code clientexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 3 || errs.String() != "oh\n" || out.Len() > 0 {
			t.Errorf("%s: %q, %q, %v", name, out.String(), errs.String(), err)
		}
	}
	for name, x := range l.clients(t, "admin", l.url("/exec/ns/p/c", "output", "1")) { // which the runtime refuses
		err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if want := "Internal error occurred: error executing command in container: rpc error: code = InvalidArgument desc = no command"; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	all := l.rt.Execs()
	if last := all[len(all)-1].Cmd; len(last) != 2 || last[1] != "two words" {
		t.Errorf("it ran %q", last)
	}
	text := strings.Repeat("line of a file that is copied\n", 20_000)
	for name, x := range l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "cat", "input", "1", "output", "1")) {
		if name == "WebSocket 4" {
			continue // it cannot close stdin
		}
		var out bytes.Buffer
		if err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out}); err != nil || out.String() != text {
			t.Errorf("%s: %d bytes of %d, %v", name, out.Len(), len(text), err)
		}
	}
}

// sizes yields the terminal sizes that a test sends.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

// TestC_1_40_9_Terminal: sizes arrive in order, and the end of the container is the
// end of the session, with its code.
//
// Shows: C-1.40.9
func TestC_1_40_9_Terminal(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"SPDY", "WebSocket 5", "WebSocket 4"} {
		l := newFixture(t)
		x := l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "sizes", "input", "1", "output", "1", "error", "1", "tty", "1"))[name]
		out, window := new(said.Log), make(sizes, 1)
		ended := make(chan error, 1)
		in, stdin := io.Pipe()
		defer stdin.Close()
		go func() {
			ended <- x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: window})
		}()
		window <- remotecommand.TerminalSize{Width: 80, Height: 24}
		out.Is(t, "80x24\n")
		window <- remotecommand.TerminalSize{Width: 132, Height: 43}
		out.Is(t, "80x24\n132x43\n")
		l.rt.Exit(l.key, "c", 137)
		var code clientexec.CodeExitError
		if err := wait.Receive(t, "the end of "+name, ended); !errors.As(err, &code) || code.Code != 137 {
			t.Errorf("%s: %v", name, err)
		}
		close(window)
	}
}

// Shows: C-1.40.9
func TestC_1_40_9_Attach(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"SPDY", "WebSocket 5", "WebSocket 4"} {
		l := newFixture(t)
		x := l.clients(t, "admin", l.url("/attach/ns/p/c", "input", "1", "output", "1"))[name]
		out, ended := new(said.Log), make(chan error, 1)
		in, stdin := io.Pipe()
		defer stdin.Close()
		go func() {
			ended <- x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out})
		}()
		out.Is(t, "attached\n")
		if _, err := io.WriteString(stdin, "typed\n"); err != nil {
			t.Fatal(err)
		}
		out.Is(t, "attached\ntyped\n")
		l.rt.Exit(l.key, "c", 137)
		if err := wait.Receive(t, "the end of "+name+" with the container", ended); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExec_CallerLeaves_SessionEnds: a caller that hangs up ends an idle session here and
// at the runtime; so does the end of the server.
//
// Shows: C-1.40.9
func TestExec_CallerLeaves_SessionEnds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"SPDY", "WebSocket 5", "WebSocket 4"} {
		for _, who := range []string{"caller", "server"} {
			l := newFixture(t)
			x := l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "cat", "input", "1", "output", "1"))[name]
			out, ended := new(said.Log), make(chan error, 1)
			ctx, leave := context.WithCancel(t.Context())
			in, stdin := io.Pipe()
			defer stdin.Close()
			go func() { ended <- x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out}) }()
			if _, err := io.WriteString(stdin, "here"); err != nil {
				t.Fatal(err)
			}
			out.Is(t, "here")
			if who == "caller" {
				leave()
			} else {
				l.stop()
			}
			if err := wait.Receive(t, "the end of "+name+" without its "+who, ended); err == nil {
				t.Errorf("%s: the %s left, and all is well", name, who)
			}
			leave()
			l.log.Has(t, 1, "Privileged call") // logged when the session is over
		}
	}
}

// TestExec_Idle_SessionEnds: --streaming-connection-idle-timeout. Clients react
// differently: SPDY's takes a closed connection for a normal end, WebSocket's only if the
// close message still arrives.
//
// Shows: C-1.40.9
func TestExec_Idle_SessionEnds(t *testing.T) {
	t.Parallel()
	const idle = 100 * time.Millisecond
	l := newFixture(t, func(c *Config) { c.StreamIdle = idle })
	for _, name := range []string{"SPDY", "WebSocket 5", "WebSocket 4"} {
		x := l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "cat", "input", "1", "output", "1"))[name]
		ended := make(chan error, 1)
		in, stdin := io.Pipe()
		begun := time.Now()
		go func() {
			ended <- x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard})
		}()
		err := wait.Receive(t, "the end of "+name, ended)
		if took := time.Since(begun); took < idle {
			t.Errorf("%s: ended after %s: %v", name, took, err)
		}
		_ = stdin.Close()
	}
}

// TestStreams_InvalidRequest_IsRefusedBeforeTheUpgrade: the server refuses these before it
// takes over the connection.
//
// Shows: C-1.40.9
func TestStreams_InvalidRequest_IsRefusedBeforeTheUpgrade(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	web := l.web(t, "admin")
	spdy := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}}
	for _, c := range []struct {
		path   string
		header http.Header
		code   int
		words  string
	}{
		{"/exec/ns/p/c?command=x&output=1", nil, 400, "Upgrade request required"},
		{"/exec/ns/p/c?command=x", spdy, 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"/exec/ns/q/c?command=x&output=1", spdy, 404, "pod does not exist"},
		{"/exec/ns/p/other/c?command=x&output=1", spdy, 404, "pod not found"},
		{"/exec/ns/p/late?command=x&output=1", spdy, 500, `container not found ("late")`},
		{"/attach/ns/p/late?output=1", spdy, 500, `container not found ("late")`},
		{"/portForward/ns/q", spdy, 404, "pod does not exist"},
		{"/portForward/ns/p/other", spdy, 404, "pod not found"},
		{"/portForward/ns/p", nil, 400, "Upgrade request required"},
		{"/exec/ns/p/c?command=x&output=1", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v9"}}, 403, "unable to upgrade: unable to negotiate protocol"},
	} {
		code, text, _ := l.fetch(t, web, http.MethodPost, c.path, c.header)
		if code != c.code || !strings.Contains(text, c.words) {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, text, c.code, c.words)
		}
	}
}

// TestD1_CVE_2020_8559_NoRedirectIsFollowed: the server follows no redirect of a runtime,
// or of another process on the runtime's port.
//
// Shows: D1
func TestD1_CVE_2020_8559_NoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	lured := make(chan struct{}, 8)
	elsewhere := streamingServer(t, func(http.ResponseWriter, *http.Request) { lured <- struct{}{} })
	for _, code := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusOK, http.StatusNotFound, http.StatusSwitchingProtocols} {
		runtime := streamingServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", elsewhere.String())
			w.WriteHeader(code)
		})
		l := newFixture(t, func(c *Config) {
			c.Containers = of(*c)
			of(*c).exec = execTo(runtime)
			of(*c).portForward = forwardTo(runtime)
		})
		for name, x := range l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "x", "output", "1")) {
			if err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
				t.Errorf("%d, %s: all is well", code, name)
			}
		}
		if got, text, _ := l.fetch(t, l.web(t, "admin"), http.MethodPost, "/portForward/ns/p", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"portforward.k8s.io"}}); got != 500 {
			t.Errorf("%d: port-forward: %d %s", code, got, text)
		}
	}
	if len(lured) > 0 {
		t.Error("a redirect was followed")
	}
}

// TestStreams_NeverOpened_LeaveNoTokenInTheRuntime: a caller that fails a handshake, or
// leaves at any time, leaves no token in the runtime, which keeps one for a minute and
// refuses all streams at 1000. The audit file has few lines about such calls, and one about
// a command that ran.
func TestStreams_NeverOpened_LeaveNoTokenInTheRuntime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(root(t), "audit.jsonl")
	var mu sync.Mutex
	tokens, asked := map[string]bool{}, make(chan struct{})
	runtime := streamingServer(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		delete(tokens, r.URL.Path)
		if r.Header.Get("Upgrade") != "" {
			t.Errorf("%s is opened", r.URL.Path)
		}
		w.WriteHeader(http.StatusBadRequest)
	})
	issued := 0
	where := func(ctx context.Context, leaves bool) *url.URL {
		if leaves {
			asked <- struct{}{}
			<-ctx.Done()
		}
		mu.Lock()
		defer mu.Unlock()
		issued++
		u := *runtime
		u.Path = fmt.Sprint("/", issued)
		tokens[u.Path] = true
		return &u
	}
	l := newFixture(t, func(c *Config) {
		own := of(*c).exec
		c.Audit = path
		c.Containers = of(*c)
		of(*c).exec = func(ctx context.Context, p *v1.Pod, container string, command []string, s Streams) (*url.URL, error) {
			if command[0] == "true" {
				return own(ctx, p, container, command, s)
			}
			return where(ctx, command[0] == "leave"), nil
		}
		of(*c).attach = func(ctx context.Context, _ *v1.Pod, _ string, _ Streams) (*url.URL, error) {
			return where(ctx, false), nil
		}
		of(*c).portForward = func(ctx context.Context, _ *v1.Pod) (*url.URL, error) { return where(ctx, true), nil }
	})
	const (
		exec, leave = "/exec/ns/p/c?command=cat&output=1", "/exec/ns/p/c?command=leave&output=1"
		attach      = "/attach/ns/p/c?output=1"
		webSocket   = "Upgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
		spdy        = "Upgrade: SPDY/3.1\r\n"
		v4          = "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
	)
	begin, calls := time.Now(), 0
	for _, c := range []struct{ path, header, want string }{
		{exec, spdy, " 400 "},
		{exec, spdy + "X-Stream-Protocol-Version: v9\r\n", " 403 "},
		{exec, webSocket + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v9\r\n", " 403 "},
		{exec, webSocket + "Sec-WebSocket-Version: 12\r\n", " 400 "},
		{attach, spdy, " 400 "},
		{exec, spdy + v4, " 101 "}, // creates no streams, and leaves
		{leave, spdy + v4, ""},     // leaves during the call to the runtime
		{"/portForward/ns/p", spdy + "X-Stream-Protocol-Version: portforward.k8s.io\r\n", ""},
	} {
		for range 3 {
			calls++
			conn := l.secure(t, "admin")
			_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\n%s\r\n", c.path, c.header)
			if c.want == "" {
				wait.Receive(t, "the call to the runtime", asked)
			} else if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, c.want) {
				t.Errorf("%s %q: %q, %v", c.path, c.header, line, err)
			}
			_ = conn.Close()
		}
	}
	most := refusalLines + int(time.Since(begin)/refusalPause) + 1
	if err := l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "true", "output", "1"))["SPDY"].StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
		t.Error(err)
	}
	l.stop()
	mu.Lock()
	defer mu.Unlock()
	if issued != calls || len(tokens) > 0 {
		t.Errorf("of %d calls, %d have a token, and the runtime keeps %d", calls, issued, len(tokens))
	}
	ran := 0
	lines := auditLines(t, path)
	for _, line := range lines {
		if line["argv0"] == "true" && line["result"] == "ok" {
			ran++
		}
	}
	if len(lines)-ran < refusalLines || len(lines)-ran > most || ran != 1 {
		t.Errorf("%d lines, %d of the command that ran: %v", len(lines), ran, lines)
	}
}

// The library that runtimes use for streaming forgets a used-up URL, and runs no command.
func TestDiscardURL_URLsOfTheRuntime_AreForgotten(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	exec, err1 := l.cri.ExecURL(t.Context(), "u", "c", []string{"true"}, cri.Streams{Stdout: true})
	attach, err2 := l.cri.AttachURL(t.Context(), "u", "c", cri.Streams{Stdout: true})
	forward, err3 := l.cri.PortForwardURL(t.Context(), "u")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*url.URL{exec, attach, forward} {
		discardURL(t.Context(), slog.New(slog.DiscardHandler), u)
		a, err := http.Post(u.String(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		if a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", u.Path, a.StatusCode)
		}
	}
	if n := len(l.rt.Execs()); n != 0 {
		t.Errorf("%d commands ran", n)
	}
}

// A runtime that streams over TLS makes its own certificate. The request that uses up a URL
// accepts it as the streams do; a failed handshake is logged.
func TestDiscardURL_RuntimeStreamsOverTLS_URLIsForgotten(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 8)
	runtime := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path + r.Header.Get("Upgrade")
	}))
	t.Cleanup(runtime.Close)
	where, err := url.Parse(runtime.URL + "/exec/token")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	discardURL(t.Context(), logger, where)
	if len(asked) != 1 || <-asked != where.Path || text.Len() > 0 {
		t.Errorf("the URL is not used up: %s", text.String())
	}
	broken := streamingServer(t, func(http.ResponseWriter, *http.Request) {}) // a server without TLS
	broken.Scheme, broken.Path = "https", where.Path
	discardURL(t.Context(), logger, broken)
	if got := text.String(); !strings.Contains(got, "use up URL") || strings.Contains(got, "token") {
		t.Errorf("the log has %q", got)
	}
}

// A URL counts as used once the runtime has answered, whatever it answers. A runtime that
// hangs up, after the handshake or after the request, may not have read the request.
func TestSpdyTo_RuntimeHangsUp_URLIsNotDiscarded(t *testing.T) {
	t.Parallel()
	answers := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
	hangsUp := func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
	for name, start := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		for want, handler := range map[bool]http.HandlerFunc{true: answers, false: hangsUp} {
			runtime := start(handler)
			t.Cleanup(runtime.Close)
			used := false
			transport, err := spdyTo(t.Context(), &used)
			if err != nil {
				t.Fatal(err)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, runtime.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = clientspdy.NegotiateStreaming(clientspdy.NewUpgraderForStreaming(transport), &http.Client{Transport: transport}, r, "v4.channel.k8s.io")
			if err == nil || used != want {
				t.Errorf("%s: used %t, want %t: %v", name, used, want, err)
			}
		}
	}
}
