package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/hidden"
)

// auditLines returns the audit lines of a file.
func auditLines(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var one map[string]any
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, one)
	}
	return all
}

// restart and delete have an audit line like every privileged call; a local caller's has its
// UID and PID. The file is the owner's alone, and the log has no line.
//
// Shows: D2
func TestAudit_LocalCaller_HasUIDAndPID(t *testing.T) {
	t.Parallel()
	dir := root(t)
	l := newFixture(t, func(cfg *Config) {
		cfg.Audit = filepath.Join(dir, "audit.jsonl")
		cfg.Control = of(*cfg)
		of(*cfg).restart = func(context.Context, string, string, []string, *int64) error { return nil }
		of(*cfg).delete = func(context.Context, string, string, string, *int64) error {
			return &StatusError{Code: http.StatusConflict, Message: "no"}
		}
	})
	web := client(l.cfg.Socket)
	full(t, web, http.MethodPost, "/v1/restart/ns/p?container=c", "")
	full(t, web, http.MethodPost, "/v1/delete/ns/p", "")
	full(t, web, http.MethodPost, "/run/ns/p/c?cmd=true", "")
	full(t, web, http.MethodGet, "/v1/pods", "")
	l.fetch(t, l.web(t, "admin"), http.MethodPost, "/run/ns/p/c?cmd=true", nil)
	web.CloseIdleConnections()
	l.stop()
	got := auditLines(t, filepath.Join(dir, "audit.jsonl"))
	if len(got) != 4 {
		t.Fatalf("%d lines: %v", len(got), got)
	}
	for i, want := range []string{"restart ok true", "delete 409 true", "run ok true", "run ok false"} {
		it := got[i]
		if is := fmt.Sprint(it["verb"], " ", it["result"], " ", it["local"]); is != want || it["pod"] != "ns/p" {
			t.Errorf("line %d: %v, want %s", i, it, want)
		}
		uid, known := it["uid"]
		pid := it["pid"]
		if local := i < 3; known != local || local && (uid != float64(os.Geteuid()) || pid != float64(os.Getpid())) {
			t.Errorf("line %d: UID %v, PID %v", i, uid, pid)
		}
	}
	if got[0]["container"] != "c" {
		t.Errorf("containers of restart: %v", got[0]["container"])
	}
	if info, err := os.Stat(filepath.Join(dir, "audit.jsonl")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if l.log.Count("Privileged call") != 0 {
		t.Error("the lines are in the log too")
	}
}

// A caller without rights does not rotate the lines of the others away: its refusals get few
// lines, and the next line has the number of missing ones.
//
// Shows: D2
func TestAudit_ManyRefusals_HaveFewLines(t *testing.T) {
	t.Parallel()
	dir := root(t)
	path := filepath.Join(dir, "audit.jsonl")
	l := newFixture(t, func(cfg *Config) { cfg.Audit = path })
	begin := time.Now()
	web := l.web(t, "guest")
	for range 5 * refusalLines {
		if code, _, _ := l.fetch(t, web, http.MethodPost, "/exec/ns/p/c?command=sh&output=1", nil); code != http.StatusForbidden {
			t.Fatalf("answered %d", code)
		}
	}
	l.fetch(t, l.web(t, "admin"), http.MethodPost, "/run/ns/p/c?cmd=true", nil)
	most := refusalLines + int(time.Since(begin)/refusalPause) + 1
	l.stop()
	got := auditLines(t, path)
	if n := len(got); n < refusalLines+1 || n > most+1 || got[n-1]["user"] != "admin" {
		t.Errorf("%d lines, want %d; the last is %v", n, refusalLines+1, got[n-1])
	}
	var r refusals
	at := time.Now()
	for range 3 * refusalLines {
		r.enter("guest", at)
	}
	if hidden, ok := r.enter("guest", at.Add(refusalPause)); !ok || hidden != 2*refusalLines {
		t.Errorf("later: %d, %t", hidden, ok)
	}
	r = refusals{}
	for range refusalLines {
		r.enter("guest", at)
	}
	lines := 0
	for i := range 3 * auditCallers {
		if _, ok := r.enter(fmt.Sprint(i), at); ok {
			lines++
		}
	}
	if _, ok := r.enter("guest", at); ok || lines > auditCallers+refusalLines {
		t.Errorf("many callers reset the counts: %d lines of others", lines)
	}
	if n := len(r.by); n > auditCallers {
		t.Errorf("%d callers are counted", n)
	}
}

// An authorized caller that names pods that do not exist does not rotate the lines of others
// away.
func TestAudit_AllowedCallsThatDoNothing_HaveFewLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(root(t), "audit.jsonl")
	l := newFixture(t, func(cfg *Config) { cfg.Audit = path })
	begin := time.Now()
	web := l.web(t, "admin")
	for range 5 * refusalLines {
		if code, _, _ := l.fetch(t, web, http.MethodPost, "/exec/ns/none/c?command=sh&output=1", nil); code != http.StatusNotFound {
			t.Fatalf("answered %d", code)
		}
	}
	most := refusalLines + int(time.Since(begin)/refusalPause) + 1
	l.stop()
	if n := len(auditLines(t, path)); n < refusalLines || n > most {
		t.Errorf("%d lines, want %d", n, refusalLines)
	}
}

// Sessions of port-forward that forward no connection have few lines; each one that forwards
// has its own line.
func TestAudit_PortForwardsWithoutConnections_HaveFewLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(root(t), "audit.jsonl")
	l := newFixture(t, func(cfg *Config) { cfg.Audit = path })
	begin := time.Now()
	for range 5 * refusalLines {
		conn := l.secure(t, "admin")
		_, _ = fmt.Fprint(conn, "GET /portForward/ns/p HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n")
		if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, " 101 ") {
			t.Fatalf("%q, %v", line, err)
		}
		_ = conn.Close()
	}
	forwards := 0
	for _, d := range l.dialers(t, "admin", "/portForward/ns/p") {
		local, _ := forwarded(t, d, shouter(t), io.Discard)
		if got := shout(t, local, "text"); got != "TEXT" {
			t.Errorf("got %q", got)
		}
		forwards++
	}
	l.stop()
	most := refusalLines + int(time.Since(begin)/refusalPause) + 1
	if n := len(auditLines(t, path)) - forwards; n < refusalLines || n > most {
		t.Errorf("%d lines of sessions without a connection, want %d", n, refusalLines)
	}
}

// Lines have no characters that a terminal acts on, and decode to the same values.
func TestAudit_ControlAndBidiCharacters_AreEscaped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(root(t), "audit.jsonl")
	const text = "a\x7f\u009b31m\u202ed\u00ad\U000e0041\u2800\u3164\ufe0fé日"
	line, err := json.Marshal(map[string]string{"user": text})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := (&auditFile{path: path}).Write(append(line, '\n')); err != nil || n != len(line)+1 {
		t.Fatalf("%d, %v", n, err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range strings.TrimSuffix(string(got), "\n") {
		if hidden.Is(r) {
			t.Errorf("%U is in the file", r)
		}
	}
	var back map[string]string
	if err := json.Unmarshal(got, &back); err != nil || back["user"] != text || !strings.Contains(string(got), "é日") {
		t.Errorf("%s: %v", got, err)
	}
}

// The file is rotated at its limit, a few are kept, and a call is logged if the file cannot
// be written.
//
// Shows: D2
func TestAudit_LargeFile_IsRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &auditFile{path: filepath.Join(dir, "audit.jsonl")}
	for i := range auditFiles + 3 {
		if err := os.WriteFile(f.path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(f.path, auditLimit); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(fmt.Appendf(nil, "line %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 1+auditFiles {
		t.Errorf("%v, %v", left, err)
	}
	text, _ := os.ReadFile(f.path)
	if info, err := os.Stat(f.path); err != nil || string(text) != fmt.Sprintf("line %d\n", auditFiles+2) || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), f.path); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("a link is followed")
	}
	l := newFixture(t, func(cfg *Config) { cfg.Audit = f.path })
	l.fetch(t, l.web(t, "admin"), http.MethodPost, "/run/ns/p/c?cmd=true", nil)
	l.stop()
	if l.log.Count("Failed to write audit file") != 1 || l.log.Count(`msg="Privileged call"`) != 1 {
		t.Errorf("the log has %s", l.log.String())
	}
}

// A web page of another origin opens no stream and runs no command with its visitor's
// certificate; an API server that passes a request on does.
//
// Shows: D1
func TestOrigin_PageOfAnotherOrigin_IsRefused(t *testing.T) {
	t.Parallel()
	dir := root(t)
	l := newFixture(t, func(cfg *Config) { cfg.Audit = filepath.Join(dir, "audit.jsonl") })
	web := l.web(t, "admin")
	socket := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io"}}
	with := func(h http.Header, more ...string) http.Header {
		all := h.Clone()
		if all == nil {
			all = http.Header{}
		}
		for i := 0; i < len(more); i += 2 {
			all.Set(more[i], more[i+1])
		}
		return all
	}
	const foreign = "https://evil.example"
	for _, it := range []struct {
		method, path string
		header       http.Header
		want         int
	}{
		{"GET", "/exec/ns/p/c?command=sh&output=1", with(socket, "Origin", foreign), 403},
		{"GET", "/attach/ns/p/c?output=1", with(socket, "Origin", foreign), 403},
		{"GET", "/portForward/ns/p?port=80", with(socket, "Origin", "null"), 403},
		{"GET", "/containerLogs/ns/p/c", with(nil, "Origin", foreign), 403},
		{"POST", "/run/ns/p/c?cmd=true", with(nil, "Origin", foreign), 403},
		{"POST", "/run/ns/p/c?cmd=true", with(nil, "Origin", "http://"+l.address), 403},
		{"POST", "/run/ns/p/c?cmd=true", with(nil, "Sec-Fetch-Site", "cross-site"), 403},
		{"POST", "/checkpoint/ns/p/c", with(nil, "Origin", foreign, "Sec-Fetch-Site", "cross-site"), 403},
		{"POST", "/run/ns/p/c?cmd=true", with(nil, "Origin", "https://"+l.address), 200},
		{"POST", "/run/ns/p/c?cmd=true", with(nil, "Origin", foreign, "X-Forwarded-For", "192.0.2.1"), 200},
		{"POST", "/run/ns/p/c?cmd=true", nil, 200},
		{"GET", "/pods", with(nil, "Origin", foreign), 200},
	} {
		code, text, _ := l.fetch(t, web, it.method, it.path, it.header)
		if code != it.want {
			t.Errorf("%s %s %v: %d %s", it.method, it.path, it.header, code, text)
		}
	}
	for origin, want := range map[string]int{foreign: 403, "": 200} { // the socket has the same rule
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://nodectl/run/ns/p/c?cmd=true", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		a, err := client(l.cfg.Socket).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		if a.StatusCode != want {
			t.Errorf("on the socket from %q: %d, want %d", origin, a.StatusCode, want)
		}
	}
	if n := len(l.rt.Execs()); n != 4 { // those of /run that are answered
		t.Errorf("%d commands ran", n)
	}
	l.stop()
	refused := 0
	for _, line := range auditLines(t, filepath.Join(dir, "audit.jsonl")) {
		if line["result"] == "403" {
			refused++
		}
	}
	if refused != 8 {
		t.Errorf("%d refusals are in the audit file", refused)
	}
}

// limitedAccess is an Access whose limits refuse every caller.
type limitedAccess struct{ Access }

func (limitedAccess) Authenticate(*http.Request) (Caller, bool, error) {
	return Caller{}, false, fmt.Errorf("not now: %w", &StatusError{Code: http.StatusTooManyRequests, Message: "too many refused credentials from this address"})
}

// A caller that exceeds the limits of authentication gets an answer with 429, and learns
// nothing else.
//
// Shows: D2
func TestTLS_RefusedByLimit_Gets429(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Access = limitedAccess{}
	p := opened(t, cfg)
	for _, path := range []string{"/pods", "/nowhere"} {
		code, text, header := p.fetch(t, p.web(t, ""), http.MethodGet, path, nil)
		if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" || !strings.Contains(text, "too many refused credentials") {
			t.Errorf("%s: %d %s %v", path, code, text, header)
		}
	}
}

// busyAccess is an Access that has too many callers to review.
type busyAccess struct{ Access }

func (busyAccess) Authenticate(*http.Request) (Caller, bool, error) {
	return Caller{Name: "apiserver"}, true, nil
}

func (busyAccess) Authorize(context.Context, Caller, string, ...string) (bool, string, error) {
	return false, "", &StatusError{Code: http.StatusTooManyRequests, Message: "too many requests are being authenticated or authorized"}
}

// A caller whose rights cannot be reviewed now gets a Retry-After, so that its client tries
// again.
//
// Shows: D2
func TestTLS_ReviewRefusedByLimit_Gets429(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Access = busyAccess{}
	p := opened(t, cfg)
	code, _, header := p.fetch(t, p.web(t, "admin"), http.MethodGet, "/pods", nil)
	if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
		t.Errorf("%d %v", code, header)
	}
}
