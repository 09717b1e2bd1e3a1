package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// Update returns an update of watch as text: one line a pod, with the time first; diff adds the
// differences, field by field.
func (v *View) Update(u PodUpdate, diff bool) string {
	var out []string
	row := func(what, text string) {
		line := v.line("", []int{2}, []int{len("2006-01-02T15:04:05.000Z"), len(podconfig.RECONCILE), 4, 20}, []cell{
			{u.Time, faint}, {u.Op, signOf(u.Op).tone}, {text: Clean(u.Source)}, {text: Clean(what)}, {text: Clean(text)},
		})
		out = append(out, line)
	}
	for _, r := range Rows(u) {
		row(r.What, r.Text)
		if diff {
			out = append(out, v.Fields(r.Fields)...)
		}
	}
	return lines(out)
}

// Row is one line of an update: its subject, its text, and the changed fields of the pod. Callers
// must Clean the subject and the text for a terminal.
type Row struct {
	What, Text string
	Fields     []podspec.FieldChange
}

// Rows returns the lines of an update: its problem, or its pods. A SET, and an update without
// pods, begins with their number.
func Rows(u PodUpdate) []Row {
	switch podconfig.Op(u.Op) {
	case feed.ERROR, feed.REJECT, feed.CONFLICT, feed.DROPPED, feed.NOTICE:
		what, text := problemRow(u)
		return []Row{{What: what, Text: text}}
	}
	rows := make([]Row, 0, len(u.Pods)+1)
	if len(u.Pods) == 0 || u.Op == string(podconfig.SET) {
		rows = append(rows, Row{What: count(len(u.Pods), "pod"), Text: u.Location})
	}
	for _, p := range u.Pods {
		rows = append(rows, Row{What: p.Namespace + "/" + p.Name, Text: placeText(u.Op, p), Fields: p.Fields})
	}
	return rows
}

func placeText(op string, p UpdatePod) string {
	place := pod.Origin{File: p.Origin.File, Line: p.Origin.Line}
	switch podconfig.Op(op) {
	case podconfig.REMOVE:
		place.Line = 0
		return "gone from " + place.String()
	case podconfig.UPDATE:
		return place.String() + "  " + RestartText(p.Restart, false)
	}
	return place.String()
}

// sinceBefore returns "since TIME" if the problem began before the time of the update: the reader
// attached later. It returns "" if the message has the time.
func sinceBefore(u PodUpdate) string {
	began, err := time.Parse(time.RFC3339, u.Since)
	sent, wrong := time.Parse(time.RFC3339, u.Time)
	if err != nil || wrong != nil || sent.Sub(began) < 2*time.Second || strings.Contains(u.Problem.Msg, " since ") {
		return ""
	}
	return "since " + u.Since
}

func problemRow(u PodUpdate) (what, text string) {
	p := u.Problem
	text = message(p)
	switch podconfig.Op(u.Op) {
	case feed.DROPPED:
		return count(u.Dropped, "update"), "dropped: the reader was too slow; the whole set follows"
	case feed.CONFLICT:
		what = u.Pods[0].Namespace + "/" + u.Pods[0].Name
		text = fmt.Sprintf("%s %s", pod.Origin{File: p.File, Line: p.Line}.String(), text)
	default:
		what = p.Place()
	}
	if u.Ended {
		return what, "resolved: " + text
	}
	if began := sinceBefore(u); began != "" {
		text = began + ": " + text
	}
	if p.Hint != "" {
		text += " (" + strings.TrimSuffix(p.Hint, ".") + ")"
	}
	return what, text
}
