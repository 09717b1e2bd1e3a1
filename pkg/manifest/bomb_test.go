package manifest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// reading is the result of one call of Parse, with its cost.
type reading struct {
	problems []pod.Problem
	empty    bool // incomplete, and without a pod
	heap     uint64
}

// cost reads data. The heap figure is the total of all allocations, also of freed ones. It is an
// upper bound of the heap's growth, and does not depend on the runs of the garbage collector.
func cost(data []byte, file string) reading {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, _ := Parse(data, options(file))
	runtime.ReadMemStats(&after)
	return reading{problems: f.Problems, empty: f.Incomplete && len(f.Pods) == 0, heap: after.TotalAlloc - before.TotalAlloc}
}

// largest is the size of the largest file; less in the first tier, and under the race detector,
// where no figure means anything.
const largest = maxBytes / smaller

// full repeats s to the size of the largest file.
func full(s string) string { return strings.Repeat(s, largest/len(s)) }

func letters(n int, alphabet string) string {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

const printable = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\n\t"

func bombs() map[string]string {
	laughs := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'j'; c++ {
		laughs += fmt.Sprintf("%c: &%[1]c [*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c]\n", c, c-1)
	}
	merges := "a: &a {k: v}\n"
	for i := range 60 {
		merges += fmt.Sprintf("b%d: &b%[1]d {<<: [*%s, *%[2]s], k%[1]d: v}\n", i, map[bool]string{true: "a", false: fmt.Sprintf("b%d", i-1)}[i == 0])
	}
	anchors := &strings.Builder{}
	for i := range 30_000 {
		fmt.Fprintf(anchors, "a%d: &a%[1]d [*a%d]\n", i, max(i-1, 0))
	}
	indented := &strings.Builder{}
	for i := range 4000 {
		fmt.Fprintf(indented, "%sa:\n", strings.Repeat(" ", i))
	}
	keys := &strings.Builder{}
	for i := range 1_000_000 {
		fmt.Fprintf(keys, "k%d: 1\n", i)
	}
	jsonKeys := &strings.Builder{}
	for i := range 700_000 {
		fmt.Fprintf(jsonKeys, `,"k%d":1`, i)
	}
	merged := &strings.Builder{}
	for i := range 24_000 / smaller {
		fmt.Fprintf(merged, "  k%d: 1\n", i)
	}
	return map[string]string{
		"billion laughs":    laughs,
		"merges":            merges,
		"merged keys":       "kind: Bomb\na: &a\n" + merged.String() + "b: {<<: *a}\n",
		"anchors":           "a0: &a0 x\n" + anchors.String(),
		"large alias":       "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 30_000) + "]\n",
		"self":              "a: &a [*a]\n",
		"deep flow":         full("["),
		"deep maps":         full("{a: "),
		"deep JSON":         full(`{"a":`),
		"deep closed":       "a: " + strings.Repeat("[", largest/2-10) + strings.Repeat("]", largest/2-10),
		"deep blocks":       indented.String(),
		"deep on a line":    full("- "),
		"deep keys":         full("? "),
		"a million keys":    keys.String()[:min(keys.Len(), largest)],
		"a million in JSON": "{" + jsonKeys.String()[1:] + "}",
		"many items":        full("- a\n"),
		"many in a line":    "a: [" + full("a,")[:largest-64] + "]",
		"many empty":        full("-\n"),
		"many pairs":        full("? a\n: b\n"),
		"many lone CRs":     full("a: b\r"),
		"many documents":    full("---\n~\n"),
		"many texts":        full("--- a\n"),
		"many JSON":         full("{}\n"),
		"many lists":        full("[]\n"),
		"many flow keys":    full("[]: 1\n"),
		"not hidden by # |": "# a: |\n" + full("  - a # x: |\n")[:largest-64],
		"not hidden by &":   "a: &x # x\n" + full("  k: 1\n")[:largest-64],
		"not hidden by ---": `--- {kind: "a"` + full(", b")[:largest-64] + "}",
		"not hidden by %":   "%YAML 1.1\n--- {kind: \"a\"" + full(", b")[:largest-64] + "}",
		"letters":           letters(largest, printable[1:53]),
		"words":             letters(largest, printable[:53]+"\n"),
		"base64":            full("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNk\n"),
		"log":               full("2026-03-01T10:00:00Z INFO [main] {a=b} \"x\": 'y' - started & running\n"),
		"printable":         letters(largest, printable),
		"a quote":           `a: "` + letters(largest-8, printable[1:53]+" \n"),
		"a single quote":    `a: '` + letters(largest-8, printable[1:53]+" \n"),
		"a bracket":         `a: {b: ` + letters(largest-16, printable[1:53]+" \n"),
		"in a bracket":      `a: [` + full("a b ")[:largest-64],
		"anchors alone":     full("&a "),
		"aliases alone":     full("*a "),
		"tags alone":        full("!a "),
		"directives":        full("%YAML 1.1\n"),
		"tabs":              full("\t"),
		"spaces":            full(" "),
		"comments":          full("#"),
		"literals":          full("|\n"),
		"colons":            full(":"),
		"keys of colons":    full("a:b: "),
		"dashes":            full("-"),
		"binary":            string(bytes.Repeat([]byte{0x7f, 'E', 'L', 'F', 0}, largest/5)),
		"not UTF-8":         full("\xff"),
	}
}

// TestF46_BombsAreRefusedQuicklyAndInLittle parses documents that are made to take time and memory:
// each gives one problem, with a place and a hint, within 64 MiB. BenchmarkBombs has the time.
//
// Shows: F46
func TestF46_BombsAreRefusedQuicklyAndInLittle(t *testing.T) { bombsAreRefused(t) }

func bombsAreRefused(t *testing.T) {
	t.Helper()
	placeless := map[string]bool{"many documents": true, "many texts": true, "many JSON": true, "many lists": true, "many flow keys": true}
	blank := map[string]bool{"directives": true, "spaces": true, "tabs": true, "comments": true}
	for name, text := range bombs() {
		for _, file := range []string{"x.yaml", "x.json"} {
			if file == "x.json" && text[0] != '{' {
				continue // read as YAML all the same
			}
			c := cost([]byte(text), file)
			if c.heap > 64<<20 || !c.empty || len(c.problems) != 1 {
				t.Errorf("%s as %s: %d MiB, empty %v, %v", name, file, c.heap>>20, c.empty, c.problems)
				continue
			}
			p := c.problems[0]
			if p.Msg == "" || p.Line == 0 && !placeless[name] && !blank[name] || p.Hint == "" && !strings.HasPrefix(p.Msg, "not valid YAML") && name != "self" {
				t.Errorf("%s as %s: %+v", name, file, p)
			}
		}
	}
}

// BenchmarkBombs is how long each of them takes.
func BenchmarkBombs(b *testing.B) {
	for name, text := range bombs() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Parse([]byte(text), options("x.yaml"))
			}
		})
	}
}

// mistakes are documents within the limits that are full of them.
func mistakes() map[string]string {
	lines := func(n int, format string) string {
		var b strings.Builder
		for i := range n / smaller {
			fmt.Fprintf(&b, format+"\n", i)
		}
		return b.String()
	}
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"
	return map[string]string{
		"unknown fields":     head + lines(49_000, "  k%d: 1"),
		"unknown everywhere": head + "  containers:\n" + lines(8_000, "  - {name: A, foox: {}, imag: {}, comand: {}, k%d: 1}"),
		"containers":         head + "  containers:\n" + lines(16_000, "  - {name: A, image: 'a%d'}"),
		"mistyped":           head + "  containers:\n" + lines(16_000, "  - {name: A, image: %d}"),
		"labels":             "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n" + lines(49_000, "    'k %d': 'x y'"),
		"values":             "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n" + lines(49_000, "  'k %d': 'x y'"),
		"items":              "apiVersion: v1\nkind: List\nitems:\n" + lines(9_000, "- {kind: Pod, metadata: {name: a%d}, spec: {conainers: 1}}"),
		"documents":          lines(9_000, "---\na%d: b"),
		"text":               "a: \"" + strings.Repeat("a", 10_000_000) + "\"\n",
		"lines":              "a: |\n" + strings.Repeat("  aaaaaaa\n", 1_000_000),
	}
}

// TestF46_MistakesCostNoMoreThanTheirNumber: a document with mistakes allocates at most a few times
// the memory of a valid one, however many mistakes it has.
//
// Shows: F46
func TestF46_MistakesCostNoMoreThanTheirNumber(t *testing.T) { mistakesCostLittle(t) }

func mistakesCostLittle(t *testing.T) {
	t.Helper()
	for name, text := range mistakes() {
		c := cost([]byte(text), "x.yaml")
		if c.heap > 512<<20 || !c.empty || len(c.problems) == 0 {
			t.Errorf("%s: %d MiB, empty %v, %d problems", name, c.heap>>20, c.empty, len(c.problems))
		}
	}
}

// TestF46_LargeTextIsLegal: a bomb inside of a text value is text.
//
// Shows: F46
func TestF46_LargeTextIsLegal(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n"
	deep := strings.Repeat("[{- ? : ", 130_000)
	for name, text := range map[string]string{
		"literal":       head + "  a: |\n" + strings.Repeat("    - [a, {b: c}]\n", 60_000) + "  b: c\n",
		"folded":        head + "  a: >-\n" + strings.Repeat("    - [a, {b: c}]\n\n", 60_000) + "  b: c\n",
		"indicator":     head + "  a: |2\n" + strings.Repeat("      - a: b\n", 80_000),
		"quoted":        head + "  a: \"" + deep + "\"\n",
		"quoted lines":  head + "  a: '" + strings.Repeat("\n    - a: [", 80_000) + "'\n",
		"escaped":       head + "  a: \"" + strings.Repeat(`\"[`, 300_000) + "\"\n",
		"doubled":       head + "  a: '" + strings.Repeat(`''[`, 300_000) + "'\n",
		"plain lines":   head + "  a: b" + strings.Repeat("\n    - a [b]", 80_000) + "\n",
		"comments":      head + strings.Repeat("  # - a: [\n", 80_000) + "  a: b\n",
		"JSON":          `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"` + strings.Repeat(`[{\"`, 250_000) + `"}}`,
		"below the key": head + "  a:\n    |\n" + strings.Repeat("    - a: [b]\n", 80_000) + "  b: c\n",
		"in a list": "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n  data:\n    a: |\n" +
			strings.Repeat("      - a: [\n", 80_000) + "    b: c\n",
	} {
		f, _ := Parse([]byte(text), options("x.yaml"))
		if len(f.Problems) > 0 || len(f.Objects) != 1 {
			t.Errorf("%s (%d kB): %v", name, len(text)>>10, f.Problems)
		}
	}
}
