package http

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/said"
)

func (s *site) listen(t testing.TB, change ...func(*Config)) *sourcetest.Listener {
	t.Helper()
	return sourcetest.Listen(t, s.source(t, change...))
}

// Shows: F60
func TestF60_EmptyBodyKeepsPods(t *testing.T) {
	for _, body := range []string{"", " \n\t\n"} {
		s := newSite(t)
		s.says("pod one x")
		l := s.listen(t)
		first := l.Set()
		s.says(body)
		if err := l.Error(); !strings.HasPrefix(err.Error(), "empty answer") {
			t.Errorf("error %q", err)
		}
		// The very same document ends it (the kubelet never restores it, C-1.7.4).
		s.says("pod one x")
		w := l.Set()
		w.Holds(t, "one")
		w.Names(t)
		if w.Pod("one") != first.Pod("one") {
			t.Error("the pod is another pointer")
		}
		s.says("# an explicit nothing")
		w = l.Set()
		w.Holds(t)
		w.Names(t, "one")
	}
}

// firstSet returns the first set of a source with a short timeout. On a busy machine even a good
// answer may exceed it.
func firstSet(t *testing.T, l *sourcetest.Listener) sourcetest.Result {
	t.Helper()
	w := l.Next()
	for w.Err != nil && w.Err.Error() == "timeout" {
		w = l.Next()
	}
	if w.Err != nil {
		t.Fatalf("error %q, want a set", w.Err)
	}
	return w
}

// A body that is no manifest stays a problem while the server serves it. Neither the body nor our
// request appears in a text (C-1.7.6, I8).
//
// Shows: F61, I8
func TestF61_BodyAndCredentialsAreNeverPrinted(t *testing.T) {
	var log said.Log
	var printed strings.Builder
	s := newSite(t)
	s.says("pod one x")
	l := s.listen(t, func(c *Config) {
		c.URL = strings.Replace(c.URL, "://", "://user:hunter2@", 1) + "?token=hunter2&node=n1"
		c.Header = nethttp.Header{"X-Secret": {"hunter2"}}
		c.Log = log.Logger()
	})
	tells := func(w sourcetest.Result) { fmt.Fprintf(&printed, "%+v %v\n", w.Files.Slice(), w.Err) }
	tells(l.Set())
	s.says("password: hunter2")
	broken := l.Set()
	broken.Holds(t, "!")
	tells(broken)
	s.waits(t, 3) // nothing more is said of the same body
	s.fails(500)
	tells(l.Next())
	s.does(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		nethttp.Redirect(w, r, "http://elsewhere.invalid/?token=hunter2", nethttp.StatusFound)
	})
	tells(l.Next())
	s.Server.CloseClientConnections()
	l.Leave()
	l.Ended()
	if all := log.String() + printed.String(); strings.Contains(all, "hunter2") {
		t.Errorf("a secret is shown:\n%s", all)
	}
	if !strings.Contains(log.String(), "node=n1") {
		t.Errorf("the log does not name the URL:\n%s", log.String())
	}
}

// Shows: F62
func TestF62_AnswersThatAreNoDocument(t *testing.T) {
	var bomb bytes.Buffer // made before anybody waits for it
	z := gzip.NewWriter(&bomb)
	for range 64 {
		_, _ = z.Write(make([]byte, 1<<20))
	}
	_ = z.Close()
	cases := map[string]struct {
		answer nethttp.HandlerFunc
		want   string
	}{
		"not found":    {func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(404) }, "HTTP 404"},
		"server error": {func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(500) }, "HTTP 500"},
		"no content":   {func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(204) }, "HTTP 204"},
		"partial": {func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.WriteHeader(206)
			_, _ = io.WriteString(w, "pod x y")
		}, "HTTP 206"},
		"304 without a condition": {func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(304) }, "HTTP 304"},
		"cut off": {func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "pod x y\n")
		}, "connection closed before the answer was complete"},
		"reset": {func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			conn, _, _ := w.(nethttp.Hijacker).Hijack()
			_ = conn.(*net.TCPConn).SetLinger(0)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npod")
			_ = conn.Close()
		}, "connection reset by peer"},
		"not HTTP": {func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			conn, _, _ := w.(nethttp.Hijacker).Hijack()
			_, _ = io.WriteString(conn, "SSH-2.0-hello\r\n\r\n")
			_ = conn.Close()
		}, "no valid HTTP answer"},
		"over 10 MiB": {func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("#\n"), BodyLimit/2+1))
		}, "the body is larger than 10 MiB"},
		"a compressed bomb": {func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, "the body is larger than 10 MiB"},
		"redirects forever": {func(w nethttp.ResponseWriter, r *nethttp.Request) {
			nethttp.Redirect(w, r, "/pods", nethttp.StatusFound)
		}, "too many redirects"},
		"trickle": {func(w nethttp.ResponseWriter, r *nethttp.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "#\n")
				w.(nethttp.Flusher).Flush()
				<-time.After(time.Millisecond)
			}
		}, "timeout"},
		"silence": {func(_ nethttp.ResponseWriter, r *nethttp.Request) { <-r.Context().Done() }, "timeout"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.says("pod one x")
			l := s.listen(t, func(cfg *Config) {
				if c.want == "timeout" {
					cfg.Timeout = 2 * time.Second // of the good answers too
				}
			})
			first := firstSet(t, l)
			s.does(c.answer)
			if err := l.Error(); err.Error() != c.want {
				t.Errorf("error %q, want %q", err, c.want)
			}
			s.says("pod one x")
			w := l.Set()
			w.Names(t)
			if w.Pod("one") != first.Pod("one") {
				t.Error("the pod is another pointer")
			}
		})
	}
}

// Shows: F62
func TestF62_ServersThatAreNotThere(t *testing.T) {
	secure := httptest.NewUnstartedServer(nethttp.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	secure.StartTLS()
	defer secure.Close()
	plain := newSite(t)
	for url, want := range map[string]string{
		"http://127.0.0.1:1": "connection refused",
		secure.URL:           "certificate signed by unknown authority",
		strings.Replace(plain.URL, "http://", "https://", 1): "no valid HTTP answer",
	} {
		s, err := New(Config{URL: url, CheckFrequency: often, Parse: parse})
		if err != nil {
			t.Fatal(err)
		}
		if err := sourcetest.Listen(t, s).Error(); err.Error() != want {
			t.Errorf("%s: error %q, want %q", url, err, want)
		}
	}
}

// Shows: F62
func TestF62_NamesThatAreNotFound(t *testing.T) {
	if got := failureText(&net.DNSError{Err: "no such host", Name: "cfg", IsNotFound: true}); got != "no such host: cfg" {
		t.Errorf("%q", got)
	}
	if got := failureText(&net.DNSError{Err: "server misbehaving", Name: "cfg"}); got != "name lookup failed: cfg" {
		t.Errorf("%q", got)
	}
}

// Shows: F62
func TestF62_HeadersNeverLeaveTheirOrigin(t *testing.T) {
	other := newSite(t)
	other.says("pod evil x")
	s := newSite(t)
	s.does(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		nethttp.Redirect(w, r, other.URL+"/pods", nethttp.StatusFound)
	})
	client := &nethttp.Client{Transport: &nethttp.Transport{}}
	defer client.CloseIdleConnections()
	for _, c := range []*nethttp.Client{nil, client} {
		l := s.listen(t, func(cfg *Config) {
			cfg.Header = nethttp.Header{"X-Token": {"hunter2"}}
			cfg.Client = c
		})
		if want, err := "redirect to another origin refused: "+other.URL, l.Error(); err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		l.Leave()
		l.Ended()
	}
	if len(other.asked) != 0 {
		t.Errorf("the other origin was asked: %v", other.asked[0].Header)
	}
}

func TestRedirectWithinTheOriginIsFollowedWithItsHeaders(t *testing.T) {
	s := newSite(t)
	s.does(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if r.URL.Path == "/pods" {
			nethttp.Redirect(w, r, "/moved", nethttp.StatusMovedPermanently)
			return
		}
		_, password, _ := r.BasicAuth()
		_, _ = fmt.Fprintf(w, "pod one %s/%s", r.Header.Get("X-Token"), password)
	})
	l := s.listen(t, func(c *Config) {
		c.URL = strings.Replace(c.URL, "://", "://user:pa%3Ass@", 1)
		c.Header = nethttp.Header{"X-Token": {"t"}}
	})
	want, _ := parse([]byte("pod one t/pa:ss"), "")
	if got := l.Set().Pod("one").Hash; got != want.Pods[0].Hash {
		t.Error("the second request does not carry what the first did")
	}
}

// Shows: C-1.7.1
func TestC_1_7_1_HeadersAreSent(t *testing.T) {
	s := newSite(t)
	s.listen(t, func(c *Config) {
		c.Header = nethttp.Header{"X-Many": {"a", "b"}, "Host": {"cfg.example"}}
		c.UserAgent = "nodectl/1"
	}).Set()
	r := s.waits(t, 1)
	if got := fmt.Sprintf("%v %s %s %s", r.Header["X-Many"], r.Host, r.UserAgent(), r.Method); got != "[a b] cfg.example nodectl/1 GET" {
		t.Errorf("sent %q", got)
	}
}

func TestUnchangedDocumentIsAskedForConditionally(t *testing.T) {
	for name, c := range map[string]struct{ offers, asks, stamp string }{
		"etag": {"ETag", "If-None-Match", `"v1"`},
		"date": {"Last-Modified", "If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			serve := func(stamp, text string) {
				s.does(func(w nethttp.ResponseWriter, r *nethttp.Request) {
					if r.Header.Get(c.asks) == stamp {
						w.WriteHeader(nethttp.StatusNotModified)
						return
					}
					w.Header().Set(c.offers, stamp)
					_, _ = io.WriteString(w, text)
				})
			}
			serve(c.stamp, "pod one x")
			l := s.listen(t)
			l.Set()
			if got := s.waits(t, 3).Header.Get(c.asks); got != c.stamp {
				t.Errorf("%s: %q, want %q", c.asks, got, c.stamp)
			}
			s.fails(503)
			_ = l.Error()
			serve(c.stamp, "pod one x")
			l.Set().Names(t) // 304 ends staleness
			serve("other", "pod one y")
			l.Set().Names(t, "one")
		})
	}
}

// transport answers without a network, so that a test can use fake time.
type transport func(*nethttp.Request) (*nethttp.Response, error)

func (f transport) RoundTrip(r *nethttp.Request) (*nethttp.Response, error) { return f(r) }

func answer(status int, body string) *nethttp.Response {
	return &nethttp.Response{StatusCode: status, Header: nethttp.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

func TestFailuresBackOffToFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var asked []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := New(Config{URL: "http://cfg/", Insecure: true, Parse: parse, Client: &nethttp.Client{Transport: transport(func(*nethttp.Request) (*nethttp.Response, error) {
			asked = append(asked, time.Since(start))
			switch n := len(asked); {
			case n > 16:
				cancel()
			case n > 14:
				return answer(200, "pod one x"), nil
			}
			return nil, errors.New("down")
		})}})
		if err != nil {
			t.Fatal(err)
		}
		for range s.Sets(ctx) {
		}
		for n, base := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300, 300, 20, 20} {
			gap, want := asked[n+1]-asked[n], time.Duration(base)*time.Second
			if gap < want*9/10 || gap > want*11/10 {
				t.Errorf("pause %d is %v, want about %v", n, gap, want)
			}
		}
	})
}

// If a server always answers that nothing changed, the source requests the whole document
// every five minutes.
//
// Shows: F62
func TestF62_LyingETagIsFoundOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s, err := New(Config{URL: "http://cfg/", Insecure: true, Parse: parse, Client: &nethttp.Client{Transport: transport(func(r *nethttp.Request) (*nethttp.Response, error) {
			if r.Header.Get("If-None-Match") != "" {
				return answer(304, ""), nil
			}
			a := answer(200, fmt.Sprintf("pod one %v", time.Since(start)))
			a.Header.Set("ETag", "same")
			return a, nil
		})}})
		if err != nil {
			t.Fatal(err)
		}
		var at []time.Duration
		for _, err := range s.Sets(t.Context()) {
			if err != nil {
				t.Error(err)
			}
			if at = append(at, time.Since(start)); len(at) == 3 {
				break
			}
		}
		for _, gap := range []time.Duration{at[1] - at[0], at[2] - at[1]} {
			if gap < trustFor || gap > trustFor+25*time.Second {
				t.Errorf("the whole document was asked for at %v", at)
			}
		}
	})
}

func TestNameAndFileCarryNoSecrets(t *testing.T) {
	token := strings.Repeat("a1B2", 10)
	for url, want := range map[string]string{
		"http://cfg/pods.yaml":                               "http://cfg/pods.yaml",
		"https://u:p@cfg:8443/p?node=n1#part":                "https://redacted@cfg:8443/p?node=n1",
		"https://ghp_x@cfg/":                                 "https://redacted@cfg/",
		"http://cfg/?node=n1&access_token=x&b=2":             "http://cfg/?node=n1&access_token=redacted&b=2",
		"http://cfg/?X-Amz-Signature=x&X-Amz-Credential=":    "http://cfg/?X-Amz-Signature=redacted&X-Amz-Credential=redacted",
		"http://cfg/?%74oken=x":                              "http://cfg/?%74oken=redacted",
		"http://cfg/?v=" + token:                             "http://cfg/?v=redacted",
		"http://cfg/?path=some/long/path/to/a/manifest.yaml": "http://cfg/?path=some/long/path/to/a/manifest.yaml",
	} {
		s, err := New(Config{URL: url, Insecure: true})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := s.Name(); got != "http:"+want {
			t.Errorf("%s: name %q, want %q", url, got, "http:"+want)
		}
	}
}

// Shows: D1
func TestNewRefusesWhatCannotBePolled(t *testing.T) {
	for url, want := range map[string]string{
		"ftp://cfg/":              "not an http or https URL",
		"http:///pods":            "a URL without a host",
		"http://u:hunter2@c%zz/":  "not a URL",
		"http://cfg:port/hunter2": "not a URL",
		"manifests":               "not an http or https URL",
		// Others on the network could change the content (D1).
		"http://u:hunter2@cfg/": "http to another host is neither encrypted nor authenticated",
	} {
		if _, err := New(Config{URL: url}); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %q", url, err, want)
		}
	}
}
