// Package ui formats nodectl's output: tables, plans, diffs, lines of a stream, and
// JSON documents with the same content for scripts.
//
// cmd asks for a View of the writer it prints to and writes the strings it gets
// back. Text and JSON of one answer come from one document value, so they
// cannot disagree.
//
// A string from outside goes through Clean before it reaches a terminal. A writer
// without colour gets no escape byte.
package ui

import (
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
)

// Screen describes the display of a writer.
type Screen struct {
	Color bool
	// Width is the terminal's width in cells; with 0, as for a pipe, nothing is shortened. Only
	// values and locations of sources are shortened, in their middle: never the name of a pod or
	// a file.
	Width int
}

// View makes text for one writer.
type View struct {
	width int
	style map[tone]lipgloss.Style
}

// tone is the meaning of a colour. A word or a sign always has the same meaning.
type tone int

const (
	plain  tone = iota
	good        // added, ready
	change      // changed, pending
	bad         // removed, failed
	faint       // unchanged, or secondary
	strong
)

// New returns a View for w. The colours are the terminal's own sixteen.
func New(w io.Writer, s Screen) *View {
	r := lipgloss.NewRenderer(w)
	r.SetColorProfile(termenv.Ascii)
	if s.Color {
		r.SetColorProfile(termenv.ANSI)
	}
	color := func(c string) lipgloss.Style { return r.NewStyle().Foreground(lipgloss.Color(c)) }
	return &View{width: s.Width, style: map[tone]lipgloss.Style{
		good: color("2"), change: color("3"), bad: color("1"), faint: r.NewStyle().Faint(true), strong: r.NewStyle().Bold(true),
	}}
}

// Colored reports whether a writer gets colour. mode is --color. For auto, the first of these
// decides: NO_COLOR (any value: no), CLICOLOR_FORCE (not 0: yes), CLICOLOR=0 or TERM=dumb (no), and
// whether the writer is a terminal.
func Colored(mode string, terminal bool, env func(string) string) bool {
	switch {
	case mode == "always":
		return true
	case mode == "never", env("NO_COLOR") != "":
		return false
	case env("CLICOLOR_FORCE") != "" && env("CLICOLOR_FORCE") != "0":
		return true
	case env("CLICOLOR") == "0", env("TERM") == "dumb":
		return false
	}
	return terminal
}

// paint colours text, which is clean and one line.
func (v *View) paint(t tone, text string) string {
	style, ok := v.style[t]
	if !ok || text == "" {
		return text
	}
	return style.Render(text)
}

// cell is one piece of a line: clean text and its tone.
type cell struct {
	text string
	tone tone
}

// columns formats rows in columns. gaps are the cells between one column and the next; the
// last gap applies to all further ones. The last cell of a row is not padded, and does not
// widen its column.
func (v *View) columns(indent string, gaps []int, rows [][]cell) []string {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i < len(row)-1 {
				widths[i] = max(widths[i], lipgloss.Width(c.text))
			}
		}
	}
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		lines = append(lines, v.line(indent, gaps, widths, row))
	}
	return lines
}

// squeeze cuts the cells of one column in their middle so that rows fit the terminal, with
// gap cells between columns and last cells for the last column. Each text keeps at least 16 cells.
func (v *View) squeeze(rows [][]cell, column, gap, last int) {
	const least = 16
	if v.width == 0 {
		return
	}
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, -gap)
			}
			widths[i] = max(widths[i], lipgloss.Width(c.text))
		}
	}
	total := -gap
	for i, w := range widths {
		if i > column && i == len(widths)-1 {
			w = min(w, last)
		}
		total += w + gap
	}
	for _, row := range rows {
		row[column].text = middle(row[column].text, max(widths[column]-max(total-v.width, 0), least))
	}
}

// line formats one row in columns of the given widths.
func (v *View) line(indent string, gaps, widths []int, row []cell) string {
	var b strings.Builder
	b.WriteString(indent)
	for i, c := range row {
		b.WriteString(v.paint(c.tone, c.text))
		if i < len(row)-1 {
			n := gaps[min(i, len(gaps)-1)]
			if i < len(widths) {
				n += max(widths[i]-lipgloss.Width(c.text), 0)
			}
			b.WriteString(strings.Repeat(" ", n))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// middle shortens text to n cells. It keeps the beginning and the end.
func middle(text string, n int) string {
	if lipgloss.Width(text) <= n {
		return text
	}
	r := []rune(text)
	head, tail := len(r)/2, len(r)-len(r)/2
	for lipgloss.Width(string(r[:head]))+1+lipgloss.Width(string(r[tail:])) > n && head > 0 {
		if len(r)-tail > head {
			tail++
		} else {
			head--
		}
	}
	return string(r[:head]) + "…" + string(r[tail:])
}

func lines(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}
