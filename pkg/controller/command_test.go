package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// deployed returns a Deployment of two pods that is rolled back on failure.
func deployed(image string) *pod.Object {
	two := int32(2)
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	d.Namespace, d.Name, d.Annotations = "default", "web", map[string]string{pod.AnnotationRollback: pod.RollbackOnFailure}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
	return &pod.Object{
		Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}, Hash: "v1-" + image,
		Origin: pod.Origin{Source: "file", Location: "/m", File: "a", Line: 1}, Object: d,
	}
}

var web = pod.ObjectKey{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}}

// ordered has the result of Do, which waits for Expand.
type ordered struct {
	result string
	err    error
}

// order calls Do in a goroutine, and returns once it waits.
func order(t *testing.T, c *Controller, of pod.ObjectKey, command workload.Command) <-chan ordered {
	t.Helper()
	done := make(chan ordered, 1) // the goroutine sends once
	go func() {
		result, err := c.Do(t.Context(), of, command)
		done <- ordered{result, err}
	}()
	synctest.Wait()
	return done
}

// decides returns a Controller that calls workload.Next, as in an agent.
func decides(t *testing.T, s Store, change func(*Config)) *Controller {
	t.Helper()
	cfg := Config{Node: node, Store: s, Live: true}
	if change != nil {
		change(&cfg)
	}
	c := New(cfg)
	t.Cleanup(c.Close)
	return c
}

// TestDo_Command_StateIsStoredAndPodsFollow: a command makes the Controller due. Its result comes
// when the state is stored and the pods have changed.
func TestDo_Command_StateIsStoredAndPodsFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		c := decides(t, s, nil)
		object := deployed("web:1")
		c.Expand([]*pod.Object{object})
		done := order(t, c, web, workload.Command{Verb: workload.Scale, Replicas: 5})
		select {
		case <-c.Due():
		default:
			t.Error("a command does not make it due")
		}
		select {
		case got := <-done:
			t.Errorf("it is done before Expand: %+v", got)
		default:
		}
		if pods, _ := c.Expand([]*pod.Object{object}); len(pods) != 5 {
			t.Errorf("%d pods", len(pods))
		}
		if got := <-done; got.result != "scaled" || got.err != nil {
			t.Errorf("%+v", got)
		}
		if text := string(s.states[web].state); !strings.Contains(text, `"override":{"replicas":{"replicas":5,"source":2`) {
			t.Errorf("the stored state is %s", text)
		}
		next := decides(t, s, nil)
		if pods, _ := next.Expand([]*pod.Object{object}); len(pods) != 5 {
			t.Errorf("the next agent has %d pods", len(pods))
		}
	})
}

// TestDo_NotDone_NothingChanges: the error has the reason, and the stored state stays.
func TestDo_NotDone_NothingChanges(t *testing.T) {
	t.Parallel()
	other := web
	other.Name = "other"
	full := errors.New("no space left on device")
	for name, c := range map[string]struct {
		of      pod.ObjectKey
		command workload.Command
		change  func(*Config)
		fail    error
		err     string
		refused bool
	}{
		"no such workload": {of: other, command: workload.Command{Verb: workload.Pause}, err: "not found"},
		"not possible":     {of: web, command: workload.Command{Verb: workload.Resume}, err: "is not paused", refused: true},
		"forbidden": {of: web, command: workload.Command{Verb: workload.Scale, Replicas: 4}, err: "the source policy forbids the result: 4 are too many", refused: true,
			change: func(cfg *Config) {
				cfg.Judge = func(o *pod.Object) string {
					if n := *o.Object.(*appsv1.Deployment).Spec.Replicas; n > 3 {
						return fmt.Sprintf("%d are too many", n)
					}
					return ""
				}
			}},
		"full disk": {of: web, command: workload.Command{Verb: workload.Scale, Replicas: 4}, fail: full, err: full.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				k := decides(t, s, c.change)
				object := deployed("web:1")
				k.Expand([]*pod.Object{object})
				before := string(s.states[web].state)
				done := order(t, k, c.of, c.command)
				s.fail = c.fail
				pods, _ := k.Expand([]*pod.Object{object})
				got := <-done
				var refused *RefusedError
				if got.err == nil || got.err.Error() != c.err || errors.As(got.err, &refused) != c.refused {
					t.Errorf("%+v", got)
				}
				if len(pods) != 2 || string(s.states[web].state) != before {
					t.Errorf("%d pods, state %s", len(pods), s.states[web].state)
				}
			})
		})
	}
}

// TestDo_TooManyWait_IsRefused: the number of waiting commands is limited.
func TestDo_TooManyWait_IsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := decides(t, newShelf(), nil)
		object := deployed("web:1")
		c.Expand([]*pod.Object{object})
		var all []<-chan ordered
		for range maxRequests + 1 {
			all = append(all, order(t, c, web, workload.Command{Verb: workload.Scale, Replicas: 1}))
		}
		if got := <-all[maxRequests]; got.err == nil || got.err.Error() != "too many commands are waiting" {
			t.Errorf("%+v", got)
		}
		for _, done := range all[:maxRequests] { // one of a workload in each call
			c.Expand([]*pod.Object{object})
			if got := <-done; got.err != nil {
				t.Error(got.err)
			}
		}
	})
}

// TestExpand_OverrideIsDamagedOrForbidden_SourceHolds: an override that a newer policy forbids, or
// that this package cannot have written, is dropped with an event.
func TestExpand_OverrideIsDamagedOrForbidden_SourceHolds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state string
		judge func(*pod.Object) string
	}{
		"negative":  {`{"override":{"replicas":{"replicas":-1,"source":2}}}`, nil},
		"no pods":   {`{"override":{"template":{"template":{"spec":{"containers":[]}},"why":"x"}}}`, nil},
		"forbidden": {`{"override":{"replicas":{"replicas":3,"source":2}}}`, func(*pod.Object) string { return "no" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				object := deployed("web:1")
				s.states[web] = storedState{object.Origin.Layer(), []byte(c.state)}
				var events []string
				k := decides(t, s, func(cfg *Config) {
					cfg.Judge, cfg.Event = c.judge, func(_ *pod.Object, e workload.Event) { events = append(events, e.Reason) }
				})
				pods, _ := k.Expand([]*pod.Object{object})
				if len(pods) != 2 || !slices.Contains(events, "OverrideDropped") {
					t.Errorf("%d pods, events %v", len(pods), events)
				}
				if strings.Contains(string(s.states[web].state), "override") {
					t.Errorf("the state is %s", s.states[web].state)
				}
			})
		})
	}
}

// mortal is a Store of an agent that is killed after so many writes.
type mortal struct {
	*shelf
	left int // writes until then; negative is never
	dead bool

	broken string // the workload whose writes fail
	lies   bool   // these writes reach the disk although they fail
}

func (m *mortal) Save(of pod.ObjectKey, layer string, state []byte) error {
	if m.dead {
		return errors.New("killed")
	}
	if of.Name == m.broken && !m.lies {
		return errors.New("input/output error")
	}
	err := m.shelf.Save(of, layer, state)
	if m.left--; m.left == 0 {
		m.dead = true
	}
	if of.Name == m.broken {
		return errors.New("input/output error")
	}
	return err
}

// node1 is a node whose agent is killed after one write of a state: the later decisions of the
// agent are lost.
type node1 struct {
	t     *testing.T
	store *mortal
	c     *Controller
	have  []*pod.Spec
	state map[string]*v1.PodStatus // by UID
	keeps atomic.Int32             // logs of failed versions that were kept
	hangs chan struct{}            // Keep waits until it is closed; nil: it does not wait
	judge func(*pod.Object) string

	events []string
	boots  int
}

// boot starts an agent.
func (n *node1) boot() {
	if n.c != nil {
		n.c.Close()
	}
	var kept []workload.Pod
	for _, s := range n.have {
		kept = append(kept, workload.Pod{Spec: s, Status: n.state[s.UID()]})
	}
	n.store.dead = false
	n.boots++
	n.c = New(Config{
		Node: node, Recorded: kept, Store: n.store, Live: true, Judge: n.judge,
		Keep: func(_ *pod.Object, failed workload.FailedVersion) {
			n.keeps.Add(int32(len(failed.Pods)))
			if n.hangs != nil {
				<-n.hangs
			}
		},
		Event: func(_ *pod.Object, e workload.Event) { n.events = append(n.events, e.Reason) },
	})
	n.report()
}

// report reports all pods as they are.
func (n *node1) report() {
	for _, s := range n.have {
		p := *s.Pod
		if status := n.state[s.UID()]; status != nil {
			p.Status = *status
		}
		if err := n.c.Report(pod.StatusReport{Pod: &p, Origin: s.Origin, ObservedUID: s.UID()}); err != nil {
			n.t.Error(err)
		}
	}
}

// turn lets the agent decide until nothing changes, and starts a killed agent again. status is the
// status of each pod.
func (n *node1) turn(o *pod.Object, status func(*pod.Spec) *v1.PodStatus) {
	for range 12 {
		n.round(status, o)
	}
}

// round lets the agent decide once, and takes a second.
func (n *node1) round(status func(*pod.Spec) *v1.PodStatus, objects ...*pod.Object) {
	pods, _ := n.c.Expand(objects)
	if n.store.dead {
		n.boot()
		return
	}
	for _, s := range n.have {
		if !slices.ContainsFunc(pods, func(p *pod.Spec) bool { return p.UID() == s.UID() }) {
			delete(n.state, s.UID())
			if err := n.c.Report(pod.StatusReport{Pod: s.Pod, Origin: s.Origin, Gone: true}); err != nil {
				n.t.Error(err)
			}
		}
	}
	n.have = pods
	for _, s := range pods {
		n.state[s.UID()] = status(s)
	}
	n.report()
	time.Sleep(time.Second)
}

// images returns the images of the pods.
func (n *node1) images() string {
	var out []string
	for _, s := range n.have {
		out = append(out, s.Pod.Spec.Containers[0].Image)
	}
	return strings.Join(out, " ")
}

// healthy is the status of a pod: ready with a good version, crashing with a bad one.
func healthy(s *pod.Spec) *v1.PodStatus {
	ready, image := v1.ConditionTrue, s.Pod.Spec.Containers[0].Image
	status := &v1.PodStatus{Phase: v1.PodRunning}
	if image == "bad" {
		ready = v1.ConditionFalse
		status.ContainerStatuses = []v1.ContainerStatus{{
			Name: "c", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: metav1.Now()}},
		}}
	}
	status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}}
	return status
}

// TestF1_Rollback_KilledAfterEveryWrite: a bad version is rolled back, and a person scales the
// workload. The agent is killed after one of the writes of the state. In the end the good version
// runs with the person's number of pods, the bad one is not tried again, and its logs were kept.
//
// Shows: F1
func TestF1_Rollback_KilledAfterEveryWrite(t *testing.T) {
	t.Parallel()
	tell := func(kill int) (writes int) {
		synctest.Test(t, func(t *testing.T) {
			n := &node1{t: t, store: &mortal{shelf: newShelf(), left: kill}, state: map[string]*v1.PodStatus{}}
			n.boot()
			defer func() { n.c.Close() }()
			n.turn(deployed("good"), healthy)
			time.Sleep(2 * time.Minute)
			n.turn(deployed("good"), healthy)
			n.turn(deployed("bad"), healthy)
			check(t, fmt.Sprintf("killed after write %d, after the bad version", kill), n.images(), "good good")
			if n.keeps.Load() == 0 {
				t.Errorf("killed after write %d, no logs of the bad version were kept", kill)
			}
			done := order(t, n.c, web, workload.Command{Verb: workload.Scale, Replicas: 3})
			n.turn(deployed("bad"), healthy)
			if got := <-done; got.err != nil {
				t.Errorf("killed after write %d: %v", kill, got.err)
			}
			n.boot()
			time.Sleep(time.Hour)
			n.turn(deployed("bad"), healthy)
			check(t, fmt.Sprintf("killed after write %d, in the end", kill), n.images(), "good good good")
			if text := string(n.store.states[web].state); strings.Count(text, `"failed"`) != 1 || !strings.Contains(text, `"rollback":true`) {
				t.Errorf("killed after write %d, the state is %s", kill, text)
			}
			writes = n.store.saves
		})
		return writes
	}
	writes := tell(-1)
	if writes < 8 {
		t.Fatalf("the story took %d writes: it was not played", writes)
	}
	for n := 1; n <= writes; n++ {
		tell(n)
	}
}

// TestDo_WorkloadChangesWhileItsStateIsWritten_IsNotDone: a command was judged for the object that
// its source had then. It has no effect on another object, not even in the Store, and its caller
// gets an answer.
func TestDo_WorkloadChangesWhileItsStateIsWritten_IsNotDone(t *testing.T) {
	t.Parallel()
	object, edited := deployed("web:1"), deployed("web:2")
	for name, c := range map[string]struct {
		while [][]*pod.Object // the readings while the disk hangs
		last  []*pod.Object
		err   string
		pods  int
	}{
		"edited":             {[][]*pod.Object{{edited}}, []*pod.Object{edited}, "the workload has changed meanwhile: try again", 3}, // one pod of web:2 is added first
		"removed":            {[][]*pod.Object{{}}, nil, "not found", 0},
		"added again":        {[][]*pod.Object{{}, {object}}, []*pod.Object{object}, "the workload has changed meanwhile: try again", 2},
		"removed at its end": {nil, nil, "not found", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				k := decides(t, s, func(cfg *Config) {
					cfg.Judge = func(o *pod.Object) string {
						if d := o.Object.(*appsv1.Deployment); *d.Spec.Replicas > 2 && d.Spec.Template.Spec.Containers[0].Image == "web:2" {
							return "too many of web:2"
						}
						return ""
					}
				})
				k.Synced()
				k.Expand([]*pod.Object{object})
				s.hangs = make(chan struct{})
				done := order(t, k, web, workload.Command{Verb: workload.Scale, Replicas: 5})
				k.Expand([]*pod.Object{object})
				for _, reading := range c.while {
					k.Expand(reading)
				}
				close(s.hangs)
				synctest.Wait()
				k.Expand(c.last)
				synctest.Wait()
				select {
				case got := <-done:
					if got.err == nil || got.err.Error() != c.err {
						t.Errorf("%+v, want %q", got, c.err)
					}
				default:
					t.Error("its caller has no answer")
				}
				pods, _ := k.Expand(c.last)
				if len(pods) != c.pods {
					t.Errorf("%d pods, want %d", len(pods), c.pods)
				}
				if state, stored := s.states[web]; stored != (c.pods > 0) || strings.Contains(string(state.state), "override") {
					t.Errorf("stored %v: %s", stored, state.state)
				}
			})
		})
	}
}

// TestDo_CallerHasLeft_IsNotDone: a command whose caller has left before Expand takes no place in
// the queue, and changes nothing.
func TestDo_CallerHasLeft_IsNotDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := decides(t, newShelf(), nil)
		object := deployed("web:1")
		c.Expand([]*pod.Object{object})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, maxRequests) // each goroutine sends once
		for range maxRequests {
			go func() {
				_, err := c.Do(ctx, web, workload.Command{Verb: workload.Scale, Replicas: 7})
				left <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range maxRequests {
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that leaves: %v", err)
			}
		}
		done := order(t, c, web, workload.Command{Verb: workload.Pause})
		if pods, _ := c.Expand([]*pod.Object{object}); len(pods) != 2 {
			t.Errorf("%d pods", len(pods))
		}
		if got := <-done; got.result != "paused" || got.err != nil {
			t.Errorf("the command of a caller that waits: %+v", got)
		}
	})
}

// TestExpand_PolicyForbidsTheOlderVersion_IsNotRolledBack: the source policy judges the version to
// which a rollback would return, also after a restart. The failed version is not tried repeatedly.
func TestExpand_PolicyForbidsTheOlderVersion_IsNotRolledBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &node1{t: t, store: &mortal{shelf: newShelf(), left: -1}, state: map[string]*v1.PodStatus{}}
		n.judge = func(o *pod.Object) string {
			if template, _ := o.Template(); template.Spec.Containers[0].Image == "good" {
				return "the image is forbidden"
			}
			return ""
		}
		n.boot()
		defer func() { n.c.Close() }()
		n.turn(deployed("good"), healthy)
		time.Sleep(2 * time.Minute)
		n.turn(deployed("good"), healthy)
		for range 3 {
			n.turn(deployed("bad"), healthy)
			time.Sleep(time.Hour)
			n.boot()
		}
		n.turn(deployed("bad"), healthy)
		var failed []string
		for _, reason := range n.events {
			if reason != "ScalingReplicaSet" {
				failed = append(failed, reason)
			}
		}
		check(t, "the events", strings.Join(failed, " "), "RevisionFailed")
		if images := n.images(); strings.Count(images, "bad") != 1 || strings.Count(images, "good") != 2 {
			t.Errorf("the pods are of %s", images)
		}
		if text := string(n.store.states[web].state); strings.Contains(text, "override") {
			t.Errorf("the state is %s", text)
		}
	})
}
