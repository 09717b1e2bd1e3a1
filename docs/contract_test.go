package docs_test

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestContract_CitedNumber_HasAnEntry(t *testing.T) {
	entries, cited := contractEntries(t), contractCitations(t)
	for _, number := range slices.Sorted(maps.Keys(cited)) {
		if !entries[number] {
			t.Errorf("contract.md has no entry for %s, which is cited at %s", number, strings.Join(cited[number], ", "))
		}
	}
}

func TestContract_Entry_IsCited(t *testing.T) {
	entries, cited := contractEntries(t), contractCitations(t)
	if len(entries) < 300 {
		t.Errorf("contract.md has %d entries: its tables were not read", len(entries))
	}
	for _, number := range slices.Sorted(maps.Keys(entries)) {
		if cited[number] == nil {
			t.Errorf("contract.md has an entry for %s, which nothing cites", number)
		}
	}
}

func TestContract_Citation_IsFoundInItsContext(t *testing.T) {
	for _, test := range []struct{ path, text, want string }{
		{"a.go", "package a // a restart counts (C-1.22.7)", "C-1.22.7"},
		{"a.go", `package a; var a = "C-1.3.2 snapshot"`, "C-1.3.2"},
		{"a.go", "package a // both (C-1.31.4a, C-1.26)", "C-1.26 C-1.31.4a"},
		{"a.go", "package a // it stays (F12, F13): I1–I4", "F12 F13 I1 I4"},
		{"a.go", "package a // contract, appendix F; Appendix B2", "Appendix F B2"},
		{"a.go", "package a // \"A1\" is a pod; P256, UTF8 and M4b are no numbers", ""},
		{"a.go", `package a; var a = says("A1", "A1 B2", "F1'")`, ""},
		{"a.go", `package a; var a = "P21 a dependency"; var b = "A20 C-1.2.2 one name"`, "A20 C-1.2.2 P21"},
		{"a_test.go", "package a; func TestC_1_2_7_C_1_2_8_What(t *testing.T)", "C-1.2.7 C-1.2.8"},
		{"a_test.go", "package a; func TestC_1_31_OutOfPods_500(t *testing.T)", "C-1.31"},
		{"a_test.go", "package a; func TestA1_A26_C_1_3_Modes(t *testing.T)", "A1 A26 C-1.3"},
		{"a_test.go", "package a; func TestC_D_Events(t *testing.T)", "Appendix D"},
		{"a_test.go", "package a; func TestAppendixG_Runtime(t *testing.T)", "Appendix G"},
		{"a_test.go", "package a; func FuzzD1_CVE_2018_1002105_Answers(f *testing.F)", "D1"},
		{"a.md", "| C-1.2.5…1.2.10 merging | `TestF40_F46_Files` |", "C-1.2.10 C-1.2.5 F40 F46"},
		{"merge-semantics.md", "| M17 | a case of its own (F43) |", "F43"},
		{"testdata/C_1_19_1-sandbox-died.txtar", "It ends (B4).\n-- have --\nA1\n", "B4 C-1.19.1"},
		{"a.yaml", "contract: [C-1.2.3, C-1.4]\nenv: [{name: B2}]\nshows: all of P7 # F9", "C-1.2.3 C-1.4 F9 P7"},
		{"hack/run", "run='B1_|F31' # takes D4", "D4"},
	} {
		found := make(map[string]bool)
		citationsOf(test.path, []byte(test.text), func(number string, _ int) { found[number] = true })
		if got := strings.Join(slices.Sorted(maps.Keys(found)), " "); got != test.want {
			t.Errorf("%s: %s: got %q, want %q", test.path, test.text, got, test.want)
		}
	}
}

// contractEntries returns the numbers that contract.md defines.
func contractEntries(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile("contract.md")
	if err != nil {
		t.Fatal(err)
	}
	entry, entries := regexp.MustCompile(`^\| <a id="([^"]*)"></a>([^|]+) \| (.+) \|$`), make(map[string]bool)
	for i, line := range strings.Split(string(page), "\n") {
		if !strings.Contains(line, "<a id=") {
			continue
		}
		m := entry.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("contract.md:%d is no entry: %q", i+1, line)
			continue
		}
		if anchor := strings.ReplaceAll(strings.ToLower(m[2]), " ", "-"); m[1] != anchor {
			t.Errorf("contract.md:%d: %s has the anchor %q, want %q", i+1, m[2], m[1], anchor)
		}
		if entries[m[2]] {
			t.Errorf("contract.md:%d: %s has two entries", i+1, m[2])
		}
		entries[m[2]] = true
	}
	return entries
}

func contractCitations(t *testing.T) map[string][]string {
	t.Helper()
	cited, err := readCitations()
	if err != nil {
		t.Fatal(err)
	}
	return cited
}

// readCitations returns every number of the contract that the tree cites, each with up to
// three places.
var readCitations = sync.OnceValues(func() (map[string][]string, error) {
	cited := make(map[string][]string)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".txtar", ".yaml", ".sh", "":
		default:
			return nil
		}
		if d.Name() == "contract.md" || d.Name() == "contract_test.go" && filepath.Dir(path) == "../docs" || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		citationsOf(filepath.ToSlash(path), text, func(number string, line int) {
			if at := cited[number]; len(at) < 3 {
				cited[number] = append(at, fmt.Sprintf("%s:%d", strings.TrimPrefix(path, "../"), line))
			}
		})
		return nil
	})
	return cited, err
})

var (
	// A fact about the kubelet, or a range of facts.
	factCited = regexp.MustCompile(`\bC-(1\.\d+(?:\.\d+[a-z]?)?)(?:…(1\.\d+(?:\.\d+)?))?`)
	// The numbers of one letter: in a fixture A1 is a pod, so they count in prose and in names alone.
	letterCited   = regexp.MustCompile(`\b([ABDFIMP]\d{1,2})\b`)
	letterOfName  = regexp.MustCompile(`^[ABDFIMP]\d{1,2}$`)
	letterOfCase  = regexp.MustCompile("^[\"`]([ABDFIMP]\\d{1,2}):? (?:[a-z]|C-1)")
	appendixCited = regexp.MustCompile(`\b[Aa]ppendix ([A-H])\b`)
	testName      = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)([A-Z][A-Za-z0-9]*_[A-Za-z0-9_]*|[A-Z]\d{1,2}\b)`)
	quoted        = regexp.MustCompile(`"[^"\n]*"`)
	yamlProse     = regexp.MustCompile(`^\s*(?:- )?(?:shows|reason):(.*)`)
)

// citationsOf calls found for each number of the contract that a file cites: facts anywhere,
// numbers of one letter in comments, prose, the names of tests and of their cases.
func citationsOf(path string, text []byte, found func(number string, line int)) {
	base, ext := filepath.Base(path), filepath.Ext(path)
	for i, line := range strings.Split(string(text), "\n") {
		for _, m := range factCited.FindAllStringSubmatch(line, -1) {
			found("C-"+m[1], i+1)
			if m[2] != "" {
				found("C-"+m[2], i+1)
			}
		}
		for _, m := range testName.FindAllStringSubmatch(line, -1) {
			citationsOfName(m[1], func(number string) { found(number, i+1) })
		}
	}
	prose := func(line int, text string) {
		for i, text := range strings.Split(text, "\n") {
			for _, m := range letterCited.FindAllStringSubmatch(text, -1) {
				if base != "merge-semantics.md" || m[1][0] != 'M' { // it numbers its own cases
					found(m[1], line+i)
				}
			}
			for _, m := range appendixCited.FindAllStringSubmatch(text, -1) {
				found("Appendix "+m[1], line+i)
			}
		}
	}
	switch ext {
	case ".go":
		fset := token.NewFileSet()
		file := fset.AddFile(base, -1, len(text))
		var s scanner.Scanner
		s.Init(file, text, nil, scanner.ScanComments)
		for {
			pos, tok, literal := s.Scan()
			switch tok {
			case token.EOF:
				return
			case token.COMMENT:
				prose(file.Line(pos), quoted.ReplaceAllString(literal, ""))
			case token.STRING:
				if m := letterOfCase.FindStringSubmatch(literal); m != nil {
					found(m[1], file.Line(pos))
				}
			}
		}
	case ".md":
		prose(1, string(text))
	case ".txtar":
		comment, _, _ := bytes.Cut(text, []byte("\n-- "))
		prose(1, string(comment))
		if name, _, isGolden := strings.Cut(base, "-"); isGolden {
			citationsOfName(name, func(number string) { found(number, 1) })
		}
	default: // YAML and scripts
		for i, line := range strings.Split(string(text), "\n") {
			if _, comment, is := strings.Cut(line, "#"); is {
				prose(i+1, comment)
			}
			if m := yamlProse.FindStringSubmatch(line); m != nil {
				prose(i+1, m[1])
			}
		}
	}
}

// citationsOfName calls found for the numbers in the name of a test, such as C_1_2_7_F40_What,
// or of a golden file.
func citationsOfName(name string, found func(number string)) {
	parts := strings.Split(name, "_")
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	isNumber := func(s string) bool { _, err := strconv.ParseUint(s, 10, 8); return err == nil }
	for i, part := range parts {
		switch {
		case part == "C" && at(i+1) == "1" && isNumber(at(i+2)):
			number := "C-1." + at(i+2)
			if isNumber(at(i + 3)) {
				number += "." + at(i+3)
			}
			found(number)
		case part == "C" && len(at(i+1)) == 1 && i == 0:
			found("Appendix " + at(i+1))
		case strings.HasPrefix(part, "Appendix") && len(part) == len("Appendix")+1:
			found("Appendix " + part[len(part)-1:])
		case letterOfName.MatchString(part):
			found(part)
		}
	}
}
