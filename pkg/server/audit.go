package server

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"
)

// audit writes one line about a privileged call that a known caller has made: what
// was run is there as its first word and the sum of all of them, since words may be
// secrets.
func (s *Server) audit(q *request, begin time.Time, result string) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(q.route.path, "/"), "/")
	attrs := []slog.Attr{
		slog.String("user", q.caller.Name), slog.Any("groups", q.caller.Groups), slog.Bool("local", q.caller.Local),
		slog.String("peer", q.RemoteAddr), slog.String("verb", kind),
		slog.String("pod", q.values["namespace"]+"/"+q.values["pod"]), slog.String("container", q.values["container"]),
	}
	command := q.params["command"]
	if kind == "run" {
		command = commandOfRun(q)
	}
	if len(command) > 0 && (kind == "exec" || kind == "run") {
		sum := sha256.Sum256([]byte(strings.Join(command, "\x00")))
		attrs = append(attrs, slog.String("argv0", first(command[0], 64)), slog.String("commandSHA256", hex.EncodeToString(sum[:])))
	}
	attrs = append(attrs, slog.String("result", result), slog.Duration("duration", time.Since(begin)))
	s.log.LogAttrs(q.Context(), slog.LevelInfo, "Privileged call", attrs...)
}

// first returns the beginning of text, at most n bytes.
func first(text string, n int) string { return text[:min(len(text), n)] }

// commandOfRun is what the caller of /run wants to run: words, parted by single
// spaces, as the kubelet has it.
func commandOfRun(q *request) []string {
	cmd := q.params.Get("cmd")
	if cmd == "" && q.PostForm != nil {
		cmd = q.PostForm.Get("cmd")
	}
	return strings.Split(cmd, " ")
}
