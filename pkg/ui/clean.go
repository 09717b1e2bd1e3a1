package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Clean returns s safe for one line of a terminal: it escapes control characters, bytes
// that are no UTF-8, and characters that reorder or hide text.
func Clean(s string) string {
	if clean(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case hidden(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case hidden(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case hidden(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

func clean(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if hidden(r) {
			return false
		}
	}
	return true
}

// hidden reports whether a terminal would act on r instead of showing it: C0 and C1
// controls, bidirectional controls, and characters without a width, such as soft hyphens,
// annotations, tags, variation selectors and fillers.
func hidden(r rune) bool {
	switch {
	case r == 0xad, r == 0x34f, r >= 0x180b && r <= 0x180f, r >= 0xfff9 && r <= 0xfffb, r >= 0xe0000 && r <= 0xe0fff:
		return true
	case r >= 0xfe00 && r <= 0xfe0f, r == 0x115f, r == 0x1160, r == 0x3164, r == 0xffa0: // Hangul fillers
		return true
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return true
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff, r == 0x061c:
		return true
	}
	return false
}

// JSON returns v as an indented JSON document, control characters escaped.
func JSON(v any) (string, error) { return encode(v, "  ") }

// JSONLine returns v as JSON on one line, for a stream.
func JSONLine(v any) (string, error) { return encode(v, "") }

func encode(v any, indent string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	// Outside of strings JSON is ASCII, so hidden characters that are not ASCII are in
	// strings and can be escaped there. So can DEL.
	text := b.String()
	if clean(strings.ReplaceAll(text, "\n", "")) {
		return text, nil
	}
	var out strings.Builder
	for _, r := range text {
		if r != '\n' && hidden(r) {
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&out, `\u%04x`, unit)
			}
			continue
		}
		out.WriteRune(r)
	}
	return out.String(), nil
}

// YAML returns v as a YAML document by its JSON tags. It converts escaped JSON, since YAML
// allows no raw control characters. YAML would keep bidirectional controls and the like
// unescaped: a document with them stays JSON, which is YAML too.
func YAML(v any) (string, error) {
	text, err := encode(v, "")
	if err != nil {
		return "", err
	}
	b, err := yaml.JSONToYAML([]byte(text))
	if err == nil && !clean(strings.ReplaceAll(string(b), "\n", "")) {
		return encode(v, "  ")
	}
	return string(b), err
}
