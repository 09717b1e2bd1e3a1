package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestProfiles_Socket_AreServed: the socket serves every kind of profile, and no argument of the
// command line.
//
// Shows: C-1.40.13
func TestProfiles_Socket_AreServed(t *testing.T) {
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	web, _ := started(t, cfg)
	for path, want := range map[string]string{
		"": "goroutine", "/": "goroutine", "/cmdline": "server.test", "/symbol?0x0": "num_symbols: 1", "/goroutine?debug=2": "TestProfiles_Socket_AreServed",
		"/heap?gc=1": "\x1f\x8b", "/allocs": "\x1f\x8b", "/block": "\x1f\x8b", "/mutex": "\x1f\x8b", "/threadcreate": "\x1f\x8b",
		"/profile?seconds=0.1": "\x1f\x8b", "/trace?seconds=0.01": "go 1.",
	} {
		code, text := plain(t, web, http.MethodGet, "/debug/pprof"+path, "")
		if code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("/debug/pprof%s: %d, want %q in %.80q", path, code, want, text)
		}
		if path == "/cmdline" && strings.Contains(text, "-test.") {
			t.Errorf("/debug/pprof/cmdline has arguments: %q", text)
		}
	}
	for path, want := range map[string]int{"absent": 404, "profile?seconds=-1": 400, "profile?seconds=101": 400, "trace?seconds=x": 400} {
		if code, text := plain(t, web, http.MethodGet, "/debug/pprof/"+path, ""); code != want {
			t.Errorf("/debug/pprof/%s: %d %s, want %d", path, code, text, want)
		}
	}
}

// stuckCaller reads nothing: a write fails at its deadline.
type stuckCaller struct {
	http.ResponseWriter
	until time.Time
}

func (s *stuckCaller) SetWriteDeadline(t time.Time) error { s.until = t; return nil }

func (s *stuckCaller) Write([]byte) (int, error) {
	time.Sleep(time.Until(s.until))
	return 0, os.ErrDeadlineExceeded
}

// TestRecord_CallerReadsNothing_Ends: a trace whose caller stops reading is not recorded further.
//
// Shows: C-1.40.13, D2
func TestRecord_CallerReadsNothing_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &request{Request: httptest.NewRequest(http.MethodGet, "/debug/pprof/trace", nil), params: url.Values{"seconds": {"100"}}}
		began, written := time.Now(), make(chan error)
		start := func(w io.Writer) error {
			go func() {
				_, err := w.Write([]byte("trace"))
				written <- err
			}()
			return nil
		}
		w := &stuckCaller{ResponseWriter: httptest.NewRecorder()}
		if err := record(w, q, time.Second, start, func() { <-written }); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != profileReadTime {
			t.Errorf("it was recorded for %s", took)
		}
	})
}

// TestDebugRoutes_TLS_NeedTheirSettings: the TLS port serves profiles and changes the log level only
// if the settings say so, and only for callers with the right to nodes/proxy.
//
// Shows: C-1.40.13, D1
func TestDebugRoutes_TLS_NeedTheirSettings(t *testing.T) {
	t.Parallel()
	const index, flags = "/debug/pprof/", "/debug/flags/v"
	verbosity := -1
	for _, on := range []bool{false, true} {
		cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
		cfg.Profiling, cfg.DebugFlags, cfg.SetVerbosity = on, on, func(n int) { verbosity = n }
		p := opened(t, cfg)
		for _, c := range []struct {
			method, path, user string
			off, on            int
			text               string // of the answer while it is off
		}{
			{http.MethodGet, index, "", 401, 401, ""},
			{http.MethodGet, index, "guest", 403, 403, ""},
			{http.MethodGet, index, "admin", 405, 200, "profiling endpoint is disabled."},
			{http.MethodGet, index + "goroutine", "admin", 405, 200, "profiling endpoint is disabled."},
			{http.MethodPut, flags, "guest", 403, 403, ""},
			{http.MethodPut, flags, "reader", 403, 403, ""},
			{http.MethodPut, flags, "admin", 405, 400, "flags endpoint is disabled."}, // no body
			{http.MethodGet, flags, "admin", 405, 405, ""},
		} {
			want := c.off
			if on {
				want = c.on
			}
			code, text, _ := p.fetch(t, p.web(t, c.user), c.method, c.path, nil)
			if code != want || !on && c.text != "" && text != c.text {
				t.Errorf("settings %v: %s %s as %q: %d %q, want %d", on, c.method, c.path, c.user, code, text, want)
			}
		}
	}
	if verbosity != -1 {
		t.Errorf("verbosity %d was set", verbosity)
	}
}

// TestSetVerbosity_Socket_TakesNumbersOnly: the body is the new verbosity.
//
// Shows: C-1.40.13
func TestSetVerbosity_Socket_TakesNumbersOnly(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	var verbosity int
	cfg.SetVerbosity = func(n int) { verbosity = n }
	web, _ := started(t, cfg)
	if code, text := plain(t, web, http.MethodPut, "/debug/flags/v", "4"); code != 200 || text != "successfully set klog.logging.verbosity to 4" || verbosity != 4 {
		t.Errorf("%d %q, verbosity %d", code, text, verbosity)
	}
	for _, body := range []string{"", "-1", "debug", "99999999999"} {
		if code, text := plain(t, web, http.MethodPut, "/debug/flags/v", body); code != 400 || verbosity != 4 {
			t.Errorf("%q: %d %q, verbosity %d", body, code, text, verbosity)
		}
	}
}
