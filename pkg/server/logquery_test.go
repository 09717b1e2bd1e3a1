package server

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeJournal puts a journalctl into PATH that knows ssh.service and prints its arguments.
func fakeJournal(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	const script = "#!/bin/sh\nif [ \"$1\" = --field=_SYSTEMD_UNIT ]; then echo ssh.service; exit; fi\nfor a in \"$@\"; do echo \"<$a>\"; done\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "journalctl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestLogQuery_Parameters_BecomeArgumentsOfJournalctl: each parameter becomes one argument in the
// journal's form, and no other text of the caller reaches journalctl.
//
// Shows: C-1.40.15, D1
func TestLogQuery_Parameters_BecomeArgumentsOfJournalctl(t *testing.T) {
	fakeJournal(t)
	logs := t.TempDir()
	for name, text := range map[string]string{"syslog": "lines of syslog", "apt/apt.log": "lines of apt"} {
		at := filepath.Join(logs, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.SystemLogs, cfg.LogQuery = logs, true
	web, _ := started(t, cfg)
	const always = "<--utc>\n<--no-pager>\n<--output=short-precise>\n"
	for query, want := range map[string]struct {
		code int
		text string
	}{
		"query=ssh": {200, always + "<--unit=ssh>\n"},
		"query=ssh&sinceTime=2026-11-27T12:00:00%2B01:00&untilTime=2026-11-27T12:00:00Z&tailLines=5&boot=-1&pattern=" + url.QueryEscape(`a b;$(id)`): {
			200, always + "<--since=2026-11-27 11:00:00 UTC>\n<--until=2026-11-27 12:00:00 UTC>\n<--pager-end>\n<--lines=5>\n<--grep=a b;$(id)>\n<--boot=-1>\n<--unit=ssh>\n"},
		"query=syslog":             {200, "lines of syslog"},
		"query=apt":                {200, "lines of apt"},
		"query=absent":             {200, "\nlog not found for absent\n"},
		"query=syslog&tailLines=5": {200, "options present and query resolved to log files for [syslog]"},
		"query=" + url.QueryEscape("/apt/apt.log"): {200, "lines of apt"},
		"":                                 {200, "syslog"}, // the list
		"other=1":                          {200, "syslog"},
		"query=":                           {406, "may not be empty"},
		"tailLines=5":                      {406, "may not be empty"},
		"query=" + url.QueryEscape("../x"): {406, "not a path below"},
		"query=a/b&query=ssh":              {406, "cannot specify a file and service"},
		"query=a/b&query=c/d":              {406, "more than one file"},
		"query=a/b&boot=0":                 {406, "cannot specify file with options"},
		"query=a&query=b&query=c&query=d&query=e": {406, "at most 4 services"},
		"query=" + url.QueryEscape("ssh;id"):      {406, "not the name of a service"},
		"query=" + strings.Repeat("a", 257):       {406, "not the name of a service"},
		"query=ssh&sinceTime=yesterday":           {400, "sinceTime: invalid time format"},
		"query=ssh&tailLines=100001":              {400, "tailLines: must be a number between 0 and 100000"},
		"query=ssh&boot=1":                        {400, "boot: must be a number"},
		"query=ssh&pattern=(":                     {400, "pattern: "},
	} {
		code, text := plain(t, web, http.MethodGet, "/logs/?"+query, "")
		if code != want.code || !strings.Contains(text, want.text) || strings.HasPrefix(want.text, always) && text != want.text {
			t.Errorf("%s: %d %q, want %d %q", query, code, text, want.code, want.text)
		}
	}
	if code, text := plain(t, web, http.MethodGet, "/logs/syslog?query=ssh", ""); code != 406 || text != "path not allowed in query mode" {
		t.Errorf("with a path: %d %q", code, text)
	}
}

// TestLogQuery_SettingIsOff_ParametersAreIgnored: without the setting, parameters are ignored.
//
// Shows: C-1.40.15
func TestLogQuery_SettingIsOff_ParametersAreIgnored(t *testing.T) {
	fakeJournal(t)
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.SystemLogs = t.TempDir()
	web, _ := started(t, cfg)
	if code, text := plain(t, web, http.MethodGet, "/logs/?query=ssh", ""); code != 200 || strings.Contains(text, "unit") {
		t.Errorf("%d %q", code, text)
	}
}
