package docs_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// qualified is a test as threat-model.md names it: `pkg/server.TestTLS_EveryRouteAndCaller_HasItsCode`.
	qualified = regexp.MustCompile("`([a-z][a-z0-9_/]*)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`")
	anyTest   = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9_]*`)
	// numbersOfCVEs is the part of a test's name that says which: CVE_2020_14370_2021_21334.
	numbersOfCVEs = regexp.MustCompile(`CVE((?:_\d{4,})+)`)
)

// threatModel returns the lines of the document.
func threatModel(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(page), "\n")
}

// Every test that the threat model names is in the package that it names.
func TestThreatModel_NamedTest_IsInItsPackage(t *testing.T) {
	t.Parallel()
	have := testsByPackage(t)
	named := 0
	for i, line := range threatModel(t) {
		rest := line
		for _, m := range qualified.FindAllStringSubmatch(line, -1) {
			named++
			rest = strings.Replace(rest, m[0], "", 1)
			if !slices.Contains(have[m[1]], m[2]) {
				t.Errorf("threat-model.md:%d: %s has no %s", i+1, m[1], m[2])
			}
		}
		for _, name := range anyTest.FindAllString(rest, -1) {
			t.Errorf("threat-model.md:%d: %s stands without its package: write `pkg/x.%s`", i+1, name, name)
		}
	}
	if named < 100 {
		t.Errorf("threat-model.md names %d tests: the document was not read", named)
	}
}

// Every row of a table whose last column is "Test" names a test, or says "not shown" and
// why.
func TestThreatModel_EveryRow_NamesATestOrSaysNotShown(t *testing.T) {
	t.Parallel()
	rows, inTable := 0, false
	lines := threatModel(t)
	for i, line := range lines {
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|-"):
			inTable = strings.HasSuffix(line, "| Test |")
		case inTable && !strings.HasPrefix(line, "|-"):
			rows++
			cells := strings.Split(strings.Trim(line, "|"), "|")
			last := strings.TrimSpace(cells[len(cells)-1])
			if reason, found := strings.CutPrefix(last, "not shown: "); !qualified.MatchString(last) && (!found || reason == "") {
				t.Errorf("threat-model.md:%d: the row names no test and does not say `not shown: REASON`", i+1)
			}
		}
	}
	if rows < 80 {
		t.Errorf("threat-model.md has %d rows with tests: the tables were not read", rows)
	}
}

// Every test of a CVE has its row, and the document names every CVE of the test's name.
func TestThreatModel_EveryTestOfACVE_IsNamed(t *testing.T) {
	t.Parallel()
	page := strings.Join(threatModel(t), "\n")
	found := 0
	have := testsByPackage(t)
	for _, dir := range slices.Sorted(maps.Keys(have)) {
		for _, name := range have[dir] {
			part := numbersOfCVEs.FindStringSubmatch(name)
			if part == nil {
				continue
			}
			found++
			if !strings.Contains(page, "`"+dir+"."+name+"`") {
				t.Errorf("threat-model.md does not name %s.%s", dir, name)
			}
			year := ""
			for _, number := range strings.Split(part[1][1:], "_") {
				switch {
				case len(number) == 4 && strings.HasPrefix(number, "20"):
					year = number
				case !regexp.MustCompile(`\bCVE-` + year + "-" + number + `\b`).MatchString(page):
					t.Errorf("threat-model.md has no row for CVE-%s-%s, which %s.%s shows", year, number, dir, name)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("%d tests of CVEs: the tree was not read", found)
	}
}

// testsByPackage returns the names of all tests by their directory, whatever their build tags.
func testsByPackage(t *testing.T) map[string][]string {
	t.Helper()
	have := make(map[string][]string)
	for _, c := range testCases(t) {
		have[c.dir] = append(have[c.dir], c.name)
	}
	return have
}
