package ui

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// Pods returns pods as kubectl's table; wide adds address, node, source and
// readiness gates.
func (v *View) Pods(pods []v1.Pod, wide bool, now time.Time) string {
	header := []cell{{text: "NAMESPACE"}, {text: "NAME"}, {text: "READY"}, {text: "STATUS"}, {text: "RESTARTS"}, {text: "AGE"}}
	if wide {
		header = append(header, cell{text: "IP"}, cell{text: "NODE"}, cell{text: "SOURCE"}, cell{text: "READINESS GATES"})
	}
	rows := [][]cell{header}
	for _, p := range pods {
		l := status.Summary(p)
		row := []cell{
			{text: p.Namespace}, {text: p.Name},
			{text: l.ReadyText()},
			{l.Status, statusTone(l)},
			{text: restarts(l, now)},
			{text: age(p, now)},
		}
		if wide {
			row = append(row, cell{text: p.Status.PodIP}, cell{text: p.Spec.NodeName}, cell{text: p.Annotations[pod.AnnotationConfigSource]}, cell{text: l.GatesText()})
		}
		for i := range row {
			if row[i].text = Clean(row[i].text); row[i].text == "" {
				row[i].text = "<none>"
			}
		}
		rows = append(rows, row)
	}
	if len(pods) == 0 {
		return ""
	}
	return lines(v.columns("", []int{3}, rows))
}

func statusTone(l status.Line) tone {
	step, init := strings.CutPrefix(l.Status, "Init:")
	switch l.Status {
	case string(v1.PodRunning):
		if l.Ready == l.Containers {
			return good
		}
		return change
	case "Completed", string(v1.PodSucceeded):
		return faint
	case string(v1.PodPending), "ContainerCreating", "PodInitializing", "Terminating", "NotReady", "RestartingAllContainers":
		return change
	}
	if init && strings.Contains(step, "/") { // how many are done
		return change
	}
	return bad
}

// restarts returns "3 (5m ago)".
func restarts(l status.Line, now time.Time) string {
	text := fmt.Sprint(l.Restarts)
	if l.Restarts > 0 && !l.LastRestart.IsZero() {
		text += " (" + duration.HumanDuration(now.Sub(l.LastRestart)) + " ago)"
	}
	return text
}

func age(p v1.Pod, now time.Time) string {
	t := p.CreationTimestamp
	if p.Status.StartTime != nil {
		t = *p.Status.StartTime
	}
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// PodNames returns pod/NAME, one a line.
func PodNames(pods []v1.Pod) string {
	var all []string
	for _, p := range pods {
		all = append(all, "pod/"+Clean(p.Name))
	}
	return lines(all)
}
