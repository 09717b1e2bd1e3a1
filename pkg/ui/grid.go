package ui

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/charmbracelet/lipgloss"
)

// Columns select the columns of a table.
type Columns struct {
	Wide      bool
	NoHeaders bool
	Labels    bool // the objects' labels, at the right
}

// Grid is a table without widths of columns.
type Grid struct {
	header []string
	rows   [][]cell
}

// add appends one row. Empty cells are "<none>", as in kubectl.
func (g *Grid) add(c Columns, labels map[string]string, row ...cell) {
	if c.Labels {
		row = append(row, cell{text: pairs(labels)})
	}
	for i := range row {
		row[i].text = cmp.Or(Clean(row[i].text), "<none>")
	}
	g.rows = append(g.rows, row[:len(g.header)])
}

// grid returns a table without rows.
func grid(c Columns, header ...string) Grid {
	if c.Labels {
		header = append(header, "LABELS")
	}
	return Grid{header: header}
}

// pairs returns labels as kubectl's tables show them.
func pairs(m map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, ",")
}

// Flow formats a table that arrives in pieces: the first piece sets the widths of the
// columns.
type Flow struct {
	view   *View
	cols   Columns
	widths []int
}

// Flow returns a Flow without rows.
func (v *View) Flow(c Columns) *Flow { return &Flow{view: v, cols: c} }

// Rows returns the next lines. The first call returns the header, too.
func (f *Flow) Rows(g Grid) string {
	if len(g.rows) == 0 {
		return ""
	}
	rows := g.rows
	if f.widths == nil {
		if !f.cols.NoHeaders {
			var head []cell
			for _, h := range g.header {
				head = append(head, cell{text: h})
			}
			rows = append([][]cell{head}, rows...)
		}
		f.widths = make([]int, len(g.header))
		for _, row := range rows {
			for i, c := range row[:len(row)-1] {
				f.widths[i] = max(f.widths[i], lipgloss.Width(c.text))
			}
		}
	}
	var all []string
	for _, row := range rows {
		all = append(all, f.view.line("", []int{3}, f.widths, row))
	}
	return lines(all)
}

// Grid returns a whole table, or "" without rows.
func (v *View) Grid(g Grid, c Columns) string { return v.Flow(c).Rows(g) }

// Lead inserts a first column, with the same value in all rows.
func (g *Grid) Lead(header, value string) {
	g.header = append([]string{header}, g.header...)
	for i := range g.rows {
		g.rows[i] = append([]cell{{text: Clean(value)}}, g.rows[i]...)
	}
}
