package workload

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// do executes a command, and stores the state.
func (w *world) do(c Command) (string, error) {
	w.t.Helper()
	in := w.input()
	stored := asJSON(w.t, in.State)
	state, result, err := Do(in, c)
	if got := asJSON(w.t, in.State); got != stored {
		w.t.Fatalf("the command changed its input\nfrom %s\nto   %s", stored, got)
	}
	if err != nil && asJSON(w.t, state) != stored {
		w.t.Fatalf("a command that failed changed the state to %s", asJSON(w.t, state))
	}
	if err := state.Override.Check(); err != nil {
		w.t.Fatalf("%+v: %v", c, err)
	}
	w.state = state
	return result, err
}

// running returns a Deployment with two complete revisions.
func running(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "1", "0")))
	w.rollOut("r1=0/2", "r1=2/2")
	setImage(w, "web:2")
	for range 5 {
		w.next()
		w.settle()
	}
	w.expect("r2=2/2")
	return w
}

func TestDo_Command_ResultIsKubectls(t *testing.T) {
	t.Parallel()
	three := int32(3)
	for name, c := range map[string]struct {
		first, command Command
		result, err    string
		pods           string
	}{
		"scale":                {command: Command{Verb: Scale, Replicas: 3}, result: "scaled", pods: "r2=2/3"},
		"scale to 0":           {command: Command{Verb: Scale}, result: "scaled", pods: "stopping=2"},
		"scale too far":        {command: Command{Verb: Scale, Replicas: pod.MaxReplicas + 1}, err: "replicas 1001: must be between 0 and 1000"},
		"scale below 0":        {command: Command{Verb: Scale, Replicas: -1}, err: "replicas -1: must be between 0 and 1000"},
		"scale from another":   {command: Command{Verb: Scale, Replicas: 1, Current: &three}, err: "expected replicas to be 3, was 2"},
		"scale from the same":  {first: Command{Verb: Scale, Replicas: 3}, command: Command{Verb: Scale, Replicas: 1, Current: &three}, result: "scaled", pods: "r2=1/1 stopping=1"},
		"pause":                {command: Command{Verb: Pause}, result: "paused", pods: "r2=2/2"},
		"pause twice":          {first: Command{Verb: Pause}, command: Command{Verb: Pause}, err: "is already paused"},
		"resume":               {first: Command{Verb: Pause}, command: Command{Verb: Resume}, result: "resumed", pods: "r2=2/2"},
		"resume what runs":     {command: Command{Verb: Resume}, err: "is not paused"},
		"restart":              {command: Command{Verb: Restart}, result: "restarted", pods: "r2=2/2 r3=0/1"},
		"restart twice":        {first: Command{Verb: Restart}, command: Command{Verb: Restart}, err: "if restart has already been triggered within the past second, please wait before attempting to trigger another"},
		"restart while paused": {first: Command{Verb: Pause}, command: Command{Verb: Restart}, err: "can't restart paused deployment (run rollout resume first)"},
		"undo":                 {command: Command{Verb: Undo}, result: "rolled back", pods: "r2=2/2 r3=0/1"},
		"undo to a number":     {command: Command{Verb: Undo, Revision: 1}, result: "rolled back", pods: "r2=2/2 r3=0/1"},
		"undo to the same":     {command: Command{Verb: Undo, Revision: 2}, result: "skipped rollback (current template already matches revision 2)", pods: "r2=2/2"},
		"undo to no revision":  {command: Command{Verb: Undo, Revision: 7}, err: "unable to find specified revision 7 in history"},
		"undo while paused":    {first: Command{Verb: Pause}, command: Command{Verb: Undo}, err: "you cannot rollback a paused deployment; resume it first with 'nodectl rollout resume deployment/web' and try again"},
		"clear nothing":        {command: Command{Verb: Clear}, err: "no field is overridden"},
		"clear another":        {first: Command{Verb: Pause}, command: Command{Verb: Clear, Field: "spec.replicas"}, err: "spec.replicas is not overridden"},
		"clear":                {first: Command{Verb: Scale, Replicas: 3}, command: Command{Verb: Clear, Field: "spec.replicas"}, result: "cleared", pods: "r2=2/2"},
		"job of a deployment":  {command: Command{Verb: CreateJob, Name: "x"}, err: "create-job: a Deployment cannot do that"},
		"unknown verb":         {command: Command{Verb: "explode"}, err: `unknown verb "explode"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := running(t)
			if c.first.Verb != "" {
				if _, err := w.do(c.first); err != nil {
					t.Fatal(err)
				}
			}
			result, err := w.do(c.command)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if result != c.result || text != c.err {
				t.Fatalf("%q, %q; want %q, %q", result, text, c.result, c.err)
			}
			if c.pods != "" {
				w.expect(c.pods)
				w.checkIdempotent()
			}
		})
	}
}

func TestDo_FirstRevision_HasNoHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(1, "web:1", "", "")))
	w.next()
	if _, err := w.do(Command{Verb: Undo}); err == nil || err.Error() != `no rollout history found for deployment "web"` {
		t.Error(err)
	}
}

func TestOverride_FieldChangesInTheSource_Ends(t *testing.T) {
	t.Parallel()
	w := running(t)
	for _, c := range []Command{{Verb: Scale, Replicas: 4}, {Verb: Restart}, {Verb: Pause}} {
		if _, err := w.do(c); err != nil {
			t.Fatal(err)
		}
	}
	w.next()
	fields := func() string {
		var out []string
		for _, f := range w.state.Override.Fields() {
			out = append(out, f.Field+"="+f.Value+" ("+f.Source+")")
		}
		return strings.Join(out, ", ")
	}
	equal(t, "the overrides", fields(), "spec.replicas=4 (2), spec.paused=true (false), spec.template=another version (not in use)")
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.MinReadySeconds = 1 })
	w.next()
	equal(t, "after an edit of another field", len(w.state.Override.Fields()), 3)
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Template.Spec.RestartPolicy = v1.RestartPolicyAlways })
	w.next()
	equal(t, "after a default is spelled out", len(w.state.Override.Fields()), 3)
	setReplicas(w, 3)
	w.next()
	equal(t, "after an edit of replicas", fields(), "spec.paused=true (false), spec.template=another version (not in use)")
	equal(t, "the event", w.events(), "OverrideEnded: The override of spec.replicas has ended: its source has another value now")
	setReplicas(w, 2)
	w.next()
	equal(t, "after the old number returned", fields(), "spec.paused=true (false), spec.template=another version (not in use)")
	setImage(w, "web:3")
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Paused = true })
	w.next()
	equal(t, "after all fields changed", w.state.Override == nil, true)
}

func TestOverride_CommandReturnsToTheSource_NoOverrideIsLeft(t *testing.T) {
	t.Parallel()
	w := running(t)
	for _, c := range []Command{{Verb: Scale, Replicas: 4}, {Verb: Scale, Replicas: 2}, {Verb: Pause}, {Verb: Resume}, {Verb: Undo}} {
		if _, err := w.do(c); err != nil {
			t.Fatal(err)
		}
		w.next()
	}
	equal(t, "the overrides", len(w.state.Override.Fields()), 1)
	if _, err := w.do(Command{Verb: Undo}); err != nil {
		t.Fatal(err)
	}
	equal(t, "the override after a second undo", w.state.Override == nil, true)
}

func TestOverride_SourceIsNotChanged(t *testing.T) {
	t.Parallel()
	w := running(t)
	before := asJSON(t, w.object.Object)
	if _, err := w.do(Command{Verb: Scale, Replicas: 5}); err != nil {
		t.Fatal(err)
	}
	d := w.next()
	equal(t, "the object of the source", asJSON(t, w.object.Object), before)
	equal(t, "the object of the decision", *d.Object.Object.(*appsv1.Deployment).Spec.Replicas, 5)
	equal(t, "the shown replicas", *APIObject("node", d).(*appsv1.Deployment).Spec.Replicas, 5)
}

func TestOverrideCheck_Damaged_IsAnError(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{}`:                                     true,
		`{"replicas":{"replicas":3,"source":1}}`: true,
		`{"replicas":{"replicas":-1}}`:           false,
		`{"replicas":{"replicas":1000000}}`:      false,
		`{"template":{"why":"x"}}`:               false,
		`{"template":{"template":{"spec":{"containers":[{}]}}}}`:    false,
		`{"paused":{"paused":true,"since":"2026-01-01T00:00:00Z"}}`: true,
	} {
		var o Override
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		if err := o.Check(); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDo_StatefulSetAndDaemonSet_CanDoTheirPart(t *testing.T) {
	t.Parallel()
	set := newWorld(t, workloadOf(KindStatefulSet, webSet(2)))
	set.next()
	daemon := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("", "")))
	daemon.next()
	for _, c := range []struct {
		w    *world
		verb Verb
		ok   bool
	}{{set, Scale, true}, {set, Pause, false}, {set, Restart, true}, {daemon, Scale, false}, {daemon, Restart, true}, {daemon, Resume, false}} {
		if _, err := c.w.do(Command{Verb: c.verb, Replicas: 3}); (err == nil) != c.ok {
			t.Errorf("%s of a %s: %v", c.verb, c.w.object.Kind, err)
		}
	}
}

func TestDo_CreateJob_RunsBesideTheSchedule(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("0 3 * * *", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent }))
	m.next()
	create := func(name string) error {
		state, _, err := Do(m.input(), Command{Verb: CreateJob, Name: name})
		m.in.State = state
		return err
	}
	if err := create("now"); err != nil {
		t.Fatal(err)
	}
	d := m.next()
	equal(t, "the pods", len(d.Pods), 1)
	equal(t, "the active Jobs", d.Status.(*batchv1.CronJobStatus).Active[0].Name, "now")
	job := Children("node", d, []Pod{{Spec: d.Pods[0]}}, m.in.Now)[0].(*batchv1.Job)
	equal(t, "the annotation", job.Annotations[annotationManual], "manual")
	equal(t, "the active pods", job.Status.Active, 1)
	for name, want := range map[string]string{"now": `jobs.batch "now" already exists`, "No": `job name "No": a lowercase`, "": `job name ""`} {
		if err := create(name); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	m.pass(time.Second)
	m.pods[0].status = &v1.PodStatus{Phase: v1.PodSucceeded}
	m.ends(m.pods[0], 0)
	m.next()
	equal(t, "the Jobs that stay", len(m.in.State.CronJob.Jobs), 1)
}

func TestChildren_Deployment_HasItsReplicaSets(t *testing.T) {
	t.Parallel()
	w := running(t)
	edit(w, func(d *appsv1.Deployment) { d.Annotations = map[string]string{changeCause: "a new color"} })
	setImage(w, "web:3")
	d := w.next()
	var got []string
	for _, c := range Children("node", d, w.pods, w.now) {
		set := c.(*appsv1.ReplicaSet)
		got = append(got, strings.Join([]string{set.Annotations[annotationRevision], set.Annotations[changeCause], set.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey], asJSON(t, *set.Spec.Replicas), asJSON(t, set.Status.Replicas)}, " "))
		equal(t, "the owner", set.OwnerReferences[0].UID, APIObject("node", d).(*appsv1.Deployment).UID)
	}
	hashes := []string{d.State.Revisions[0].Hash, d.State.Revisions[1].Hash, d.State.Revisions[2].Hash}
	want := []string{"1  " + hashes[0] + " 0 0", "2  " + hashes[1] + " 2 2", "3 a new color " + hashes[2] + " 1 1"}
	equal(t, "the ReplicaSets", got, want)
	shown := APIObject("node", d).(*appsv1.Deployment)
	equal(t, "the revision", shown.Annotations[annotationRevision], "3")
	equal(t, "the time of creation", shown.CreationTimestamp.Time.UTC(), worldBegin)
	equal(t, "the updated pods", shown.Status.UpdatedReplicas, 1)
}
