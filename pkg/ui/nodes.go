package ui

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// NodeGrid returns nodes as kubectl's table.
func NodeGrid(nodes []v1.Node, c Columns, now time.Time) Grid {
	header := []string{"NAME", "STATUS", "ROLES", "AGE", "VERSION"}
	if c.Wide {
		header = append(header, "INTERNAL-IP", "EXTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME")
	}
	g := grid(c, header...)
	for _, n := range nodes {
		text, t := nodeStatus(n)
		info := n.Status.NodeInfo
		row := []cell{{text: n.Name}, {text, t}, {text: roles(n)}, {text: ageOf(n.CreationTimestamp.Time, now)}, {text: info.KubeletVersion}}
		if c.Wide {
			for _, text := range []string{address(n, v1.NodeInternalIP), address(n, v1.NodeExternalIP), info.OSImage, info.KernelVersion, info.ContainerRuntimeVersion} {
				row = append(row, cell{text: text})
			}
		}
		g.add(c, n.Labels, row...)
	}
	return g
}

func nodeStatus(n v1.Node) (string, tone) {
	text, t := "Unknown", bad
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type != v1.NodeReady:
		case c.Status == v1.ConditionTrue:
			text, t = "Ready", good
		default:
			text, t = "NotReady", bad
		}
	}
	if n.Spec.Unschedulable {
		text, t = text+",SchedulingDisabled", change
	}
	return text, t
}

func roles(n v1.Node) string {
	var all []string
	for k, v := range n.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			all = append(all, role)
		} else if k == "kubernetes.io/role" && v != "" {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func address(n v1.Node, kind v1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return ""
}

// ageOf returns an age, as kubectl prints it.
func ageOf(t, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t))
}

// EventGrid returns events as kubectl's table.
func EventGrid(events []v1.Event, c Columns, now time.Time) Grid {
	header := []string{"NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT"}
	if c.Wide {
		header = append(header, "SUBOBJECT", "SOURCE")
	}
	header = append(header, "MESSAGE")
	if c.Wide {
		header = append(header, "FIRST SEEN", "COUNT", "NAME")
	}
	g := grid(c, header...)
	for _, e := range events {
		t := plain
		if e.Type == v1.EventTypeWarning {
			t = change
		}
		row := []cell{{text: e.Namespace}, {text: ageOf(EventTime(e), now)}, {e.Type, t}, {text: e.Reason}, {text: strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name}}
		if c.Wide {
			row = append(row, cell{text: e.InvolvedObject.FieldPath}, cell{text: eventSource(e)})
		}
		row = append(row, cell{text: strings.TrimSpace(e.Message)})
		if c.Wide {
			row = append(row, cell{text: ageOf(cmp.Or(e.FirstTimestamp.Time, EventTime(e)), now)}, cell{text: eventCount(e)}, cell{text: e.Name})
		}
		g.add(c, e.Labels, row...)
	}
	return g
}

// EventTime returns when an event was last seen.
func EventTime(e v1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	}
	return cmp.Or(e.EventTime.Time, e.FirstTimestamp.Time)
}

func eventSource(e v1.Event) string {
	from := []string{cmp.Or(e.Source.Component, e.ReportingController), cmp.Or(e.Source.Host, e.ReportingInstance)}
	return strings.Join(slices.DeleteFunc(from, func(s string) bool { return s == "" }), ", ")
}
