package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestSplit_ErrorsAlone_GoToTheirHandler: with its attributes and groups.
func TestSplit_ErrorsAlone_GoToTheirHandler(t *testing.T) {
	t.Parallel()
	var out, err bytes.Buffer
	log := slog.New(split{newLogger(&out, slog.LevelInfo, "text").Handler(), newLogger(&err, slog.LevelInfo, "text").Handler()})
	log = log.With("a", 1).WithGroup("g").With("b", 2)
	log.Debug("Looking")
	log.Warn("Odd")
	log.Error("Failed")
	for _, c := range []struct {
		text, want string
	}{{out.String(), "level=WARN msg=Odd a=1 g.b=2\n"}, {err.String(), "level=ERROR msg=Failed a=1 g.b=2\n"}} {
		if strings.Count(c.text, "\n") != 1 || !strings.HasSuffix(c.text, c.want) {
			t.Errorf("%q, want %q", c.text, c.want)
		}
	}
}

// TestByFile_DebugMessages_AreThoseOfTheNamedFiles: messages of the logger's own level come from every
// file.
func TestByFile_DebugMessages_AreThoseOfTheNamedFiles(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"log_test": "Looking g.b=2,Odd g.b=2,", "log*": "Looking g.b=2,Odd g.b=2,", "log": "Odd g.b=2,", "[k-m]og_tes?": "Looking g.b=2,Odd g.b=2,",
	} {
		var p program
		var out bytes.Buffer
		log := slog.New(byFile{newLogger(&out, slog.LevelInfo, "text").Handler(), leveler{slog.LevelWarn, &p.debug}, []string{"other", pattern}})
		log = log.With("a", 1).WithGroup("g").With("b", 2)
		log.Debug("Looking")
		log.Warn("Odd")
		var got string
		for line := range strings.Lines(out.String()) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), "msg=")
			got += strings.Replace(text, " a=1", "", 1) + ","
		}
		if got != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
		p.setVerbosity(debugVerbosity)
		if out.Reset(); !log.Enabled(context.Background(), slog.LevelDebug) {
			t.Error("debug messages are not enabled")
		}
		if log.Debug("All"); !strings.Contains(out.String(), "msg=All") {
			t.Errorf("%s: verbosity 4 logs %q", pattern, out.String())
		}
	}
}

// TestNewLogger_JSON_HasTheKubeletsKeys: each line is one JSON object with klog's keys, and the texts
// of the other format.
func TestNewLogger_JSON_HasTheKubeletsKeys(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := newLogger(&out, slog.LevelDebug, "json")
	before := float64(time.Now().Add(-time.Second).UnixMilli())
	log.Debug("Looking", "pod", pod.Key{Namespace: "ns", Name: "p"})
	log.Info("Started", "took", 1500*time.Millisecond, "ids", []string{"a", "b"})
	log.Warn("Odd", "text", "\x1b[2J\u202e\u009b\"\n")
	log.Error("Failed", "error", errors.New("no \u202e"))
	log.Error("Failed", "error", "text")
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	want := []string{
		`"v":4,"level":"DEBUG","msg":"Looking","pod":"ns/p"}`,
		`"v":0,"level":"INFO","msg":"Started","took":"1.5s","ids":["a","b"]}`,
		`"v":0,"level":"WARN","msg":"Odd","text":"\u001b[2J\u202e\u009b\"\n"}`,
		`"level":"ERROR","msg":"Failed","err":"no \u202e"}`,
		`"level":"ERROR","msg":"Failed","err":"text"}`,
	}
	for i, line := range lines {
		if !strings.HasSuffix(line, ","+want[i]) {
			t.Errorf("got  %s\nwant %s", line, want[i])
		}
		var doc struct {
			TS float64 `json:"ts"`
		}
		if err := json.Unmarshal([]byte(line), &doc); err != nil || doc.TS < before || doc.TS > before+60_000 {
			t.Errorf("%s: ts %f, error %v", line, doc.TS, err)
		}
	}
}

// TestSetVerbosity_RunningProgram_ChangesAllLoggers: verbosity 4 logs debug messages and klog, a
// lower one the command's own level.
func TestSetVerbosity_RunningProgram_ChangesAllLoggers(t *testing.T) {
	t.Parallel()
	var p program
	var out bytes.Buffer
	log := newLogger(&out, leveler{slog.LevelWarn, &p.debug}, "text")
	others := slog.New(atDebug{log.Handler(), &p.debug}).With("a", 1).WithGroup("g")
	for verbosity, want := range map[int]bool{0: false, 3: false, 4: true, 10: true} {
		out.Reset()
		p.setVerbosity(verbosity)
		log.Debug("Own")
		_ = others.Handler().Handle(context.Background(), slog.NewRecord(time.Now(), slog.LevelError, "others", 0))
		for _, text := range []string{"msg=Own", "msg=others"} {
			if strings.Contains(out.String(), text) != want {
				t.Errorf("verbosity %d: %q in %q, want %v", verbosity, text, out.String(), want)
			}
		}
		if others.Enabled(context.Background(), slog.LevelError) != want {
			t.Errorf("verbosity %d: klog is enabled: %v", verbosity, !want)
		}
	}
}
