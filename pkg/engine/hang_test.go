package engine

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pod"
)

// The volumes of one pod cannot be measured: its file system hangs. The limits of the other
// pods are enforced meanwhile, and its own once the file system answers again.
//
// Shows: C-1.35.9
func TestMeasure_VolumeHangs_OtherPodsAreMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		limit := resource.MustParse("1Mi")
		filling := func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		}
		const message = `Usage of EmptyDir volume "cache" exceeds the limit "1Mi". `
		answers := make(chan struct{})
		m.disk.hung = func(call string, want *pod.Spec) <-chan struct{} {
			if call == "ExceededLimit" && want.Name == "a" {
				return answers
			}
			return nil
		}
		m.src.set(mkpod("a", filling), mkpod("b", filling), mkpod("c", filling))
		m.arrive()
		m.disk.mu.Lock()
		m.disk.over = map[string]string{"uid-a": message, "uid-b": message, "uid-c": message}
		m.disk.mu.Unlock()
		m.pass(measurementPeriod + podPatience + 2*time.Second)
		for name, want := range map[string]string{"a": "Running", "b": "Failed", "c": "Failed"} {
			if got := m.phase(name); got != want {
				t.Errorf("while the volume of a hangs, pod %s is %s, want %s", name, got, want)
			}
		}
		close(answers)
		m.pass(2 * measurementPeriod)
		if got := m.phase("a"); got != "Failed" {
			t.Errorf("after it answers, pod a is %s", got)
		}
	})
}

// hangingLogs is a log disk on which one log hangs.
type hangingLogs struct {
	answers chan struct{}
	mu      sync.Mutex
	rounds  map[string]int
}

func (h *hangingLogs) Rotate(_ context.Context, path string, _ func(context.Context) error) error {
	h.mu.Lock()
	h.rounds[path]++
	h.mu.Unlock()
	if path == "a" {
		<-h.answers
	}
	return nil
}

// The log of one container hangs: it is named for its pod, and the logs of the others are rotated in
// each round.
//
// Shows: C-1.43.1, F22
func TestRotate_LogHangs_OtherLogsAreRotated(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		board := activity.NewBoard()
		ctx := board.Context(t.Context())
		logs := &hangingLogs{answers: make(chan struct{}), rounds: map[string]int{}}
		l := (&Engine{cfg: Config{Logs: logs, LogWorkers: 1, Log: slog.New(slog.DiscardHandler)}, log: slog.New(slog.DiscardHandler)}).newLoop(true)
		l.workers = &sync.WaitGroup{}
		for _, name := range []string{"a", "b"} {
			l.pods[pod.Key{Name: name}] = &entry{last: &report{logs: []logFile{{pod: pod.Key{Name: name}, path: name}}}}
		}
		for range 3 {
			l.rotate(ctx)
			m.pass(defaultLogCheck)
		}
		logs.mu.Lock()
		if logs.rounds["a"] != 1 || logs.rounds["b"] != 3 {
			t.Errorf("calls of Rotate: %v, want one for a and three for b", logs.rounds)
		}
		logs.mu.Unlock()
		if calls := board.Calls(pod.Key{Name: "a"}); len(calls) != 1 || calls[0].String() != "rotate log (a)" {
			t.Errorf("the report about a has %v", calls)
		}
		close(logs.answers)
		m.pass(defaultLogCheck)
		l.rotate(ctx)
		m.pass(defaultLogCheck)
		if logs.rounds["a"] != 2 {
			t.Errorf("after it answers: %v", logs.rounds)
		}
	})
}

// The agent ends within two seconds although the volumes of a pod hang.
//
// Shows: F4
func TestF4_LeavingDoesNotWaitForHungVolumes(t *testing.T) {
	for _, call := range []string{"SetUp", "Ready", "Mounts", "ExceededLimit"} {
		t.Run(call, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				release := volumeHangs(call)(m)
				m.src.set(mkpod("stuck", withCache), mkpod("well"))
				m.arrive()
				m.pass(measurementPeriod + time.Second)
				began := time.Now()
				m.leave()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("leaving took %s", took)
				}
				release()
				m.settle()
			})
		})
	}
}
