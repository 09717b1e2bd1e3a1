package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/test/arm"
)

// How long a node may take to lose one more problem, after the last fault. The machine may be
// busy; the report has the total time.
const (
	converge = 60 * time.Second
	depart   = 60 * time.Second
)

// await calls look until it finds no problem, as long as it finds fewer and fewer. It returns
// how long that took and the last problems.
func (s *soak) await(ctx context.Context, limit time.Duration, look func() []string) (time.Duration, []string) {
	began := time.Now()
	progress, logged, fewest := began, began, math.MaxInt
	for {
		wrong := look()
		if len(wrong) < fewest {
			progress, fewest = time.Now(), len(wrong)
		}
		if len(wrong) == 0 || time.Since(progress) > limit {
			return time.Since(began), wrong
		}
		if time.Since(logged) > 5*time.Second {
			logged = time.Now()
			s.tell("  not yet: %s", strings.Join(wrong, "\n    "))
		}
		if arm.Pause(ctx, 200*time.Millisecond) != nil {
			return time.Since(began), wrong
		}
	}
}

// unsettled compares the wishes with containerd's lists and the agents' reports (I3).
func (s *soak) unsettled(ctx context.Context, wishes []*wish) []string {
	boxes, err := s.lab.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return []string{err.Error()}
	}
	containers, err := s.lab.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return []string{err.Error()}
	}
	reports := map[*house]map[pod.Key]journal.Entry{}
	for _, h := range s.houses {
		if reports[h], err = journal.Read(h.journal()); err != nil {
			return []string{err.Error()}
		}
	}
	var wrong []string
	for _, w := range wishes {
		v := view{wish: w, alive: map[string]*cri.Container{}}
		for _, b := range boxes.Items {
			if b.Metadata.Name == w.full() && b.State == cri.PodSandboxState_SANDBOX_READY {
				v.boxes++
			}
		}
		for _, c := range containers.Containers {
			if c.Labels["io.kubernetes.pod.name"] == w.full() && c.State == cri.ContainerState_CONTAINER_RUNNING {
				v.alive[c.Metadata.Name] = c
			}
		}
		if e, ok := reports[w.house][pod.Key{Namespace: namespace, Name: w.full()}]; ok {
			v.report = e.Pod
		}
		if problem := v.problem(); problem != "" {
			wrong = append(wrong, fmt.Sprintf("I3: %s is to be %s: %s", w.full(), w.end, problem))
		}
		wrong = append(wrong, s.limits(ctx, v)...)
	}
	return wrong
}

// A view is the actual state of one wish.
type view struct {
	*wish
	boxes  int // ready
	alive  map[string]*cri.Container
	report *v1.Pod // nil for none
}

// problem says how the pod differs from its manifest, "" if it does not.
func (v view) problem() string {
	end, known := v.settled()
	if !known {
		return ""
	}
	if end == unwritten {
		if v.boxes > 0 || len(v.alive) > 0 {
			return "its manifest never was one, and it runs"
		}
		return ""
	}
	if v.report == nil {
		return "not reported"
	}
	st := v.report.Status
	if got := v.report.Annotations[version]; got != v.version() {
		return fmt.Sprintf("version %s is reported, %s is written", got, v.version())
	}
	switch end {
	case runs:
		for _, c := range slices.Concat(v.pod.Spec.InitContainers, v.pod.Spec.Containers) {
			if lasts := len(c.Args) > 0 && c.Args[len(c.Args)-1] == "forever"; lasts && v.alive[c.Name] == nil {
				return c.Name + " does not run; " + describe(st)
			}
		}
		if v.boxes != 1 || st.Phase != v1.PodRunning || !ready(st) {
			return fmt.Sprintf("%d sandboxes ready; %s", v.boxes, describe(st))
		}
	case succeeds, fails:
		phase := map[string]v1.PodPhase{string(succeeds): v1.PodSucceeded, string(fails): v1.PodFailed}[string(end)]
		if st.Phase != phase || len(v.alive) > 0 {
			return fmt.Sprintf("%d containers run; %s", len(v.alive), describe(st))
		}
	case stuck:
		if st.Phase != v1.PodPending {
			return describe(st)
		}
	case loops:
		if st.Phase != v1.PodRunning && st.Phase != v1.PodPending {
			return describe(st)
		}
		if !slices.ContainsFunc(st.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.RestartCount > 0 }) {
			return "nothing was restarted; " + describe(st)
		}
	}
	return ""
}

// limits compares the memory limits of containers with those of their manifests.
func (s *soak) limits(ctx context.Context, v view) []string {
	if end, known := v.settled(); !known || end != runs {
		return nil
	}
	var wrong []string
	for _, c := range v.pod.Spec.Containers {
		running, want := v.alive[c.Name], c.Resources.Limits.Memory().Value()
		if running == nil || want == 0 {
			continue
		}
		r, err := s.lab.Node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: running.Id})
		if err != nil {
			continue // it has just ended
		}
		if got := r.Status.GetResources().GetLinux().GetMemoryLimitInBytes(); got != want {
			wrong = append(wrong, fmt.Sprintf("I3: %s/%s has a memory limit of %d, written is %d", v.full(), c.Name, got, want))
		}
	}
	return wrong
}

// describe writes a status on one line.
func describe(st v1.PodStatus) string {
	text := fmt.Sprintf("%s ready=%v %s %s", st.Phase, ready(st), st.Reason, st.Message)
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		text += fmt.Sprintf("; %s restarts=%d ", c.Name, c.RestartCount)
		switch {
		case c.State.Waiting != nil:
			text += fmt.Sprintf("waits %s %q", c.State.Waiting.Reason, c.State.Waiting.Message)
		case c.State.Running != nil:
			text += fmt.Sprintf("runs ready=%v", c.Ready)
		case c.State.Terminated != nil:
			text += fmt.Sprintf("ended %d %s", c.State.Terminated.ExitCode, c.State.Terminated.Reason)
		}
	}
	return text
}

func ready(st v1.PodStatus) bool {
	return slices.ContainsFunc(st.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}
