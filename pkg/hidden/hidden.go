// Package hidden names the characters that a terminal acts on, or does not show, and escapes
// them in JSON.
//
// Names and texts of others reach terminals, documents and the audit file. Whatever writes
// them asks this package, so that all agree on the set.
package hidden

import (
	"fmt"
	"strings"
	"unicode/utf16"
)

// Is reports whether a terminal would act on r or show nothing for it: C0 and C1 controls,
// line and paragraph separators, bidirectional controls, the blank Braille pattern and
// everything that Unicode calls default ignorable, such as soft hyphens, tags, variation
// selectors and fillers. A space is not hidden.
func Is(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return true
	case r == 0xad, r == 0x34f, r == 0x61c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r >= 0x180b && r <= 0x180f:
		return true
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0x2800, r == 0x3164:
		return true
	case r >= 0xfe00 && r <= 0xfe0f, r == 0xfeff, r == 0xffa0, r >= 0xfff0 && r <= 0xfffb:
		return true
	case r >= 0x1bca0 && r <= 0x1bca3, r >= 0x1d173 && r <= 0x1d17a, r >= 0xe0000 && r <= 0xe0fff:
		return true
	}
	return false
}

// EscapeJSON escapes the hidden characters of a JSON document, except line feeds. Outside of
// strings JSON is ASCII, so hidden characters are in strings, where they may be escaped.
func EscapeJSON(doc string) string {
	escaped := func(r rune) bool { return r != '\n' && Is(r) }
	if strings.IndexFunc(doc, escaped) < 0 {
		return doc
	}
	var out strings.Builder
	for _, r := range doc {
		if !escaped(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}
