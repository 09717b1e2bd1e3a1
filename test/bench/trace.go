package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/test/criproxy"
)

// trace is a list of moments: actions of the bench, and the agent's calls. A nil trace
// records nothing.
type trace struct {
	mu      sync.Mutex
	moments []moment
}

type moment struct {
	at   time.Time
	text string
}

func (t *trace) add(at time.Time, format string, args ...any) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moments = append(t.moments, moment{at, fmt.Sprintf(format, args...)})
}

// hooks record when a call arrives and when the runtime has answered it.
func (t *trace) hooks() criproxy.Hooks {
	return criproxy.Hooks{
		Before: func(c criproxy.Call) { t.add(time.Now(), "%s", c.Method) },
		After:  func(c criproxy.Call, err error) { t.add(time.Now(), "%s answered: %v", c.Method, status.Code(err)) },
	}
}

// write writes the moments in order, each with the milliseconds since the bench's last
// action, which begins with ">".
func (t *trace) write(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.moments, func(a, b moment) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	var text strings.Builder
	var last time.Time
	for _, m := range t.moments {
		if strings.HasPrefix(m.text, ">") {
			last = m.at
		}
		fmt.Fprintf(&text, "%s %8.1f %s\n", m.at.Format("15:04:05.0000"), float64(m.at.Sub(last))/float64(time.Millisecond), m.text)
	}
	return os.WriteFile(name, []byte(text.String()), 0o644)
}
