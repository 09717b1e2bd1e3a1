package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A set is a set of packages that are compiled with the same settings.
type set struct {
	patterns []string
	has      func(pkg) bool // which packages of the patterns; nil: all
	race     bool
	again    bool // the full tier runs the tests of the first tier
	suites   bool // tests that start finished programs
}

// product are the packages of product code, and of this program.
var product = []string{"./cmd/...", "./pkg/...", "./hack/..."}

// slow packages run with the race detector in the full tier only. The scripts of cmd start the
// program some hundred times, and podconfig merges very large sets.
var slow = []string{"cmd", "pkg/podconfig"}

// sets are all packages with tests. Product code runs under the race detector, which makes
// it five times as slow: in the first tier packages that start goroutines, in the full tier
// the others. Tests that run finished programs share the settings of bin/nodectl-slim, so that
// their dependencies are compiled once for both.
var sets = []set{
	{patterns: product, has: func(p pkg) bool { return p.concurrent && !p.reads() }, race: true},
	{patterns: product, has: func(p pkg) bool { return !p.concurrent && !p.reads() }},
	{patterns: product, has: func(p pkg) bool { return !p.concurrent && !p.reads() }, race: true, again: true},
	{patterns: []string{"./test/...", "./docs/...", "./pkg"}, suites: true},
}

// module is the prefix of all import paths.
const module = "github.com/nodectl/nodectl/"

// A pkg is one package with tests.
type pkg struct {
	path       string // import path
	dir        string
	files      []string // test files
	concurrent bool     // its product code starts goroutines; false for the slow packages
	run        string   // value of -test.run
}

func (p pkg) isEarly() bool { return slices.Contains(early, strings.TrimPrefix(p.path, module)) }

// reads reports whether the package has tests of the source only.
func (p pkg) reads() bool { return p.path == module+"pkg" }

// early are packages that are compiled before all others.
var early = []string{"test/kube", "test/e2e"}

// A batch is compiled with one call of go.
type batch struct {
	set
	to       string // directory of the binaries
	packages []pkg
}

// compile compiles the tests of the tier into out. It passes on the jobs that run them: the early
// ones as soon as they can run, and the others when all are compiled.
func compile(ctx context.Context, o options, out string, ready func([]job)) error {
	tool := filepath.Join(out, "test2json")
	if err := command(ctx, ".", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", tool, "cmd/test2json").Run(); err != nil {
		return fmt.Errorf("build test2json: %w", err)
	}
	var first, rest []batch
	for i, s := range sets {
		if s.again && o.tier != "full" {
			continue
		}
		chosen, err := s.list(ctx, o)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(chosen, func(p pkg) bool { return !p.isEarly() })
		if n < 0 {
			n = len(chosen)
		}
		first = append(first, batches(s, filepath.Join(out, fmt.Sprintf("%d-early", i)), chosen[:n])...)
		rest = append(rest, batches(s, filepath.Join(out, fmt.Sprint(i)), chosen[n:])...)
	}
	for _, group := range [][]batch{first, rest} {
		var jobs []job
		for _, b := range group {
			if err := b.compile(ctx, o); err != nil {
				return err
			}
			for _, p := range b.packages {
				j := p.job(o, out, b.to, tool)
				if !b.suites {
					j.env = seldom()
				}
				if b.race {
					j.env = append(j.env, hugeShadow())
				}
				jobs = append(jobs, j)
			}
		}
		ready(jobs)
	}
	return nil
}

// job returns the job that runs the binary of the package in the directory bin.
func (p pkg) job(o options, out, bin, tool string) job {
	name := strings.TrimPrefix(p.path, module)
	return job{
		name: name, dir: p.dir, log: filepath.Join(out, strings.ReplaceAll(name, "/", "_")+".log"),
		limit: o.timeout + 2*time.Minute, test2json: tool,
		command: []string{
			filepath.Join(bin, path.Base(p.path)+".test"), "-test.v=test2json", "-test.paniconexit0",
			"-test.timeout=" + o.timeout.String(), "-test.run=" + p.run,
		},
	}
}

// list returns the packages of the set that have tests in the tier and match the patterns: the
// early ones first.
func (s set) list(ctx context.Context, o options) ([]pkg, error) {
	const format = "{{.ImportPath}}\t{{.Dir}}\t{{join .TestGoFiles \" \"}} {{join .XTestGoFiles \" \"}}\t{{join .GoFiles \" \"}}"
	var text bytes.Buffer
	cmd := command(ctx, ".", nil, "go", append([]string{"list", "-tags", tags(o), "-f", format}, s.patterns...)...)
	cmd.Stdout = &text
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	var all []pkg
	for line := range strings.Lines(text.String()) {
		f := strings.Split(line, "\t")
		p := pkg{path: f[0], dir: f[1], files: strings.Fields(f[2])}
		if len(p.files) == 0 || !o.wants(p.path) {
			continue
		}
		if !slices.Contains(slow, strings.TrimPrefix(p.path, module)) {
			var err error
			if p.concurrent, err = startsGoroutines(p.dir, strings.Fields(f[3])); err != nil {
				return nil, err
			}
		}
		var err error
		if p.run, err = p.tests(o.tier, s.again); err != nil {
			return nil, err
		}
		if p.run != "" && (s.has == nil || s.has(p)) {
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b pkg) int {
		switch {
		case a.isEarly() == b.isEarly():
			return 0
		case a.isEarly():
			return -1
		}
		return 1
	})
	return all, nil
}

// batches splits packages so that go test -c can compile each batch into one directory.
func batches(s set, to string, packages []pkg) (all []batch) {
	for n, round := range rounds(packages) {
		all = append(all, batch{set: s, to: fmt.Sprintf("%s-%d", to, n), packages: round})
	}
	return all
}

// startsGoroutines reports whether a file has a go statement, or calls a method Go, as those of
// sync.WaitGroup and errgroup.Group, or AfterFunc.
func startsGoroutines(dir string, files []string) (bool, error) {
	for _, f := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, f), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		found := false
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				found = true
			case *ast.SelectorExpr:
				found = found || n.Sel.Name == "Go" || n.Sel.Name == "AfterFunc"
			}
			return !found
		})
		if found {
			return true, nil
		}
	}
	return false, nil
}

// tests returns the value of -test.run for the package: everything in the first tier, in
// the full tier the tests of files that only the build tag "full" adds, or with again the
// others. No tests: "".
func (p pkg) tests(tier string, again bool) (string, error) {
	first := build.Default
	first.BuildTags = strings.Split(tags(options{tier: "first"}), ",")
	var names []string
	for _, f := range p.files {
		isFirst, err := first.MatchFile(p.dir, f)
		if err != nil {
			return "", err
		}
		if isFirst != (tier == "first" || again) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(p.dir, f))
		if err != nil {
			return "", err
		}
		for _, m := range testFunction.FindAllSubmatch(text, -1) {
			if name := string(m[1]); name != "TestMain" {
				names = append(names, name)
			}
		}
	}
	switch {
	case len(names) == 0:
		return "", nil
	case tier == "full":
		return "^(" + strings.Join(names, "|") + ")$", nil
	}
	return ".", nil
}

// testFunction finds the functions that `go test` runs: seeds of fuzz targets and examples, too.
var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)[A-Za-z0-9_]*)\(`)

// rounds splits packages so that no two of a round have the same last element: go test -c
// names a binary by it.
func rounds(all []pkg) [][]pkg {
	var list [][]pkg
	next := make(map[string]int)
	for _, p := range all {
		n := next[path.Base(p.path)]
		next[path.Base(p.path)]++
		if n == len(list) {
			list = append(list, nil)
		}
		list[n] = append(list[n], p)
	}
	return list
}

// compile compiles the tests of the batch's packages.
func (b batch) compile(ctx context.Context, o options) error {
	if err := os.MkdirAll(b.to, 0o755); err != nil {
		return err
	}
	args, env := []string{"test", "-c", "-vet=off", "-trimpath", "-ldflags", "-s -w", "-tags", tags(o), "-o", b.to + "/"}, []string{"CGO_ENABLED=0"}
	if b.race {
		args, env = append(args, "-race"), []string{"CGO_ENABLED=1"}
	}
	for _, p := range b.packages {
		args = append(args, p.path)
	}
	if err := command(ctx, ".", append(env, seldom()...), "go", args...).Run(); err != nil {
		return fmt.Errorf("compile the tests: %w", err)
	}
	return nil
}

// seldom lets go, the compiler, the linker and the tests of product code collect garbage a quarter
// as often, unless the caller sets other values. Above the memory limit they collect as usual. The
// suites do not get these settings, because their agents must use as much memory as in production.
func seldom() []string {
	return []string{"GOGC=" + cmp.Or(os.Getenv("GOGC"), "400"), "GOMEMLIMIT=" + cmp.Or(os.Getenv("GOMEMLIMIT"), "2GiB")}
}

// hugeShadow has the race detector use huge pages for its shadow memory. The first access to a page
// takes longer than the check itself, above all in a virtual machine and in short tests.
func hugeShadow() string {
	return "GORACE=" + strings.TrimSpace(os.Getenv("GORACE")+" no_huge_pages_for_shadow=0")
}

// tags are the build tags of a tier.
func tags(o options) string {
	if o.tier == "full" {
		return "grpcnotrace,full"
	}
	return "grpcnotrace"
}

// command returns a command that writes to the output of this process.
func command(ctx context.Context, dir string, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), os.Stdout, os.Stderr
	return cmd
}
