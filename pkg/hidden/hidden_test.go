package hidden

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// Every default ignorable character of Unicode is hidden, and so is every control and
// separator but the spaces.
func TestIs_IgnorableCharacters_AreHidden(t *testing.T) {
	t.Parallel()
	visible := []*unicode.RangeTable{unicode.Prepended_Concatenation_Mark, {R32: []unicode.Range32{{Lo: 0x13430, Hi: 0x13455, Stride: 1}}}}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		ignorable := unicode.In(r, unicode.Cf, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
		if ignorable && !unicode.In(r, visible...) && !Is(r) && r != 0x070f { // Syriac shows the last one as a line
			t.Errorf("%U is not hidden", r)
		}
		if !ignorable && unicode.IsPrint(r) && r != 0x2800 && Is(r) {
			t.Errorf("%U %q is hidden", r, r)
		}
	}
}

func TestEscapeJSON_HiddenCharacters_AreEscapedAndTheValueStays(t *testing.T) {
	t.Parallel()
	const text = "a\x7f\u009b31m\u202ed\u00ad\U000e0041\u17b4\u2800\U0001bca0\U0001d173\ufff0é日\n "
	doc, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	got := EscapeJSON(string(doc) + "\n")
	var back string
	if err := json.Unmarshal([]byte(got), &back); err != nil || back != text || !strings.Contains(got, "é日") {
		t.Errorf("%s: %q, %v", got, back, err)
	}
	if strings.ContainsFunc(strings.TrimSuffix(got, "\n"), Is) {
		t.Errorf("%q has hidden characters", got)
	}
}
