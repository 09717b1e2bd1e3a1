package server

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

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
	cfg := docs(filepath.Join(root(t), "nodectl.sock"))
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
