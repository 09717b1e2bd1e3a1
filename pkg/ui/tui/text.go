package tui

import (
	"sort"
	"strconv"
	"strings"

	"github.com/charmbracelet/lipgloss"
)

// ellipsis replaces cut text.
const ellipsis = "…"

// piece is a part of a row: clean text, its tone, its width in cells, and the function that shortens
// it. A width of 0 is the rest of the row.
type piece struct {
	text  string
	tone  tone
	width int
	fit   func(text string, n int) string // nil is cut
}

// row joins pieces two cells apart, and cuts the row to the width of the window.
func (m *model) row(pieces ...piece) string {
	var b strings.Builder
	used := 0
	for i, p := range pieces {
		gap := 0
		if i > 0 {
			gap = 2
		}
		left := m.width - used - gap
		if left <= 0 {
			break
		}
		width := left
		if p.width > 0 {
			width = min(p.width, left)
		}
		if p.fit == nil {
			p.fit = cut
		}
		text := p.fit(p.text, width)
		b.WriteString(strings.Repeat(" ", gap))
		b.WriteString(m.paint.in(p.tone, text))
		used += gap + lipgloss.Width(text)
		if i < len(pieces)-1 && p.width > 0 {
			pad := max(width-lipgloss.Width(text), 0)
			b.WriteString(strings.Repeat(" ", pad))
			used += pad
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// share returns the width of the first of two columns, which need a and b cells. If room is too small
// for both, the first one gets at least min(a, most) cells.
func share(room, most, a, b int) int {
	switch {
	case a+b <= room, a <= most:
		return a
	case b <= room-most:
		return room - b
	}
	return most
}

// cut returns the beginning of text that fits n cells.
func cut(text string, n int) string {
	if fits(text, n) {
		return text
	}
	if n < 1 {
		return ""
	}
	r := []rune(text[:min(len(text), maxBytes*n)])
	keep := sort.Search(len(r), func(i int) bool { return lipgloss.Width(string(r[:i+1])) > n-1 })
	return string(r[:keep]) + ellipsis
}

// cutFront returns the end of text that fits n cells.
func cutFront(text string, n int) string {
	if fits(text, n) {
		return text
	}
	if n < 1 {
		return ""
	}
	r := []rune(text[max(len(text)-maxBytes*n, 0):])
	keep := sort.Search(len(r), func(i int) bool { return lipgloss.Width(string(r[len(r)-1-i:])) > n-1 })
	return ellipsis + string(r[len(r)-keep:])
}

// cutMiddle returns the beginning and the end of text that fit n cells.
func cutMiddle(text string, n int) string {
	if fits(text, n) {
		return text
	}
	begin := strings.TrimSuffix(cut(text, (n+1)/2), ellipsis)
	return begin + cutFront(text, n-lipgloss.Width(begin))
}

// cutReason shortens "since 12:05:02: reason" to n cells. It keeps the time, and the two ends of the
// reason.
func cutReason(text string, n int) string {
	head, why, ok := strings.Cut(text, ": ")
	if room := n - lipgloss.Width(head) - 2; !fits(text, n) && ok && room > 4 {
		return head + ": " + cutMiddle(why, room)
	}
	return cut(text, n)
}

// maxBytes is the maximum number of bytes that cut reads for a cell of text. A text with more
// combining characters on a letter loses some.
const maxBytes = 16

// fits reports whether text needs at most n cells. A byte needs at most one.
func fits(text string, n int) bool {
	return len(text) <= n || len(text) <= maxBytes*n && lipgloss.Width(text) <= n
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return group(n) + " " + noun + "s"
}

// group writes a number with commas between its thousands.
func group(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
