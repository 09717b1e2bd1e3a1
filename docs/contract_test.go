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
	"strings"
	"sync"
	"testing"
)

func TestContract_CitedNumber_HasAnEntry(t *testing.T) {
	entries, cited := contractEntries(t), contractCitations(t)
	for _, number := range slices.Sorted(maps.Keys(cited)) {
		if !slices.ContainsFunc(entries, func(e contractEntry) bool { return e.number == number }) {
			t.Errorf("contract.md has no entry for %s, which is cited at %s", number, strings.Join(cited[number], ", "))
		}
	}
}

func TestContract_Entry_IsCited(t *testing.T) {
	entries, cited := contractEntries(t), contractCitations(t)
	if len(entries) < 300 {
		t.Errorf("contract.md has %d entries: its tables were not read", len(entries))
	}
	for _, e := range entries {
		if cited[e.number] == nil {
			t.Errorf("contract.md has an entry for %s, which nothing cites", e.number)
		}
	}
}

func TestContract_Citation_IsFoundInItsContext(t *testing.T) {
	for _, test := range []struct{ path, text, want string }{
		{"a.go", "package a // a restart counts (C-1.22.7)", "C-1.22.7"},
		{"a.go", `package a; var a = "C-1.3.2 snapshot"`, "C-1.3.2"},
		{"a.go", "package a // both (C-1.31.4a, C-1.26)", "C-1.26 C-1.31.4a"},
		{"a.go", "package a // it stays (F12, F13): I1–I4", "F12 F13 I1 I4"},
		{"a_test.go", "package a\n\n// Shows: F40, Appendix D\nfunc TestF46_What(t *testing.T)", "Appendix D F40"},
		{"a.go", "package a // contract, appendix F; Appendix B2", "Appendix F B2"},
		{"a.go", "package a // \"A1\" is a pod; P256, UTF8 and M4b are no numbers", ""},
		{"a.go", `package a; var a = says("A1", "A1 B2", "F1'")`, ""},
		{"a.go", `package a; var a = "P21 a dependency"; var b = "A20 C-1.2.2 one name"`, "A20 C-1.2.2 P21"},
		{"a.md", "| C-1.2.5…1.2.10 merging (F40) | `TestF46_Files` |", "C-1.2.10 C-1.2.5 F40"},
		{"merge-semantics.md", "| M17 | a case of its own (F43) |", "F43"},
		{"a.txtar", "It ends.\nShows: C-1.19.1, B4\n-- have --\nA1\n", "B4 C-1.19.1"},
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

// A contractEntry is a row of contract.md: a number and its meaning, below the head of its column.
type contractEntry struct{ section, head, number, text string }

func (e contractEntry) anchor() string {
	return strings.ReplaceAll(strings.ToLower(e.number), " ", "-")
}

// contractEntries returns the rows of contract.md in their order.
func contractEntries(t *testing.T) []contractEntry {
	t.Helper()
	page, err := os.ReadFile("contract.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`^\| <a id="([^"]*)"></a>([^|]+) \| ([^|]+) \|(.* \|)?$`)
	var entries []contractEntry
	have, section, head := make(map[string]bool), "", ""
	for i, line := range strings.Split(string(page), "\n") {
		if heading, is := strings.CutPrefix(line, "## "); is {
			section = heading
		}
		if heads, is := strings.CutPrefix(line, "| number | "); is {
			head, _, _ = strings.Cut(heads, " |")
		}
		if !strings.Contains(line, "<a id=") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("contract.md:%d is no entry: %q", i+1, line)
			continue
		}
		e := contractEntry{section: section, head: head, number: m[2], text: m[3]}
		if m[1] != e.anchor() {
			t.Errorf("contract.md:%d: %s has the anchor %q, want %q", i+1, e.number, m[1], e.anchor())
		}
		if have[e.number] {
			t.Errorf("contract.md:%d: %s has two entries", i+1, e.number)
		}
		have[e.number] = true
		entries = append(entries, e)
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
		itself := []string{"../docs/contract.md", "../docs/contract_test.go", "../docs/shows_test.go"}
		if slices.Contains(itself, filepath.ToSlash(path)) || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if d.Name() == "testing.md" { // its tables repeat the contract
			text = generatedTable.ReplaceAllFunc(text, func(table []byte) []byte { return bytes.Repeat([]byte("\n"), bytes.Count(table, []byte("\n"))) })
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
	letterOfCase  = regexp.MustCompile("^[\"`]([ABDFIMP]\\d{1,2}):? (?:[a-z]|C-1)")
	appendixCited = regexp.MustCompile(`\b[Aa]ppendix ([A-H])\b`)
	quoted        = regexp.MustCompile(`"[^"\n]*"`)
	yamlProse     = regexp.MustCompile(`^\s*(?:- )?(?:shows|reason):(.*)`)
)

// citationsOf calls found for each number of the contract that a file cites: facts anywhere,
// numbers of one letter in comments, prose and the names of subtests.
func citationsOf(path string, text []byte, found func(number string, line int)) {
	base, ext := filepath.Base(path), filepath.Ext(path)
	for i, line := range strings.Split(string(text), "\n") {
		for _, m := range factCited.FindAllStringSubmatch(line, -1) {
			found("C-"+m[1], i+1)
			if m[2] != "" {
				found("C-"+m[2], i+1)
			}
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
