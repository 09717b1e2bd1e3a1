// Package docs_test compares the documents with the tree.
package docs_test

import (
	"go/build/constraint"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lifecycle are the sections of the kubelet's contract that a pod's life is in.
var lifecycle = strings.Fields(`C-1.16 C-1.17 C-1.18 C-1.19 C-1.20 C-1.21 C-1.22 C-1.23 C-1.24 C-1.26 C-1.28 C-1.29 C-1.30 C-1.31 C-1.32
	C-1.33.1 C-1.34 C-1.43`)

// TestDocs_ParityCoversTheLifecycle: every section has a case in which nodectl and
// the kubelet are compared.
func TestDocs_ParityCoversTheLifecycle(t *testing.T) {
	files, err := filepath.Glob("../test/parity/cases/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	numbers := make(map[string]bool)
	header := regexp.MustCompile(`(?m)^contract: \[(.*)\]`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		m := header.FindSubmatch(text)
		if m == nil {
			t.Errorf("%s names no number of the contract", f)
			continue
		}
		for _, n := range strings.Split(string(m[1]), ",") {
			numbers[strings.TrimSpace(n)] = true
		}
	}
	if len(files) < 80 || len(numbers) < 60 {
		t.Errorf("%d cases with %d numbers of the contract, promised are 80 and 60", len(files), len(numbers))
	}
	for _, section := range lifecycle {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(numbers)), func(n string) bool { return n == section || strings.HasPrefix(n, section+".") }) {
			t.Errorf("no case shows %s", section)
		}
	}
}

// TestDocs_EveryRowHasItsTests reads the tables of testing.md that are not generated, up to
// the tests in a virtual machine: every row names at least one test of the first tier, and
// every test named there is in the tree.
func TestDocs_EveryRowHasItsTests(t *testing.T) {
	have := tests(t)
	checkNames(t, have)
	page, err := os.ReadFile("testing.md")
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(generatedTable.ReplaceAllString(string(page), ""), "\n## A virtual machine\n")
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+|[a-z0-9_-]+\\.txtar)`")
	rows := 0
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 3 || strings.Trim(cells[0], "- ") == "" || strings.HasPrefix(lines[i+1], "|-") {
			continue
		}
		rows++
		first := false
		for _, f := range name.FindAllStringSubmatch(strings.Join(cells[1:], "|"), -1) {
			first = first || slices.Contains(have[f[1]], firstTier)
			if have[f[1]] == nil {
				t.Errorf("testing.md: row %q names %s, which is not in the tree", strings.TrimSpace(cells[0]), f[1])
			}
		}
		if !first {
			t.Errorf("testing.md: row %q names no test of the first tier", strings.TrimSpace(cells[0]))
		}
	}
	if rows < 25 {
		t.Errorf("testing.md has %d rows: the tables were not read", rows)
	}
}

// checkNames: every test that merge-semantics.md names is one of the first tier, and
// each of its cases and rules names one.
func checkNames(t *testing.T, have map[string][]tier) {
	t.Helper()
	page, err := os.ReadFile("merge-semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	rows := 0
	for i, line := range strings.Split(string(page), "\n") {
		found := name.FindAllStringSubmatch(line, -1)
		if regexp.MustCompile(`^\| [MS]\d+ \|`).MatchString(line) {
			if rows++; len(found) == 0 {
				t.Errorf("merge-semantics.md:%d names no test", i+1)
			}
		}
		for _, f := range found {
			if !slices.Contains(have[f[1]], firstTier) {
				t.Errorf("merge-semantics.md:%d names %s, which is no test of the first tier", i+1, f[1])
			}
		}
	}
	if rows < 35 {
		t.Errorf("merge-semantics.md has %d rows: the tables were not read", rows)
	}
}

// TestDocs_EveryFullTierTestHasACheaperOne: every test function of the full tier is in the
// left column of decision 0030, beside at least one test of the first tier.
func TestDocs_EveryFullTierTestHasACheaperOne(t *testing.T) {
	const page = "decisions/0030-two-test-tiers.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	have, named := tests(t), make(map[string]bool)
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	_, table, found := strings.Cut(string(text), "\n| full tier | first tier |\n|---|---|\n")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatalf("%s has no table of the full tier", page)
	}
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(row, "| \n"), "|")
		if len(cells) != 2 {
			t.Errorf("%s: row %q has %d cells", page, row, len(cells))
			continue
		}
		for _, f := range name.FindAllStringSubmatch(cells[0], -1) {
			named[f[1]] = true
			if !slices.Contains(have[f[1]], fullTier) {
				t.Errorf("%s: %s is no test of the full tier", page, f[1])
			}
		}
		cheaper := name.FindAllStringSubmatch(cells[1], -1)
		for _, f := range cheaper {
			if !slices.Contains(have[f[1]], firstTier) {
				t.Errorf("%s: %s is no test of the first tier", page, f[1])
			}
		}
		if len(cheaper) == 0 {
			t.Errorf("%s: row %q names no test of the first tier", page, row)
		}
	}
	for _, test := range slices.Sorted(maps.Keys(have)) {
		if slices.Contains(have[test], fullTier) && !named[test] {
			t.Errorf("%s does not name %s", page, test)
		}
	}
}

func TestTier_FileName_SaysFull(t *testing.T) {
	for _, c := range testCases(t) {
		if (c.tier == fullTier) != strings.HasSuffix(c.file, "_full_test.go") {
			t.Errorf("%s: files *_full_test.go, and no others, have the build tag full", c.file)
		}
	}
}

func TestTierOf_BuildConstraint_Decides(t *testing.T) {
	for header, want := range map[string]tier{
		"":                                firstTier,
		"//go:build full":                 fullTier,
		"//go:build fullness":             noTier,
		"//go:build linux && full":        fullTier,
		"// Copyright\n\n//go:build full": fullTier,
		"//go:build linux":                firstTier,
		"//go:build !full":                firstTier,
		"//go:build vm":                   noTier,
		"//go:build vm && full":           noTier,
		"//go:build windows":              noTier,
		"//go:build race":                 firstTier,
		"//go:build !race":                firstTier,
		"package a\n\nconst s = `\n//go:build full\n`": firstTier,
	} {
		if got, err := tierOf(header + "\n\npackage a\n"); err != nil || got != want {
			t.Errorf("%q: tier %q, want %q: %v", header, got, want, err)
		}
	}
}

// A tier is when a test runs: with make test, with make test-full, or with neither.
type tier string

const (
	firstTier tier = "first"
	fullTier  tier = "full"
	noTier    tier = "none" // build tag vm, another system
)

// tierOf returns the tier of the tests in a file. Some packages are compiled with the race
// detector, others without: either is enough.
func tierOf(text string) (tier, error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if constraint.IsGoBuild(line) {
			expr, err := constraint.Parse(line)
			if err != nil {
				return noTier, err
			}
			holds := func(tags ...string) bool {
				tags = append(tags, "linux", "unix", "amd64", "gc", "grpcnotrace")
				has := func(tag string) bool { return slices.Contains(tags, tag) || strings.HasPrefix(tag, "go1.") }
				return expr.Eval(has)
			}
			switch {
			case holds(), holds("race"):
				return firstTier, nil
			case holds("full"), holds("full", "race"):
				return fullTier, nil
			}
			return noTier, nil
		}
		if line != "" && !strings.HasPrefix(line, "//") {
			break // a constraint stands before the package clause
		}
	}
	return firstTier, nil
}

// tests returns the names of all test functions and scripts, each with the tiers of all that
// have the name.
func tests(t *testing.T) map[string][]tier {
	t.Helper()
	have := make(map[string][]tier)
	for _, c := range testCases(t) {
		have[c.name] = append(have[c.name], c.tier)
	}
	return have
}
