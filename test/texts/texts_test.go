package texts

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write kubelet.txt, with the tag full, and docs/texts.md")

const (
	table   = "kubelet.txt"
	root    = "../.."
	page    = root + "/docs/texts.md"
	release = "v1.36.3"
)

// kubelets reads the committed table.
func kubelets(t *testing.T) (all []Text) {
	t.Helper()
	data, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		text, err := ParseLine(strings.TrimSuffix(line, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	return all
}

// why is a line of reasons.txt.
type why struct {
	line       string
	same       bool
	file, text *regexp.Regexp
	reason     string
}

func whys(t *testing.T) (all []*why) {
	t.Helper()
	data, err := os.ReadFile("reasons.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSuffix(line, "\n"); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.Split(line, "\t")
		if len(part) != 4 || part[0] != "same" && part[0] != "other" || strings.TrimSpace(part[3]) == "" {
			t.Fatalf("reasons.txt: %q: want same or other, file, text and reason, with tabs between", line)
		}
		file, err := regexp.Compile(part[1])
		if err != nil {
			t.Fatal(err)
		}
		text, err := regexp.Compile(part[2])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &why{line, part[0] == "same", file, text, part[3]})
	}
	return all
}

// TestTexts_EveryKubeletText_IsOursOrHasAReason: a text that reaches the API is the
// kubelet's, word for word, or reasons.txt says why it is not.
func TestTexts_EveryKubeletText_IsOursOrHasAReason(t *testing.T) {
	own, err := Own(root, "pkg", "cmd")
	if err != nil {
		t.Fatal(err)
	}
	reasons, used := whys(t), map[*why]bool{}
	var same, built, other []string
	cell := func(s string) string {
		return "`" + strings.NewReplacer("|", `\|`, "`", "'", "\n", " ").Replace(strings.TrimSpace(s)) + "`"
	}
	all := kubelets(t)
	if len(all) < 200 {
		t.Fatalf("%s has %d texts", table, len(all))
	}
	for _, text := range all {
		var which []*why
		for _, w := range reasons {
			if w.file.MatchString(text.File) && w.text.MatchString(text.Text) {
				which = append(which, w)
			}
		}
		if file, ok := own[shape(text.Text)]; ok {
			same = append(same, fmt.Sprintf("| %s | %s | %s | %s |", cell(text.Text), text.Kind, text.File, file))
			continue
		}
		if len(which) != 1 {
			t.Errorf("%d lines of reasons.txt are about the text, want 1: %s", len(which), text.Line())
			continue
		}
		used[which[0]] = true
		row := fmt.Sprintf("| %s | %s | %s | %s |", cell(text.Text), text.Kind, text.File, which[0].reason)
		if which[0].same {
			built = append(built, row)
		} else {
			other = append(other, row)
		}
	}
	tests := testNames(t)
	for _, w := range reasons {
		for _, name := range testName.FindAllString(w.reason, -1) {
			if !tests[name] {
				t.Errorf("reasons.txt: there is no test %s", name)
			}
		}
		if !used[w] {
			t.Errorf("reasons.txt: no text needs the line: %s", w.line)
		}
	}
	if t.Failed() {
		return
	}
	text := document(same, built, other)
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if had, err := os.ReadFile(page); err != nil || string(had) != text {
		t.Errorf("docs/texts.md is out of date (%v): go test ./test/texts -update", err)
	}
}

var testName = regexp.MustCompile(`\bTest\w+`)

// testNames returns the names of the tests in pkg.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	files, err := filepath.Glob(root + "/pkg/*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "func "); ok {
				all[testName.FindString(rest)] = true
			}
		}
	}
	return all
}

func document(same, built, other []string) string {
	var b strings.Builder
	b.WriteString("# Texts that reach the API\n\n" +
		"Made by `go test ./test/texts -update` from the sources of the kubelet " + release + ", from nodectl's\n" +
		"own and from `test/texts/reasons.txt`. Tools and Kubernetes' tests match these texts, so\n" +
		"nodectl's are the kubelet's, word for word. Formats are as the sources have them: two of\n" +
		"them that differ in their verbs alone (`%s`, `%q`, `%v`) are one.\n\n" +
		fmt.Sprintf("Of %d texts of the kubelet nodectl sends %d; %d have a reason why it does not.\n", len(same)+len(built)+len(other), len(same)+len(built), len(other)))
	part := func(title, last string, rows []string) {
		b.WriteString("\n## " + title + "\n\n| text | kind | kubelet | " + last + " |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n")
	}
	part("The same", "nodectl", same)
	part("The same, built from parts", "how", built)
	part("Not nodectl's", "reason", other)
	return b.String()
}

// TestShape_FormatsThatReadTheSame_AreOne: and no others are.
func TestShape_FormatsThatReadTheSame_AreOne(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"Container %s failed: %v", "Container %q failed: %+v", true},
		{`service %q is "%s"`, "service %q is %q", true},
		{"%d%% of %s", "%d% of %s", true},
		{"Container %s failed", "container %s failed", false},
		{"no answer", "no answer within %s", false},
	} {
		if got := shape(c.a) == shape(c.b); got != c.same {
			t.Errorf("%q and %q: one %v, want %v", c.a, c.b, got, c.same)
		}
	}
	own, err := Own(root, "pkg/probe")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := own[shape("Probe terminated redirects, Response body: %v")]; !ok {
		t.Errorf("a text that is added up is not found among %d", len(slices.Collect(maps.Keys(own))))
	}
}
