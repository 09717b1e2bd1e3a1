// Package said keeps the output of a program under test, for tests that wait for it.
package said

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/wait"
)

// A Log is read while it is written. The zero value is an empty one.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // closed with the next write, if a goroutine waits for it
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return l.text.Write(b)
}

// String returns all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often it has the text.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Logger writes to it, whatever the level.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Has returns when it has the text so many times.
func (l *Log) Has(t testing.TB, times int, text string) {
	t.Helper()
	l.until(t, text, func(all string) bool { return strings.Count(all, text) >= times })
}

// Is returns when it is the text and no more.
func (l *Log) Is(t testing.TB, text string) {
	t.Helper()
	l.until(t, text, func(all string) bool { return all == text })
}

func (l *Log) until(t testing.TB, what string, so func(all string) bool) {
	t.Helper()
	for limit := time.After(wait.Limit); ; {
		l.mu.Lock()
		all := l.text.String()
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		if so(all) {
			return
		}
		select {
		case <-more:
		case <-limit:
			t.Fatalf("waited for %q, got:\n%s", what, all)
		}
	}
}
