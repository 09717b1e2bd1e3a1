package pod

import "testing"

func TestC_1_38_1_Expand(t *testing.T) {
	vars := map[string]string{"A": "x", "EMPTY": "", "DOLLAR": "$(A)", "a.b": "dot"}
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"plain", "plain"},
		{"$(A)", "x"},
		{"<$(A)$(A)>", "<xx>"},
		{"$(EMPTY)", ""},
		{"$(a.b)", "dot"},
		{"$(NOBODY)", "$(NOBODY)"},
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
		if got := Expand(c.text, vars); got != c.want {
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
		got := Expand(text, nil)
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
