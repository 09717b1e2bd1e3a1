package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRequestLimiter_SlowReadersOfFiles_UseNoOtherPlace: requests for files of the machine have
// places of their own, of which one caller has half.
//
// Shows: C-1.40.14, D2
func TestRequestLimiter_SlowReadersOfFiles_UseNoOtherPlace(t *testing.T) {
	t.Parallel()
	g := newRequestLimiter(1, 1)
	enter := func(path, caller string) (ok bool) {
		for _, r := range routes() {
			if r.path == path {
				_, ok = g.enter(&request{route: &r, caller: Caller{Name: caller}})
			}
		}
		return ok
	}
	entered := 0
	for i := range 2 * maxFiles {
		if enter("/logs/{path...}", []string{"a", "b", "c"}[i%3]) {
			entered++
		}
	}
	if entered > maxFiles || entered < maxFiles/2 {
		t.Errorf("%d requests for files at a time", entered)
	}
	if !enter("/pods", "a") || enter("/pods", "b") {
		t.Error("requests for files take the place of another request")
	}
}

// TestLogQuery_AtTheLimit_IsRefused: a query does not wait for others.
//
// Shows: C-1.40.15, D2
func TestLogQuery_AtTheLimit_IsRefused(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	for range maxJournalQueries {
		s.logQueries <- struct{}{}
	}
	err := s.queryLogs(httptest.NewRecorder(), nil, &logQuery{services: []string{"ssh"}}, nil)
	if refusal, ok := errors.AsType[*StatusError](err); !ok || refusal.Code != http.StatusTooManyRequests {
		t.Errorf("error %v", err)
	}
}

// TestSystemLogs_TLS_OnlyFilesBelowTheDirectory: callers with the right to nodes/log read regular files
// and directories, and nothing outside by any spelling or link.
//
// Shows: C-1.40.14, D1
func TestSystemLogs_TLS_OnlyFilesBelowTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	logs := filepath.Join(dir, "log")
	for name, text := range map[string]string{"secret": "root:x", "log/syslog": "one\ntwo\n", "log/apt/history.log": "apt"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"away": "../secret", "absolute": filepath.Join(dir, "secret"), "up": "..", "inside": "apt/history.log"} {
		if err := os.Symlink(to, filepath.Join(logs, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(logs, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.SystemLogs = logs
	p := opened(t, cfg)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/logs": {200, "apt/"}, "/logs/": {200, "apt/"}, "/logs/syslog": {200, "one\ntwo\n"}, "/logs/apt/": {200, "history.log"},
		"/logs/apt/history.log": {200, "apt"}, "/logs/inside": {200, "apt"},
		"/logs/away": {404, ""}, "/logs/absolute": {404, ""}, "/logs/up/secret": {404, ""}, "/logs/fifo": {404, ""}, "/logs/absent": {404, ""},
		"/logs/../secret": {404, ""}, "/logs/..%2fsecret": {404, ""}, "/logs/%2e%2e/secret": {404, ""}, "/logs/apt/../syslog": {404, ""}, "/logs//syslog": {404, ""},
		"/logs/apt%2fhistory.log": {404, ""}, "/logs/syslog%00": {404, ""},
	} {
		code, text, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, path, nil)
		if code != want.code || !strings.Contains(text, want.text) || strings.Contains(text, "root:x") {
			t.Errorf("%s: %d %.100q, want %d %q", path, code, text, want.code, want.text)
		}
	}
	for user, want := range map[string]int{"": 401, "guest": 403, "reader": 200} {
		if code, _, _ := p.fetch(t, p.web(t, user), http.MethodGet, "/logs/syslog", nil); code != want {
			t.Errorf("as %q: %d, want %d", user, code, want)
		}
	}
}
