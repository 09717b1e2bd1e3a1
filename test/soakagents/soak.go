package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/plugins"
)

const (
	// patience is how long pods may take to run again, or to be gone.
	patience = 3 * time.Minute
	// late is the delay of every plugin after a reboot.
	late = 30 * time.Second
	// answered is the time in which an agent has written the answer of a call to its disk.
	answered = 2 * time.Second
)

// soak is one run with one agent.
type soak struct {
	*stage.Stage
	dir    string // of the plugins' sockets
	turn   *stage.Turn
	gpus   *plugins.GPUs
	cards  *plugins.Cards
	disks  *plugins.Disks
	random *rand.Rand
	result *Result

	mu    sync.Mutex
	kills []time.Time
}

// note notes an observation for the result.
func (s *soak) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result.Notes = append(s.result.Notes, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// notes returns the number of notes.
func (s *soak) notes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.result.Notes)
}

// lost reports whether the agent was killed shortly after a call.
func (s *soak) lost(called time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.kills, func(at time.Time) bool { return at.After(called) && at.Before(called.Add(answered)) })
}

// rounds plays rounds with two kills each, and the reboots in rounds at equal distances.
func (s *soak) rounds(ctx context.Context, o *options) error {
	number := max(o.kills/2, o.reboots, 1)
	for i := range number {
		reboots := o.reboots > 0 && i%max(number/o.reboots, 1) == 0 && s.result.Reboots < o.reboots
		if err := s.round(ctx, i, reboots); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		arm.Say("%s: round %d of %d, %d kills, %d reboots, %d notes", o.arm, i+1, number, s.result.Kills, s.result.Reboots, s.notes())
	}
	return nil
}

// round creates pods, kills the agent while they start, removes them, and kills the agent while they
// stop.
func (s *soak) round(ctx context.Context, i int, reboots bool) error {
	n := namesOf(i)
	if err := s.awaitDevices(ctx); err != nil {
		return err
	}
	if err := s.createAll(ctx, n); err != nil {
		return err
	}
	if err := s.kill(ctx, 6*time.Second); err != nil {
		return err
	}
	before := s.awaitSets(ctx, n, "after the first kill")
	if reboots {
		if err := s.reboot(ctx); err != nil {
			return err
		}
		s.compare(n, before, s.awaitSets(ctx, n, "after the reboot"))
	}
	for _, name := range n.pods() {
		s.countFailed(ctx, name)
		if err := s.remove(ctx, podsPath+"/"+name); err != nil {
			return err
		}
	}
	if err := s.kill(ctx, 7*time.Second); err != nil {
		return err
	}
	if err := s.awaitGone(ctx, n); err != nil {
		s.note("%v", err)
		s.result.Stuck++
		if err := s.forceAway(ctx, n); err != nil {
			return err
		}
	}
	return s.removeAll(ctx, n)
}

// awaitGone waits until the pods of a round are gone.
func (s *soak) awaitGone(ctx context.Context, n names) error {
	return arm.Until(ctx, patience, 500*time.Millisecond, func() (bool, error) {
		for _, name := range n.pods() {
			if _, err := s.pod(ctx, name); !apierrors.IsNotFound(err) {
				return false, errors.Join(fmt.Errorf("pod %s is not gone", name), err)
			}
		}
		return true, nil
	})
}

// forceAway removes pods that do not go, so that the next round has their devices.
func (s *soak) forceAway(ctx context.Context, n names) error {
	for _, name := range n.pods() {
		err := s.Admin.Delete().AbsPath(podsPath+"/"+name).Param("gracePeriodSeconds", "0").Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// kill kills the agent at a random time within a span, and starts it again.
func (s *soak) kill(ctx context.Context, within time.Duration) error {
	if err := arm.Pause(ctx, time.Duration(s.random.Int64N(int64(within)))); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	s.result.Kills++
	if err := arm.Pause(ctx, time.Second); err != nil {
		return err
	}
	return s.turn.Resume()
}

// end ends the agent with SIGKILL.
func (s *soak) end() error {
	s.mu.Lock()
	s.kills = append(s.kills, time.Now())
	s.mu.Unlock()
	return s.turn.Turn.Finish(syscall.SIGKILL)
}

// reboot imitates a reboot.
func (s *soak) reboot(ctx context.Context) error {
	if err := s.end(); err != nil {
		return err
	}
	s.killPlugins()
	list, err := s.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, b := range list.Items {
		if _, err := s.Node.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: b.Id}); err != nil {
			return err
		}
	}
	for _, path := range slices.Backward(s.mounts()) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	s.cards.Prepared.Lose()
	s.disks.Mounted.Lose()
	s.result.Reboots++
	if err := s.turn.Resume(); err != nil {
		return err
	}
	if err := arm.Pause(ctx, late); err != nil {
		return err
	}
	s.startPlugins()
	return nil
}

// mounts returns the mounts of volumes below the directory of the agent.
func (s *soak) mounts() []string {
	return slices.DeleteFunc(node.Mounts(), func(path string) bool {
		below := strings.HasPrefix(path, s.dir+"/") || strings.HasPrefix(path, s.turn.Root+"/")
		return !below || !strings.Contains(path, "/volumes/") && !strings.Contains(path, "/globalmount")
	})
}

// awaitDevices waits until the node shows the devices of the plugin.
func (s *soak) awaitDevices(ctx context.Context) error {
	return arm.Until(ctx, patience, 200*time.Millisecond, func() (bool, error) {
		var n v1.Node
		if err := s.Admin.Get().Resource("nodes").Name(nodeName).Do(ctx).Into(&n); err != nil {
			return false, err
		}
		if q := n.Status.Allocatable[plugins.Resource]; q.Value() != 4 {
			return false, fmt.Errorf("the node shows %d devices", q.Value())
		}
		return true, nil
	})
}

// awaitSets waits until the pods of a round run or have failed, and returns the devices and exclusive
// CPUs of their containers by the name of the pod.
func (s *soak) awaitSets(ctx context.Context, n names, when string) map[string]string {
	var sets map[string]string
	err := arm.Until(ctx, patience, 500*time.Millisecond, func() (bool, error) {
		var err error
		if sets, err = s.sets(ctx); err != nil {
			return false, err
		}
		waiting := slices.DeleteFunc(n.pods(), func(name string) bool { return sets[name] != "" || s.failed(ctx, name) })
		if len(waiting) > 0 {
			return false, fmt.Errorf("pods %v do not run", waiting)
		}
		return true, nil
	})
	if err != nil {
		s.note("%s: %v", when, err)
		s.result.NotRunning++
	}
	users := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		gpu, _, _ := strings.Cut(sets[name], " ")
		if other := users[gpu]; other != "" && gpu != "gpu=" {
			s.note("%s: %s and %s have device %s", when, other, name, gpu)
			s.result.Shared++
		}
		users[gpu] = name
	}
	return sets
}

// failed reports whether a pod has failed.
func (s *soak) failed(ctx context.Context, name string) bool {
	p, err := s.pod(ctx, name)
	return err == nil && p.Status.Phase == v1.PodFailed
}

// pod returns a pod as the API server has it.
func (s *soak) pod(ctx context.Context, name string) (*v1.Pod, error) {
	p := &v1.Pod{}
	return p, s.Admin.Get().AbsPath(podsPath + "/" + name).Do(ctx).Into(p)
}

// countFailed counts a pod that has failed, by the reason.
func (s *soak) countFailed(ctx context.Context, name string) {
	p, err := s.pod(ctx, name)
	switch {
	case err != nil:
		s.note("pod %s: %v", name, err)
	case p.Status.Phase == v1.PodFailed:
		reason := cmp.Or(p.Status.Reason, "without a reason")
		s.note("%s failed: %s %s", name, reason, p.Status.Message)
		s.result.Failed[reason]++
	}
}

// sets returns the devices of running containers, and their CPUs if they have some for themselves.
func (s *soak) sets(ctx context.Context) (map[string]string, error) {
	list, err := s.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for _, c := range list.Containers {
		name := c.Labels["io.kubernetes.pod.name"]
		all[name] = "gpu=" + c.Annotations[plugins.Note]
		if !strings.HasPrefix(name, "pinned-") {
			continue
		}
		is, err := s.Node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			return nil, err
		}
		all[name] += " cpus=" + is.GetStatus().GetResources().GetLinux().GetCpusetCpus()
	}
	return all, nil
}

// compare counts the pods whose sets have changed.
func (s *soak) compare(n names, before, after map[string]string) {
	for _, name := range n.pods() {
		if before[name] != "" && after[name] != "" && before[name] != after[name] {
			s.note("%s: changed from %s to %s", name, before[name], after[name])
			s.result.Changed++
		}
	}
}

// countLeft waits until nothing is left of the pods, and counts the remains.
func (s *soak) countLeft(ctx context.Context) error {
	var left []string
	err := arm.Until(ctx, patience, time.Second, func() (bool, error) {
		left = append(slices.Clone(s.cards.Prepared.Left()), s.disks.Mounted.Left()...)
		left = append(left, s.pinned()...)
		mounts := s.mounts()
		s.result.Leaks, s.result.Mounts = len(left), len(mounts)
		if len(left)+len(mounts) > 0 {
			return false, errors.New("something is left")
		}
		return true, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		s.note("%v", err)
	}
	for _, what := range append(left, s.mounts()...) {
		s.note("left at the end: %s", what)
	}
	s.result.Twice = len(s.cards.Prepared.Twice())
	s.result.StagedTwice = len(s.disks.Mounted.Twice())
	s.result.Repeated = s.cards.Prepared.Repeated() + s.disks.Mounted.Repeated()
	return nil
}

// pinned returns the containers that have exclusive CPUs by the state file, which both agents write.
func (s *soak) pinned() (all []string) {
	var file struct {
		Entries map[string]map[string]string `json:"entries"`
	}
	text, err := os.ReadFile(filepath.Join(s.turn.Root, "cpu_manager_state"))
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		s.note("state of CPUs: %v", err)
	}
	for uid, of := range file.Entries {
		for name, cpus := range of {
			all = append(all, fmt.Sprintf("CPUs %s of container %s of pod %s", cpus, name, uid))
		}
	}
	return all
}
