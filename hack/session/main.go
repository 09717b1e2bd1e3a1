// Command session draws a terminal's screen as an SVG. Standard input is the screen as
// tmux capture-pane -e writes it; the arguments are its columns and lines:
//
//	tmux capture-pane -p -e | go run ./hack/session 80 24 > docs/session.svg
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A cell is cellWidth by cellHeight, and the screen has a margin around it.
const cellWidth, cellHeight, margin = 8.4, 18, 14

// colors are those of the escapes 30 to 37 and 90 to 97, on a dark screen.
var colors = []string{
	"#484f58", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#d0d7de",
	"#8b949e", "#ffa198", "#a5f0ae", "#f2cc60", "#a5d6ff", "#e2c5ff", "#b3f0ff", "#ffffff",
}

var sgr = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// style is how text looks.
type style struct {
	color     string
	bold, dim bool
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: session COLUMNS LINES")
		os.Exit(2)
	}
	columns, err1 := strconv.Atoi(os.Args[1])
	lines, err2 := strconv.Atoi(os.Args[2])
	if err1 != nil || err2 != nil {
		fmt.Fprintln(os.Stderr, "session: COLUMNS and LINES must be numbers")
		os.Exit(2)
	}
	if err := draw(os.Stdout, os.Stdin, columns, lines); err != nil {
		fmt.Fprintln(os.Stderr, "session:", err)
		os.Exit(1)
	}
}

// draw writes the screen that it reads as an SVG.
func draw(to io.Writer, from io.Reader, columns, lines int) error {
	width, height := cellWidth*float64(columns)+2*margin, cellHeight*lines+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">`+"\n", width, height, width, height)
	b.WriteString("<title>A terminal session with nodectl</title>\n")
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>`+"\n")
	b.WriteString(`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" xml:space="preserve" style="white-space: pre" fill="#d0d7de">` + "\n")
	var now style
	scanner := bufio.NewScanner(from)
	for row := 0; row < lines && scanner.Scan(); row++ {
		column := 0
		line := scanner.Text()
		for line != "" {
			run := line
			at := sgr.FindStringSubmatchIndex(line)
			if at != nil {
				run = line[:at[0]]
			}
			text(&b, run, row, column, now)
			column += utf8.RuneCountInString(run)
			line = line[len(run):]
			if at != nil {
				now = now.after(sgr.FindStringSubmatch(line)[1])
				line = line[at[1]-at[0]:]
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	b.WriteString("</g>\n</svg>\n")
	_, err := io.WriteString(to, b.String())
	return err
}

// text writes one run of characters that look the same. Its length is given, so that
// columns stay below each other in any font.
func text(b *strings.Builder, run string, row, column int, s style) {
	trimmed := strings.TrimLeft(run, " ")
	column += len(run) - len(trimmed)
	trimmed = strings.TrimRight(trimmed, " ")
	if trimmed == "" {
		return
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs"`,
		margin+cellWidth*float64(column), margin+cellHeight*row+14, cellWidth*float64(utf8.RuneCountInString(trimmed)))
	if s.color != "" {
		fmt.Fprintf(b, ` fill="%s"`, s.color)
	}
	if s.bold {
		b.WriteString(` font-weight="bold"`)
	}
	if s.dim {
		b.WriteString(` opacity="0.65"`)
	}
	fmt.Fprintf(b, ">%s</text>\n", html.EscapeString(trimmed))
}

// after returns the style after an escape with these parameters.
func (s style) after(parameters string) style {
	codes := strings.Split(parameters, ";")
	for i := 0; i < len(codes); i++ {
		n, _ := strconv.Atoi(codes[i]) // an empty one is 0
		switch {
		case n == 0:
			s = style{}
		case n == 1:
			s.bold = true
		case n == 2:
			s.dim = true
		case n == 22:
			s.bold, s.dim = false, false
		case n >= 30 && n <= 37:
			s.color = colors[n-30]
		case n >= 90 && n <= 97:
			s.color = colors[n-90+8]
		case n == 39:
			s.color = ""
		case n == 38 && i+2 < len(codes) && codes[i+1] == "5":
			if c, _ := strconv.Atoi(codes[i+2]); c < len(colors) {
				s.color = colors[c]
			}
			i += 2
		}
	}
	return s
}
