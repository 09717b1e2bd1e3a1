//go:build linux

package cmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/test/wait"
)

// writtenTo returns the text written to a stream.
func writtenTo(t *testing.T, o *output) string {
	t.Helper()
	b, err := os.ReadFile(o.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// written returns a program whose standard error is a file.
func written(t *testing.T) *program {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &program{err: newOutput(f)}
}

// pullTwo shows the pulls of r.io/app:1 and r.io/missing:1 on to, one after the other, and
// calls during in the middle of each.
func pullTwo(to agent.PullLines, during func()) {
	for name, err := range func(yield func(string, error) bool) {
		_ = yield("r.io/app:1", nil) && yield("r.io/missing:1", errors.New("not found"))
	} {
		to.Event(image.Event{Pull: image.Pull{Image: name}})
		to.Lines([]image.Pull{{Image: name, Since: time.Now()}}, nil)
		during()
		to.Event(image.Event{Pull: image.Pull{Image: name}, Over: true, Err: err})
		to.Lines(nil, nil)
	}
}

// Off a terminal a pull has one line when it begins and one when it ends, and
// nothing that only a terminal understands.
func TestPullsOffATerminal(t *testing.T) {
	t.Parallel()
	p := written(t)
	g := newProgress(p, &podconfig.Merged{})
	n := 0
	pullTwo(g, func() {
		n++
		wait.Until(t, fmt.Sprintf("pull %d is reported", n), func() (string, bool) {
			text := writtenTo(t, p.err)
			return text, strings.Count(text, "pulling") == n
		})
	})
	g.end()
	text := writtenTo(t, p.err)
	var words []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		words = append(words, strings.Join(f[:len(f)-1], " ")) // the last one is the time
	}
	if got := strings.Join(words, "\n"); strings.Contains(text, "\x1b") ||
		got != "image r.io/app:1 pulling\nimage r.io/app:1 pulled\nimage r.io/missing:1 pulling\nimage r.io/missing:1 not pulled" {
		t.Errorf("%q", text)
	}
}

// On a terminal a pull has a line below all other text, which is kept up to date and
// disappears with the pull.
func TestPullsOnATerminal(t *testing.T) {
	t.Parallel()
	p := written(t)
	s := &serveLines{p: p, foot: newLiveLines(p.err)}
	n := 0
	pullTwo(s, func() {
		n++
		name := []string{"r.io/app:1", "r.io/missing:1"}[n-1]
		wait.Until(t, "the pull of "+name+" is reported", func() (string, bool) {
			text := shown(writtenTo(t, p.err))
			return text, strings.Contains(text, "image "+name+"   pulling")
		})
		if _, err := io.WriteString(p.err, "a line of the log\n"); err != nil {
			t.Error(err)
		}
		if got := shown(writtenTo(t, p.err)); !strings.HasPrefix(got, strings.Repeat("a line of the log\n", n)+"image "+name+"   pulling") || strings.Count(got, "\n") != n+1 {
			t.Errorf("%q", got)
		}
	})
	if got := shown(writtenTo(t, p.err)); got != strings.Repeat("a line of the log\n", 2) {
		t.Errorf("at the end: %q", got)
	}
}

func TestPullText(t *testing.T) {
	t.Parallel()
	p := written(t)
	now := time.Now()
	pulls := []image.Pull{{Image: "r.io/app:1", Since: now.Add(-time.Minute)}, {Image: "r.io/b:1", Since: now, Waiting: true}}
	got := pullText(p, pulls, map[string]bundle.Download{"r.io/app:1": {Bytes: 12_340_000, Total: 45_600_000}})
	since := regexp.MustCompile(`^image r\.io/app:1   pulling 12\.3 MB of 45\.6 MB   (\d+\.\d)s\nimage r\.io/b:1   waiting for other images of its registry   (\d+\.\d)s\n$`).FindStringSubmatch(got)
	if since == nil {
		t.Fatalf("%q", got)
	}
	for i, least := range []float64{60, 0} {
		n, err := strconv.ParseFloat(since[i+1], 64)
		if err != nil || n < least || n > least+time.Since(now).Seconds()+0.1 {
			t.Errorf("%q", got)
		}
	}
	if got := pullText(p, make([]image.Pull, 25), nil); strings.Count(got, "\n") != 11 || !strings.Contains(got, "and 15 images more") {
		t.Errorf("%q", got)
	}
	if got := pullText(p, nil, nil); got != "" {
		t.Errorf("%q", got)
	}
}

// shown returns text as a terminal shows it; it knows lines and the two sequences of
// ui.View.Redraw.
func shown(text string) string {
	var lines []string
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b[1A\x1b[2K"); ok {
			lines, text = lines[:len(lines)-1], rest
			continue
		}
		line, rest, _ := strings.Cut(text, "\n")
		lines, text = append(lines, line+"\n"), rest
	}
	return strings.Join(lines, "")
}
