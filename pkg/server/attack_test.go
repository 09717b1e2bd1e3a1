package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nodectl/nodectl/test/wait"
)

// TestD1_KEP_2862_GetIsNotExec: a caller with only "get" on nodes/proxy runs no command,
// also not by a WebSocket's GET; one with "create" on the subresource does.
//
// Shows: D1
func TestD1_KEP_2862_GetIsNotExec(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for name, want := range map[string]bool{"reader": false, "guest": false, "shell": true, "proxy": true} {
		for client, x := range l.clients(t, name, l.url("/exec/ns/p/c", "command", "true", "output", "1")) {
			err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			if (err == nil) != want {
				t.Errorf("%s by %s: %v", name, client, err)
			}
			if err != nil && !httpstream.IsUpgradeFailure(err) && !strings.Contains(err.Error(), "Forbidden") {
				t.Errorf("%s by %s: %v", name, client, err)
			}
		}
	}
	if n := len(l.rt.Execs()); n != 6 { // two callers, three ways
		t.Errorf("%d commands ran", n)
	}
	for path, want := range map[string]int{"/run/ns/p/c?cmd=true": 403, "/checkpoint/ns/p/c": 403} {
		if code, _, _ := l.fetch(t, l.web(t, "shell"), http.MethodPost, path, nil); code != want {
			t.Errorf("%s by a caller that may only exec: %d", path, code)
		}
	}
}

// TestD1_CVE_2020_8558_LoopbackIsNotTrusted: neither the loopback address nor headers
// authenticate a caller.
//
// Shows: D1
func TestD1_CVE_2020_8558_LoopbackIsNotTrusted(t *testing.T) {
	t.Parallel()
	p := opened(t, testConfig(filepath.Join(root(t), "nodectl.sock")))
	for _, h := range []http.Header{
		{}, {"X-Forwarded-For": {"127.0.0.1"}}, {"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}},
		{"Impersonate-User": {"admin"}}, {"Authorization": {"Basic YWRtaW46YWRtaW4="}}, {"Authorization": {"Bearer x"}},
	} {
		if code, text, _ := p.fetch(t, p.web(t, ""), http.MethodGet, "/pods", h); code != 401 || text != "Unauthorized" {
			t.Errorf("%v: %d %s", h, code, text)
		}
	}
	a, err := (&http.Client{Timeout: wait.Limit}).Get("http://" + p.address + "/pods")
	if err == nil {
		defer a.Body.Close()
		if a.StatusCode == http.StatusOK {
			t.Error("it answers without TLS")
		}
	}
}

// TestD1_CVE_2019_11248_NoProfiles: by default the TLS port serves no profiles and no logs of
// the host, and no listener serves the handlers of http.DefaultServeMux (audit, issue 81125).
//
// Shows: D1
func TestD1_CVE_2019_11248_NoProfiles(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	p := opened(t, cfg)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/flags/v", "/logs/", "/logs/syslog"} {
		if code, _, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, path, nil); code != 405 {
			t.Errorf("%s: %d", path, code)
		}
	}
	for _, path := range []string{"/debug/vars", "/debug/pprof/../vars", "/logs/..%2f..%2fetc%2fpasswd", "/logs/../../etc/passwd"} {
		if code, _, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, path, nil); code != 404 {
			t.Errorf("%s: %d", path, code)
		}
		if code, _, _ := full(t, client(cfg.Socket), http.MethodGet, path, ""); code != 404 {
			t.Errorf("%s on the socket: %d", path, code)
		}
	}
}

// FuzzD1_CVE_2018_1002105_RuntimeAnswers: any answer of a runtime to an upgrade gives a
// connection or an error, and neither hangs.
//
// Shows: D1
func FuzzD1_CVE_2018_1002105_RuntimeAnswers(f *testing.F) {
	f.Add([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n"))
	f.Add([]byte("\x80\x03\x00\x01"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for first := true; ; first = false {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if first { // a later one discards the URL
					_ = c.SetDeadline(time.Now().Add(wait.Limit))
					_, _ = c.Read(make([]byte, 4096))
					_, _ = c.Write(answer)
				}
				_ = c.Close()
			}
		}()
		s := New(Config{Containers: &answers{portForward: func(context.Context, *v1.Pod) (*url.URL, error) {
			return &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/portforward/token"}, nil
		}}})
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		fw, err := s.forwarder(ctx, &v1.Pod{}, nil)
		if err == nil {
			fw.close()
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("it hangs")
		}
		_ = l.Close()
		<-ended
	})
}
