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

// PodGrid returns pods as kubectl's table; wide adds address, node, source and
// readiness gates.
func PodGrid(pods []v1.Pod, c Columns, now time.Time) Grid { return PullingPodGrid(pods, nil, c, now) }

// PullingPodGrid is PodGrid with the progress of image pulls as the status of the pods that wait
// for them.
func PullingPodGrid(pods []v1.Pod, pulls []Pull, c Columns, now time.Time) Grid {
	header := []string{"NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"}
	if c.Wide {
		header = append(header, "IP", "NODE", "SOURCE", "READINESS GATES")
	}
	g := grid(c, header...)
	for _, p := range pods {
		l := status.Summary(p)
		text, color := l.Status, statusTone(l)
		if pulling := pullStatus(&p, l.Status, pulls, now); pulling != "" {
			text, color = pulling, change
		}
		row := []cell{
			{text: p.Namespace}, {text: p.Name},
			{text: l.ReadyText()},
			{text, color},
			{text: restarts(l, now)},
			{text: age(p, now)},
		}
		if c.Wide {
			row = append(row, cell{text: p.Status.PodIP}, cell{text: p.Spec.NodeName}, cell{text: pod.SourceOf(&p)}, cell{text: l.GatesText()})
		}
		g.add(c, p.Labels, row...)
	}
	return g
}

// Pods returns the table of get pods, or "" without pods.
func (v *View) Pods(pods []v1.Pod, wide bool, now time.Time) string {
	c := Columns{Wide: wide}
	return v.Grid(PodGrid(pods, c, now), c)
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
	if init && strings.Contains(step, "/") { // "Init:1/2": one of two has completed
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
