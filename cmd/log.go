package cmd

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// logger returns where everything below cmd logs to: standard error, from the
// level that --log-level gives, or else from the command's own. klog, which
// Kubernetes' libraries log to, is bridged at debug level and silent otherwise:
// what they have to say reaches a person as an error, once.
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

// newLogger returns a logger that writes key=value lines to w. Its handler
// quotes whatever holds control characters.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
