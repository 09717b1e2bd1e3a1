package texts

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// banned are the words and phrases that a reader of this project has to translate, each with a
// replacement. A phrase is a regular expression between word boundaries.
var banned = []struct{ phrase, instead string }{
	{`nobody`, "the name of the subject: no caller, no pod, nothing"},
	{`somebody`, "the name of the subject: another user, a caller"},
	{`whoever`, "the name of the subject: any caller, every user"},
	{`told`, "receives, or is reported, printed, logged, distinguished"},
	{`the word of|its word`, "its answer, its permission"},
	{`anew`, "again, or a new instance"},
	{`for ever`, "forever, without limit"},
	{`for good`, "permanently, or terminated"},
	{`errands?`, "operation"},
	{`heed|heeds|heeded`, "acknowledge"},
	{`hear|hears|heard`, "receive; of a source: answers, is ready"},
	{`strangers?`, "another user, an unknown certificate, a UID mismatch"},
	{`strays?`, "orphan, orphaned pod"},
	{`verdicts?`, "probe status, result, decision"},
	{`hush|hushed|tamed?`, "sanitize, suppress"},
	{`seated|seats?`, "admitted, a place, a slot"},
	{`bury|buried|buries`, "delete, deleted UIDs"},
}

// mostAllowed is how many places words_allowed.txt allows. It may only fall.
const mostAllowed = 2

// mostWhatClauses is how many lines of Go comments may have a clause with "what" instead of a noun.
// It may only fall.
const mostWhatClauses = 8

var (
	bannedWords = regexp.MustCompile(`(?i)\b(` + alternatives() + `)\b`)
	wordEnd     = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	lastCapital = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	isTest      = regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example)([A-Z_]|$)`)
	whatClause  = regexp.MustCompile(`(?i)\bwhat (is|are|was|has|it|the|a|they)\b`)
)

func alternatives() string {
	var all []string
	for _, b := range banned {
		all = append(all, b.phrase)
	}
	return strings.Join(all, "|")
}

// instead returns the replacement of a banned phrase.
func instead(found string) string {
	for _, b := range banned {
		if regexp.MustCompile(`(?i)^(` + b.phrase + `)$`).MatchString(found) {
			return b.instead
		}
	}
	return ""
}

// place is one line of prose, and where it is.
type place struct {
	file    string
	line    int
	text    string
	comment bool // a Go comment
}

// TestWords_Prose_HasNoBannedWord: Go comments, string literals and names of tests, and the
// Markdown pages, use none of the banned words, except in the lines that words_allowed.txt
// lists with their file.
func TestWords_Prose_HasNoBannedWord(t *testing.T) {
	allowed := map[string]bool{} // by file and line of prose; true once it was found
	data, err := os.ReadFile("words_allowed.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			allowed[line] = false
		}
	}
	if len(allowed) != mostAllowed {
		t.Errorf("words_allowed.txt has %d places, want %d: rewrite the new ones; lower mostAllowed when places are gone", len(allowed), mostAllowed)
	}
	for _, p := range prose(t) {
		found := bannedWords.FindString(p.text)
		if found == "" || p.file == "test/texts/words_test.go" {
			continue
		}
		key := p.file + "\t" + p.text
		if _, ok := allowed[key]; ok {
			allowed[key] = true
			continue
		}
		t.Errorf("%s:%d: %q: write %s\n\t%s", p.file, p.line, found, instead(strings.ToLower(found)), p.text)
	}
	for key, found := range allowed {
		if !found {
			t.Errorf("words_allowed.txt: the place is gone, remove it: %s", key)
		}
	}
}

// TestWords_Comments_NameTheNoun: Go comments do not use a clause with "what" as a noun, such as
// "what the runtime has". The reader would have to find the noun.
func TestWords_Comments_NameTheNoun(t *testing.T) {
	var found []string
	for _, p := range prose(t) {
		if p.comment && whatClause.MatchString(p.text) && p.file != "test/texts/words_test.go" {
			found = append(found, fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text))
		}
	}
	if len(found) > mostWhatClauses {
		t.Errorf("%d lines of comments have a clause with \"what\", want at most %d: name the noun\n%s", len(found), mostWhatClauses, strings.Join(found, "\n"))
	}
}

// prose returns the lines of prose of the whole tree.
func prose(t *testing.T) (all []place) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		switch {
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		case strings.HasSuffix(name, ".go"):
			all = append(all, goProse(t, path, name)...)
		case strings.HasSuffix(name, ".md") && name != "docs/testing.md": // made of contract.md and names of tests
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for i, text := range strings.Split(string(data), "\n") {
				all = append(all, place{file: name, line: i + 1, text: strings.TrimSpace(text)})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50_000 {
		t.Fatalf("only %d lines of prose: the tree was not read", len(all))
	}
	return all
}

// goProse returns the comments, string literals and names of tests of a Go file.
func goProse(t *testing.T, path, name string) (all []place) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file := files.AddFile(name, files.Base(), len(data))
	var s scanner.Scanner
	s.Init(file, data, nil, scanner.ScanComments)
	afterFunc := false
	for {
		pos, tok, text := s.Scan()
		line := file.Line(pos)
		switch {
		case tok == token.EOF:
			return all
		case tok == token.COMMENT || tok == token.STRING:
			for i, part := range strings.Split(text, "\n") {
				all = append(all, place{name, line + i, strings.TrimSpace(part), tok == token.COMMENT})
			}
		case tok == token.IDENT && afterFunc && strings.HasSuffix(name, "_test.go") && isTest.MatchString(text):
			words := wordEnd.ReplaceAllString(strings.ReplaceAll(text, "_", " "), "$1 $2")
			all = append(all, place{file: name, line: line, text: lastCapital.ReplaceAllString(words, "$1 $2")})
		}
		afterFunc = tok == token.FUNC
	}
}
