package manifest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// onlyProblem checks that a reading is one problem with msg in it and no pod.
func onlyProblem(t *testing.T, data []byte, msg string) {
	t.Helper()
	f, warnings := Parse(data, options("big.yaml"))
	if len(f.Problems) != 1 || !f.Incomplete || len(f.Pods) != 0 || len(warnings) != 0 {
		t.Fatalf("problems %v, incomplete %v, %d pods, warnings %v", f.Problems, f.Incomplete, len(f.Pods), warnings)
	}
	if p := f.Problems[0]; !strings.Contains(p.Msg, msg) || p.File != "big.yaml" {
		t.Errorf("problem %+v, want %q", p, msg)
	}
}

// Shows: F46
func TestF46_LimitsAreOneProblem(t *testing.T) {
	t.Parallel()
	laughs := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'j'; c++ {
		laughs += fmt.Sprintf("%c: &%[1]c [*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c]\n", c, c-1)
	}
	deepAlias := "a0: &a0 [x]\n"
	for i := 1; i < 300; i++ {
		deepAlias += fmt.Sprintf("a%d: &a%[1]d [*a%d]\n", i, i-1)
	}
	indented := &strings.Builder{}
	for i := range 2000 {
		fmt.Fprintf(indented, "%sa:\n", strings.Repeat(" ", i))
	}
	for name, c := range map[string]struct{ text, msg string }{
		"11 MiB":             {strings.Repeat("# comment\n", 11<<20/10), "larger than 10 MiB"},
		"alias bomb":         {laughs, "more than 100000 values"},
		"deep aliases":       {deepAlias, "nested more than 200 levels"},
		"deep flow":          {"a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "nested more than 200 levels"},
		"deeper flow":        {"a: " + strings.Repeat("[", 200_000), "nested more than 200 levels"},
		"deep blocks":        {indented.String(), "nested more than 200 levels"},
		"deep JSON":          {`{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", "nested more than 200 levels"},
		"many keys":          {manyKeys(1_000_000), "more than 100000 values"},
		"many flow items":    {"a: [" + strings.Repeat("a,", 1_000_000) + "]", "more than 100000 values"},
		"many JSON items":    {`{"a": [` + strings.Repeat("1,", 600_000) + "1]}", "more than 100000 values"},
		"many block items":   {strings.Repeat("- a\n", 800_000), "more than 100000 values"},
		"hidden in comments": {"# a: |\n" + strings.Repeat("  - a # x: |\n", 600_000), "more than 100000 values"},
		"NUL":                {"apiVersion: v1\nkind: P\x00d\n", "control character 0x00"},
		"binary":             {"\x7fELF\x02\x01\x01", "control character 0x7f"},
		"not UTF-8":          {"kind: Pod # \xe9t\xe9\n", "not UTF-8"},
		"UTF-16":             {"\xff\xfek\x00i\x00", "UTF-16"},
		"only comments":      {strings.Repeat("#\n", 1<<20), "file is empty"},
		"only markers":       {strings.Repeat("---\n", 1<<18), "file is empty"},
	} {
		t.Run(name, func(t *testing.T) { onlyProblem(t, []byte(c.text), c.msg) })
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()[:min(b.Len(), maxBytes)]
}

// Shows: F46
func TestF46_ControlCharacterHasItsPlace(t *testing.T) {
	t.Parallel()
	f, _ := Parse([]byte("a: b\nkey: x\x01\n"), options("x.yaml"))
	if got := f.Problems[0].Place(); got != "x.yaml:2:7" {
		t.Errorf("place %s", got)
	}
}

// TestParse_LargeTextIsNoBomb reads a ConfigMap whose literal text has more
// lines than a document may have values.
func TestParse_LargeTextIsNoBomb(t *testing.T) {
	t.Parallel()
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  list: |\n" + strings.Repeat("    x\n", 150_000) + "  other: z\n"
	f, _ := Parse([]byte(text), options("x.yaml"))
	if len(f.Problems) > 0 || len(f.Objects) != 1 {
		t.Errorf("problems %v, %d objects", f.Problems, len(f.Objects))
	}
}

// Admission looks at each host port again and again: a pod has a bounded number of them.
func TestParse_PodHasTooManyPorts_IsOneProblemOfTheField(t *testing.T) {
	t.Parallel()
	text := func(n int) []byte {
		b := &strings.Builder{}
		b.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: a\n    image: a\n    ports:\n")
		for i := range n {
			fmt.Fprintf(b, "    - {containerPort: %d, hostPort: %[1]d}\n", i+1)
		}
		return []byte(b.String())
	}
	if f, _ := Parse(text(pod.MaxPorts), options("x.yaml")); len(f.Problems) > 0 || len(f.Pods) != 1 {
		t.Errorf("at the bound: %v", f.Problems)
	}
	f, _ := Parse(text(pod.MaxPorts+1), options("x.yaml"))
	if len(f.Problems) != 1 || len(f.Pods) != 0 || f.Problems[0].Path != "spec.containers[0].ports" || f.Problems[0].Line == 0 {
		t.Errorf("above the bound: %+v, %d pods", f.Problems, len(f.Pods))
	}
}

// TestParse_LineEndingsAndMarks reads the same manifest in the forms editors
// write it.
func TestParse_LineEndingsAndMarks(t *testing.T) {
	t.Parallel()
	text := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: a\n    image: a\n"
	want, _ := Parse([]byte(text), options("x.yaml"))
	for name, data := range map[string]string{
		"CRLF":               strings.ReplaceAll(text, "\n", "\r\n"),
		"mark":               "\uFEFF" + text,
		"mark, CRLF, marker": "\uFEFF---\r\n" + strings.ReplaceAll(text, "\n", "\r\n") + "---\r\n",
		"end":                text + "...\n",
		"no last line end":   strings.TrimSuffix(text, "\n"),
		"moved":              "\n\n# x\n--- # y\n" + text,
		"directive":          "%YAML 1.1\n---\n" + text,
	} {
		f, _ := Parse([]byte(data), options("x.yaml"))
		if len(f.Problems) > 0 || len(f.Pods) != 1 {
			t.Fatalf("%s: %v", name, f.Problems)
		}
		if f.Pods[0].Hash != want.Pods[0].Hash || f.Pods[0].UID() != want.Pods[0].UID() {
			t.Errorf("%s: hash or UID differ", name)
		}
		marker := bytes.Index([]byte(data), []byte("apiVersion"))
		if line := 1 + strings.Count(data[:marker], "\n"); f.Pods[0].Origin.Line != line {
			t.Errorf("%s: at line %d, want %d", name, f.Pods[0].Origin.Line, line)
		}
	}
}

// TestParse_EndlessNamesAndValues_ProblemsAreShort: an attacker writes names and values of
// megabytes where a mistake repeats them.
func TestParse_EndlessNamesAndValues_ProblemsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
	for name, text := range map[string]string{
		"unknown field":   head + "spec: {containers: [{name: a, image: a}], " + long + ": 1}\n",
		"duplicate field": head + "spec: {containers: [{name: a, image: a}], nodeSelector: {\"" + long + "\": a, \"" + long + "\": a}}\n",
		"of a list":       "apiVersion: v1\nkind: List\nitems: []\n\"" + long + "\": 1\n",
		"label":           "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {\"" + long + "\": \"" + long + "\"}}\nspec: {containers: [{name: a, image: a}]}\n",
		"mistyped label":  "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {\"" + long + "\": 1" + strings.Repeat("0", 1<<20) + "}}\nspec: {containers: [{name: a, image: a}]}\n",
		"name twice":      strings.Repeat("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \""+long+"\"}\n", 2),
		"pod twice":       strings.Repeat("---\napiVersion: v1\nkind: Pod\nmetadata: {name: \""+long+"\"}\nspec: {containers: [{name: a, image: a}]}\n", 2),
		"kind":            "apiVersion: v1\nkind: " + long + "\n",
		"priority class":  head + "spec: {containers: [{name: a, image: a}], priorityClassName: " + long + ", priority: 7}\n",
		"depends on":      "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {nodectl.dev/depends-on: \"" + long[:200_000] + "\"}}\nspec: {containers: [{name: a, image: a}]}\n",
	} {
		f, _ := Parse([]byte(text), options("x.yaml"))
		if len(f.Problems) == 0 {
			t.Errorf("%s: no problem", name)
		}
		for _, p := range f.Problems {
			if n := len(p.Error()) + len(p.Hint); n > 5000 {
				t.Errorf("%s: a problem of %d bytes: %.200s", name, n, p.Error())
			}
		}
	}
}
