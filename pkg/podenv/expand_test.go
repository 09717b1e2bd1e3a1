package podenv

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.38.1
func TestC_1_38_1_Expand(t *testing.T) {
	vars := map[string]string{"A": "x", "EMPTY": "", "DOLLAR": "$(A)", "a.b": "dot"}
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"plain", "plain"},
		{"$(A)", "x"},
		{"<$(A)$(A)>", "<xx>"},
		{"$(EMPTY)", ""},
		{"$(a.b)", "dot"},
		{"$(MISSING)", "$(MISSING)"},
		{"$()", "$()"},
		{"$$(A)", "$(A)"},
		{"$$$(A)", "$x"},
		{"$$$$(A)", "$$(A)"},
		{"$$", "$"},
		{"$", "$"},
		{"a$", "a$"},
		{"$A", "$A"},
		{"${A}", "${A}"},
		{"$(A", "$(A"},
		{"$(A $$(A)", "$(A $$(A)"},
		{"$(", "$("},
		{"$(A))", "x)"},
		{"$(DOLLAR)", "$(A)"}, // values are not read again
		{"100% $(A) $$5", "100% x $5"},
	} {
		if got, err := Expand(c.text, vars); err != nil || got != c.want {
			t.Errorf("expand(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}

// Whatever the text, nothing is lost: without any variable and without "$$" it
// stays as it is.
func FuzzExpand(f *testing.F) {
	f.Add("$(A)$")
	f.Add("$(A$(B)")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Expand(text, nil)
		if err != nil { // it is longer than any argument
			if len(text) <= maxArgument {
				t.Error(err)
			}
			return
		}
		if len(got) > len(text) {
			t.Errorf("expand(%q) = %q grew", text, got)
		}
		for i := range len(text) - 1 {
			if text[i] == '$' && text[i+1] == '$' {
				return
			}
		}
		if got != text {
			t.Errorf("expand(%q) = %q", text, got)
		}
	})
}

// Texts that grow without end, and those that take long to read, are refused at the
// kernel's own limits, in no time and with no value in the error.
//
// Shows: C-1.38.1
func TestC_1_38_1_ExpansionIsBounded(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "A0", Value: strings.Repeat("canary", 10)}}}}
	for i := range 40 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, v1.EnvVar{Name: fmt.Sprintf("A%d", i+1), Value: fmt.Sprintf("$(A%d)$(A%[1]d)", i)})
	}
	request := pod.CreateRequest{Want: &pod.Spec{Key: pod.KeyOf(p), Pod: p}, Container: "c", Sandbox: &pod.Sandbox{}}
	if _, err := Environment(request, Sources{}); err == nil || err.Error() != "environment variable A12 is longer than 131071 bytes after its variables are expanded" {
		t.Errorf("doubling: %v", err)
	}
	wide := &v1.Pod{}
	wide.Spec.Containers = []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "A", Value: strings.Repeat("x", 1000)}}}}
	for i := range 1000 {
		wide.Spec.Containers[0].Env = append(wide.Spec.Containers[0].Env, v1.EnvVar{Name: fmt.Sprintf("B%d", i), Value: strings.Repeat("$(A)", 100)})
	}
	request.Want = &pod.Spec{Key: pod.KeyOf(wide), Pod: wide}
	if _, err := Environment(request, Sources{}); err == nil || err.Error() != "the environment is longer than 6291456 bytes" {
		t.Errorf("many: %v", err)
	}
	// Long enough that looking twice at every character would outlast the test's timeout.
	for _, text := range []string{strings.Repeat("$(", 5_000_000), strings.Repeat("$(A)", 20_000), strings.Repeat("$(", 5_000_000) + ")"} {
		if _, err := ExpandAll([]string{text}, map[string]string{"A": "12345678"}); len(text) > maxArgument && err == nil {
			t.Error("longer than an argument may be, and no error")
		}
	}
}
