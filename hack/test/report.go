package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// How many packages and tests the tables show.
const (
	slowPackages = 12
	slowTests    = 20
)

// A summary is the result of a whole run.
type summary struct {
	revision  string // that the run began with; only for a page
	begun     time.Time
	compiling time.Duration
	running   time.Duration
	lanes     []lane
	busy      int // percent of all CPUs while the jobs ran, also for other programs
	results   []result
	compiled  bool     // all packages: those without a binary have no result
	binaries  []string // of the tests, relative to bin/test
}

// interrupted counts the jobs that the end of the run has stopped, or that it did not begin.
func (s summary) interrupted() (n int) {
	for _, r := range s.results {
		if r.interrupted {
			n++
		}
	}
	return n
}

// begunAny reports whether a job has run.
func (s summary) begunAny() bool {
	return slices.ContainsFunc(s.results, func(r result) bool { return r.took > 0 })
}

// result is the result of the run in one line.
func (s summary) result() string {
	text := fmt.Sprintf("%d passed, %d failed, %d skipped", s.count("pass"), s.failed(), s.count("skip"))
	if n := s.interrupted(); n > 0 || !s.compiled {
		text += fmt.Sprintf("; **interrupted**: %d packages and steps did not end", n)
	}
	if !s.compiled {
		text += ", and those that were not compiled are missing"
	}
	return text
}

// count returns the number of tests, and of jobs without tests, with this result. Subtests
// count only when they are skipped, because their test passes nevertheless.
func (s summary) count(action string) (n int) {
	for _, r := range s.results {
		ended := false // with a test that failed
		for _, t := range r.tests {
			if t.action == action && (action == "skip" || !t.isSubtest()) {
				n++
			}
			ended = ended || t.action == "fail"
		}
		switch {
		case r.interrupted:
		case r.err != nil && !ended && action == "fail", r.err == nil && r.tests == nil && action == "pass":
			n++
		}
	}
	return n
}

func (s summary) failed() int { return s.count("fail") }

// print prints the slowest packages and tests, the lanes, the failures with the end of their
// output, and the counts.
func (s summary) print(w io.Writer) {
	slices.SortFunc(s.results, func(a, b result) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintf(w, "\nslowest packages, and their CPU time\n")
	for _, r := range s.results[:min(slowPackages, len(s.results))] {
		fmt.Fprintf(w, "  %8s  %8s  %s\n", round(r.took), round(r.cpu), r.name)
	}
	type slow struct {
		test
		in string
	}
	var all []slow
	for _, r := range s.results {
		for _, t := range r.tests {
			if !t.isSubtest() {
				all = append(all, slow{t, r.name})
			}
		}
	}
	slices.SortFunc(all, func(a, b slow) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintf(w, "\nslowest tests\n")
	for _, t := range all[:min(slowTests, len(all))] {
		fmt.Fprintf(w, "  %8s  %-28s %s\n", round(t.took), t.in, t.name)
	}
	s.printLanes(w)
	for _, r := range s.results {
		if r.err == nil || r.interrupted && r.output == nil {
			continue
		}
		fmt.Fprintf(w, "\nFAIL  %s: %v; all of its output is in %s\n", r.name, r.err, r.log)
		for _, text := range r.output {
			fmt.Fprint(w, excerpt(text))
		}
	}
	fmt.Fprintln(w)
	for _, line := range s.lines() {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "compiling %s, running %s\n", round(s.compiling), round(s.running))
	fmt.Fprintln(w, s.result())
}

// printLanes prints the time at which each lane had no further job. If a lane ends long before the
// others, a long job started too late.
func (s summary) printLanes(w io.Writer) {
	if len(s.lanes) == 0 {
		return
	}
	var ends []string
	for _, l := range s.lanes {
		ends = append(ends, fmt.Sprintf("%s (%s)", round(l.took), l.last))
	}
	fmt.Fprintf(w, "\nlanes ended after %s; %s idle; CPUs %d%% busy\n", strings.Join(ends, ", "), round(idle(s.lanes)), s.busy)
}

// excerptLines is how many lines of a failure the end of a run repeats.
const excerptLines = 60

// excerpt returns the first and the last lines of a long text, and all of a short one.
func excerpt(text string) string {
	lines := strings.SplitAfter(strings.TrimRight(text, "\n")+"\n", "\n")
	lines = lines[:len(lines)-1] // what follows the last newline
	if len(lines) <= excerptLines {
		return strings.Join(lines, "")
	}
	const half = excerptLines / 2
	return strings.Join(lines[:half], "") + fmt.Sprintf("… %d lines …\n", len(lines)-2*half) + strings.Join(lines[len(lines)-half:], "")
}

// cpus are the ticks of all CPUs since the start of the machine.
type cpus struct{ all, idle int }

// readCPUs returns zero without /proc/stat.
func readCPUs() (c cpus) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(line) {
		n, err := strconv.Atoi(f)
		if err != nil || i > 8 { // the name; guests are part of user and nice
			continue
		}
		c.all += n
		if i == 4 || i == 5 { // idle, and waiting for a disk
			c.idle += n
		}
	}
	return c
}

// since returns the percentage of ticks since before that were not idle.
func (c cpus) since(before cpus) int {
	all := max(c.all-before.all, 1)
	return 100 * (all - (c.idle - before.idle)) / all
}

// lines returns the failures, the skipped tests, and the checks that could not run.
func (s summary) lines() []string {
	var lines []string
	for _, r := range s.results {
		bad := false
		for _, t := range r.tests {
			if t.action == "fail" || t.action == "skip" {
				lines = append(lines, fmt.Sprintf("%s: %s %s", t.action, r.name, t.name))
				bad = bad || t.action == "fail"
			}
		}
		switch {
		case r.interrupted:
			lines = append(lines, fmt.Sprintf("interrupted: %s: %v", r.name, r.err))
		case r.err != nil && !bad:
			lines = append(lines, fmt.Sprintf("fail: %s: %v", r.name, r.err))
		}
		for _, n := range r.notes {
			lines = append(lines, r.name+": "+n)
		}
	}
	slices.Sort(lines)
	return lines
}

// recorded are the files that the step e2e-node of a run writes: results of Kubernetes' node suite.
var recorded = []string{"docs/conformance.md", "test/e2enode/results"}

// revisionOf returns the commit of a repository as Markdown. It adds a note if files other than the
// page and recorded differ from the commit.
func revisionOf(ctx context.Context, dir, page string) (string, error) {
	git := func(args ...string) (string, error) {
		text, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("name the tested commit: git %s: %w", args[0], err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "", err
	}
	paths := []string{"status", "--porcelain", "--untracked-files=all", "--", ".", ":!" + page}
	for _, file := range recorded {
		paths = append(paths, ":!"+file)
	}
	changes, err := git(paths...)
	if err != nil {
		return "", err
	}
	if changes == "" {
		return "`" + commit + "`", nil
	}
	return fmt.Sprintf("`%s` **with uncommitted changes in %d files**", commit, strings.Count(changes, "\n")+1), nil
}

// write writes the run as a page, also after an interruption. With -again it adds the run to the page.
func (s summary) write(ctx context.Context, o options) error {
	revision, err := revisionOf(context.WithoutCancel(ctx), ".", o.report)
	if err != nil {
		return err
	}
	if revision != s.revision {
		revision = s.revision + ", **changed during the run** to " + revision
	}
	var before []byte
	if o.again {
		if before, err = os.ReadFile(o.report); err != nil {
			return err
		}
	}
	return os.WriteFile(o.report, s.page(revision, before), 0o644)
}

// page returns the page of the run, which adds it to the page before if there is one.
func (s summary) page(revision string, before []byte) []byte {
	var b bytes.Buffer
	if before != nil {
		fmt.Fprintf(&b, "%s\n## The failures again\n\nAdded by `make test-full-again`, which runs what failed before.\n", before)
	} else {
		b.WriteString(`# The last run of the full tier

Written by ` + "`make test-full`, which runs what `make test`" + ` leaves out; see
[testing.md](testing.md).
`)
	}
	fmt.Fprintf(&b, `
| | |
|---|---|
| date | %s |
| commit | %s |
| compiling | %s |
| running | %s |
| result | %s |

| package or step | duration | passed | failed |
|---|---|---|---|
`, s.begun.UTC().Format("2006-01-02 15:04 MST"), revision,
		round(s.compiling), round(s.running), s.result())
	for _, r := range s.results {
		one := summary{results: []result{r}}
		fmt.Fprintf(&b, "| %s | %s | %d | %d |\n", r.name, round(r.took), one.count("pass"), one.failed())
	}
	b.WriteString("\n| test | duration | result |\n|---|---|---|\n")
	for _, r := range s.results {
		for _, t := range r.tests {
			if !t.isSubtest() {
				fmt.Fprintf(&b, "| %s `%s` | %s | %s |\n", r.name, t.name, round(t.took), t.action)
			}
		}
	}
	if lines := s.lines(); len(lines) > 0 {
		b.WriteString("\n")
		for _, line := range lines {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	return b.Bytes()
}
