package ui

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// APIVersion is the version of nodectl's own documents.
const APIVersion = "nodectl.dev/v1alpha1"

// Document has the fields that every document of nodectl begins with.
type Document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// PodRef names one pod.
type PodRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Place is the place of a pod's manifest.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

// MergePlan has the changes of serving a set: the answer of merge --dry-run.
type MergePlan struct {
	Document
	Summary   PlanSummary    `json:"summary"`
	Sources   []PlanSource   `json:"sources"`
	Changes   []PlanChange   `json:"changes"`
	Rollouts  []PlanRollout  `json:"rollouts"`
	Conflicts []PlanConflict `json:"conflicts"`
	Rejected  []pod.Problem  `json:"rejected"`
}

// PlanSummary counts pods, but Reject counts errors. Restart counts the pods in which at least one
// container restarts.
type PlanSummary struct {
	Changed   bool `json:"changed"`
	Add       int  `json:"add"`
	Update    int  `json:"update"`
	Delete    int  `json:"delete"`
	Remove    int  `json:"remove"`
	Reconcile int  `json:"reconcile"`
	Unchanged int  `json:"unchanged"`
	Reject    int  `json:"reject"`
	Conflict  int  `json:"conflict"`
	Restart   int  `json:"restart"`
}

// PlanSource is one layer with the result of reading it.
type PlanSource struct {
	Source   string `json:"source"`
	Location string `json:"location"`
	Pods     int    `json:"pods"`
	// Stale means that its pods are from an older reading.
	Stale bool   `json:"stale"`
	Since string `json:"since"` // RFC 3339: since when the layer is stale; "" if it is not
	Error string `json:"error"`
}

// PlanChange is one pod that would change.
type PlanChange struct {
	Op      string                `json:"op"`
	Source  string                `json:"source"`
	Pod     PodRef                `json:"pod"`
	Origin  Place                 `json:"origin"`
	Restart PlanRestart           `json:"restart"`
	Fields  []podspec.FieldChange `json:"fields"`
	Grace   int64                 `json:"grace"`  // grace period in seconds, of REMOVE and DELETE
	Reason  string                `json:"reason"` // why a pod is removed, if the file does not show it
}

// PlanRestart has the effects of a change on containers. It restarts the pod, some containers or
// none. Resizes restart no container.
type PlanRestart struct {
	Pod        bool                      `json:"pod"`
	Containers []string                  `json:"containers"`
	Reason     string                    `json:"reason"`
	Resize     []podspec.ContainerResize `json:"resize"`
}

// restart returns the document of the restarts and resizes.
func restart(whole bool, containers []string, reason string, resized []podspec.ContainerResize) PlanRestart {
	return PlanRestart{Pod: whole, Containers: append([]string{}, containers...), Reason: reason, Resize: append([]podspec.ContainerResize{}, resized...)}
}

// PlanRollout has the changes of the pods of one workload, in order.
type PlanRollout struct {
	Kind      string     `json:"kind"`
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Steps     []PlanStep `json:"steps"`
	// Release is the release that the rollout belongs to; "" for none. Together are the other
	// workloads of that rollout, such as deployment/web.
	Release  string   `json:"release"`
	Together []string `json:"together"`
}

// PlanStep is one step of a rollout.
type PlanStep struct {
	Action string `json:"action"` // add, remove, replace
	Pod    string `json:"pod"`    // the name
	Reason string `json:"reason"`
}

// PlanConflict is one pod that two manifests define.
type PlanConflict struct {
	Pod    PodRef       `json:"pod"`
	Winner ConflictSide `json:"winner"`
	Loser  ConflictSide `json:"loser"`
	Reason string       `json:"reason"`
}

// ConflictSide is the place of one of the two manifests.
type ConflictSide struct {
	Source   string `json:"source"`
	Location string `json:"location"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// NewMergePlan puts a forecast into its document.
func NewMergePlan(f forecast.Forecast) MergePlan {
	p := MergePlan{
		Document:  Document{APIVersion, "MergePlan"},
		Sources:   []PlanSource{},
		Changes:   []PlanChange{},
		Rollouts:  []PlanRollout{},
		Conflicts: []PlanConflict{},
		Rejected:  append([]pod.Problem{}, f.State.Problems...),
	}
	for _, l := range f.State.Layers {
		s := PlanSource{Source: l.Source, Location: l.Location, Pods: l.Pods, Stale: l.Stale(), Error: l.Error}
		switch {
		case !l.Stale():
		case l.Ready:
			s.Since = stamp(l.Since)
		case !l.LastGood.IsZero(): // in this run the layer was never read: l.Since is the start of the run
			s.Since = stamp(l.LastGood)
		}
		p.Sources = append(p.Sources, s)
	}
	for _, c := range f.Changes {
		p.add(c)
	}
	for _, r := range f.Rollouts {
		rollout := PlanRollout{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Steps: []PlanStep{}, Release: r.Release, Together: []string{}}
		for _, other := range r.Together {
			rollout.Together = append(rollout.Together, strings.ToLower(other.Kind)+"/"+other.Name)
		}
		for _, s := range r.Steps {
			rollout.Steps = append(rollout.Steps, PlanStep{s.Action, s.Pod.Name, s.Reason})
		}
		p.Rollouts = append(p.Rollouts, rollout)
	}
	for _, c := range f.State.Conflicts {
		p.Conflicts = append(p.Conflicts, PlanConflict{
			Pod:    PodRef{Namespace: c.Key.Namespace, Name: c.Key.Name, UID: uidOf(f.State, c.Key)},
			Winner: side(c.Winner), Loser: side(c.Loser), Reason: c.Reason,
		})
	}
	p.Summary.Changed = len(p.Changes) > 0
	p.Summary.Reconcile += f.Reconcile
	p.Summary.Unchanged = f.Unchanged
	p.Summary.Reject = len(p.Rejected)
	p.Summary.Conflict = len(p.Conflicts)
	return p
}

func (p *MergePlan) add(c forecast.Change) {
	change := PlanChange{
		Op:      string(c.Op),
		Source:  c.Source,
		Pod:     PodRef{c.Key.Namespace, c.Key.Name, c.UID},
		Origin:  Place{c.Origin.File, c.Origin.Line},
		Restart: restart(c.RestartPod, c.RestartContainers, "", c.Resizes),
		Fields:  append([]podspec.FieldChange{}, c.Fields...),
		Grace:   c.Grace,
	}
	switch c.Op {
	case podconfig.ADD:
		p.Summary.Add++
	case podconfig.UPDATE:
		p.Summary.Update++
		change.Restart.Reason = c.Reason
	case podconfig.DELETE:
		p.Summary.Delete++
	case podconfig.REMOVE:
		p.Summary.Remove++
		change.Reason = c.Reason
	case podconfig.RECONCILE:
		p.Summary.Reconcile++
	}
	if c.Op == podconfig.UPDATE && c.Restarts() {
		p.Summary.Restart++
	}
	p.Changes = append(p.Changes, change)
}

func side(o pod.Origin) ConflictSide {
	return ConflictSide{Source: o.Source, Location: o.Location, File: o.File, Line: o.Line}
}

func uidOf(m *podconfig.Merged, key pod.Key) string {
	if s := m.Pod(key); s != nil {
		return s.UID()
	}
	return ""
}

// PodUpdate is one line of watch -o json.
type PodUpdate struct {
	Document
	Seq      int         `json:"seq"`
	Time     string      `json:"time"` // RFC 3339
	Op       string      `json:"op"`
	Source   string      `json:"source"`
	Location string      `json:"location"`
	Pods     []UpdatePod `json:"pods"`
	Problem  pod.Problem `json:"problem"` // of ERROR, REJECT and CONFLICT
	Ended    bool        `json:"ended"`   // the problem no longer exists
	Since    string      `json:"since"`   // RFC 3339, of ERROR: the start of the error; "" if Ended
	Dropped  int         `json:"dropped"` // of DROPPED: how many updates of pods this reader lost
}

// UpdatePod is one pod of an update.
type UpdatePod struct {
	PodRef
	Hash    string                `json:"hash"`
	Origin  Place                 `json:"origin"`
	Restart PlanRestart           `json:"restart"`
	Fields  []podspec.FieldChange `json:"fields"`
	Object  *v1.Pod               `json:"object,omitempty"` // with --full
}

// NewPodUpdate puts an update into its document; full adds the pods' objects.
func NewPodUpdate(u feed.Update, seq int, full bool) PodUpdate {
	d := PodUpdate{
		Document: Document{APIVersion, "PodUpdate"},
		Seq:      seq, Time: u.Time.UTC().Format(timeFormat),
		Op: string(u.Op), Source: u.Source, Location: u.Location,
		Pods: []UpdatePod{}, Problem: u.Problem, Ended: u.Resolved, Since: stamp(u.Since), Dropped: u.Dropped,
	}
	if u.Op == feed.CONFLICT {
		d.Pods = append(d.Pods, UpdatePod{PodRef: PodRef{Namespace: u.Key.Namespace, Name: u.Key.Name}, Origin: Place{u.Problem.File, u.Problem.Line}, Restart: restart(false, nil, "", nil), Fields: []podspec.FieldChange{}})
	}
	for i, s := range u.Pods {
		p := UpdatePod{
			PodRef: PodRef{s.Namespace, s.Name, s.UID()}, Hash: s.Hash,
			Origin: Place{s.Origin.File, s.Origin.Line},
			Fields: []podspec.FieldChange{},
		}
		diff := u.Difference(i)
		p.Fields = append(p.Fields, diff.Fields...)
		p.Restart = restart(diff.RestartPod, diff.Containers, diff.Reason, diff.Resizes)
		if full {
			p.Object = ForOutput(s.Pod)
		}
		d.Pods = append(d.Pods, p)
	}
	return d
}

// timeFormat is RFC 3339 with milliseconds, always three digits.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"
