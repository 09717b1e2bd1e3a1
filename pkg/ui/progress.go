package ui

import (
	"fmt"
	"strings"
	"time"
)

// Progress returns one line for each pod: its name, its state, and the time since the start.
func (v *View) Progress(rows [][2]string, took time.Duration) string {
	var table [][]cell
	for _, r := range rows {
		table = append(table, []cell{{text: Clean(r[0])}, {text: Clean(r[1])}, {text: fmt.Sprintf("%.1fs", took.Seconds()), tone: faint}})
	}
	v.squeeze(table, 1, 3, len("9999.9s"))
	return lines(v.columns("", []int{3}, table))
}

// Redraw returns the escape sequences that move the cursor up n lines and clear them. It is
// for terminals only.
func (v *View) Redraw(n int) string {
	return strings.Repeat("\x1b[1A\x1b[2K", n)
}
