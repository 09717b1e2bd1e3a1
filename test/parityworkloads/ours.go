package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// roundTime is how long a step without a time of its own takes: the recorder waits about as long
// for the controllers to come to rest.
const roundTime = 3 * time.Second

// mostRounds is how often settle lets pods become ready.
const mostRounds = 40

// ours is nodectl's side: workload.Next in fake time, and the pods that it wants.
type ours struct {
	in   workload.Input
	last workload.Decision
	pods []*ourPod
	book *Book
	made int
}

// ourPod is one pod on the node. As with the kubelet, a pod that replaces another one of the same
// name exists only when nothing is left of that.
type ourPod struct {
	id      string
	spec    *pod.Spec
	status  *v1.PodStatus
	leaving bool
	exists  bool
}

// play returns the rounds of nodectl in a scenario.
func play(s *Scenario) (Rounds, error) {
	object, err := decodeObject(s.Object)
	if err != nil {
		return nil, err
	}
	o := &ours{book: newBook(), in: workload.Input{Object: object, Node: "node", Now: time.Date(2026, 3, 1, 12, 0, 10, 0, time.UTC)}}
	o.next()
	o.rest(roundTime)
	o.close("create")
	for _, step := range s.Steps {
		if err := o.step(step); err != nil {
			return nil, fmt.Errorf("step %q: %w", step.Text, err)
		}
	}
	return o.book.rounds, nil
}

func decodeObject(text string) (*pod.Object, error) {
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(text), &meta); err != nil {
		return nil, err
	}
	o := &pod.Object{
		Key: pod.Key{Namespace: "default", Name: meta.Name}, Kind: meta.Kind,
		Origin: pod.Origin{Source: "file", Location: "/etc/manifests", File: "/etc/manifests/web.yaml", Line: 1},
	}
	switch meta.Kind {
	case "Deployment":
		o.Object = &appsv1.Deployment{}
	case "ReplicaSet":
		o.Object = &appsv1.ReplicaSet{}
	case "StatefulSet":
		o.Object = &appsv1.StatefulSet{}
	case "DaemonSet":
		o.Object = &appsv1.DaemonSet{}
	case "Job":
		o.Object = &batchv1.Job{}
	case "CronJob":
		o.Object = &batchv1.CronJob{}
	default:
		return nil, fmt.Errorf("unknown kind %q", meta.Kind)
	}
	return o, yaml.UnmarshalStrict([]byte(text), o.Object)
}

// step does one step of the script.
func (o *ours) step(step Step) error {
	pause := roundTime
	switch step.Verb {
	case "settle":
		o.settle()
		return nil
	case "pass":
		pause = step.duration()
	case "minute":
		pause = untilMinute(o.in.Now)
	case "edit", "image":
		if err := o.edit(step); err != nil {
			return err
		}
	case "scale", "undo", "restart", "pause", "resume":
		if err := o.command(step); err != nil {
			return err
		}
	case "gone":
		o.gone(o.book.Leaving(step.Args...))
	default:
		pods := o.book.Select(step.selectors()...)
		if len(pods) == 0 {
			return fmt.Errorf("no pod is meant")
		}
		o.change(pods, step)
	}
	o.next()
	o.rest(pause)
	o.close(step.Text)
	return nil
}

// untilMinute returns the time until ten seconds after the next full minute.
func untilMinute(now time.Time) time.Duration {
	next := now.Truncate(time.Minute).Add(time.Minute + 10*time.Second)
	return next.Sub(now)
}

// settle makes pods ready, and lets deleted ones go, until nothing changes.
func (o *ours) settle() {
	for n := 1; n <= mostRounds; n++ {
		o.change(o.book.Select("all"), Step{Verb: "ready"})
		o.gone(o.book.Leaving())
		o.next()
		o.rest(roundTime)
		if !o.close(fmt.Sprintf("settle %d", n)) {
			return
		}
	}
}

// edit changes the object as its author does in the file.
func (o *ours) edit(step Step) error {
	var tree map[string]any
	text, err := json.Marshal(o.in.Object.Object)
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	if err != nil {
		return err
	}
	if step.Verb == "image" {
		container, err := firstContainer(tree)
		if err != nil {
			return err
		}
		container["image"] = step.Args[0]
	} else {
		var patch map[string]any
		if err := yaml.Unmarshal([]byte(step.Args[0]), &patch); err != nil {
			return err
		}
		merge(tree, patch)
	}
	changed, err := yaml.Marshal(tree)
	if err != nil {
		return err
	}
	o.in.Object, err = decodeObject(string(changed))
	return err
}

// firstContainer returns the first container of a workload's pod template.
func firstContainer(object map[string]any) (map[string]any, error) {
	at := object
	for _, field := range []string{"spec", "jobTemplate", "spec", "template", "spec"} {
		if below, ok := at[field].(map[string]any); ok {
			at = below
		}
	}
	if list, ok := at["containers"].([]any); ok && len(list) > 0 {
		if c, ok := list[0].(map[string]any); ok {
			return c, nil
		}
	}
	return nil, fmt.Errorf("the template has no container")
}

// command has the effect of a user's command.
func (o *ours) command(step Step) error {
	c := workload.Command{Verb: workload.Verb(step.Verb)}
	if len(step.Args) > 0 {
		c.Replicas, c.Revision = step.number(), int64(step.number())
	}
	in := o.input()
	state, _, err := workload.Do(in, c)
	o.in.State = state
	return err
}

// change gives pods the status of a step, or has them deleted by a person.
func (o *ours) change(pods []*booked, step Step) {
	for _, b := range pods {
		p := o.pod(b)
		o.book.Touch(b, step)
		if step.Verb == "delete" {
			p.status = nil // the node starts the pod again, as the same one
			continue
		}
		p.status = statusAfter(step, p.status, p.spec.Pod.Spec.Containers[0].Name, o.in.Now)
	}
}

// pod returns the pod of a booked one, which is one of o.pods.
func (o *ours) pod(b *booked) *ourPod {
	return o.pods[slices.IndexFunc(o.pods, func(p *ourPod) bool { return p.id == b.id })]
}

// gone ends pods: nothing is left of them, and pods that waited for that exist.
func (o *ours) gone(pods []*booked) {
	for _, b := range pods {
		b.gone = true
		o.pods = slices.DeleteFunc(o.pods, func(p *ourPod) bool { return p.id == b.id })
	}
	o.start()
}

// start notes the pods that the node starts: those that do not wait for another one.
func (o *ours) start() {
	for _, p := range o.pods {
		waits := slices.ContainsFunc(o.pods, func(other *ourPod) bool { return other != p && other.leaving && other.spec.Name == p.spec.Name })
		if p.exists || p.leaving || waits {
			continue
		}
		p.exists = true
		owner := ""
		if ref := metav1.GetControllerOfNoCopy(p.spec.Pod); ref != nil {
			owner = ref.Name
		}
		o.book.Created(p.id, facts{
			kind: o.in.Object.Kind, name: p.spec.Name, owner: owner, labels: p.spec.Pod.Labels, annotations: p.spec.Pod.Annotations,
		})
	}
}

func (o *ours) input() workload.Input {
	in := o.in
	for _, p := range o.pods {
		in.Pods = append(in.Pods, workload.Pod{Spec: p.spec, Status: p.status.DeepCopy(), Leaving: p.leaving})
	}
	slices.SortStableFunc(in.Pods, func(a, b workload.Pod) int { return a.Spec.Compare(b.Spec.Key) })
	return in
}

// next decides and puts the decision into effect, until there is nothing to do.
func (o *ours) next() {
	for range mostRounds {
		d := workload.Next(o.input())
		o.in.State, o.last = d.State, d
		o.apply(d)
		if len(d.Steps) == 0 {
			return
		}
	}
}

func (o *ours) apply(d workload.Decision) {
	var left []*ourPod
	for _, p := range o.pods {
		wanted := slices.ContainsFunc(d.Pods, func(s *pod.Spec) bool { return s.UID() == p.spec.UID() })
		switch {
		case p.leaving || wanted:
		case !p.exists:
			continue // it never came to exist
		default:
			p.leaving = true
			ended := p.status != nil && pod.IsPhaseTerminal(p.status.Phase)
			o.book.Deleted(p.id, ended)
			if ended {
				continue // nothing of it has to stop
			}
		}
		left = append(left, p)
	}
	o.pods = left
	for _, s := range d.Pods {
		if !slices.ContainsFunc(o.pods, func(p *ourPod) bool { return !p.leaving && p.spec.UID() == s.UID() }) {
			o.made++
			o.pods = append(o.pods, &ourPod{id: strconv.Itoa(o.made), spec: s})
		}
	}
	o.start()
}

// rest lets time pass, with the decisions that become due.
func (o *ours) rest(d time.Duration) {
	end := o.in.Now.Add(d)
	for range 1000 {
		if o.last.Wake.IsZero() || o.last.Wake.After(end) || !o.last.Wake.After(o.in.Now) {
			break
		}
		o.in.Now = o.last.Wake
		o.next()
	}
	o.in.Now = end
	o.next()
}

// close ends a round.
func (o *ours) close(step string) bool {
	switch s := o.last.Status.(type) {
	case *batchv1.JobStatus:
		noteJob(o.book, s)
	case *appsv1.DeploymentStatus:
		noteDeployment(o.book, s)
	}
	return o.book.Close(step)
}

// noteJob notes the result of a Job, and whether it is suspended.
func noteJob(b *Book, s *batchv1.JobStatus) {
	for _, c := range s.Conditions {
		switch {
		case c.Type == batchv1.JobSuspended:
			b.Note("Suspended", string(c.Status))
		case c.Status != v1.ConditionTrue:
		case c.Type == batchv1.JobComplete, c.Type == batchv1.JobFailed:
			b.Note(string(c.Type), c.Reason)
		}
	}
}

// noteDeployment notes that a rollout is complete, or has timed out.
func noteDeployment(b *Book, s *appsv1.DeploymentStatus) {
	for _, c := range s.Conditions {
		if c.Type != appsv1.DeploymentProgressing {
			continue
		}
		b.Note("Progressing", "")
		if c.Reason == "ProgressDeadlineExceeded" || c.Reason == "NewReplicaSetAvailable" {
			b.Note("Progressing", c.Reason)
		}
	}
}
