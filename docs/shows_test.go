package docs_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the tables of testing.md")

// A generated table of testing.md stands between two comments. The first one names the
// section of contract.md whose entries are the table's rows.
var generatedTable = regexp.MustCompile(`(?s)(<!-- shows: ([^>]+) -->\n).*?(<!-- end -->\n)`)

func TestShows_TablesOfTheTestingPage_AreCurrent(t *testing.T) {
	const file = "testing.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	entries, shown := contractEntries(t), testsByNumber(t)
	tables := 0
	want := generatedTable.ReplaceAllStringFunc(string(page), func(table string) string {
		tables++
		m := generatedTable.FindStringSubmatch(table)
		return m[1] + showsTable(m[2], entries, shown) + m[3]
	})
	if tables < 4 {
		t.Errorf("%s has %d generated tables: they were not found", file, tables)
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := gocmp.Diff(strings.Split(string(page), "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("%s is not what the tests show; go test ./docs -update writes it (-page +tests):\n%s", file, diff)
	}
}

// Every fault, invariant, duty and sequence is shown by a test of the first tier. So is every
// other entry that any test shows.
func TestShows_Entry_HasATestOfTheFirstTier(t *testing.T) {
	always := []string{"Faults", "Invariants", "Attacks and duties", "Sequences of calls to the runtime"}
	shown, rows := testsByNumber(t), 0
	for _, e := range contractEntries(t) {
		by := shown[e.number]
		if len(by) == 0 && !slices.Contains(always, e.section) {
			continue
		}
		rows++
		if !slices.ContainsFunc(by, func(c testCase) bool { return c.tier == firstTier }) {
			t.Errorf("no test of the first tier shows %s: no comment of one has it in the line Shows:", e.number)
		}
	}
	if rows < 200 {
		t.Errorf("tests show %d entries of the contract: their comments were not read", rows)
	}
}

func TestShows_Number_HasAnEntry(t *testing.T) {
	entries, shown := contractEntries(t), testsByNumber(t)
	for number, by := range shown {
		if !slices.ContainsFunc(entries, func(e contractEntry) bool { return e.number == number }) {
			t.Errorf("%s: %s shows %q, which has no entry in contract.md", by[0].file, by[0].name, number)
		}
	}
}

// The names of many tests and golden files begin with numbers: those are in the line too.
func TestShows_NumberInName_IsInTheLine(t *testing.T) {
	for _, c := range testCases(t) {
		for _, number := range numbersInName(c.name) {
			if !slices.Contains(c.shows, number) {
				t.Errorf("%s: the line Shows: of %s has no %s", c.file, c.name, number)
			}
		}
	}
}

func TestNumbersInName_Name_HasThem(t *testing.T) {
	for name, want := range map[string]string{
		"TestC_1_2_7_C_1_2_8_What":          "C-1.2.7 C-1.2.8",
		"TestC_1_31_OutOfPods_500":          "C-1.31",
		"TestA1_A26_C_1_3_Modes":            "A1 A26 C-1.3",
		"TestC_D_Events":                    "Appendix D",
		"TestAppendixG_Runtime":             "Appendix G",
		"FuzzD1_CVE_2018_1002105_Answers":   "D1",
		"TestSweep_PodAdded_IsKept":         "",
		"C_1_19_1-sandbox-died-F40_x.txtar": "C-1.19.1",
	} {
		if got := strings.Join(numbersInName(name), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestShowsOf_Comment_LineIsReadOrRefused(t *testing.T) {
	for comment, want := range map[string]string{
		"":                                   "",
		"TestA shows nothing.\n":             "",
		"Shows: F40\n":                       "F40",
		"TestA: why.\n\nShows: F40, C-1.2\n": "F40 C-1.2",
		"# A script.\n# Shows: Appendix D\nexec nodectl\n": "Appendix D",
		"Why. Shows: F40\n":        "error",
		"Shows: F40.\n":            "error",
		"Shows: C-1.2.\n":          "error",
		"Shows: F40 F41\n":         "error",
		"Shows: F40, F40\n":        "error",
		"Shows: F40\nShows: F41\n": "error",
		"Shows:\n":                 "error",
	} {
		shows, err := showsOf(comment)
		got := strings.Join(shows, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q: %v", comment, got, want, err)
		}
	}
}

// showsTable returns the rows of a section of contract.md: the entries that tests show.
func showsTable(section string, entries []contractEntry, shown map[string][]testCase) string {
	head, rows := "", ""
	for _, e := range entries {
		by := shown[e.number]
		if e.section != section || len(by) == 0 {
			continue
		}
		text, _, more := strings.Cut(e.text, ". ")
		if more {
			text += "."
		}
		head = fmt.Sprintf("\n| number | %s | tests |\n|---|---|---|\n", e.head)
		rows += fmt.Sprintf("| [%s](contract.md#%s) | %s | %s |\n", e.number, e.anchor(), text, testsCell(by))
	}
	return head + rows + "\n"
}

// testsCell lists tests by package and tier.
func testsCell(tests []testCase) string {
	var lines []string
	group := ""
	for _, c := range tests {
		of := "`" + c.dir + "`" + map[tier]string{fullTier: " (full)", noTier: " (VM)"}[c.tier]
		if of != group {
			group = of
			lines = append(lines, of+": `"+c.name+"`")
			continue
		}
		lines[len(lines)-1] += ", `" + c.name + "`"
	}
	return strings.Join(lines, "<br>")
}

// testsByNumber returns the tests that show each number of the contract, in the order of
// package, tier and name.
func testsByNumber(t *testing.T) map[string][]testCase {
	t.Helper()
	shown := make(map[string][]testCase)
	for _, c := range testCases(t) {
		for _, number := range c.shows {
			shown[number] = append(shown[number], c)
		}
	}
	return shown
}

// A testCase is a test or fuzz function, or a case in a .txtar file.
type testCase struct {
	dir, file, name string // the directory is that of the package
	tier            tier
	shows           []string // numbers of the contract
}

func testCases(t *testing.T) []testCase {
	t.Helper()
	all, err := readTestCases()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var readTestCases = sync.OnceValues(func() ([]testCase, error) {
	var all []testCase
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		isScript := strings.HasSuffix(path, ".txtar")
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin"}, d.Name()):
			return fs.SkipDir
		case d.IsDir() || !isScript && !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read := casesOfGo
		if isScript {
			read = caseOfScript
		}
		cases, err := read(strings.TrimPrefix(filepath.ToSlash(path), "../"), text)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, cases...)
		return nil
	})
	slices.SortStableFunc(all, func(a, b testCase) int {
		return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.tier, b.tier), cmp.Compare(a.name, b.name))
	})
	return all, err
})

// caseOfScript returns the case in a .txtar file, whose comment may have the line Shows:.
func caseOfScript(file string, text []byte) ([]testCase, error) {
	shows, err := showsOf(string(txtar.Parse(text).Comment))
	dir := strings.TrimSuffix(filepath.Dir(file), "/testdata")
	return []testCase{{dir: dir, file: file, name: filepath.Base(file), tier: firstTier, shows: shows}}, err
}

// casesOfGo returns the tests of a file. The line Shows: ends the comment of a test, and
// stands nowhere else.
func casesOfGo(file string, text []byte) ([]testCase, error) {
	syntax, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	of, err := tierOf(string(text))
	if err != nil {
		return nil, err
	}
	lines := bytes.Count(text, []byte("\n// Shows:"))
	var cases []testCase
	for _, decl := range syntax.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Name.Name == "TestMain" || !isTest.MatchString(f.Name.Name) {
			continue
		}
		comment := f.Doc.Text()
		shows, err := showsOf(comment)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name.Name, err)
		}
		if shows != nil {
			lines--
			if !strings.HasSuffix(comment, "Shows: "+strings.Join(shows, ", ")+"\n") {
				return nil, fmt.Errorf("%s: the line Shows: is not the last of the comment", f.Name.Name)
			}
		}
		cases = append(cases, testCase{dir: filepath.Dir(file), file: file, name: f.Name.Name, tier: of, shows: shows})
	}
	if lines != 0 {
		return nil, fmt.Errorf("%d lines Shows: are in no comment of a test", lines)
	}
	return cases, nil
}

const aNumber = `(?:C-\d+(?:\.\d+)*[a-z]?|[A-Z]\d+|Appendix [A-Z])`

var (
	isTest       = regexp.MustCompile(`^(?:Test|Fuzz)[A-Z0-9]`)
	showsLine    = regexp.MustCompile(`^(?:# )?Shows: (` + aNumber + `(?:, ` + aNumber + `)*)$`)
	letterNumber = regexp.MustCompile(`^[ABDFIMP]\d{1,2}$`)
	showsTried   = regexp.MustCompile(`\bShows:`)
)

// showsOf returns the numbers in the line Shows: of a comment.
func showsOf(comment string) (shows []string, err error) {
	for line := range strings.Lines(comment) {
		line = strings.TrimSpace(line)
		m := showsLine.FindStringSubmatch(line)
		switch {
		case m == nil && showsTried.MatchString(line):
			return nil, fmt.Errorf("%q is not of the form %q", line, "Shows: F40, C-1.2.5")
		case m != nil && shows != nil:
			return nil, fmt.Errorf("%q is the second line of its kind", line)
		case m != nil:
			shows = strings.Split(m[1], ", ")
			if sorted := slices.Sorted(slices.Values(shows)); len(slices.Compact(sorted)) != len(shows) {
				return nil, fmt.Errorf("%q has a number twice", line)
			}
		}
	}
	return shows, nil
}

// numbersInName returns the numbers in the name of a test, such as TestC_1_2_7_F40_What, or in
// that of a golden file, before the first hyphen.
func numbersInName(name string) (numbers []string) {
	name, _, _ = strings.Cut(name, "-")
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(name, "Test"), "Fuzz"), "_")
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	isNumber := func(s string) bool { _, err := strconv.ParseUint(s, 10, 8); return err == nil }
	for i, part := range parts {
		letter, isList := strings.CutPrefix(part, "Appendix")
		switch {
		case part == "C" && at(i+1) == "1" && isNumber(at(i+2)):
			number := "C-1." + at(i+2)
			if isNumber(at(i + 3)) {
				number += "." + at(i+3)
			}
			numbers = append(numbers, number)
		case part == "C" && len(at(i+1)) == 1 && i == 0:
			numbers = append(numbers, "Appendix "+at(i+1))
		case isList && len(letter) == 1:
			numbers = append(numbers, "Appendix "+letter)
		case letterNumber.MatchString(part):
			numbers = append(numbers, part)
		}
	}
	return numbers
}
