package tui

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// tone is the meaning of a colour. A word or a sign always has the same meaning.
type tone int

const (
	plain tone = iota
	good
	change
	bad
	faint
	strong
	tones // number of tones
)

// painter gives text its colours and cuts it to size.
type painter struct {
	style [tones]lipgloss.Style
}

func newPainter(color bool) painter {
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.Ascii)
	r.SetHasDarkBackground(true) // otherwise lipgloss queries the terminal
	if color {
		r.SetColorProfile(termenv.ANSI)
	}
	of := func(c string) lipgloss.Style { return r.NewStyle().Foreground(lipgloss.Color(c)) }
	return painter{[tones]lipgloss.Style{
		plain: r.NewStyle(), good: of("2"), change: of("3"), bad: of("1"), faint: r.NewStyle().Faint(true), strong: r.NewStyle().Bold(true),
	}}
}

// in colours text, which is clean and one line.
func (p painter) in(t tone, text string) string {
	if t == plain || text == "" {
		return text
	}
	return p.style[t].Render(text)
}

// View implements tea.Model. It returns as many lines as the window has, none wider than the window.
func (m *model) View() string {
	if m.width < 1 || m.height < 1 {
		return ""
	}
	lines := []string{m.head()}
	for a := range areas {
		n := m.lines(a)
		if n < 0 {
			continue
		}
		lines = append(lines, m.header(a))
		lines = append(lines, m.body(a, n)...)
	}
	lines = append(lines, m.foot())
	if len(lines) > m.height {
		lines = lines[:m.height]
	}
	return strings.Join(lines, "\n")
}

// lines returns the number of lines for an area's content, or -1 if there is no room for
// the area. Sources get the lines that they need, up to a quarter, and updates a third of
// the rest. A low window shows only the active area.
func (m *model) lines(a area) int {
	const frame, lowest = 2, 9 // title and help; the least height for more than one area
	if m.height < lowest {
		if a != m.active {
			return -1
		}
		return max(m.height-frame-1, 0)
	}
	room := m.height - frame - int(areas)
	sources := min(max(len(m.state.sourceLines), 1), max(room/4, 1))
	updates := max((room-sources)/3, 1)
	switch a {
	case sourcesArea:
		return sources
	case updatesArea:
		return updates
	}
	return room - sources - updates
}

// head returns the first line: the title, and the number of pods and problems.
func (m *model) head() string {
	failing, rejects := 0, 0
	for _, s := range m.state.sourceLines {
		rejects += s.rejects
		if s.failing {
			failing++
		}
	}
	sum := []piece{{text: count(len(m.state.order), "pod")}}
	if failing > 0 {
		sum = append(sum, piece{text: group(failing) + " not read", tone: bad})
	}
	if rejects > 0 {
		sum = append(sum, piece{text: count(rejects, "file") + " with errors", tone: bad})
	}
	if n := len(m.state.conflicts); n > 0 {
		sum = append(sum, piece{text: count(n, "conflict"), tone: change})
	}
	right := 0
	for _, p := range sum {
		right += lipgloss.Width(p.text) + 2
	}
	title := piece{text: "nodectl watch  " + m.title, tone: strong, width: max(m.width-right, 1)}
	return m.row(append([]piece{title}, sum...)...)
}

// header returns the line above an area. That of the active area is marked.
func (m *model) header(a area) string {
	n, top := m.count(a), m.top(a)
	var text string
	switch a {
	case sourcesArea:
		text = "SOURCES " + group(n)
	case podsArea:
		text = "PODS " + group(n)
		if m.filter != "" {
			text += " of " + group(len(m.state.order)) + " with \"" + m.filter + "\""
		}
	case updatesArea:
		text = "UPDATES"
	}
	if seen := m.lines(a); n > seen && seen > 0 {
		text += fmt.Sprintf("  %s-%s of %s", group(top+1), group(min(top+seen, n)), group(n))
	}
	mark, t := "-- ", faint
	if a == m.active {
		mark, t = ">> ", strong
	}
	text = cut(mark+text+" ", m.width)
	return m.paint.in(t, text+strings.Repeat("-", max(m.width-lipgloss.Width(text), 0)))
}

// body returns the n lines of an area.
func (m *model) body(a area, n int) []string {
	first := m.top(a)
	last := min(first+n, m.count(a))
	var out []string
	switch {
	case n < 1:
		return nil
	case first >= last:
		out = append(out, m.line(faint, "   "+m.emptyText(a)))
	case a == sourcesArea:
		out = m.sourceRows(m.state.sourceLines[first:last])
	case a == podsArea:
		out = m.podRows(m.matching()[first:last])
	case a == updatesArea:
		out = m.updateRows(m.state.updates[first:last])
	}
	for len(out) < n {
		out = append(out, "")
	}
	return out
}

// emptyText returns the text of an area without lines.
func (m *model) emptyText(a area) string {
	switch {
	case a == sourcesArea:
		return "no source has answered yet"
	case a == podsArea && m.filter != "":
		return "no pod name contains this text"
	case a == podsArea:
		return "no pods"
	}
	return "none yet"
}

// sourceRows shows for each source whether it can be read, its number of pods, and its
// problems.
func (m *model) sourceRows(all []*sourceLine) []string {
	rows, places, abouts := [][]piece{}, 0, 0
	for _, s := range all {
		status, t, about, reason := "ok", good, "", plain
		switch {
		case s.failing:
			status, t, reason = "FAILING", bad, bad
			if s.ready || s.restored {
				status = "STALE"
			}
			about = "since " + m.when(s.since, "Jan 02 15:04") + ": " + s.reason
		case s.restored:
			status, t, about = "RESTORED", change, "has not answered"
		case !s.ready:
			status, t, about = "SILENT", change, "has not answered"
		}
		if s.rejects > 0 {
			about, reason = strings.TrimSpace(count(s.rejects, "file")+" with errors  "+about), bad
		}
		places, abouts = max(places, lipgloss.Width(s.location)), max(abouts, lipgloss.Width(about))
		rows = append(rows, []piece{{status, t, 8, nil}, {s.source, plain, 5, nil}, {s.location, plain, 0, cutFront}, {count(s.pods, "pod"), plain, 10, nil}, {about, reason, 0, cutReason}})
	}
	room := m.width - (8 + 5 + 10 + 4*2)
	return m.rows(rows, 2, share(room, room*2/5, places, abouts))
}

// podRows shows for each pod its last change, the place of its manifest, and its problems.
func (m *model) podRows(all []*podLine) []string {
	rows, names, places, marked := [][]piece{}, 0, 0, 0
	column, cells := m.afterEvent()
	for _, p := range all {
		marks, source := m.state.marks(p), ""
		if p.from != nil {
			source = p.from.source
		}
		row := append(m.event(sign(p.op, marks), p.op, p.at, source), piece{p.name, plain, 0, nil}, piece{p.place, plain, 0, cutFront})
		want := lipgloss.Width(p.place)
		if marks != "" {
			marked = max(marked, len(marks)+2)
			want += len(marks) + 2
			row = append(row, piece{marks, bad, 0, nil})
		}
		names, places = max(names, lipgloss.Width(p.name)), max(places, want)
		rows = append(rows, row)
	}
	names = share(cells-2, min(cells*3/5, cells-2-1-marked), names, places)
	places = cells - 2 - names
	for _, row := range rows {
		if marks := column + 2; marks < len(row) { // the place leaves room for the marks
			room := places - 2 - len(row[marks].text)
			row[column+1].width = max(min(lipgloss.Width(row[column+1].text), room), 1)
		}
	}
	return m.rows(rows, column, names)
}

// updateRows shows the latest updates.
func (m *model) updateRows(all []updateLine) []string {
	rows, subjects, texts := [][]piece{}, 0, 0
	column, cells := m.afterEvent()
	for _, u := range all {
		subjects, texts = max(subjects, lipgloss.Width(u.subject)), max(texts, lipgloss.Width(u.text))
		rows = append(rows, append(m.event(sign(u.op, ""), u.op, u.at, u.source), piece{u.subject, plain, 0, nil}, piece{u.text, plain, 0, cutMiddle}))
	}
	return m.rows(rows, column, share(cells-2, cells/2, subjects, texts))
}

// event returns the first pieces of a row with an update: sign, operation, time and
// source. A narrow window has no room for time and source.
func (m *model) event(sign, op string, at time.Time, source string) []piece {
	row := []piece{{sign, toneOf(op), 1, nil}, {op, toneOf(op), 9, nil}}
	if m.narrow() {
		return row
	}
	return append(row, piece{m.clock(at), faint, 8, nil}, piece{source, plain, 5, nil})
}

func (m *model) narrow() bool { return m.width < 60 }

// afterEvent returns the number of pieces of event, and the number of cells to the right of them.
func (m *model) afterEvent() (pieces, cells int) {
	if m.narrow() {
		return 2, m.width - (1 + 2 + 9 + 2)
	}
	return 4, m.width - (1 + 2 + 9 + 2 + 8 + 2 + 5 + 2)
}

// rows formats rows, in which one column has this width.
func (m *model) rows(rows [][]piece, column, width int) []string {
	out := make([]string, 0, len(rows))
	for _, row := range rows {
		row[column].width = max(width, 1)
		out = append(out, m.row(row...))
	}
	return out
}

// line returns a row with one text.
func (m *model) line(t tone, text string) string { return m.row(piece{text: text, tone: t}) }

// foot returns the last line: help, the filter that the user types, or the end of the stream.
func (m *model) foot() string {
	switch {
	case m.typing:
		return m.line(strong, "filter pods: "+m.filter+"_   (Enter: apply, Esc: clear)")
	case m.help:
		return m.line(strong, "arrows jk PgUp PgDn g G: scroll, Tab: next area, /: filter, ?: help, q Esc Ctrl-C: quit")
	case m.ended:
		return m.line(strong, "The updates have ended. Press q to quit, ? for help.")
	}
	return m.line(faint, "q quit   Tab next area   / filter pods   ? help")
}

// clock returns a time of day, in eight cells at most.
func (m *model) clock(t time.Time) string { return m.when(t, "Jan 02") }

// when returns a time of day. For a time on another day than the newest update, it uses the layout
// other.
func (m *model) when(t time.Time, other string) string {
	if t.IsZero() {
		return "-"
	}
	t = t.In(m.zone)
	if n := len(m.state.updates); n > 0 {
		y, month, d := m.state.updates[n-1].at.In(m.zone).Date()
		if ty, tm, td := t.Date(); ty != y || tm != month || td != d {
			return t.Format(other)
		}
	}
	return t.Format(time.TimeOnly)
}

// sign returns one character with the meaning of an operation's tone.
func sign(op, marks string) string {
	switch {
	case marks != "":
		return "!"
	case op == string(podconfig.ADD), op == string(podconfig.SET), op == string(podconfig.RESTORE):
		return "+"
	case op == string(podconfig.UPDATE):
		return "~"
	case op == string(podconfig.REMOVE), op == string(podconfig.DELETE):
		return "-"
	case op == string(podconfig.RECONCILE):
		return "="
	case op == string(feed.NOTICE):
		return "i"
	}
	return "!"
}

func toneOf(op string) tone {
	switch sign(op, "") {
	case "+":
		return good
	case "~":
		return change
	case "=", "i":
		return faint
	}
	return bad
}
