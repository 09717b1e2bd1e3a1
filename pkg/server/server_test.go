package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/wait"
)

// root returns a directory like an agent's root, with a path short enough for a socket.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "srv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// testConfig returns a Config with a few small answers.
func testConfig(socket string) Config {
	return Config{
		Socket: socket,
		Pods: &answers{
			updates: func(context.Context, url.Values) (iter.Seq2[[]byte, error], error) { return linesOf("{}\n"), nil },
			pods:    func() []v1.Pod { return nil },
			sources: func() ([]byte, error) { return []byte(`{"kind":"SourceList"}`), nil },
		},
	}
}

func linesOf(lines ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, l := range lines {
			if !yield([]byte(l), nil) {
				return
			}
		}
	}
}

// started runs a server until the test ends or stop is called, and returns a client.
func started(t *testing.T, cfg Config) (web *http.Client, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- New(cfg).Serve(ctx) }()
	web = client(cfg.Socket)
	once := false
	stop = func() {
		if once {
			return
		}
		once = true
		web.CloseIdleConnections()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(wait.Limit):
			t.Error("Serve does not return")
		}
	}
	t.Cleanup(stop)
	wait.NoError(t, func() error {
		select {
		case err := <-ended:
			t.Fatalf("Serve: %v", err)
		default:
		}
		c, err := Dial(t.Context(), cfg.Socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	return web, stop
}

func client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, socket) },
	}}
}

// ask returns the code, the body and the Status of a refusal.
func ask(t *testing.T, web *http.Client, method, target, body string) (code int, text string, s metav1.Status) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://nodectl"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK && method != http.MethodHead {
		if err := json.Unmarshal(data, &s); err != nil || s.Kind != "Status" || s.APIVersion != "v1" || s.Status != "Failure" || s.Message == "" || s.Reason == "" || int(s.Code) != answer.StatusCode {
			t.Errorf("%s %s: %d %s", method, target, answer.StatusCode, data)
		}
	}
	return answer.StatusCode, string(data), s
}

// full returns the code, the body and the headers.
func full(t *testing.T, web *http.Client, method, target, body string) (code int, text string, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://nodectl"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := web.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(data), answer.Header
}

func TestFail_OtherError_IsOnlyInTheLog(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	var log bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	of(cfg).sources = func() ([]byte, error) { return nil, errors.New("what only the log may know") }
	of(cfg).updates = func(context.Context, url.Values) (iter.Seq2[[]byte, error], error) {
		return nil, &StatusError{Code: http.StatusBadRequest, Message: "mode: no such mode"}
	}
	web, stop := started(t, cfg)
	if code, text, _ := ask(t, web, http.MethodGet, "/v1/sources", ""); code != http.StatusInternalServerError || strings.Contains(text, "only the log") {
		t.Errorf("%d %s", code, text)
	}
	if code, _, s := ask(t, web, http.MethodGet, "/v1/updates", ""); code != http.StatusBadRequest || s.Message != "mode: no such mode" {
		t.Errorf("%d %s", code, s.Message)
	}
	stop()
	if !strings.Contains(log.String(), "what only the log may know") {
		t.Errorf("the log: %s", log.String())
	}
}

func TestUpdates_ServerOrCallerEnds_StreamEnds(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	left := make(chan struct{}, 2)
	of(cfg).updates = func(ctx context.Context, _ url.Values) (iter.Seq2[[]byte, error], error) {
		return func(yield func([]byte, error) bool) {
			defer func() { left <- struct{}{} }()
			if yield([]byte("{\"n\":1}\n"), nil) {
				<-ctx.Done()
			}
		}, nil
	}
	web, stop := started(t, cfg)
	follow := func(ctx context.Context) *bufio.Reader {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nodectl/v1/updates", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		in := bufio.NewReader(answer.Body)
		if line, err := in.ReadString('\n'); err != nil || line != "{\"n\":1}\n" { // it is sent at once
			t.Fatalf("%q, %v", line, err)
		}
		return in
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	follow(ctx)
	stays := follow(t.Context())
	leave()
	waitFor(t, left)
	stop()
	waitFor(t, left)
	if line, err := stays.ReadString('\n'); !errors.Is(err, io.EOF) { // an end, not a failure
		t.Errorf("%q, %v", line, err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func waitFor(t *testing.T, c <-chan struct{}) {
	t.Helper()
	wait.Receive(t, "what has to happen", c)
}

func TestUpdates_SourceFails_ConnectionIsCut(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	of(cfg).updates = func(context.Context, url.Values) (iter.Seq2[[]byte, error], error) {
		return func(yield func([]byte, error) bool) {
			_ = yield([]byte("{}\n"), nil) && yield(nil, errors.New("broken"))
		}, nil
	}
	web, _ := started(t, cfg)
	answer, err := web.Get("http://nodectl/v1/updates")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err == nil || string(text) != "{}\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestUpdates_CallerReadsNothing_ConnectionIsClosed(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	cfg.WriteTimeout = 50 * time.Millisecond
	cut := make(chan struct{}, 1)
	of(cfg).updates = func(context.Context, url.Values) (iter.Seq2[[]byte, error], error) {
		line := append(bytes.Repeat([]byte(" "), 1<<16), '\n')
		return func(yield func([]byte, error) bool) {
			for yield(line, nil) {
			}
			cut <- struct{}{}
		}, nil
	}
	started(t, cfg)
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /v1/updates HTTP/1.1\r\nHost: nodectl\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, cut)
}

func TestSocket_RequestAboveTheLimit_Gets429(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	cfg.Streams, cfg.Requests = 2, 1
	here, goOn := make(chan struct{}), make(chan struct{})
	of(cfg).updates = func(ctx context.Context, _ url.Values) (iter.Seq2[[]byte, error], error) {
		return func(func([]byte, error) bool) { here <- struct{}{}; <-ctx.Done() }, nil
	}
	of(cfg).pods = func() []v1.Pod { here <- struct{}{}; <-goOn; return nil }
	web, _ := started(t, cfg)
	for range 2 {
		answer, err := web.Get("http://nodectl/v1/updates")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		waitFor(t, here)
	}
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/updates", ""); code != http.StatusTooManyRequests {
		t.Errorf("a third stream: %d", code)
	}
	done := make(chan int)
	go func() {
		answer, err := web.Get("http://nodectl/v1/pods")
		if err != nil {
			done <- 0
			return
		}
		_ = answer.Body.Close()
		done <- answer.StatusCode
	}()
	waitFor(t, here)
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/sources", ""); code != http.StatusTooManyRequests {
		t.Errorf("a second request: %d", code)
	}
	close(goOn)
	if code := <-done; code != http.StatusOK {
		t.Errorf("the first request: %d", code)
	}
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/sources", ""); code != http.StatusOK {
		t.Errorf("a request after it: %d", code)
	}
}

func TestSocket_LargeHeader_Gets431(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	started(t, testConfig(socket))
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, "GET /v1/pods HTTP/1.1\r\nHost: nodectl\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
	}()
	line, _ := bufio.NewReader(c).ReadString('\n')
	if !strings.Contains(line, " 431 ") {
		t.Errorf("got %q", line)
	}
}

// TestServe_ContextEnds_WaitsForRunningRequests: when Serve has returned, no request is running.
func TestServe_ContextEnds_WaitsForRunningRequests(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	here := make(chan struct{})
	var events []string // written by the request, then after Serve: the race detector checks that
	of(cfg).updates = func(ctx context.Context, _ url.Values) (iter.Seq2[[]byte, error], error) {
		return func(func([]byte, error) bool) {
			here <- struct{}{}
			<-ctx.Done()
			events = append(events, "request ended")
		}, nil
	}
	web, stop := started(t, cfg)
	answer, err := web.Get("http://nodectl/v1/updates")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	waitFor(t, here)
	stop()
	if events = append(events, "serve ended"); !slices.Equal(events, []string{"request ended", "serve ended"}) {
		t.Errorf("%v", events)
	}
}

func ExampleStatusError() {
	text, _ := json.Marshal((&StatusError{Code: http.StatusNotFound, Message: "there is no /v2"}).status())
	fmt.Println(string(text))
	// Output: {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"there is no /v2","reason":"NotFound","code":404}
}
