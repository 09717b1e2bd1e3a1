package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// seeds returns the texts of all goldens, the examples, and pieces of YAML that
// are easily misread.
func seeds(t testing.TB) [][]byte {
	t.Helper()
	goldens, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(goldens) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	examples, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var out [][]byte
	for _, path := range slices.Concat(goldens, examples) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(path, ".txtar") {
			out = append(out, data)
			continue
		}
		for _, file := range txtar.Parse(data).Files {
			out = append(out, file.Data)
		}
	}
	for _, text := range []string{
		ordinary,
		"a: &a [*a]", "? {a: b}\n: c\n", "<<: [{a: b}, *x]\n", `{"a":"\ud83d\ude00"}`, "!!binary aGVsbG8=\n",
		"a: |\n  b: c\n   d\n\n  e\nf: |-\n    g\n", "a:\n- |\n  b\n- c\n", "a: b\n  c: d\n", "a: \"b\n  c\": d\n", "a: 'b''c'\n",
		"- - a\n  - b\n-\n  - c\n", "a: &x # y\n  b: c\n", "a: [b, {c: d, e: [f]}, 'g']\n", "? a\n? b\n: c\n", "a: b # c\n# d\n e: f\n",
		"a: 1.2.3.4\nb: 010\nc: 100m\nd: 1_0\ne: yes\nf: ~\ng: 2001-01-01\nh: -c\ni: ./x\nj: 1e3\n", "a: >\n b\n\n  c\nd: e\n",
		"a\r\nb: c\rd: e\n", "a: b\u0085c: d\u2028e: f\n", "[a: b, c]: d\n", "&a a: *a\n", "!!map {a: b}\n", "{a: b}\n{c: d}\n", "a:b: c\n",
		"&a:&a [*", "--- {a: b, c}\n", "%YAML 1.1\n---\na:\n- b\n- c: |\n   d\n", "--- |\n a: b\n", "--- # a\nb: c\n",
	} {
		out = append(out, []byte(text))
	}
	return out
}

// whatItSays is all that a reading comes to.
func whatItSays(t testing.TB, f source.File, warnings []pod.Problem) string {
	var b strings.Builder
	b.WriteString(render(f, warnings))
	for _, s := range f.Pods {
		y, err := sigsyaml.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(y)
	}
	return b.String()
}

// FuzzParse looks for text that ends the agent, that is taken without being
// understood, and that the short way reads in another way than the long one.
func FuzzParse(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, o := range []Options{options("x.yaml"), {File: "x.json", Validate: Warn}} {
			start := time.Now()
			out, warnings := Parse(data, o)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			laws(t, data, out, warnings)
			slow, slowWarnings := parse(data, o, false)
			if diff := cmp.Diff(whatItSays(t, slow, slowWarnings), whatItSays(t, out, warnings)); diff != "" {
				t.Errorf("(-long way +short way):\n%s", diff)
			}
		}
	})
}

// laws holds a reading to what Parse promises.
func laws(t *testing.T, data []byte, out source.File, warnings []pod.Problem) {
	for _, p := range slices.Concat(out.Problems, warnings) {
		if p.Msg == "" || p.File == "" || !utf8.ValidString(p.Msg) || strings.ContainsAny(p.Msg, "\n\x1b") {
			t.Errorf("problem %+v", p)
		}
		if p.Line > 1+bytes.Count(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
			t.Errorf("problem %+v past the end", p)
		}
	}
	if len(out.Problems) == 0 && (out.Whole || len(out.Broken) > 0) {
		t.Errorf("rejected without a word: %+v", out)
	}
	if len(out.Pods)+len(out.Objects) == 0 && len(out.Problems) > 0 && !out.Whole {
		t.Errorf("nothing is left, and it is not said that the file is broken: %+v", out)
	}
	keys := map[pod.Key]bool{}
	for _, s := range out.Pods {
		if s.Hash == "" || s.Name == "" || s.Namespace == "" || s.Key != pod.KeyOf(s.Pod) || keys[s.Key] || s.Origin.Line < 1 {
			t.Errorf("pod %+v", s)
		}
		keys[s.Key] = true
	}
}

// FuzzPlain holds the short way from YAML to JSON to the library.
func FuzzPlain(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) { samePlain(t, data) })
}

// FuzzScan holds what is counted before decoding to what is there.
func FuzzScan(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, problem := checkText(data)
		if problem != nil {
			return
		}
		for _, c := range split(text) {
			sameCount(t, c)
		}
	})
}
