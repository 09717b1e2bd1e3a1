package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/hidden"
)

const (
	// auditLimit is the size of the audit file above which it is rotated, auditFiles the
	// number of rotated files.
	auditLimit = 10 << 20
	auditFiles = 4
	// A caller gets refusalLines lines about refused calls, and one more each refusalPause.
	// Without this limit, the calls of an account without rights would rotate the file until
	// the lines of other callers are removed.
	refusalLines = 10
	refusalPause = 10 * time.Second
	// auditCallers bounds the callers whose refusals are counted.
	auditCallers = 1024
)

// audit writes one line about a privileged call of an authenticated caller. A command's
// arguments may be secrets, so the line has only the first word and a SHA-256 sum of all words.
// docs/server.md describes the keys of the line, which are part of the file's format.
func (s *Server) audit(q *request, begin time.Time, result string) {
	path := strings.TrimPrefix(strings.TrimPrefix(q.route.path, "/v1"), "/")
	kind, _, _ := strings.Cut(path, "/")
	groups := slices.Clone(q.caller.Groups[:min(len(q.caller.Groups), 32)])
	for i := range groups {
		groups[i] = truncate(groups[i], 256)
	}
	attrs := []slog.Attr{
		slog.String("user", truncate(q.caller.Name, 256)), slog.Any("groups", groups), slog.Bool("local", q.caller.Local),
	}
	if q.caller.Local {
		attrs = append(attrs, slog.Uint64("uid", uint64(q.caller.LocalUID)), slog.Int64("pid", int64(q.caller.PID)))
	}
	attrs = append(attrs, slog.String("peer", q.RemoteAddr), slog.String("verb", kind))
	if workload := q.values["kind"]; workload != "" {
		attrs = append(attrs, slog.String("workload", truncate(workload, 64)+" "+truncate(q.values["namespace"], 256)+"/"+truncate(q.values["name"], 256)),
			slog.String("change", truncate(q.values["verb"], 64)), slog.String("query", truncate(q.params.Encode(), 256)))
	} else {
		attrs = append(attrs, slog.String("pod", truncate(q.values["namespace"], 256)+"/"+truncate(q.values["pod"], 256)))
	}
	container := q.values["container"]
	if container == "" {
		container = strings.Join(q.params["container"], ",")
	}
	attrs = append(attrs, slog.String("container", truncate(container, 256)))
	command := q.params["command"]
	if kind == "run" {
		command = commandOfRun(q)
	}
	if len(command) > 0 && (kind == "exec" || kind == "run") {
		sum := sha256.Sum256([]byte(strings.Join(command, "\x00")))
		attrs = append(attrs, slog.String("argv0", truncate(command[0], 64)), slog.String("commandSHA256", hex.EncodeToString(sum[:])))
	}
	attrs = append(attrs, slog.String("result", result), slog.Duration("duration", time.Since(begin)))
	s.record(q, attrs)
}

// auditRefusal writes a line about a privileged call that was refused, or about an exec, attach
// or port-forward that opened no stream. It limits these lines by caller.
func (s *Server) auditRefusal(q *request, result string) {
	notRecorded, ok := s.refusals.enter(q.caller.Name, time.Now())
	if !ok {
		return
	}
	q.notRecorded = notRecorded
	s.audit(q, time.Now(), result)
}

// record writes a line to the audit file. If there is no file or the write fails, it writes the line
// to the log.
func (s *Server) record(q *request, attrs []slog.Attr) {
	if q.notRecorded > 0 {
		attrs = append(attrs, slog.Int("notRecorded", q.notRecorded))
	}
	const message = "Privileged call"
	line := slog.NewRecord(time.Now(), slog.LevelInfo, message, 0)
	line.AddAttrs(attrs...)
	if s.cfg.Audit != "" {
		err := slog.NewJSONHandler(&s.auditFile, nil).Handle(q.Context(), line)
		if err == nil {
			return
		}
		s.log.Error("Failed to write audit file, logging the line instead", "error", err)
	}
	s.log.LogAttrs(q.Context(), slog.LevelInfo, message, attrs...)
}

// auditFile appends lines to a file that only its owner can read, and rotates it. It opens
// the file for each line: privileged calls are rare, and another program may rotate the file.
type auditFile struct {
	path string

	mu sync.Mutex // held while a line is written
}

// Write implements io.Writer. It escapes DEL, C1 controls and bidi characters, which encoding/json
// does not escape and a terminal acts on.
func (f *auditFile) Write(line []byte) (int, error) {
	if _, err := f.write([]byte(hidden.EscapeJSON(string(line)))); err != nil {
		return 0, err
	}
	return len(line), nil
}

func (f *auditFile) write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch info, err := os.Lstat(f.path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a regular file", f.path)
	case info.Size()+int64(len(line)) > auditLimit:
		for n := auditFiles - 1; n >= 0; n-- {
			from := f.path
			if n > 0 {
				from = fmt.Sprintf("%s.%d", f.path, n)
			}
			if err := os.Rename(from, fmt.Sprintf("%s.%d", f.path, n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return 0, err
			}
		}
	}
	out, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	if err := out.Chmod(0o600); err != nil {
		return 0, err
	}
	return out.Write(line)
}

// refusals limits the audit lines about refused calls of each caller.
type refusals struct {
	mu sync.Mutex
	by map[string]*refusalsOf
}

type refusalsOf struct {
	lines       int // written, less one for each refusalPause
	updated     time.Time
	notRecorded int
}

// enter reports whether a refusal of a caller gets a line. notRecorded is the number of its refusals
// without a line since the last one.
func (r *refusals) enter(caller string, now time.Time) (notRecorded int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.by[caller]
	if of == nil {
		if len(r.by) >= auditCallers-1 {
			maps.DeleteFunc(r.by, func(_ string, of *refusalsOf) bool {
				return of.notRecorded == 0 && now.Sub(of.updated) >= refusalLines*refusalPause
			})
		}
		if len(r.by) >= auditCallers-1 { // the others share one count; resetting r.by would give all of them lines
			caller = ""
		}
		if of = r.by[caller]; of == nil {
			if r.by == nil {
				r.by = map[string]*refusalsOf{}
			}
			of = &refusalsOf{updated: now}
			r.by[caller] = of
		}
	}
	if back := int(now.Sub(of.updated) / refusalPause); back > 0 {
		of.lines, of.updated = max(0, of.lines-back), now
	}
	if of.lines >= refusalLines {
		of.notRecorded++
		return 0, false
	}
	of.lines++
	notRecorded, of.notRecorded = of.notRecorded, 0
	return notRecorded, true
}

// truncate returns the beginning of text, at most n bytes.
func truncate(text string, n int) string { return text[:min(len(text), n)] }

// commandOfRun returns the command of a /run request. As in the kubelet, single spaces
// separate the words.
func commandOfRun(q *request) []string {
	cmd := q.params.Get("cmd")
	if cmd == "" && q.PostForm != nil {
		cmd = q.PostForm.Get("cmd")
	}
	return strings.Split(cmd, " ")
}
