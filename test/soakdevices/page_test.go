package soakdevices

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

var (
	kills   = flag.Int("kills", 40, "how many agents are killed")
	reboots = flag.Int("reboots", 4, "how often the machine reboots")
	docs    = flag.Bool("docs", false, "write docs/soak-devices.md, and report the progress")
)

// page is the page of the results; the section is the part of this program.
const page = "../../docs/soak-devices.md"

var section = report.Section{Command: "make soak-devices"}

// sum has the results of all lives.
type sum struct {
	began                 time.Time
	names                 []string // of the lives, with their steps
	lives, kills, reboots int
	repeated              int
	ends                  map[string]int // by the name of the step
	broken                map[promise]int
}

func newSum() *sum {
	return &sum{began: time.Now(), ends: make(map[string]int), broken: make(map[promise]int)}
}

// plain adds a life in which no agent ended.
func (s *sum) plain(name string, r result) {
	s.names = append(s.names, fmt.Sprintf("%s (%d steps)", name, r.steps))
	s.add(r)
}

func (s *sum) add(r result) {
	s.lives++
	s.repeated += r.repeated
	s.reboots += r.reboots
	s.kills += len(r.ends) - r.reboots
	for _, name := range r.ends {
		s.ends[name]++
	}
	for p, n := range r.broken {
		s.broken[p] += n
	}
}

// addIdle plays a life in which no driver gets a call for 40 minutes.
func (s *sum) addIdle(t *testing.T) {
	t.Helper()
	r := play(t, idle, nil)
	r.report(t, "idle")
	s.add(r)
}

func (s *sum) breaches() (n int) {
	for _, of := range s.broken {
		n += of
	}
	return n
}

// text is the section of the page.
func (s *sum) text(commit string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Taken on %s of nodectl %s.\n\n", s.began.Format("2006-01-02"), commit)
	fmt.Fprintf(&b, "%d lives of a node: %s; and two times 40 minutes in which no driver gets a call.\n\n", s.lives, strings.Join(s.names, "; "))
	fmt.Fprintf(&b, "| event | number |\n|---|---|\n| kills of the agent | %d |\n| reboots, with each plugin %.0f s late | %d |\n", s.kills, late.Seconds(), s.reboots)
	fmt.Fprintf(&b, "| kinds of steps after which an agent ended | %d |\n", len(s.ends))
	fmt.Fprintf(&b, "| calls of drivers that had to be repeated, because a kill had lost the answer | %d |\n", s.repeated)
	for _, p := range promises {
		fmt.Fprintf(&b, "| %s | **%d** |\n", p, s.broken[p])
	}
	b.WriteString("\nThe ends of agents, by the step before:\n\n| step | ends |\n|---|---|\n")
	names := slices.SortedFunc(maps.Keys(s.ends), func(x, y string) int {
		return cmp.Or(cmp.Compare(s.ends[y], s.ends[x]), cmp.Compare(x, y))
	})
	for _, name := range names {
		fmt.Fprintf(&b, "| %s | %d |\n", name, s.ends[name])
	}
	return b.String()
}

// write writes the section into the page.
func (s *sum) write(ctx context.Context) error {
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return fmt.Errorf("describe the commit: %w", err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	written, err := section.Insert(string(text), s.text(strings.TrimSpace(string(commit))))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(written), 0o600)
}
