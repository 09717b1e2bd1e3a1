package cmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/nodectl/nodectl/pkg/ui"
)

// logger returns the logger of all packages. It writes to standard error, from the level of
// --log-level, or else from own. It drops messages of klog, which Kubernetes' libraries use,
// unless the level is debug: their errors reach the user as returned errors.
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
		p.debug.Store(true)
	}
	log := newLogger(p.err, leveler{level, &p.debug}, p.cfg.LoggingFormat)
	if p.cfg.LogSplitStream && p.serving {
		log = slog.New(split{newLogger(p.out, leveler{level, &p.debug}, p.cfg.LoggingFormat).Handler(), log.Handler()})
	}
	klog.SetSlogLogger(slog.New(atDebug{log.Handler(), &p.debug}))
	if files := p.cfg.DebugFiles(); len(files) > 0 {
		log = slog.New(byFile{log.Handler(), leveler{level, &p.debug}, files})
	}
	return log
}

// byFile is a handler that also passes on debug messages of some source files.
type byFile struct {
	slog.Handler
	own   slog.Leveler // of all other files
	files []string     // patterns of their names, without ".go"
}

// Enabled implements slog.Handler. The file of a message is not known yet.
func (h byFile) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelDebug }

// Handle implements slog.Handler.
func (h byFile) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < h.own.Level() && !h.matches(r.PC) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// matches reports whether the function at pc is in one of the files.
func (h byFile) matches(pc uintptr) bool {
	at, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	name := strings.TrimSuffix(path.Base(at.File), ".go")
	return slices.ContainsFunc(h.files, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// WithAttrs implements slog.Handler.
func (h byFile) WithAttrs(attrs []slog.Attr) slog.Handler {
	return byFile{h.Handler.WithAttrs(attrs), h.own, h.files}
}

// WithGroup implements slog.Handler.
func (h byFile) WithGroup(name string) slog.Handler {
	return byFile{h.Handler.WithGroup(name), h.own, h.files}
}

// split is a handler that gives errors to one handler, and all other records to another.
type split struct{ others, errors slog.Handler }

func (s split) of(level slog.Level) slog.Handler {
	if level >= slog.LevelError {
		return s.errors
	}
	return s.others
}

// Enabled implements slog.Handler.
func (s split) Enabled(ctx context.Context, level slog.Level) bool {
	return s.of(level).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (s split) Handle(ctx context.Context, r slog.Record) error { return s.of(r.Level).Handle(ctx, r) }

// WithAttrs implements slog.Handler.
func (s split) WithAttrs(attrs []slog.Attr) slog.Handler {
	return split{s.others.WithAttrs(attrs), s.errors.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (s split) WithGroup(name string) slog.Handler {
	return split{s.others.WithGroup(name), s.errors.WithGroup(name)}
}

// setVerbosity sets the level of all loggers to debug from klog's verbosity 4 on. Below that,
// each logger has its own level.
func (p *program) setVerbosity(verbosity int) { p.debug.Store(verbosity >= debugVerbosity) }

// debugVerbosity is the verbosity of klog that stands for debug messages.
const debugVerbosity = 4

// leveler is the own level of a logger, or debug while debug is set.
type leveler struct {
	own   slog.Level
	debug *atomic.Bool
}

// Level implements slog.Leveler.
func (l leveler) Level() slog.Level {
	if l.debug.Load() {
		return slog.LevelDebug
	}
	return l.own
}

// atDebug is a handler that drops every record unless debug messages are logged.
type atDebug struct {
	slog.Handler
	debug *atomic.Bool
}

// Enabled implements slog.Handler.
func (h atDebug) Enabled(ctx context.Context, level slog.Level) bool {
	return h.debug.Load() && h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler. logr calls it for errors without asking Enabled.
func (h atDebug) Handle(ctx context.Context, r slog.Record) error {
	if !h.debug.Load() {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h atDebug) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atDebug{h.Handler.WithAttrs(attrs), h.debug}
}

// WithGroup implements slog.Handler.
func (h atDebug) WithGroup(name string) slog.Handler {
	return atDebug{h.Handler.WithGroup(name), h.debug}
}

// newLogger returns a logger that writes key=value lines to w, or JSON with the kubelet's
// keys if format is json. Both escape characters that a terminal acts on.
func newLogger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(ui.JSONEscaper(w), &slog.HandlerOptions{Level: level, ReplaceAttr: klogAttr}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// klogAttr gives an attribute the key and the form of the kubelet's JSON log: ts in
// milliseconds, v except for errors, err. The level stays, since v does not distinguish warnings
// from information. As in the format text, a value with a method String is that string.
func klogAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	if a.Key == "error" {
		a.Key = "err"
	}
	switch v := a.Value.Any().(type) {
	case time.Time:
		if a.Key == slog.TimeKey {
			return slog.Float64("ts", float64(v.UnixMicro())/1000)
		}
	case slog.Level:
		return klogLevel(v)
	case error: // some have a method String, too
	case fmt.Stringer:
		if reflect.TypeOf(v).Kind() != reflect.Pointer { // which may be nil
			return slog.String(a.Key, v.String())
		}
	}
	return a
}

// klogLevel returns the verbosity and the level of a message; an error has no verbosity.
func klogLevel(level slog.Level) slog.Attr {
	text := slog.String(slog.LevelKey, level.String())
	switch {
	case level >= slog.LevelError:
		return text
	case level < slog.LevelInfo:
		return slog.Attr{Value: slog.GroupValue(slog.Int("v", debugVerbosity), text)}
	}
	return slog.Attr{Value: slog.GroupValue(slog.Int("v", 0), text)}
}
