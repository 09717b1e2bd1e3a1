package cmd

import (
	"strings"
	"sync"
)

// liveLines are lines at the foot of a terminal that are kept up to date. What else
// is written to the stream meanwhile goes above them.
type liveLines struct {
	out   *output
	mu    sync.Mutex
	text  string // as it stands there
	ended bool
}

// newLiveLines takes hold of a stream's terminal until end.
func newLiveLines(out *output) *liveLines {
	l := &liveLines{out: out}
	out.live = l
	return l
}

// show puts other lines in the place of those that stand there.
func (l *liveLines) show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.text == text {
		return
	}
	before := l.text
	l.text = text
	_, _ = l.out.write([]byte(l.erase(before) + text)) // that nobody looks ends nothing
}

// Write implements io.Writer. Text that does not end its line takes their place.
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

// end leaves the lines as they stand.
func (l *liveLines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

func (l *liveLines) erase(text string) string { return l.out.Redraw(strings.Count(text, "\n")) }
