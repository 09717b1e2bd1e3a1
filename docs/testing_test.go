// Package docs_test holds the documents to what the tree has.
package docs_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faults are the numbers of the faults that nodectl answers for: those of what
// reads files and URLs are the rows' own business.
func faults() (all []int) {
	for _, r := range [][2]int{{1, 16}, {20, 29}, {31, 35}, {70, 75}, {80, 84}} {
		for n := r[0]; n <= r[1]; n++ {
			all = append(all, n)
		}
	}
	return all
}

// TestDocs_EveryFaultHasARow: for every fault, a row of what nodectl must withstand
// names a test that carries its number.
func TestDocs_EveryFaultHasARow(t *testing.T) {
	page, err := os.ReadFile("testing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "\n## What it must withstand\n")
	table, _, ended := strings.Cut(table, "\n## ")
	if !found || !ended {
		t.Fatal("testing.md has no table of what nodectl must withstand")
	}
	have, names := tests(t), regexp.MustCompile("Test[A-Za-z0-9_]+").FindAllString(table, -1)
	for _, n := range faults() {
		number := regexp.MustCompile(fmt.Sprintf("(Test|_)F%d_", n))
		shown := slices.ContainsFunc(names, func(name string) bool { return have[name] && number.MatchString(name) })
		if !shown {
			t.Errorf("testing.md has no row for F%d with a test of that number", n)
		}
	}
}

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

// TestDocs_EveryRowHasItsTests reads the tables of testing.md: every row names
// at least one test, and every test named there is in the tree.
func TestDocs_EveryRowHasItsTests(t *testing.T) {
	have := tests(t)
	checkNames(t, have)
	page, err := os.ReadFile("testing.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+|[a-z0-9_-]+\\.txtar)`")
	rows := 0
	lines := strings.Split(string(page), "\n")
	for i, line := range lines {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 3 || strings.Trim(cells[0], "- ") == "" || strings.HasPrefix(lines[i+1], "|-") {
			continue
		}
		rows++
		found := name.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(found) == 0 {
			t.Errorf("testing.md:%d: row %q names no test", i+1, strings.TrimSpace(cells[0]))
		}
		for _, f := range found {
			if !have[f[1]] {
				t.Errorf("testing.md:%d: row %q names %s, which is not in the tree", i+1, strings.TrimSpace(cells[0]), f[1])
			}
		}
	}
	if rows < 40 {
		t.Errorf("testing.md has %d rows: the tables were not read", rows)
	}
}

// checkNames: every test that merge-semantics.md names is in the tree, and each
// of its cases and rules names one.
func checkNames(t *testing.T, have map[string]bool) {
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
			if !have[f[1]] {
				t.Errorf("merge-semantics.md:%d names %s, which is not in the tree", i+1, f[1])
			}
		}
	}
	if rows < 35 {
		t.Errorf("merge-semantics.md has %d rows: the tables were not read", rows)
	}
}

// tests returns the names of all test functions and scripts.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	have := make(map[string]bool)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
				return fs.SkipDir
			}
			return err
		}
		switch {
		case strings.HasSuffix(path, ".txtar"):
			have[d.Name()] = true
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range function.FindAllStringSubmatch(string(text), -1) {
				have[m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}
