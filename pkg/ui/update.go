package ui

import (
	"fmt"
	"strings"

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Update returns an update of watch as text: one line a pod, with the time
// first; diff adds what differs, field by field.
func (v *View) Update(u PodUpdate, diff bool) string {
	var out []string
	row := func(what, text string) {
		line := v.line("", []int{2}, []int{len("2006-01-02T15:04:05.000Z"), len(podconfig.RECONCILE), 4, 20}, []cell{
			{u.Time, faint}, {u.Op, signOf(u.Op).tone}, {text: Clean(u.Source)}, {text: Clean(what)}, {text: Clean(text)},
		})
		out = append(out, line)
	}
	if op := podconfig.Op(u.Op); op == engine.ERROR || op == engine.REJECT || op == engine.CONFLICT || op == engine.DROPPED {
		row(problemRow(u))
		return lines(out)
	}
	if len(u.Pods) == 0 || u.Op == string(podconfig.SET) {
		row(count(len(u.Pods), "pod"), u.Location)
	}
	for _, p := range u.Pods {
		row(p.Namespace+"/"+p.Name, placeText(u.Op, p))
		if diff {
			out = append(out, v.Fields(p.Fields)...)
		}
	}
	return lines(out)
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

func problemRow(u PodUpdate) (what, text string) {
	p := u.Problem
	text = message(p)
	switch podconfig.Op(u.Op) {
	case engine.DROPPED:
		return count(u.Dropped, "update"), "lost to a slow reader; the whole set follows"
	case engine.CONFLICT:
		what = u.Pods[0].Namespace + "/" + u.Pods[0].Name
		text = fmt.Sprintf("%s %s", pod.Origin{File: p.File, Line: p.Line}.String(), text)
	default:
		what = p.Place()
	}
	if u.Ended {
		return what, "over: " + text
	}
	if p.Hint != "" {
		text += " (" + strings.TrimSuffix(p.Hint, ".") + ")"
	}
	return what, text
}
