package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// TestF46_EndlessQuantitiesAreProblems: the library that reads quantities computes every
// digit of 1e999999999, for hours. Such a text is refused before the library reads it, in every
// field of a quantity and in every notation.
//
// Shows: F46
func TestF46_EndlessQuantitiesAreProblems(t *testing.T) {
	t.Parallel()
	const yamlPod = `apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: a
    image: x
    resources: {limits: {cpu: %s}}
`
	const jsonPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"x"}],
"volumes":[{"name":"v","emptyDir":{"sizeLimit":%s}}]}}`
	long := strings.Repeat("1", 1<<20)
	for _, q := range []string{"1e999999999", `"1e-999999999"`, `"1E+9999"`, `"1e999999999"`, `" 1e999999999 "`, "1111111111111111111e999999999", ".5e1000", `"` + long + `"`, `"0.` + long + `"`, `"1\u0065999999999"`, `"\u0031e999999999"`} {
		for _, pod := range []string{yamlPod, jsonPod, "kind: List\napiVersion: v1\nitems:\n- " + strings.ReplaceAll(yamlPod, "\n", "\n  ")} {
			text := fmt.Sprintf(pod, q)
			for _, validate := range []string{Strict, Ignore} {
				o := options("x.yaml")
				o.Validate = validate
				if pod != jsonPod && strings.HasPrefix(q, ".") {
					o.File = "y.yaml"
				}
				out, _ := Parse([]byte(text), o) // a parsed 1e999999999 would take minutes and gigabytes
				if len(out.Pods) > 0 || len(out.Problems) == 0 || len(out.Problems[0].Msg) > 300 {
					t.Errorf("%.40s: %d pods, problems %.300v", q, len(out.Pods), out.Problems)
				}
			}
		}
	}
	for _, q := range []string{"1e3", "12E2", "1.5e-2", "100m", "1Ei", "1e018", `"9223372036854775807"`} {
		if out, _ := Parse(fmt.Appendf(nil, yamlPod, q), options("x.yaml")); len(out.Pods) != 1 {
			t.Errorf("%s: problems %v", q, out.Problems)
		}
	}
	env := strings.Replace(yamlPod, "resources: {limits: {cpu: %s}}", `env: [{name: A, value: "1e999999999"}]`, 1)
	if out, _ := Parse([]byte(env), options("x.yaml")); len(out.Pods) != 1 {
		t.Errorf("a value that is no quantity: %v", out.Problems)
	}
}

// TestQuick_DigestsTakeTheShortWay: most hexadecimal numbers hold an "e".
func TestQuick_DigestsTakeTheShortWay(t *testing.T) {
	t.Parallel()
	js := []byte(`{"image":"x@sha256:9e12345678e1234567a5e99999b61e4c3d0e0001c1234e5678d00ff1e2e3e4e5e6f7a"}`)
	if mayBeSlow(js) {
		t.Error("a digest is taken for a quantity")
	}
}

// TestSyntax_ProblemsRepeatNoValue: a password that begins with "*" is an alias
// to YAML, and the library repeats it in its complaint.
func TestSyntax_ProblemsRepeatNoValue(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"*hunter2", "{{hunter2}}", "{{hunter2: x}: y}", "!!int hunter2", "!!float hunter2", "!!binary hunter2", "[*hunter2]", "!hunter2 *hunter2"} {
		text := "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  password: " + value + "\n"
		out, _ := Parse([]byte(text), options("x.yaml"))
		if len(out.Problems) == 0 {
			t.Errorf("%s is read", value)
		}
		for _, p := range out.Problems {
			if strings.Contains(p.Msg+p.Hint+p.Path, "hunter2") {
				t.Errorf("%s: %s", value, p.Error())
			}
		}
	}
}
