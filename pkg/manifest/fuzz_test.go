package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	v1 "k8s.io/api/core/v1"
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
	for _, o := range f.Objects {
		b.WriteString(o.Hash + "\n")
	}
	return b.String()
}

// FuzzParse looks for text that ends the agent, that Parse accepts with fields it cannot decode,
// or that the fast reader reads otherwise than the full one.
func FuzzParse(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, o := range []Options{options("x.yaml"), {File: "x.json", Validate: Warn}} {
			out, warnings := Parse(data, o)
			checkPromises(t, data, out, warnings)
			slow, slowWarnings := parse(data, o, false)
			if diff := cmp.Diff(whatItSays(t, slow, slowWarnings), whatItSays(t, out, warnings)); diff != "" {
				t.Errorf("(-full reader +quick reader):\n%s", diff)
			}
		}
	})
}

// checkPromises checks the promises in the documentation of Parse.
func checkPromises(t *testing.T, data []byte, out source.File, warnings []pod.Problem) {
	for _, p := range slices.Concat(out.Problems, warnings) {
		if p.Msg == "" || p.File == "" || !utf8.ValidString(p.Msg) || strings.ContainsAny(p.Msg, "\n\x1b") {
			t.Errorf("problem %+v", p)
		}
		if p.Line > 1+bytes.Count(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
			t.Errorf("problem %+v past the end", p)
		}
	}
	if len(out.Problems) == 0 && (out.Incomplete || len(out.Broken)+len(out.BrokenObjects) > 0) {
		t.Errorf("rejected without a problem: %+v", out)
	}
	if len(out.Pods)+len(out.Objects) == 0 && len(out.Problems) > 0 && !out.Incomplete {
		t.Errorf("the file has no pods or objects, but Incomplete is not set: %+v", out)
	}
	keys := map[pod.Key]bool{}
	for _, s := range out.Pods {
		if s.Hash == "" || s.Name == "" || s.Namespace == "" || s.Key != pod.KeyOf(s.Pod) || keys[s.Key] || s.Origin.Line < 1 {
			t.Errorf("pod %+v", s)
		}
		keys[s.Key] = true
	}
	objects := map[pod.ObjectKey]bool{}
	for _, o := range out.Objects {
		if o.Hash == "" || o.Name == "" || o.Namespace == "" || objects[o.ObjectKey()] || o.Origin.Line < 1 {
			t.Errorf("object %+v", o)
		}
		objects[o.ObjectKey()] = true
		if n, _ := podsOf(o.Object); n > maxWorkloadPods {
			t.Errorf("%s asks for %d pods", o.ObjectKey(), n)
		}
	}
}

// FuzzScan compares the counts before decoding with the decoded document.
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

// FuzzFromAPI looks for a pod of an API server that ends the agent. It also looks for one that is
// accepted although a name in it leads to another path, or a volume has two sources.
//
// Shows: D1
func FuzzFromAPI(f *testing.F) {
	f.Add([]byte(jsonOf(f, served)))
	for _, edit := range malformed {
		p := servedPod(f)
		edit(p)
		text, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p v1.Pod
		if json.Unmarshal(data, &p) != nil {
			return
		}
		before := p.DeepCopy()
		s, problems := FromAPI(&p, apiOptions())
		if (s == nil) != (len(problems) > 0) {
			t.Fatalf("spec %v, problems %v", s != nil, problems)
		}
		if !reflect.DeepEqual(before, &p) {
			t.Error("the given pod was written to")
		}
		if s == nil {
			return
		}
		plain := func(what, name string) {
			if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00 \n") {
				t.Errorf("%s %q was accepted", what, name)
			}
		}
		plain("name", s.Name)
		plain("namespace", s.Namespace)
		plain("uid", s.UID())
		if s.Pod.DeletionTimestamp != nil {
			return // nothing of it starts
		}
		for _, c := range s.Pod.Spec.InitContainers {
			plain("container", c.Name)
		}
		for _, c := range s.Pod.Spec.Containers {
			plain("container", c.Name)
		}
		for _, c := range s.Pod.Spec.EphemeralContainers {
			plain("container", c.Name)
		}
		for _, v := range s.Pod.Spec.Volumes {
			plain("volume", v.Name)
			var source map[string]any
			text, err := json.Marshal(v.VolumeSource)
			if err != nil || json.Unmarshal(text, &source) != nil || len(source) != 1 {
				t.Errorf("volume %s was accepted: %s", v.Name, text)
			}
		}
	})
}

// jsonOf is a manifest as JSON.
func jsonOf(t testing.TB, text string) string {
	t.Helper()
	out, err := sigsyaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
