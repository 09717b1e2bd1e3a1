package workload

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Verb is the action of a Command.
type Verb string

// The verbs.
const (
	Scale     Verb = "scale"
	Restart   Verb = "restart"
	Pause     Verb = "pause"
	Resume    Verb = "resume"
	Undo      Verb = "undo"
	Clear     Verb = "clear"      // ends the override of Command.Field, or all overrides
	CreateJob Verb = "create-job" // creates a Job of a CronJob now
)

// Verbs returns all verbs.
func Verbs() []Verb { return []Verb{Scale, Restart, Pause, Resume, Undo, Clear, CreateJob} }

// Command is a user's request about one workload.
type Command struct {
	Verb Verb
	// Replicas is the number that Scale sets. If Current is not nil, the command fails unless the
	// workload has that number of replicas.
	Replicas int32
	Current  *int32
	// Revision is the revision to which Undo returns; 0 stands for the newest earlier revision that
	// has not failed.
	Revision int64
	// Name is the name of the Job that CreateJob creates.
	Name string
	// Field is the field whose override Clear ends; "" stands for all fields.
	Field string
}

// Do returns the state after a command, and a result for the user in kubectl's words: "scaled",
// "rolled back". It does not change the input. Call Next after the state is stored.
func Do(in Input, c Command) (State, string, error) {
	source := in.Object
	effective, override, _ := in.State.Override.Apply(source)
	r := request{in: in, source: source, effective: effective, next: override.copied(), state: in.State, kind: strings.ToLower(source.Kind)}
	result, err := r.do(c)
	if err != nil {
		return in.State, "", err
	}
	r.state.Override = r.next.orNil()
	return r.state, result, nil
}

// request is a Command that Do executes.
type request struct {
	in                Input
	source, effective *pod.Object // the workload without and with its overrides
	next              *Override   // after the command
	state             State       // after the command
	kind              string
}

func (r *request) do(c Command) (string, error) {
	f := fieldsIn(r.effective.Object)
	lacks := fmt.Errorf("%s: a %s cannot do that", c.Verb, r.source.Kind)
	switch c.Verb {
	case Scale:
		if f.replicas == nil {
			return "", lacks
		}
		return r.scale(c, ptr.Deref(*f.replicas, 1))
	case Pause, Resume:
		if f.paused == nil {
			return "", lacks
		}
		return r.pause(c.Verb == Pause, *f.paused)
	case Restart, Undo:
		switch {
		case f.template == nil:
			return "", lacks
		case c.Verb == Undo:
			return r.undo(c.Revision, f)
		}
		return r.restart(f)
	case Clear:
		return r.clear(c.Field)
	case CreateJob:
		cj, is := r.effective.Object.(*batchv1.CronJob)
		if !is {
			return "", lacks
		}
		return r.createJob(cj, c.Name)
	}
	return "", fmt.Errorf("unknown verb %q", c.Verb)
}

// clear ends the override of a field, or all overrides.
func (r *request) clear(field string) (string, error) {
	before := len(r.next.Fields())
	for name, end := range map[string]func(){
		"spec.replicas": func() { r.next.Replicas = nil },
		"spec.paused":   func() { r.next.Paused = nil },
		"spec.template": func() { r.next.Template = nil },
	} {
		if field == "" || field == name {
			end()
		}
	}
	switch {
	case len(r.next.Fields()) < before:
		return "cleared", nil
	case field == "":
		return "", errors.New("no field is overridden")
	}
	return "", fmt.Errorf("%s is not overridden", field)
}

func (r *request) scale(c Command, have int32) (string, error) {
	switch {
	case c.Replicas < 0 || c.Replicas > pod.MaxReplicas:
		return "", fmt.Errorf("replicas %d: must be between 0 and %d", c.Replicas, pod.MaxReplicas)
	case c.Current != nil && *c.Current != have:
		return "", fmt.Errorf("expected replicas to be %d, was %d", *c.Current, have)
	}
	from := ptr.Deref(*fieldsIn(r.source.Object).replicas, 1)
	if r.next.Replicas = nil; from != c.Replicas {
		r.next.Replicas = &ReplicasOverride{Replicas: c.Replicas, Source: from, Since: seconds(r.in.Now)}
	}
	return "scaled", nil
}

func (r *request) pause(paused, have bool) (string, error) {
	switch {
	case paused && have:
		return "", errors.New("is already paused")
	case !paused && !have:
		return "", errors.New("is not paused")
	}
	from := *fieldsIn(r.source.Object).paused
	if r.next.Paused = nil; from != paused {
		r.next.Paused = &PausedOverride{Paused: paused, Source: from, Since: seconds(r.in.Now)}
	}
	if paused {
		return "paused", nil
	}
	return "resumed", nil
}

func (r *request) restart(f fieldsOf) (string, error) {
	if f.paused != nil && *f.paused {
		return "", errors.New("can't restart paused deployment (run rollout resume first)")
	}
	t := restarted(f.template, r.in.Now)
	if t.Annotations[restartedAt] == f.template.Annotations[restartedAt] {
		return "", errors.New("if restart has already been triggered within the past second, please wait before attempting to trigger another")
	}
	r.next.setTemplate(r.source, t, r.in.Now, "rollout restart")
	return "restarted", nil
}

// undo returns to an older revision. A number selects any revision; 0 stands for the newest earlier
// revision that has not failed.
func (r *request) undo(number int64, f fieldsOf) (string, error) {
	name := r.source.Name
	if f.paused != nil && *f.paused {
		return "", fmt.Errorf("you cannot rollback a paused deployment; resume it first with 'nodectl rollout resume %s/%s' and try again", r.kind, name)
	}
	list := r.in.State.Revisions
	at := slices.IndexFunc(list, func(v Revision) bool { return v.Number == number })
	if number == 0 {
		if len(list) < 2 {
			return "", fmt.Errorf("no rollout history found for %s %q%s", r.kind, name, noHistory(r.effective.Object))
		}
		for at = len(list) - 2; at >= 0 && list[at].Failed != ""; at-- {
		}
		if at < 0 {
			return "", fmt.Errorf("revision %d has failed: %s; --to-revision=%d tries it again", list[len(list)-2].Number, list[len(list)-2].Failed, list[len(list)-2].Number)
		}
	}
	switch {
	case at < 0:
		return "", fmt.Errorf("unable to find specified revision %d in history%s", number, noHistory(r.effective.Object))
	case !list[at].isKnown():
		return "", fmt.Errorf("the pod template of revision %d is lost", list[at].Number)
	case sameTemplate(f.template, &list[at].Template):
		return fmt.Sprintf("skipped rollback (current template already matches revision %d)", list[at].Number), nil
	}
	r.next.setTemplate(r.source, &list[at].Template, r.in.Now, fmt.Sprintf("rollout undo to revision %d", list[at].Number))
	return "rolled back", nil
}

// noHistory returns why a workload keeps no earlier revision, or "" if it may keep some.
func noHistory(object any) string {
	if ptr.Deref(fieldsIn(object).history, defaultHistory) > 0 {
		return ""
	}
	return ": spec.revisionHistoryLimit is 0, so no earlier revision is kept"
}

// maxActiveJobs is the number of unfinished Jobs of a CronJob from which CreateJob fails.
const maxActiveJobs = 100

// createJob adds a Job to a CronJob, as if a scheduled time were due now.
func (r *request) createJob(cj *batchv1.CronJob, name string) (string, error) {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return "", fmt.Errorf("job name %q: %s", name, problems[0])
	}
	state := CronJobState{Since: seconds(r.in.Now)}
	if s := r.in.State.CronJob; s != nil {
		state = *s
	}
	active := 0
	for _, run := range state.Jobs {
		if run.Name == name {
			return "", fmt.Errorf("jobs.batch %q already exists", name)
		}
		if finished(&run.State.Status) == nil {
			active++
		}
	}
	if active >= maxActiveJobs || len(r.in.Pods) >= pod.MaxReplicas {
		return "", fmt.Errorf("%d jobs of the cron job are active: wait until some have ended", active)
	}
	state.Jobs = append(slices.Clone(state.Jobs), CronJobRun{
		Name: name, Scheduled: seconds(r.in.Now), Template: *cj.Spec.JobTemplate.Spec.DeepCopy(), Manual: true,
	})
	r.state.CronJob = &state
	return "created", nil
}

// hashLabel returns the label whose value is the hash of a pod's revision.
func hashLabel(kind string) string {
	if kind == KindDeployment {
		return appsv1.DefaultDeploymentUniqueLabelKey
	}
	return appsv1.ControllerRevisionHashLabelKey
}
