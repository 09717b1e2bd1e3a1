package engine

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/workload"
)

// stateShelf keeps the states of workloads for the agents of a machine.
type stateShelf struct {
	disk   *disk
	states map[pod.ObjectKey]shelvedState
	last   *controller.Controller // of the newest agent
}

type shelvedState struct {
	layer string
	state []byte
}

// Load implements controller.Store.
func (s *stateShelf) Load(each func(pod.ObjectKey, string, []byte)) error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	for of, is := range s.states {
		each(of, is.layer, is.state)
	}
	return nil
}

// Save implements controller.Store.
func (s *stateShelf) Save(of pod.ObjectKey, layer string, state []byte) error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.disk.killed || s.disk.full {
		return errFull
	}
	s.states[of] = shelvedState{layer, slices.Clone(state)}
	return nil
}

// Remove implements controller.Store.
func (s *stateShelf) Remove(of pod.ObjectKey) error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.disk.killed || s.disk.full {
		return errFull
	}
	delete(s.states, of)
	return nil
}

func (s *stateShelf) len() int {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return len(s.states)
}

// recorded returns the recorded pods with their last statuses, as an agent reads them.
func (d *disk) recorded() (all []workload.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, r := range d.records {
		if r.Want == nil {
			continue
		}
		p := workload.Pod{Spec: r.Want, Leaving: !r.StopSince.IsZero() && !r.StopAsked}
		if l := d.journal[key]; l != nil && !l.gone && l.pod.UID == r.Want.Pod.UID {
			p.Status = &l.pod.Status
		}
		all = append(all, p)
	}
	return all
}

// keepWorkloads gives the next agents a controller of workloads, as serve has it.
func (m *machine) keepWorkloads() *stateShelf {
	s := &stateShelf{disk: m.disk, states: map[pod.ObjectKey]shelvedState{}}
	m.alter = func(c *Config) {
		w := controller.New(controller.Config{Node: "n1", Recorded: m.disk.recorded(), Store: s, Live: true, Log: c.Log})
		c.PodConfig = podconfig.New(podconfig.Config{Sources: []source.Source{m.src.reader(m.mute)}, Restored: m.disk.restored(), Expander: w})
		c.Listeners, c.Synced = append(c.Listeners, w), w.Synced
		s.last = w
	}
	return s
}

// workloadOf returns a workload as the source of a machine has it.
func workloadOf(kind, name, version string, o any) *pod.Object {
	return &pod.Object{
		Kind: kind, Key: pod.Key{Namespace: "default", Name: name}, Hash: "v1-" + version, Object: o,
		Origin: pod.Origin{Source: "file", Location: "/m", File: "/m/objects.yaml", Line: 1},
	}
}

// readyAfter is how long a pod of mkdeployment runs before it is ready.
const readyAfter = 5 * time.Second

// mkdeployment returns the Deployment web with two replicas. During an update both have to be
// available, and there may be one more.
func mkdeployment(image string) *pod.Object {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	labels := map[string]string{"app": "web"}
	d.Spec.Replicas, d.Spec.Selector = ptr.To[int32](2), &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []v1.Container{{Name: "app", Image: image, ReadinessProbe: &v1.Probe{
		InitialDelaySeconds: int32(readyAfter / time.Second), PeriodSeconds: 1,
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}},
	}}}
	return workloadOf(pod.KindDeployment, "web", image, d)
}

// mkjob returns the Job once, whose pod is not started again in place.
func mkjob(image string) *pod.Object {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "once"}}
	j.Spec.BackoffLimit = ptr.To[int32](1)
	j.Spec.Template.Spec = v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "app", Image: image}}}
	return workloadOf(pod.KindJob, "once", image, j)
}

// rolloutWatch follows the pods of mkdeployment by the calls to the runtime.
type rolloutWatch struct {
	mu      sync.Mutex
	rolls   bool
	since   map[string]time.Time // by pod: when its container started; zero before
	stopped map[string]bool      // by pod: its stop has begun
	wrong   []string
}

// note takes a call.
func (w *rolloutWatch) note(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := strings.Fields(line)
	name := strings.Split(f[2], "/")[1]
	switch f[1] {
	case "RunPodSandbox":
		if _, known := w.since[name]; !known {
			w.since[name] = time.Time{}
		}
	case "StartContainer":
		w.since[name] = time.Now()
	case "StopContainer", "StopPodSandbox":
		w.stopped[name] = true
	}
	there, ready := 0, 0
	for name, since := range w.since {
		if w.stopped[name] {
			continue
		}
		there++
		if !since.IsZero() && time.Since(since) >= readyAfter {
			ready++
		}
	}
	// The pod that the new one replaces stops while the new one starts.
	if w.rolls && (there > 4 || ready < 2) {
		w.wrong = append(w.wrong, fmt.Sprintf("after %q: %d pods, %d ready", line, there, ready))
	}
}

func (w *rolloutWatch) watch(rolls bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rolls = rolls
}

// killAfter kills the agent after call number kill of the runtime, and starts another one. each is
// called with every call. live lets the time of one stage pass, and starts the agent again if it was
// killed.
func (m *machine) killAfter(kill int, each func(line string)) (live func()) {
	killed := make(chan struct{}, 16)
	m.rt.AfterEach(func(n int, line string) {
		each(line)
		if n == kill {
			m.agent.conn.Cut()
			killed <- struct{}{}
		}
	})
	return func() {
		over := time.After(stageTime)
		for {
			select {
			case <-killed:
				m.die()
				m.pass(time.Second)
				m.arrive()
			case <-over:
				m.settle()
				return
			}
		}
	}
}

// images returns the images of the recorded pods.
func (d *disk) images() (all []string) {
	for _, p := range d.recorded() {
		all = append(all, p.Spec.Pod.Spec.Containers[0].Image)
	}
	return all
}

// TestF1_Deployment_KilledAfterEveryCall: a Deployment starts, is updated and is removed, and the
// agent is killed after one of the calls. Two pods stay ready through the update, and nothing is
// left in the end.
//
// Shows: F1
func TestF1_Deployment_KilledAfterEveryCall(t *testing.T) {
	t.Parallel()
	tell := func(kill int) (calls int) {
		bubble(t, func(t *testing.T, m *machine) {
			s := m.keepWorkloads()
			w := &rolloutWatch{since: map[string]time.Time{}, stopped: map[string]bool{}}
			live := m.killAfter(kill, w.note)
			m.src.hold(mkdeployment("app:1"))
			m.arrive()
			live()
			if got := m.disk.images(); !slices.Equal(got, []string{"app:1", "app:1"}) {
				t.Errorf("killed after call %d, the Deployment has %q", kill, got)
			}
			w.watch(true)
			m.src.hold(mkdeployment("app:2"))
			live()
			if got := m.disk.images(); !slices.Equal(got, []string{"app:2", "app:2"}) {
				t.Errorf("killed after call %d, the updated Deployment has %q", kill, got)
			}
			if n := strings.Count(m.rt.State(), "running"); n != 2 {
				t.Errorf("killed after call %d, %d containers run:\n%s", kill, n, m.rt.State())
			}
			w.watch(false)
			m.src.hold()
			live()
			m.want()
			if err := m.disk.empty(); err != nil || s.len() > 0 {
				t.Errorf("killed after call %d: %v, %d states", kill, err, s.len())
			}
			if len(w.wrong) > 0 {
				t.Errorf("killed after call %d:\n%s", kill, strings.Join(w.wrong, "\n"))
			}
			calls = len(m.rt.Transcript())
		})
		return calls
	}
	calls := tell(0)
	if calls < 20 {
		t.Fatalf("the story took %d calls: it was not played", calls)
	}
	for n := 1; n <= calls; n++ {
		tell(n)
	}
}

// TestF1_Job_KilledAfterEveryCall: a Job runs once, and has completed in the end.
//
// Shows: F1
func TestF1_Job_KilledAfterEveryCall(t *testing.T) {
	t.Parallel()
	tell := func(kill int) (calls int) {
		bubble(t, func(t *testing.T, m *machine) {
			s := m.keepWorkloads()
			var mu sync.Mutex
			runs := 0
			live := m.killAfter(kill, func(line string) {
				mu.Lock()
				defer mu.Unlock()
				if strings.Contains(line, "StartContainer") {
					runs++
				}
			})
			m.src.hold(mkjob("exit-0-after-3s"))
			m.arrive()
			live()
			if runs != 1 {
				t.Errorf("killed after call %d, the Job ran %d times", kill, runs)
			}
			if w := s.last.Workloads(); len(w) != 1 || !w[0].Progress().Complete {
				t.Errorf("killed after call %d: %+v", kill, w)
			}
			calls = len(m.rt.Transcript())
		})
		return calls
	}
	calls := tell(0)
	if calls < 3 {
		t.Fatalf("the story took %d calls: it was not played", calls)
	}
	for n := 1; n <= calls; n++ {
		tell(n)
	}
}

// TestWorkloads_FullDisk_NothingChanges: while a state cannot be written, the pods stay; with room
// the update goes on.
//
// Shows: F12
func TestWorkloads_FullDisk_NothingChanges(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.keepWorkloads()
		m.src.hold(mkdeployment("app:1"))
		m.arrive()
		m.pass(stageTime)
		m.disk.refuse(true)
		m.src.hold(mkdeployment("app:2"))
		m.pass(stageTime)
		if got := m.disk.images(); !slices.Equal(got, []string{"app:1", "app:1"}) {
			t.Errorf("on a full disk the Deployment has %q", got)
		}
		m.disk.refuse(false)
		m.pass(stageTime)
		m.pass(stageTime)
		if got := m.disk.images(); !slices.Equal(got, []string{"app:2", "app:2"}) {
			t.Errorf("with room again the Deployment has %q", got)
		}
	})
}

// onceOver is the workloads of a run to a goal.
type onceOver struct {
	*controller.Controller
	config *podconfig.PodConfig
}

func (o onceOver) Batches(ctx context.Context) iter.Seq[podconfig.Batch] {
	return o.config.Expanded(ctx, o.Controller)
}

func (o onceOver) Results(Until, *podconfig.Merged, map[pod.Key]feed.PodReport) (all []feed.WorkloadReport) {
	for _, w := range o.Workloads() {
		r := feed.WorkloadReport{ObjectKey: w.Object.ObjectKey()}
		switch p := w.Progress(); {
		case p.Complete:
			r.Result = feed.ResultDone
		case p.Failed:
			r.Result = feed.ResultFailed
		}
		all = append(all, r)
	}
	return all
}

// onceWorkloads runs Once over the pods and workloads of a machine's source.
func (m *machine) onceWorkloads(s *stateShelf, limit time.Duration) (feed.Report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	alter := m.alter
	defer func() { m.alter = alter }()
	var set *podconfig.Merged
	m.alter = func(c *Config) {
		config := podconfig.New(podconfig.Config{Sources: []source.Source{m.src.reader(false)}})
		set = config.Once(ctx)
		w := controller.New(controller.Config{Node: "n1", Recorded: m.disk.recorded(), Store: s, Live: true, NoSchedules: true, Log: c.Log})
		m.t.Cleanup(w.Close)
		c.PodConfig, c.Listeners, c.Workloads = nil, append(c.Listeners, w), onceOver{w, config}
	}
	e := New(m.config(m.rt.Connect()))
	return e.Once(ctx, set, UntilDone)
}

// results writes a report: "default/web done, Job default/once failed".
func results(rep feed.Report) string {
	var out []string
	for _, p := range rep.Pods {
		out = append(out, p.Key.String()+" "+p.Result)
	}
	for _, w := range rep.Workloads {
		out = append(out, w.Kind+" "+w.Key.String()+" "+w.Result)
	}
	return strings.Join(out, ", ")
}

// TestOnce_Workloads_RunToTheirGoal: a Deployment until it is complete and available, a Job until
// it has completed or failed. A second run over an edited Deployment updates it, and stops the
// pods that it gives up.
func TestOnce_Workloads_RunToTheirGoal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		s := m.keepWorkloads()
		m.src.set(mkpod("pod", image("exit-0"), policy(v1.RestartPolicyNever)))
		m.src.hold(mkdeployment("app:1"), mkjob("exit-0-after-3s"))
		rep, err := m.onceWorkloads(s, time.Minute)
		if got := results(rep); err != nil || got != "default/pod done, Deployment default/web done, Job default/once done" {
			t.Errorf("%s, %v", got, err)
		}
		m.src.hold(mkdeployment("app:2"), mkjob("exit-0-after-3s"))
		if rep, err = m.onceWorkloads(s, 5*time.Minute); err != nil || !strings.Contains(results(rep), "Deployment default/web done") {
			t.Errorf("%s, %v", results(rep), err)
		}
		if n := strings.Count(m.rt.State(), "running"); n != 2 {
			t.Errorf("%d containers run:\n%s", n, m.rt.State())
		}
	})
}

// TestOnce_JobFails_IsAResult: and a Deployment that is never available runs into the limit. Its
// report does not say that the run was interrupted.
func TestOnce_JobFails_IsAResult(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		s := m.keepWorkloads()
		m.src.hold(mkdeployment("exit-1"), mkjob("exit-1"))
		rep, err := m.onceWorkloads(s, 2*time.Minute)
		if got := results(rep); err == nil || got != "Deployment default/web timeout, Job default/once failed" {
			t.Errorf("%s, %v", got, err)
		}
		for _, w := range rep.Workloads {
			if w.Message != "" {
				t.Errorf("%s %s: message %q", w.Kind, w.Key, w.Message)
			}
		}
	})
}
