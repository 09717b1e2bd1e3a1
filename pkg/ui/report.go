package ui

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
)

// RunReport is the answer of runonce.
type RunReport struct {
	Document
	Summary   RunSummary    `json:"summary"`
	Pods      []RunPod      `json:"pods"` // without the pods of workloads
	Workloads []RunWorkload `json:"workloads"`
	NotServed []RunService  `json:"notServed"`
}

// RunService is a Service of the manifests, which runonce does not serve.
type RunService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// SetNotServed sets the Services that the run did not serve.
func (r *RunReport) SetNotServed(services []pod.Key) {
	for _, key := range services {
		r.NotServed = append(r.NotServed, RunService{key.Namespace, key.Name})
	}
}

// RunSummary counts pods and workloads by their results.
type RunSummary struct {
	OK        bool `json:"ok"` // every pod and workload reached the goal
	Pods      int  `json:"pods"`
	Workloads int  `json:"workloads"`
	Failed    int  `json:"failed"` // includes rejected ones
	Timeout   int  `json:"timeout"`
}

// RunWorkload is the result of one workload.
type RunWorkload struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Result    string `json:"result"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
}

// RunPod is the result of one pod.
type RunPod struct {
	PodRef
	Phase      string         `json:"phase"`
	Result     string         `json:"result"`
	Reason     string         `json:"reason"`
	Message    string         `json:"message"`
	Containers []RunContainer `json:"containers"`
}

// RunContainer is one container of a pod. Init containers come first.
type RunContainer struct {
	Name       string `json:"name"`
	State      string `json:"state"` // waiting, running, terminated
	ExitCode   int32  `json:"exitCode"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
	Restarts   int32  `json:"restarts"`
	StartedAt  string `json:"startedAt"` // RFC 3339; "" if it has not started
	FinishedAt string `json:"finishedAt"`
}

// NewRunReport puts a report into its document.
func NewRunReport(r feed.Report) RunReport {
	d := RunReport{Document: Document{APIVersion, "RunReport"}, Pods: []RunPod{}, Workloads: []RunWorkload{}, NotServed: []RunService{}}
	for _, p := range r.Pods {
		d.Summary.count(p.Result)
		rp := RunPod{PodRef: PodRef{p.Namespace, p.Name, p.UID}, Phase: p.Phase, Result: p.Result, Reason: p.Reason, Message: p.Message, Containers: []RunContainer{}}
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, c := range list {
				rp.Containers = append(rp.Containers, runContainer(c))
			}
		}
		d.Pods = append(d.Pods, rp)
	}
	for _, w := range r.Workloads {
		d.Summary.count(w.Result)
		d.Workloads = append(d.Workloads, RunWorkload{w.Kind, w.Namespace, w.Name, w.Result, w.Reason, w.Message})
	}
	d.Summary.Pods, d.Summary.Workloads = len(d.Pods), len(d.Workloads)
	d.Summary.OK = d.Summary.Failed == 0 && d.Summary.Timeout == 0
	return d
}

func (s *RunSummary) count(result string) {
	switch result {
	case feed.ResultFailed, feed.ResultRejected:
		s.Failed++
	case feed.ResultTimeout:
		s.Timeout++
	}
}

func runContainer(c v1.ContainerStatus) RunContainer {
	out := RunContainer{Name: c.Name, State: "waiting", Restarts: c.RestartCount}
	switch {
	case c.State.Running != nil:
		out.State, out.StartedAt = "running", rfc3339(c.State.Running.StartedAt)
	case c.State.Terminated != nil:
		t := c.State.Terminated
		out.State, out.ExitCode, out.Reason, out.Message = "terminated", t.ExitCode, t.Reason, t.Message
		out.StartedAt, out.FinishedAt = rfc3339(t.StartedAt), rfc3339(t.FinishedAt)
	case c.State.Waiting != nil:
		out.Reason, out.Message = c.State.Waiting.Reason, c.State.Waiting.Message
	}
	return out
}

func rfc3339(t metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Report returns a run's report as a table.
func (v *View) Report(r RunReport) string {
	if len(r.Pods)+len(r.Workloads) == 0 {
		return ""
	}
	rows := [][]cell{{{text: "NAMESPACE"}, {text: "NAME"}, {text: "PHASE"}, {text: "RESULT"}, {text: "RESTARTS"}, {text: "REASON"}}}
	for _, p := range r.Pods {
		var restarts int32
		for _, c := range p.Containers {
			restarts += c.Restarts
		}
		rows = append(rows, reportRow(p.Namespace, p.Name, p.Phase, p.Result, fmt.Sprint(restarts), p.Reason, p.Message))
	}
	for _, w := range r.Workloads {
		rows = append(rows, reportRow(w.Namespace, strings.ToLower(w.Kind)+"/"+w.Name, "", w.Result, "", w.Reason, w.Message))
	}
	return lines(v.columns("", []int{3}, rows))
}

// reportRow returns a row of the table; an empty cell is a dash.
func reportRow(namespace, name, phase, result, restarts, reason, message string) []cell {
	if reason != "" && message != "" {
		reason += ": "
	}
	row := []cell{{text: namespace}, {text: name}, {text: phase}, {result, resultTone(result)}, {text: restarts}, {text: reason + message}}
	for i := range row {
		if row[i].text = Clean(row[i].text); row[i].text == "" {
			row[i].text = "-"
		}
	}
	return row
}

func resultTone(result string) tone {
	switch result {
	case feed.ResultFailed, feed.ResultRejected, feed.ResultTimeout:
		return bad
	case feed.ResultGone:
		return faint
	}
	return good
}
