package cmd

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// logger returns the logger of all packages. It writes to standard error, from the
// level of --log-level, or else from the command's own. It receives klog, which
// Kubernetes' libraries use, at debug level only: their errors reach the user as
// returned errors.
func (p *program) logger(own slog.Level) *slog.Logger {
	level := own
	switch p.cfg.LogLevel {
	case "error":
		level = slog.LevelError
	case "warn":
		level = slog.LevelWarn
	case "info":
		level = slog.LevelInfo
	case "debug":
		level = slog.LevelDebug
	}
	log := newLogger(p.err, level)
	if level > slog.LevelDebug {
		klog.SetLogger(logr.Discard())
	} else {
		klog.SetSlogLogger(log)
	}
	return log
}

// newLogger returns a logger that writes key=value lines to w. Its handler quotes
// values with control characters.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
