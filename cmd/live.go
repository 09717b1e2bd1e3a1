package cmd

import (
	"strings"
	"sync"
)

// liveLines are lines at the bottom of a terminal that are kept up to date. Other text
// on the stream is written above them.
type liveLines struct {
	out   *output
	mu    sync.Mutex
	text  string // the lines on the terminal
	ended bool
}

// newLiveLines sends all output of a stream through liveLines until end.
func newLiveLines(out *output) *liveLines {
	l := &liveLines{out: out}
	out.live = l
	return l
}

// show replaces the lines.
func (l *liveLines) show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.text == text {
		return
	}
	before := l.text
	l.text = text
	_, _ = l.out.write([]byte(l.erase(before) + text)) // the command continues after a failed write
}

// Write implements io.Writer. Text without a newline at its end replaces the lines.
func (l *liveLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.text == "" {
		return l.out.write(b)
	}
	before := l.text
	if !strings.HasSuffix(string(b), "\n") {
		l.text = ""
	}
	if _, err := l.out.write([]byte(l.erase(before) + string(b) + l.text)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// end keeps the lines on the terminal and stops updating them.
func (l *liveLines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

func (l *liveLines) erase(text string) string { return l.out.Redraw(strings.Count(text, "\n")) }
