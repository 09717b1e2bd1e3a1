// Package docs_test holds the documents to what the tree has.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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
