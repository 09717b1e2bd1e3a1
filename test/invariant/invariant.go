// Package invariant checks nodectl's invariants under any fault: I1 to I6, I8 and I9 of the
// README. It does not ask nodectl: it receives the runtime's own events, lists the runtime,
// reads /proc, the cgroup trees, the mounts and the directories, and compares nodectl's
// journal with them.
//
// A test makes a Witness of its node and a History of its desired pods, and calls Settle and
// Check after its faults; the soak does the same.
//
// A violation names its kind, its time and its pod.
package invariant

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// A Violation is one broken invariant.
type Violation struct {
	Promise string // "I1"
	At      time.Time
	Pod     string // its full name; "" for the agent itself
	What    string
}

func (v Violation) String() string {
	pod := v.Pod
	if pod == "" {
		pod = "the agent"
	}
	return fmt.Sprintf("%s broken at %s: %s: %s", v.Promise, v.At.Format("15:04:05.000"), pod, v.What)
}

// A Scope is everything of one agent: everything on a node with one node name.
type Scope struct {
	Node    *node.Node
	Name    string // of the agent's node
	Witness *Witness
	History *History
	Root    string // --root-dir
	Logs    string // --pod-logs-dir

	// Stops are the calls by which the agent stopped or removed things, see Stopping.
	Stops []criproxy.Made
	// Pid is the agent's; 0 when none runs.
	Pid int
	// Said is the log of its agents, one line each.
	Said []string
	// Secrets are words that may be in manifests and in nothing that an agent writes.
	Secrets []string
}

// Stopping names the methods by which an agent stops or removes things. A Scope needs the
// calls of all of them, which a criproxy.Rule without a fault collects.
var Stopping = []string{"StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"}

// Check returns the broken invariants, except I3, which only Settle can check: it takes time.
func (s *Scope) Check(ctx context.Context) ([]Violation, error) {
	now, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	lines, err := s.journal()
	if err != nil {
		return nil, err
	}
	lives := s.Witness.Lives(s.Name)
	var all []Violation
	for _, found := range [][]Violation{
		Twice(lives), s.processes(now), s.innocent(lives), rising(lives, s.History), final(lines, s.History), ghosts(lives, s.History),
		s.bounded(), s.leaks(lives, now), s.secrets(),
	} {
		all = append(all, found...)
	}
	return all, nil
}

// Settle returns nil as soon as the node is in the desired state (I3) and nothing is left of
// removed pods (I6). Otherwise it returns the differences once they no longer change.
func (s *Scope) Settle(ctx context.Context) error {
	return wait.Try(func() error { return s.Settled(ctx) })
}

// Settled is Settle without waiting.
func (s *Scope) Settled(ctx context.Context) error {
	open, err := s.unsettled(ctx)
	if err == nil && len(open) == 0 {
		open, err = s.left(ctx)
	}
	for _, v := range open { // without the time, which would look like a change
		err = errors.Join(err, fmt.Errorf("%s broken: %s: %s", v.Promise, v.Pod, v.What))
	}
	return err
}

// left returns the remains of removed pods (I6).
func (s *Scope) left(ctx context.Context) ([]Violation, error) {
	now, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	return s.leaks(s.Witness.Lives(s.Name), now), nil
}

// shown is the runtime's list of a scope.
type shown struct {
	boxes      []*cri.PodSandbox
	containers []*cri.Container
}

func (s *Scope) look(ctx context.Context) (now shown, err error) {
	labels := map[string]string{labelNode: s.Name}
	b, err := s.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: labels}})
	if err != nil {
		return now, err
	}
	c, err := s.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: labels}})
	return shown{b.GetItems(), c.GetContainers()}, err
}

// newest returns the newest CRI container of a pod's container, and how many have exited.
func (now shown) newest(pod, container string) (newest *cri.Container, ended int) {
	for _, c := range now.containers {
		if c.Labels[labelPod] != pod || c.Metadata.GetName() != container {
			continue
		}
		if c.State == cri.ContainerState_CONTAINER_EXITED {
			ended++
		}
		if newest == nil || c.CreatedAt > newest.CreatedAt {
			newest = c
		}
	}
	return newest, ended
}

// unsettled returns where the node is not in the desired state (I3).
func (s *Scope) unsettled(ctx context.Context) ([]Violation, error) {
	now, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	lines, err := s.journal()
	if err != nil {
		return nil, err
	}
	last := make(map[string]line)
	for _, l := range lines {
		last[l.Pod.Name] = l
	}
	var open []Violation
	want := s.History.wanted()
	for name, p := range want {
		if s.History.isExcused(name) {
			continue
		}
		if what := now.differs(name, p, last[name]); what != "" {
			open = append(open, Violation{"I3", time.Now(), name, what})
		}
	}
	for _, b := range now.boxes {
		if name := b.Labels[labelPod]; want[name] == nil && !s.History.isExcused(name) {
			open = append(open, Violation{"I3", time.Now(), name, "is not wanted, and sandbox " + b.Id[:12] + " is there"})
		}
	}
	return open, nil
}

// differs says how a pod differs from the desired one; "" if it does not.
func (now shown) differs(name string, p *v1.Pod, said line) string {
	ready := ""
	for _, b := range now.boxes {
		if b.Labels[labelPod] != name || b.State != cri.PodSandboxState_SANDBOX_READY {
			continue
		}
		if ready != "" {
			return "has two sandboxes"
		}
		ready = b.Id
	}
	if said.Pod == nil || said.Gone {
		return "is not reported"
	}
	for _, c := range p.Spec.Containers {
		newest, ended := now.newest(name, c.Name)
		if newest == nil {
			return "container " + c.Name + " is not there"
		}
		word := said.status(c.Name)
		switch state := newest.State; {
		case ended > 1:
			return fmt.Sprintf("container %s has %d ended records", c.Name, ended)
		case !strings.HasSuffix(word.ContainerID, newest.Id) && newest.State == cri.ContainerState_CONTAINER_RUNNING:
			return "container " + c.Name + " is reported as " + word.ContainerID + ", is " + newest.Id
		case state == cri.ContainerState_CONTAINER_RUNNING && (newest.PodSandboxId != ready || word.State.Running == nil):
			return "container " + c.Name + " runs in another sandbox, or is not said to run"
		case state == cri.ContainerState_CONTAINER_RUNNING:
		case state != cri.ContainerState_CONTAINER_EXITED:
			return "container " + c.Name + " is " + state.String()
		case word.State.Running != nil:
			return "container " + c.Name + " is said to run"
		case said.Pod.Status.Phase == v1.PodSucceeded || said.Pod.Status.Phase == v1.PodFailed:
		case p.Spec.RestartPolicy == v1.RestartPolicyNever && word.State.Terminated != nil:
		case word.State.Waiting == nil || word.State.Waiting.Reason != "CrashLoopBackOff":
			return "container " + c.Name + " has ended and is not in back-off"
		}
	}
	return ""
}
