package ui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/lipgloss"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// signOf returns the sign and tone of an operation. The sign alone shows the operation, without
// colour.
func signOf(op string) cell {
	switch podconfig.Op(op) {
	case podconfig.ADD, podconfig.SET, podconfig.RESTORE:
		return cell{"+", good}
	case podconfig.UPDATE:
		return cell{"~", change}
	case podconfig.REMOVE, podconfig.DELETE:
		return cell{"-", bad}
	case podconfig.RECONCILE:
		return cell{"=", faint}
	}
	return cell{"!", bad}
}

// Plan returns a merge plan as text: sources, changes field by field, rejections, conflicts, and
// the sum. wide adds UIDs, and shows the locations of sources in full.
func (v *View) Plan(p MergePlan, wide bool, now time.Time) string {
	var sources, rows [][]cell
	for _, s := range p.Sources {
		sources = append(sources, sourceRow(s, now))
	}
	if !wide {
		v.squeeze(sources, 2, 2, 40)
	}
	below := map[int][]string{} // lines under a row
	for _, c := range p.Changes {
		rows = append(rows, changeRow(c, wide))
		below[len(rows)-1] = v.Fields(c.Fields)
	}
	for _, r := range p.Rejected {
		rows = append(rows, flagged("REJECT", Clean(r.Place()), "", Clean(message(r))))
		if r.Hint != "" {
			below[len(rows)-1] = []string{"        hint: " + Clean(r.Hint)}
		}
	}
	for _, c := range p.Conflicts {
		where := pod.Origin{File: c.Loser.File, Line: c.Loser.Line, Location: c.Loser.Location}
		winner := pod.Origin{File: c.Winner.File, Line: c.Winner.Line, Location: c.Winner.Location}
		row := flagged("CONFLICT", Clean(c.Pod.Namespace+"/"+c.Pod.Name), Clean(c.Loser.Source), Clean(where.String()))
		rows = append(rows, append(row, cell{text: Clean("loses to " + winner.String())}))
	}
	out := v.columns("", []int{2, 2, 1, 3}, sources)
	for i, line := range v.columns("  ", []int{2, 3, 2}, aligned(rows)) {
		out = append(append(out, line), below[i]...)
	}
	for _, r := range p.Rollouts {
		out = append(out, v.rollout(r)...)
	}
	return lines(append(out, v.paint(strong, "Plan: "+p.Summary.String())))
}

// rollout returns the steps of a workload in order, one a line, below its name.
func (v *View) rollout(r PlanRollout) []string {
	out := []string{"  rollout " + Clean(strings.ToLower(r.Kind)+" "+r.Namespace+"/"+r.Name)}
	switch {
	case len(r.Together) > 0:
		out = append(out, "    release "+Clean(r.Release+", with "+strings.Join(r.Together, ", "))+": if a new version of one fails, all are rolled back")
	case r.Release != "":
		out = append(out, "    release "+Clean(r.Release))
	}
	var rows [][]cell
	for i, s := range r.Steps {
		rows = append(rows, []cell{{text: fmt.Sprintf("%d.", i+1)}, {text: s.Action}, {text: Clean(s.Pod)}, {text: Clean(s.Reason), tone: faint}})
	}
	return append(out, v.columns("    ", []int{1, 1, 2}, rows)...)
}

// aligned joins the sign and the operation of each row, and pads operations to the width of the
// longest one.
func aligned(rows [][]cell) [][]cell {
	for i, r := range rows {
		r[1].text = fmt.Sprintf("%s %-*s", r[0].text, len(podconfig.RECONCILE), r[1].text)
		r[1].tone = r[0].tone
		rows[i] = r[1:]
	}
	return rows
}

func sourceRow(s PlanSource, now time.Time) []cell {
	row := []cell{{text: "source", tone: faint}, {text: Clean(s.Source)}, {text: Clean(s.Location)}, {text: count(s.Pods, "pod")}}
	switch {
	case s.Stale:
		row = append(row, cell{"stale" + since(s.Since, now) + ": " + Clean(s.Error), bad})
	case s.Error != "":
		row = append(row, cell{"not read: " + Clean(s.Error), bad})
	}
	return row
}

func changeRow(c PlanChange, wide bool) []cell {
	sign := signOf(c.Op)
	place := pod.Origin{File: c.Origin.File, Line: c.Origin.Line}
	if podconfig.Op(c.Op) == podconfig.REMOVE {
		place.Line = 0 // the manifest is gone
	}
	row := []cell{sign, {text: c.Op}, {text: Clean(c.Pod.Namespace + "/" + c.Pod.Name)}, {text: Clean(c.Source)}, {text: Clean(place.String())}}
	if wide {
		row = append(row, cell{text: "uid " + Clean(c.Pod.UID)})
	}
	return append(row, cell{text: Clean(consequence(c))})
}

// consequence returns the effect of a change on running pods.
func consequence(c PlanChange) string {
	switch podconfig.Op(c.Op) {
	case podconfig.UPDATE:
		return RestartText(c.Restart, len(c.Fields) == 0)
	case podconfig.REMOVE, podconfig.DELETE:
		text := "grace " + (time.Duration(c.Grace) * time.Second).String()
		if c.Reason != "" {
			text += "; " + c.Reason
		}
		return text
	case podconfig.RECONCILE:
		return "status only"
	}
	return ""
}

// RestartText returns which containers restart and which are resized. It includes the reason if the
// whole pod restarts, or if why is set.
func RestartText(r PlanRestart, why bool) string {
	text := "restart: none"
	switch {
	case r.Pod:
		text, why = "restart: pod", true
	case len(r.Containers) == 1:
		text = "restart: container " + r.Containers[0]
	case len(r.Containers) > 1:
		text = "restart: containers " + strings.Join(r.Containers, ", ")
	}
	if why && r.Reason != "" {
		text += " (" + r.Reason + ")"
	}
	var resized []string
	for _, c := range r.Resize {
		var names []string
		for _, n := range c.Resources {
			names = append(names, string(n))
		}
		resized = append(resized, fmt.Sprintf("container %s (%s)", c.Container, strings.Join(names, ", ")))
	}
	switch resize := "resize: " + strings.Join(resized, ", "); {
	case len(resized) == 0:
		return text
	case text == "restart: none":
		return resize
	default:
		return text + "; " + resize
	}
}

func flagged(op, subject, source, text string) []cell {
	row := []cell{{"!", bad}, {text: op}, {text: subject}}
	if source != "" {
		row = append(row, cell{text: source})
	}
	return append(row, cell{text: text})
}

// message returns a problem without its place. It does not repeat a field that the message
// names.
func message(p pod.Problem) string {
	p.File, p.Line, p.Column = "", 0, 0
	if field := p.Path[strings.LastIndex(p.Path, ".")+1:]; strings.Contains(p.Msg, strconv.Quote(field)) {
		p.Path = ""
	}
	return p.Error()
}

// Fields returns field differences, one line each, indented under the line of
// their pod.
func (v *View) Fields(fields []podspec.FieldChange) []string {
	const indent, gap = 8, 4
	path := 0
	for _, f := range fields {
		path = max(path, lipgloss.Width(Clean(f.Path)))
	}
	side := 0 // whole values
	if v.width > 0 {
		side = max((v.width-indent-path-gap-len(arrow))/2, 16)
	}
	var rows [][]cell
	for _, f := range fields {
		rows = append(rows, []cell{{text: Clean(f.Path)}, {text: fromTo(f, side)}})
	}
	return v.columns(strings.Repeat(" ", indent), []int{gap}, rows)
}

const arrow = " -> "

// fromTo returns both values, each shortened to side cells. With a side of 0 they are whole. A
// missing value is "(none)".
func fromTo(f podspec.FieldChange, side int) string {
	const end = ")"
	for _, head := range []string{"(redacted, ", "("} {
		if sized(f.Old, head) && sized(f.New, head) {
			return strings.TrimSuffix(f.Old, end) + arrow + strings.TrimPrefix(f.New, head)
		}
	}
	show := func(s string) string {
		switch s = Clean(s); {
		case s == "":
			return "(none)"
		case side > 0:
			return middle(s, side)
		}
		return s
	}
	return show(f.Old) + arrow + show(f.New)
}

// sized reports whether text is head with a size, such as "(redacted, 12 bytes)".
func sized(text, head string) bool {
	rest, ok := strings.CutPrefix(text, head)
	number, bytes := strings.CutSuffix(rest, " bytes)")
	_, err := strconv.Atoi(number)
	return ok && bytes && err == nil
}

// String returns the numbers on one line, without zeros.
func (s PlanSummary) String() string {
	var parts []string
	add := func(n int, text string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, text))
		}
	}
	restarts := " (no restart)"
	if s.Restart > 0 {
		restarts = " (" + count(s.Restart, "restart") + ")"
	}
	add(s.Add, "to add")
	add(s.Update, "to update"+restarts)
	add(s.Delete, "to delete")
	add(s.Remove, "to remove")
	add(s.Reconcile, "to reconcile")
	if len(parts) == 0 {
		parts = append(parts, "nothing to change")
	}
	add(s.Unchanged, "unchanged")
	if s.Reject > 0 {
		parts = append(parts, count(s.Reject, "error"))
	}
	if s.Conflict > 0 {
		parts = append(parts, count(s.Conflict, "conflict"))
	}
	return strings.Join(parts, ", ")
}

// Names returns pod/NAME of every pod that would change, one a line.
func (p MergePlan) Names() string {
	var all []string
	for _, c := range p.Changes {
		all = append(all, "pod/"+Clean(c.Pod.Name))
	}
	return lines(all)
}

func count(n int, noun string) string { return Count(n, noun) }

// Count returns "1 pod", "2 pods".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
