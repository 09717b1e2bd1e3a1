package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodectl/nodectl/test/arm"
)

// suiteName begins the text that the suite matches an expression against.
const suiteName = "E2eNode Suite"

// classes says which cases belong to a class.
var classes = map[string]func(name string) bool{
	"fast":   func(n string) bool { return !isSerial(n) && !strings.Contains(n, "[Slow]") },
	"slow":   func(n string) bool { return !isSerial(n) && strings.Contains(n, "[Slow]") },
	"serial": isSerial,
	"all":    func(string) bool { return true },
}

func isSerial(name string) bool {
	return strings.Contains(name, "[Serial]") || strings.Contains(name, "[Disruptive]")
}

// wants reports whether the options select a case, apart from the shard.
func (o *options) wants(name string) bool {
	class := cmp.Or(o.class, "fast")
	if o.class == "" && o.again == failed {
		class = "all"
	}
	return classes[class](name) && o.focused.MatchString(name) && (o.skip == "" || !o.skipped.MatchString(name))
}

// cases returns the names of all cases of the suite, sorted.
func cases(ctx context.Context) ([]string, error) {
	program := bin("e2e_node.test")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("%w: run hack/e2enode/build", err)
	}
	dir, err := os.MkdirTemp("", "e2enode-list-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "report.json")
	cmd := exec.CommandContext(ctx, program, "--ginkgo.dry-run", "--ginkgo.focus=.", "--ginkgo.json-report="+report, "--start-services=false")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list the cases: %w\n%s", err, arm.Tail(string(out)))
	}
	specs, err := readReport(report)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range specs {
		all = append(all, s.name())
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// wanted returns the cases to run: those of the shard that test a feature that nodectl claims and
// have no result yet. A file of cases names them whatever they test.
func (o *options) wanted(ctx context.Context, done Results) ([]string, error) {
	all, err := cases(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := readScope(here("scope.yaml"))
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	if o.cases != "" {
		text, err := os.ReadFile(o.cases)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			named[strings.TrimSpace(line)] = true
		}
	}
	return o.choose(all, claims, named, done), nil
}

// choose is wanted for known cases, claims, names of a file and results. With -again=failed it chooses
// cases that have a result other than passed, and no others.
func (o *options) choose(all []string, claims *scope, named map[string]bool, done Results) (some []string) {
	i := 0
	for _, name := range all {
		if o.cases != "" && !named[name] || o.cases == "" && (!o.wants(name) || find(claims.Unclaimed, name) != nil) {
			continue
		}
		if i++; i%o.parts != o.part%o.parts {
			continue
		}
		r, ran := done[name]
		if o.again == "all" || o.again == "" && !ran || o.again == failed && ran && r.Outcome != passed {
			some = append(some, name)
		}
	}
	return some
}

// batch is how many cases one process of the suite runs: results are kept after each. With a time
// limit, a Serial case has a process of its own: some take many minutes, and the limit holds between
// processes.
const batch = 4

// runCases runs the wanted cases, those that are Serial one by one after the others.
func (s *stage) runCases(ctx context.Context, o *options) error {
	file := filepath.Join(o.results, o.agent+".json")
	done, err := readResults(file)
	if err != nil {
		return err
	}
	tree := treeName()
	names, err := o.wanted(ctx, done)
	if err != nil {
		return err
	}
	var beside, serial []string
	for _, n := range names {
		if isSerial(n) {
			serial = append(serial, n)
		} else {
			beside = append(beside, n)
		}
	}
	arm.Say("%s: %d cases, %d of them Serial", o.agent, len(names), len(serial))
	end := time.Time{}
	if o.limit > 0 {
		end = time.Now().Add(o.limit)
	}
	results := make(chan Results)
	kept := make(chan error, 1)
	go func() { kept <- keep(file, done, results, len(names)) }()
	alone := batch
	if o.limit > 0 {
		alone = 1
	}
	for _, part := range []struct {
		names       []string
		limit, size int
	}{{beside, o.parallel, batch}, {serial, 1, alone}} {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(part.limit)
		for chunk := range slices.Chunk(part.names, part.size) {
			g.Go(func() error {
				if !end.IsZero() && time.Now().After(end) {
					return nil
				}
				some, err := s.runBatch(ctx, chunk)
				some.stamp(tree)
				results <- some
				return err
			})
		}
		if err = g.Wait(); err != nil {
			break
		}
	}
	close(results)
	return errors.Join(err, <-kept)
}

// keep adds results to a file as they come.
func keep(file string, all Results, more <-chan Results, expected int) (err error) {
	n := 0
	for some := range more {
		for name, r := range some {
			n++
			all[name] = r
			arm.Say("%d/%d %s %s", n, expected, r.Outcome, name)
		}
		err = errors.Join(err, all.write(file))
	}
	return err
}

// limit is how long one case may take; the suite's own limits are shorter, but for a few.
const limit = 15 * time.Minute

// runBatch runs some cases in one process of the suite.
func (s *stage) runBatch(ctx context.Context, names []string) (Results, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.logs, time.Now().Format("150405-"))
	if err != nil {
		return nil, err
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	report := filepath.Join(dir, "report.json")
	cmd := exec.Command(bin("e2e_node.test"), "--test.timeout=0",
		"--ginkgo.focus=^"+suiteName+" ("+strings.Join(quoted, "|")+")$", "--ginkgo.json-report="+report,
		"--ginkgo.junit-report="+filepath.Join(dir, "junit.xml"), "--ginkgo.no-color", "--ginkgo.v", "--ginkgo.grace-period=30s",
		"--ginkgo.timeout="+(time.Duration(len(names))*limit).String(),
		"--host="+s.url, "--bearer-token="+s.token, "--node-name="+nodeName, "--container-runtime-endpoint="+s.node.Endpoint,
		"--start-services=false", "--stop-services=false", "--prepull-images=false", "--report-dir="+dir,
		"--dns-domain=cluster.local", "--system-spec-file="+here("system.yaml"))
	log, err := os.Create(filepath.Join(dir, "suite.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.work, log, log
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGINT) })
	_ = cmd.Wait() // the report says which cases failed
	if !stop() {
		return nil, ctx.Err()
	}
	specs, err := readReport(report)
	if err != nil {
		return nil, fmt.Errorf("%w; see %s", err, log.Name())
	}
	return resultsOf(specs, names), nil
}

// A spec is one case in a report of the suite.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// readReport returns the cases of a report, without the suite's own set-up.
func readReport(file string) ([]spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var reports []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var all []spec
	for _, r := range reports {
		for _, s := range r.SpecReports {
			if s.LeafNodeType == "It" {
				all = append(all, s)
			} else if s.State == "failed" || s.State == "panicked" {
				return nil, fmt.Errorf("%s: %s: %s", file, s.LeafNodeType, s.Failure.Message)
			}
		}
	}
	return all, nil
}
