package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/hidden"
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
		case hidden.Is(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case hidden.Is(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case hidden.Is(r):
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
		if hidden.Is(r) {
			return false
		}
	}
	return true
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
	return hidden.EscapeJSON(b.String()), nil
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

// JSONEscaper returns a writer of JSON documents to w. It escapes the characters that a terminal
// acts on or does not show. Each Write is one document or more.
func JSONEscaper(w io.Writer) io.Writer { return jsonEscaper{w} }

type jsonEscaper struct{ to io.Writer }

// Write implements io.Writer.
func (e jsonEscaper) Write(doc []byte) (int, error) {
	if _, err := io.WriteString(e.to, hidden.EscapeJSON(string(doc))); err != nil {
		return 0, err
	}
	return len(doc), nil
}
