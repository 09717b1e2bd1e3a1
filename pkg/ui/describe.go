package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ObjectEvents has the events of the described object. Available is false if they could not be read.
// Requested is false if the user did not ask for them.
type ObjectEvents struct {
	Events               []v1.Event
	Available, Requested bool
}

// sheet is the output of describe: names and values in columns, each level indented by two cells.
// Every value is clean.
type sheet struct {
	b      strings.Builder
	w      *tabwriter.Writer
	indent int // levels that are added to each row
}

func newSheet() *sheet {
	s := &sheet{}
	s.w = tabwriter.NewWriter(&s.b, 0, 8, 2, ' ', 0)
	return s
}

// row writes cells at a level.
func (s *sheet) row(level int, cells ...string) {
	for i, c := range cells {
		cells[i] = Clean(c)
	}
	text := strings.TrimRight(strings.Join(cells, "\t"), "\t")
	fmt.Fprintln(s.w, strings.Repeat("  ", level+s.indent)+text)
}

// nonEmpty writes a row if there is a value.
func (s *sheet) nonEmpty(level int, name, value string) {
	if value != "" {
		s.row(level, name, value)
	}
}

// list writes values in rows under each other, or "<none>".
func (s *sheet) list(level int, name string, values []string) {
	if len(values) == 0 {
		values = []string{"<none>"}
	}
	for i, v := range values {
		if i > 0 {
			name = ""
		}
		// An empty first cell keeps the column.
		fmt.Fprintln(s.w, strings.Repeat("  ", level+s.indent)+name+"\t"+Clean(v))
	}
}

func (s *sheet) String() string {
	_ = s.w.Flush() // into memory
	return trimLines(s.b.String())
}

// fields returns the entries of a map, sorted, with the text between after each key.
func fields(m map[string]string, between string) (all []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+between+m[k])
	}
	return all
}

// annotations returns annotations without the last applied configuration, as kubectl does.
func annotations(m map[string]string) []string {
	m = maps.Clone(m)
	delete(m, v1.LastAppliedConfigAnnotation)
	return fields(m, ": ")
}

func resources(m v1.ResourceList) (all [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		q := m[name]
		all = append(all, [2]string{string(name) + ":", q.String()})
	}
	return all
}

func longTime(t metav1.Time) string { return t.Format(time.RFC1123Z) }

// events writes the events, as kubectl does.
func (s *sheet) events(h ObjectEvents, now time.Time) {
	switch {
	case !h.Requested:
		return
	case !h.Available:
		s.row(0, "Events:", "<unknown>")
		return
	case len(h.Events) == 0:
		s.row(0, "Events:", "<none>")
		return
	}
	s.row(0, "Events:")
	s.row(1, "Type", "Reason", "Age", "From", "Message")
	s.row(1, "----", "------", "----", "----", "-------")
	for _, e := range h.Events {
		age := ageOf(EventTime(e), now)
		if n := eventCount(e); n != "1" {
			first := e.FirstTimestamp.Time
			if first.IsZero() {
				first = e.EventTime.Time
			}
			age = fmt.Sprintf("%s (x%s over %s)", age, n, ageOf(first, now))
		}
		s.row(1, e.Type, e.Reason, age, cmp.Or(e.Source.Component, e.ReportingController), strings.TrimSpace(e.Message))
	}
}

// DescribeNode returns a node with its pods, as kubectl describe does.
func DescribeNode(n *v1.Node, pods []v1.Pod, h ObjectEvents, now time.Time) string {
	s := newSheet()
	s.row(0, "Name:", n.Name)
	s.list(0, "Roles:", slices.DeleteFunc([]string{roles(*n)}, func(r string) bool { return r == "" }))
	s.list(0, "Labels:", fields(n.Labels, "="))
	s.list(0, "Annotations:", annotations(n.Annotations))
	s.row(0, "CreationTimestamp:", longTime(n.CreationTimestamp))
	var taints []string
	for _, t := range n.Spec.Taints {
		taints = append(taints, t.ToString())
	}
	s.list(0, "Taints:", taints)
	s.row(0, "Unschedulable:", fmt.Sprint(n.Spec.Unschedulable))
	if len(n.Status.Conditions) > 0 {
		s.row(0, "Conditions:")
		s.row(1, "Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message")
		s.row(1, "----", "------", "-----------------", "------------------", "------", "-------")
		for _, c := range n.Status.Conditions {
			s.row(1, string(c.Type), string(c.Status), longTime(c.LastHeartbeatTime), longTime(c.LastTransitionTime), c.Reason, c.Message)
		}
	}
	s.row(0, "Addresses:")
	for _, a := range n.Status.Addresses {
		s.row(1, string(a.Type)+":", a.Address)
	}
	for _, part := range []struct {
		name string
		list v1.ResourceList
	}{{"Capacity:", n.Status.Capacity}, {"Allocatable:", n.Status.Allocatable}} {
		s.row(0, part.name)
		for _, r := range resources(part.list) {
			s.row(1, r[0], r[1])
		}
	}
	i := n.Status.NodeInfo
	s.row(0, "System Info:")
	for _, r := range [][2]string{
		{"Machine ID:", i.MachineID}, {"System UUID:", i.SystemUUID}, {"Boot ID:", i.BootID}, {"Kernel Version:", i.KernelVersion}, {"OS Image:", i.OSImage},
		{"Operating System:", i.OperatingSystem}, {"Architecture:", i.Architecture}, {"Container Runtime Version:", i.ContainerRuntimeVersion}, {"Kubelet Version:", i.KubeletVersion},
	} {
		s.row(1, r[0], r[1])
	}
	s.nonEmpty(0, "PodCIDR:", n.Spec.PodCIDR)
	s.nonEmpty(0, "ProviderID:", n.Spec.ProviderID)
	s.podsOf(n, pods, now)
	s.events(h, now)
	return s.String()
}

// podsOf writes the pods of a node, and the resources that they request.
func (s *sheet) podsOf(n *v1.Node, pods []v1.Pod, now time.Time) {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p v1.Pod) bool { return pod.IsPhaseTerminal(p.Status.Phase) })
	s.row(0, "Non-terminated Pods:", fmt.Sprintf("(%d in total)", len(pods)))
	s.row(1, "Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "Age")
	s.row(1, "---------", "----", "------------", "----------", "---------------", "-------------", "---")
	sumRequests, sumLimits := v1.ResourceList{}, v1.ResourceList{}
	of := func(r v1.ResourceList, name v1.ResourceName) string {
		q, has := r[name], n.Status.Allocatable[name]
		if has.IsZero() {
			return q.String()
		}
		return fmt.Sprintf("%s (%d%%)", q.String(), int64(float64(q.MilliValue())*100/float64(has.MilliValue())))
	}
	for i := range pods {
		requests, limits := requestsAndLimits(&pods[i])
		s.row(1, pods[i].Namespace, pods[i].Name, of(requests, v1.ResourceCPU), of(limits, v1.ResourceCPU), of(requests, v1.ResourceMemory), of(limits, v1.ResourceMemory), age(pods[i], now))
		addTo(sumRequests, requests)
		addTo(sumLimits, limits)
	}
	s.row(0, "Allocated resources:")
	s.row(1, "(Total limits may be over 100 percent, i.e., overcommitted.)")
	s.row(1, "Resource", "Requests", "Limits")
	s.row(1, "--------", "--------", "------")
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		s.row(1, string(name), of(sumRequests, name), of(sumLimits, name))
	}
}

// requestsAndLimits returns the requests and limits of a pod: the larger one of two amounts. One is
// the sum of containers and sidecars, the other the largest init container with the sidecars before
// it. The requests include the overhead.
func requestsAndLimits(p *v1.Pod) (requests, limits v1.ResourceList) {
	requests, limits = v1.ResourceList{}, v1.ResourceList{}
	sidecars, mostRequests, mostLimits := [2]v1.ResourceList{{}, {}}, v1.ResourceList{}, v1.ResourceList{}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			addTo(sidecars[0], c.Resources.Requests)
			addTo(sidecars[1], c.Resources.Limits)
			continue
		}
		r, l := maps.Clone(sidecars[0]), maps.Clone(sidecars[1])
		addTo(r, c.Resources.Requests)
		addTo(l, c.Resources.Limits)
		raiseTo(mostRequests, r)
		raiseTo(mostLimits, l)
	}
	for _, c := range p.Spec.Containers {
		addTo(requests, c.Resources.Requests)
		addTo(limits, c.Resources.Limits)
	}
	addTo(requests, sidecars[0])
	addTo(limits, sidecars[1])
	raiseTo(requests, mostRequests)
	raiseTo(limits, mostLimits)
	addTo(requests, p.Spec.Overhead)
	return requests, limits
}

func addTo(sum, more v1.ResourceList) {
	for name, q := range more {
		had := sum[name].DeepCopy()
		had.Add(q)
		sum[name] = had
	}
}

func raiseTo(least, other v1.ResourceList) {
	for name, q := range other {
		if had, ok := least[name]; !ok || had.Cmp(q) < 0 {
			least[name] = q
		}
	}
}

// howLong returns the time since t, formatted as an age.
func howLong(t metav1.Time, now time.Time) string { return duration.HumanDuration(now.Sub(t.Time)) }
