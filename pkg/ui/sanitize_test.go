package ui

import "testing"

// TestD1_ALogCannotDriveATerminal: colours pass; sequences for titles, clipboard and cursor,
// and characters that reorder text do not.
//
// Shows: D1
func TestD1_ALogCannotDriveATerminal(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"plain\tline\n", "plain\tline\n"},
		{"grüße 🎉\n", "grüße 🎉\n"},
		{"\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"},
		{"\x1b[1;31mleft on\n", "\x1b[1;31mleft on\x1b[0m\n"},
		{"\x1b[38;5;196mx\x1b[m\r\n", "\x1b[38;5;196mx\x1b[m\r\n"},
		{"\x1b]0;title\x07\n", `\x1b]0;title\x07` + "\n"},
		{"\x1b]52;c;Y3VybCB4\x07\n", `\x1b]52;c;Y3VybCB4\x07` + "\n"},
		{"\x1b[2Jgone\x1b[1A\n", `\x1b[2Jgone\x1b[1A` + "\n"},
		{"over\rwritten\n", `over\rwritten` + "\n"},
		{"\xff\xfe\u202e\u0085\n", `\xff\xfe\u202e\u0085` + "\n"},
		{"\x1b[" + "1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1m\n", `\x1b[` + "1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1m\n"},
		{"no end", "no end"},
		{"\x1b", `\x1b`},
	} {
		if got := string((&LineSanitizer{}).Line([]byte(c[0]))); got != c[1] {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
	}
}
