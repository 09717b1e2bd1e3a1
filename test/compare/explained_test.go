package compare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// read reads explanations from a file with that text.
func read(t *testing.T, text string) ([]*Explanation, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "explained.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Read(file)
}

func TestExplanationsAreNarrow(t *testing.T) {
	all, err := read(t, `
- {cases: ["stop-*"], aspects: [times], match: "^a: ", reason: r}
- {cases: ["*"], aspects: [env], reason: r, api: true}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		which              int
		name, aspect, what string
		api, want          bool
	}{
		{0, "stop-grace", "times", "a: late", false, true},
		{0, "start-one", "times", "a: late", false, false},
		{0, "stop-grace", "order", "a: late", false, false},
		{0, "stop-grace", "times", "b: late", false, false},
		{1, "/pods of a node", "env", "anything", true, true},
		{1, "stop-grace", "env", "anything", false, false},
	} {
		if got := all[tc.which].Covers(Difference{tc.name, tc.api, tc.aspect, tc.what}); got != tc.want {
			t.Errorf("%+v: %t", tc, got)
		}
	}
	if all[0].Everywhere() || !all[1].Everywhere() {
		t.Errorf("%q is of every case: %t; %q: %t", all[0].Cases, all[0].Everywhere(), all[1].Cases, all[1].Everywhere())
	}
}

func TestAnExplanationWithAMistakeIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no reason":        `- {cases: [a], aspects: [b]}`,
		"no aspect":        `- {cases: [a], reason: r}`,
		"no case":          `- {aspects: [b], reason: r}`,
		"no expression":    `- {cases: [a], aspects: [b], reason: r, match: "("}`,
		"an unknown field": `- {cases: [a], aspects: [b], reason: r, matsch: x}`,
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), "explained.yaml") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIdleExplainsNothing(t *testing.T) {
	used, rare, idle := &Explanation{Cases: []string{"a"}, Aspects: []string{"x"}}, &Explanation{Sometimes: true}, &Explanation{}
	r := NewReport([]Difference{{Case: "a", Aspect: "x"}, {Case: "b", Aspect: "y"}}, []*Explanation{used, rare, idle})
	if got := r.Idle(); len(got) != 1 || got[0] != idle || len(r.Open) != 1 || r.Open[0].Case != "b" {
		t.Errorf("idle are %v, open %v", got, r.Open)
	}
}
