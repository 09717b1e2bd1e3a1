// Command test compiles the tests of this repository, runs them and prints which
// packages and tests took longest:
//
//	go run ./hack/test [flags] [PATTERN...]
//
// The first tier (the default) runs every test that is compiled without the build tag
// "full". The full tier (-tier full) runs the tests that the tag adds, and those of some packages
// under the race detector. It also runs the fuzz targets, cross compilation, release checks, a
// subset of Kubernetes' node suite, and the build of the site. PATTERN restricts either tier to
// packages whose path contains it. -again repeats the failures of the newest run on a page, and
// the packages and steps that an interruption stopped. SIGINT and SIGTERM interrupt a run: it
// stops its tests, and writes the page of the results so far.
//
// Several test binaries run at once. Each has its own mount and network namespace, so suites that
// write to the packet filter or to /run do not affect each other. The two longest suites are
// compiled first. They wait most of the time, and run while all cores compile the others.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	tier     string
	lanes    int
	timeout  time.Duration
	report   string
	again    bool
	failed   failures // with again: the earlier failures; nil otherwise
	patterns []string
}

func main() {
	o := options{}
	flag.StringVar(&o.tier, "tier", "first", "which tests: first or full")
	flag.IntVar(&o.lanes, "lanes", 3, "how many test binaries run at once")
	flag.DurationVar(&o.timeout, "timeout", 45*time.Minute, "hard limit of one test binary")
	flag.StringVar(&o.report, "report", "", "write date, commit, durations and results to this Markdown file")
	flag.BoolVar(&o.again, "again", false, "run what failed or was interrupted in the newest run on the page of -report, and add the results to the page")
	flag.Parse()
	o.patterns = flag.Args()
	if o.tier != "first" && o.tier != "full" {
		fmt.Fprintf(os.Stderr, "test: -tier %s: must be first or full\n", o.tier)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ok, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run compiles and runs the tier, and reports whether no test failed.
func run(ctx context.Context, o options) (ok bool, err error) {
	if os.Geteuid() != 0 {
		return false, errors.New("the tests start containers and need root; without root run: make test-rootless")
	}
	// The caller may set it for this program. Steps and tests have their own value.
	if err := os.Unsetenv("CGO_ENABLED"); err != nil {
		return false, err
	}
	begun := time.Now()
	out, err := filepath.Abs("bin/test")
	if err != nil {
		return false, err
	}
	unlock, err := lock("bin/.lock-test")
	if err != nil {
		return false, err
	}
	defer unlock()
	kept := openStore(o)
	if err := prepare(out, kept); err != nil {
		return false, err
	}
	s := summary{begun: begun}
	if o.again {
		if o.failed, err = readFailures(o.report); err != nil {
			return false, err
		}
	}
	if o.report != "" {
		if s.revision, err = revisionOf(ctx, ".", o.report); err != nil {
			return false, err
		}
		fmt.Println("testing commit", s.revision)
	}
	before := readCPUs()
	if err := s.runAll(ctx, o, out); err != nil && ctx.Err() == nil {
		return false, err
	}
	s.running, s.busy = time.Since(begun)-s.compiling, readCPUs().since(before)
	s.print(os.Stdout)
	if err := kept.keep(out, s.binaries, len(o.patterns) == 0); err != nil && ctx.Err() == nil {
		fmt.Println("the next clone links its test binaries again:", err)
	}
	if o.report != "" && s.begunAny() { // an interruption before that leaves the earlier page
		if err := s.write(ctx, o); err != nil {
			return false, err
		}
	}
	if ctx.Err() != nil {
		return false, errors.New("interrupted")
	}
	// As root, on a machine with all parts, no test has a reason to skip.
	return s.failed() == 0 && s.count("skip") == 0, nil
}

// runAll compiles and runs the jobs. The early ones run while the others are compiled.
func (s *summary) runAll(ctx context.Context, o options, out string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	q, total := newQueue(o.tier), 0
	wait := start(ctx, o, q)
	err := compile(ctx, o, out, func(jobs []job) {
		for _, j := range jobs {
			if name, err := filepath.Rel(out, j.command[0]); err == nil {
				s.binaries = append(s.binaries, name)
			}
		}
		o.failed.restrict(jobs)
		total += len(jobs)
		q.add(jobs...)
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(out, whole), nil, 0o644)
	}
	s.compiled, s.compiling = err == nil, time.Since(s.begun)
	if err != nil {
		stop() // and the jobs that run already end
	} else {
		fmt.Printf("compiled %d test binaries in %s\n", total, round(s.compiling))
		all := steps(o, out)
		o.failed.restrict(all)
		total += len(all)
		q.add(all...)
	}
	q.close()
	s.results, s.lanes = wait()
	if err == nil && total == 0 {
		err = fmt.Errorf("no tests in packages that contain %s", strings.Join(o.patterns, " or "))
	}
	return err
}

// whole is a file of bin/test. It is absent during a compilation, and after an interrupted one.
const whole = ".whole"

// prepare removes the logs of the last run and leaves its test binaries: go links only changed
// ones again. Without a last run, or if it was killed while it compiled, prepare restores the kept
// binaries. go recognises a binary by its first bytes, so it may not notice that the rest is
// missing.
func prepare(out string, kept store) error {
	if err := os.Remove(filepath.Join(out, whole)); err != nil {
		err := os.RemoveAll(out)
		kept.restore(out)
		return err
	}
	logs, err := filepath.Glob(filepath.Join(out, "*.log"))
	for _, l := range logs {
		err = errors.Join(err, os.Remove(l))
	}
	return err
}

// lock prevents a second run from removing bin/test during the first run.
func lock(name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: another run of hack/test uses bin/test; try again when it has ended", name)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { file.Close() }, nil
}

// steps are the parts of a tier that are programs of their own.
func steps(o options, out string) []job {
	// With empty caches, or during a test of an hour, each takes at most half its limit.
	list := []job{{name: "lint", limit: 30 * time.Minute, command: []string{"hack/lint"}}}
	if o.tier == "full" {
		list = []job{
			{name: "lint", limit: time.Hour, command: []string{"hack/lint", "hack/kubelet"}},
			{name: "fuzz", limit: time.Hour, command: []string{"hack/fuzz"}},
			{name: "cross", limit: time.Hour, command: []string{"hack/cross"}},
			{name: "release", limit: time.Hour, command: []string{"hack/release/check"}},
			{name: "e2e-node", limit: 40 * time.Minute, command: []string{"hack/e2enode/subset"}},
			{name: "site", limit: time.Hour, command: []string{"hack/site/build"}},
		}
	}
	var chosen []job
	for _, j := range list {
		if o.wants(j.name) {
			j.dir, j.log = ".", filepath.Join(out, j.name+".log")
			chosen = append(chosen, j)
		}
	}
	return chosen
}

// wants reports whether the patterns, or the failures to run again, choose a package or step.
func (o options) wants(name string) bool {
	if o.failed != nil {
		_, failed := o.failed[strings.TrimPrefix(name, module)]
		return failed
	}
	for _, p := range o.patterns {
		if strings.Contains(name, strings.TrimPrefix(p, "./")) {
			return true
		}
	}
	return len(o.patterns) == 0
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Second)
}
