package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/compare"
)

// A Recording is the recording of one cluster, without the parts that differ between two runs of
// the same agent.
type Recording struct {
	Arm, Version string
	Date         string
	Pods         map[string]*Pod
	Course       map[string][]string
	Requests     map[string]int           // the node's requests to the API server, with their numbers
	Facts        map[string]compare.Facts // node, lease, pods as the node's server has them
	Names        map[string][]string      // metrics and fields of statistics, by path
}

// A Pod is one pod of a recording.
type Pod struct {
	Tracks  map[string][]Step // the successive values of each object
	Meta    compare.Facts     // annotations, owners and finalizers in the end
	Patches int               // of its status
	Events  []string
}

// A Step is a value of a track and how long it was that, in milliseconds.
type Step struct {
	Is  string
	For int64
}

type normaliser struct{ *compare.Normaliser }

var (
	own = []compare.Rule{
		{What: regexp.MustCompile(`(\$IP|127\.0\.0\.1|\[::1\]|\$ADDRESS):\d{4,5}\b`), By: "$1:$$PORT"},
		{What: regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), By: "kube-api-access-$$RANDOM"},
	}
	took    = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|µs|s|m))+\b`)
	device  = regexp.MustCompile(`interfaces\[[^\]]*\]`)
	counted = regexp.MustCompile(`\[\d+\]`)
)

func newNormaliser(raw *Raw) *normaliser {
	return &normaliser{compare.NewNormaliser(raw.Words, own...)}
}

// moments matches the paths of times and names of one run: only that they are set counts.
var moments = regexp.MustCompile(`(Time|At|Timestamp|containerID|(metadata|ownerReferences\[[^\]]*\])\.uid|resourceVersion|lastHeartbeatTime|lastTransitionTime|bootID|renewTime|\.kubeletEndpoint\.Port|generateName)$|config\.(hash|seen|mirror)$`)

// flatten splits an object into facts.
func (n *normaliser) flatten(v any) compare.Facts {
	return n.Facts(compare.Flatten("", v, "name", "type", "conditionType", "key", "mountPath", "resourceName", "names"), moments)
}

func normalise(raw *Raw) *Recording {
	n := newNormaliser(raw)
	r := &Recording{
		Arm: raw.Arm, Version: raw.Version, Date: raw.Began.Format("2006-01-02"), Pods: map[string]*Pod{}, Course: raw.Course,
		Requests: map[string]int{}, Facts: map[string]compare.Facts{}, Names: map[string][]string{},
	}
	for name, versions := range raw.Pods {
		r.Pods[name] = n.pod(versions)
	}
	for _, e := range raw.Events {
		if p := r.Pods[e.InvolvedObject.Name]; p != nil && e.InvolvedObject.Kind == "Pod" {
			p.Events = append(p.Events, n.event(&e))
		} else {
			r.Names["node events"] = append(r.Names["node events"], n.event(&e))
		}
	}
	for _, q := range raw.Requests {
		what := strings.TrimSuffix(q.Verb+" "+q.Resource+"/"+q.Subresource, "/")
		r.Requests[what]++
		if p := r.Pods[q.Name]; p != nil && q.Verb == "patch" && q.Resource == "pods" && q.Subresource == "status" {
			p.Patches++
		}
	}
	for _, p := range r.Pods {
		slices.Sort(p.Events)
		p.Events = slices.Compact(p.Events)
	}
	if raw.Node != nil {
		r.Facts["node"] = n.flatten(raw.Node)
	}
	if raw.Lease != nil {
		r.Facts["lease"] = n.flatten(json.RawMessage(raw.Lease))
		for k := range r.Facts["lease"] {
			if strings.Contains(k, "managedFields") {
				delete(r.Facts["lease"], k)
			}
		}
	}
	n.views(r, raw.Views)
	for k := range r.Names {
		slices.Sort(r.Names[k])
		r.Names[k] = slices.Compact(r.Names[k])
	}
	return r
}

// pod makes tracks of versions.
func (n *normaliser) pod(versions stage.Versions) *Pod {
	p := &Pod{Tracks: map[string][]Step{}}
	begun := map[string]time.Time{}
	var last time.Time
	lives := 0
	uid := ""
	for _, v := range versions {
		if string(v.Pod.UID) != uid {
			uid, lives = string(v.Pod.UID), lives+1
		}
		now := n.now(v)
		if v.Deleted {
			now = compare.Facts{"object": "gone"}
			if lives == 0 {
				continue
			}
		} else {
			now["object"] = fmt.Sprintf("there %d", lives)
			p.Meta = n.flatten(map[string]any{"annotations": v.Pod.Annotations, "ownerReferences": v.Pod.OwnerReferences, "finalizers": v.Pod.Finalizers})
		}
		for k := range p.Tracks {
			if _, ok := now[k]; !ok && !v.Deleted {
				now[k] = ""
			}
		}
		for k, is := range now {
			track := p.Tracks[k]
			if len(track) > 0 && track[len(track)-1].Is == is {
				continue
			}
			if len(track) > 0 {
				track[len(track)-1].For = v.At.Sub(begun[k]).Milliseconds()
			}
			p.Tracks[k], begun[k] = append(track, Step{Is: is}), v.At
		}
		last = v.At
	}
	for k, track := range p.Tracks {
		track[len(track)-1].For = last.Sub(begun[k]).Milliseconds()
	}
	return p
}

// now is a status as tracks have it: a condition is one value, and so is a
// container's state.
func (n *normaliser) now(v stage.Version) compare.Facts {
	s := v.Pod.Status.DeepCopy()
	f := compare.Facts{}
	for _, c := range s.Conditions {
		f["condition "+string(c.Type)] = n.Text(join(string(c.Status), c.Reason, c.Message, generation(c.ObservedGeneration)))
	}
	s.Conditions = nil
	for _, all := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range all {
			c := &all[i]
			f["state of "+c.Name] = n.state(c.State)
			f["last state of "+c.Name] = n.state(c.LastTerminationState)
			c.State, c.LastTerminationState = v1.ContainerState{}, v1.ContainerState{}
		}
	}
	for k, is := range n.flatten(s) {
		f[k] = is
	}
	if v.Pod.DeletionTimestamp != nil {
		f["deletion"] = fmt.Sprintf("grace %d", *v.Pod.DeletionGracePeriodSeconds)
	}
	return f
}

func generation(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("generation %d", n)
}

func (n *normaliser) state(s v1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return n.Text(join("waiting", s.Waiting.Reason, s.Waiting.Message))
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		t := s.Terminated
		times := ""
		if t.StartedAt.IsZero() || t.FinishedAt.IsZero() {
			times = "without times"
		}
		return n.Text(join("terminated", t.Reason, fmt.Sprint(t.ExitCode), times, t.Message))
	}
	return ""
}

func join(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "; ")
}

func (n *normaliser) event(e *v1.Event) string {
	// It leaves out counts and times of events, and durations.
	text := took.ReplaceAllString(n.Text(e.Message), "$$TOOK")
	return join(e.Type+" "+e.Reason, e.InvolvedObject.FieldPath, "by "+e.Source.Component, text)
}
