package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Workload is one workload of a running agent.
type Workload struct {
	// Object is a *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet,
	// *batchv1.Job or *batchv1.CronJob, with its kind and status.
	Object metav1.Object
	Kind   string
	Source string
	File   string
	Line   int
	// Unreported is the number of pods that the status counts by a report of the previous agent.
	Unreported int
	Overrides  []WorkloadOverride
	History    []WorkloadRevision
}

// IsObserved reports whether the agent has observed all pods that the status counts. A Job is always
// observed: it counts results of pods, which do not change any more.
func (w *Workload) IsObserved() bool {
	return w.Unreported == 0 || w.Kind == pod.KindJob || w.Kind == pod.KindCronJob
}

// WorkloadOverride is a field that a command or a rollback has changed.
type WorkloadOverride struct {
	Field  string    `json:"field"`
	Value  string    `json:"value"`
	Source string    `json:"source"`
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
	// Rollback means that a rollback chose the value, and no user.
	Rollback bool `json:"rollback"`
}

// WorkloadRevision is a version of the pod template of a workload.
type WorkloadRevision struct {
	Revision int64              `json:"revision"`
	Cause    string             `json:"cause"`
	Failed   string             `json:"failed"`
	Logs     string             `json:"logs"`
	Since    time.Time          `json:"since"`
	Template v1.PodTemplateSpec `json:"template"`
}

// UnmarshalJSON reads an item of the agent's answer.
func (w *Workload) UnmarshalJSON(data []byte) error {
	var item struct {
		Object     json.RawMessage    `json:"object"`
		Source     string             `json:"source"`
		Location   string             `json:"location"`
		File       string             `json:"file"`
		Line       int                `json:"line"`
		Unreported int                `json:"unreported"`
		Overrides  []WorkloadOverride `json:"overrides"`
		History    []WorkloadRevision `json:"history"`
	}
	if err := json.Unmarshal(data, &item); err != nil {
		return err
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(item.Object, &kind); err != nil {
		return err
	}
	object, is := pod.NewWorkload(kind.Kind).(metav1.Object)
	if !is {
		return errors.New("unknown kind of workload: " + kind.Kind)
	}
	if err := json.Unmarshal(item.Object, object); err != nil {
		return err
	}
	if item.File == "" {
		item.File = item.Location
	}
	*w = Workload{object, kind.Kind, item.Source, item.File, item.Line, item.Unreported, item.Overrides, item.History}
	return nil
}

// Place returns the place of the manifest: "file /etc/m/web.yaml:3".
func (w *Workload) Place() string {
	text := w.Source + " " + w.File
	if w.Line > 0 {
		text += fmt.Sprintf(":%d", w.Line)
	}
	return text
}

// Ref returns "deployment.apps/web".
func (w *Workload) Ref() string { return WorkloadRef(w.Kind, w.Object.GetName()) }

// WorkloadRef returns the name of a workload as kubectl prints it: "deployment.apps/web".
func WorkloadRef(kind, name string) string {
	group, _, _ := strings.Cut(pod.WorkloadAPIVersion(kind), "/")
	return strings.ToLower(kind) + "." + group + "/" + Clean(name)
}

// Template returns the pod template of the workload.
func (w *Workload) Template() *v1.PodTemplateSpec {
	t, _ := (&pod.Object{Kind: w.Kind, Object: w.Object}).Template()
	return t
}

// Selector returns the text of the selector of the workload's pods.
func (w *Workload) Selector() string {
	s := (&pod.Object{Kind: w.Kind, Object: w.Object}).Selector()
	if s == nil {
		return ""
	}
	return metav1.FormatLabelSelector(s)
}

// workloadColumns are the columns of a kind in kubectl's table, between NAME and AGE.
func workloadColumns(kind string) []string {
	switch kind {
	case pod.KindDeployment:
		return []string{"READY", "UP-TO-DATE", "AVAILABLE"}
	case pod.KindReplicaSet:
		return []string{"DESIRED", "CURRENT", "READY"}
	case pod.KindStatefulSet:
		return []string{"READY"}
	case pod.KindDaemonSet:
		return []string{"DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE", "NODE SELECTOR"}
	case pod.KindJob:
		return []string{"STATUS", "COMPLETIONS", "DURATION"}
	case pod.KindCronJob:
		return []string{"SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST SCHEDULE"}
	}
	return nil
}

// WorkloadGrid returns workloads of one kind as kubectl's table. wide adds the source and the
// overridden fields.
func WorkloadGrid(kind string, all []Workload, c Columns, now time.Time) Grid {
	header := append(append([]string{"NAMESPACE", "NAME"}, workloadColumns(kind)...), "AGE")
	if c.Wide {
		header = append(header, "CONTAINERS", "IMAGES")
		if kind != pod.KindStatefulSet {
			header = append(header, "SELECTOR")
		}
		header = append(header, "SOURCE", "OVERRIDDEN")
	}
	g := grid(c, header...)
	for i := range all {
		w := &all[i]
		row := append([]cell{{text: w.Object.GetNamespace()}, {text: w.Object.GetName()}}, w.cells(now)...)
		row = append(row, cell{text: ageOf(w.Object.GetCreationTimestamp().Time, now)})
		if c.Wide {
			var names, images, fields []string
			if t := w.Template(); t != nil {
				for _, c := range t.Spec.Containers {
					names, images = append(names, c.Name), append(images, c.Image)
				}
			}
			row = append(row, cell{text: strings.Join(names, ",")}, cell{text: strings.Join(images, ",")})
			if kind != pod.KindStatefulSet {
				row = append(row, cell{text: w.Selector()})
			}
			for _, o := range w.Overrides {
				fields = append(fields, o.Field)
			}
			row = append(row, cell{text: w.Source}, cell{text: strings.Join(fields, ",")})
		}
		g.add(c, w.Object.GetLabels(), row...)
	}
	return g
}

// cells returns the cells between NAME and AGE.
func (w *Workload) cells(now time.Time) []cell {
	switch o := w.Object.(type) {
	case *appsv1.Deployment:
		want := ptr.Deref(o.Spec.Replicas, 1)
		return []cell{outOf(o.Status.ReadyReplicas, want), number(o.Status.UpdatedReplicas), number(o.Status.AvailableReplicas)}
	case *appsv1.ReplicaSet:
		return []cell{number(ptr.Deref(o.Spec.Replicas, 1)), number(o.Status.Replicas), number(o.Status.ReadyReplicas)}
	case *appsv1.StatefulSet:
		return []cell{outOf(o.Status.ReadyReplicas, ptr.Deref(o.Spec.Replicas, 1))}
	case *appsv1.DaemonSet:
		s := &o.Status
		return []cell{
			number(s.DesiredNumberScheduled), number(s.CurrentNumberScheduled), number(s.NumberReady), number(s.UpdatedNumberScheduled), number(s.NumberAvailable),
			{text: pairs(o.Spec.Template.Spec.NodeSelector)},
		}
	case *batchv1.Job:
		text, t := JobStatus(o)
		return []cell{{text, t}, {text: completions(o)}, {text: jobDuration(o, now)}}
	case *batchv1.CronJob:
		last := "<none>"
		if o.Status.LastScheduleTime != nil {
			last = ageOf(o.Status.LastScheduleTime.Time, now)
		}
		return []cell{
			{text: o.Spec.Schedule}, {text: ptr.Deref(o.Spec.TimeZone, "<none>")}, {text: trueFalse(ptr.Deref(o.Spec.Suspend, false))},
			{text: fmt.Sprint(len(o.Status.Active))}, {text: last},
		}
	}
	return nil
}

func number(n int32) cell { return cell{text: fmt.Sprint(n)} }

// outOf returns "2/3". The colour shows whether n has reached want.
func outOf(n, want int32) cell {
	t := good
	if n < want {
		t = change
	}
	return cell{fmt.Sprintf("%d/%d", n, want), t}
}

func trueFalse(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// JobStatus returns the status of a Job as kubectl shows it.
func JobStatus(j *batchv1.Job) (string, tone) {
	for _, one := range []struct {
		kind batchv1.JobConditionType
		tone tone
	}{{batchv1.JobComplete, good}, {batchv1.JobFailed, bad}, {batchv1.JobSuspended, change}, {batchv1.JobFailureTarget, bad}, {batchv1.JobSuccessCriteriaMet, good}} {
		for _, c := range j.Status.Conditions {
			if c.Type == one.kind && c.Status == v1.ConditionTrue {
				return string(one.kind), one.tone
			}
		}
	}
	return "Running", plain
}

func completions(j *batchv1.Job) string {
	switch {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case ptr.Deref(j.Spec.Parallelism, 1) > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, *j.Spec.Parallelism)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobDuration(j *batchv1.Job, now time.Time) string {
	switch s := &j.Status; {
	case s.StartTime == nil:
		return ""
	case s.CompletionTime == nil:
		return duration.HumanDuration(now.Sub(s.StartTime.Time))
	default:
		return duration.HumanDuration(s.CompletionTime.Sub(s.StartTime.Time))
	}
}

// WorkloadNames returns "deployment.apps/web", one a line.
func WorkloadNames(all []Workload) string {
	var names []string
	for i := range all {
		names = append(names, all[i].Ref())
	}
	return lines(names)
}

// WorkloadObjects returns the objects of workloads.
func WorkloadObjects(all []Workload) []any {
	var objects []any
	for i := range all {
		objects = append(objects, all[i].Object)
	}
	return objects
}

// SelectWorkloads returns the workloads of a namespace, or of all for "", that the selector matches.
func SelectWorkloads(all []Workload, namespace string, s labels.Selector) []Workload {
	var some []Workload
	for _, w := range all {
		if (namespace == "" || w.Object.GetNamespace() == namespace) && s.Matches(labels.Set(w.Object.GetLabels())) {
			some = append(some, w)
		}
	}
	return some
}

// OverrideNotices returns a line for each overridden field.
func OverrideNotices(all []Workload) []string {
	var out []string
	for i := range all {
		w := &all[i]
		for _, o := range w.Overrides {
			out = append(out, fmt.Sprintf("%s/%s: %s", strings.ToLower(w.Kind), w.Object.GetName(), o.Text()))
		}
	}
	return out
}

// Text describes the override and its reason.
func (o *WorkloadOverride) Text() string {
	if o.Field == "spec.template" {
		return "spec.template is not that of the source (" + o.Why + ")"
	}
	return fmt.Sprintf("%s is %s, and %s in the source (%s)", o.Field, o.Value, o.Source, o.Why)
}

// InOrder returns workloads in the order of objects.
func InOrder(all []Workload, objects []any) []Workload {
	var sorted []Workload
	for _, o := range objects {
		for _, w := range all {
			if any(w.Object) == o {
				sorted = append(sorted, w)
			}
		}
	}
	return sorted
}
