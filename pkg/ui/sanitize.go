package ui

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/hidden"
)

// LineSanitizer makes the lines of a container's log safe for a terminal. It keeps colours and tabs,
// and escapes all other control sequences. It resets a colour at the end of a line. The zero value
// can be used.
type LineSanitizer struct{ colored bool }

// Line returns one line, or a piece of a long one.
func (t *LineSanitizer) Line(line []byte) []byte {
	body, end := bytes.CutSuffix(line, []byte("\n"))
	body, carriage := bytes.CutSuffix(body, []byte("\r"))
	if !t.colored && plainLine(body) {
		return line
	}
	var b strings.Builder
	for i := 0; i < len(body); {
		if n := colour(body[i:]); n > 0 {
			text := string(body[i : i+n])
			t.colored = text != "\x1b[m" && text != "\x1b[0m"
			b.WriteString(text)
			i += n
			continue
		}
		r, n := utf8.DecodeRune(body[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, body[i])
		case r == '\t' || !hidden.Is(r):
			b.Write(body[i : i+n])
		default:
			b.WriteString(Clean(string(r)))
		}
		i += n
	}
	if end && t.colored {
		b.WriteString("\x1b[0m")
		t.colored = false
	}
	if carriage {
		b.WriteByte('\r')
	}
	if end {
		b.WriteByte('\n')
	}
	return []byte(b.String())
}

func plainLine(b []byte) bool {
	for _, c := range b {
		if c != '\t' && (c < 0x20 || c >= 0x7f) {
			return false
		}
	}
	return true
}

// colour returns the length of the colour sequence at the beginning of b, or 0.
func colour(b []byte) int {
	if len(b) < 3 || b[0] != 0x1b || b[1] != '[' {
		return 0
	}
	for i := 2; i < len(b) && i < 32; i++ {
		switch c := b[i]; {
		case c == 'm':
			return i + 1
		case c != ';' && c != ':' && (c < '0' || c > '9'):
			return 0
		}
	}
	return 0
}
