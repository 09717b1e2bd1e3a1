package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/criproxy"
)

// A deed is an action on the node. The next action, and its target, are drawn from the seed
// and the manifests alone, never from the agents' reactions: a seed always gives the same
// sequence, if not at the same speed.
type deed struct {
	name   string
	weight int
	do     func(*soak, context.Context) error
}

// changes are actions on manifests and containers, also while an agent is down.
var changes = []deed{
	{"new pod", 46, (*soak).add},
	{"remove", 12, (*soak).remove},
	{"remove and add again", 3, (*soak).again},
	{"edit labels", 5, (*soak).editLabels},
	{"edit a container", 5, (*soak).editContainer},
	{"edit resources", 5, (*soak).editResources},
	{"edit the pod", 4, (*soak).editPod},
	{"break a manifest", 4, (*soak).breakIt},
	{"kill a container", 10, (*soak).killContainer},
	{"make ill or well", 4, (*soak).ail},
}

// faults are actions on agents and on containerd.
var faults = []deed{
	{"agent killed", 6, func(s *soak, ctx context.Context) error { return s.endAgent(ctx, syscall.SIGKILL) }},
	{"agent asked to leave", 3, func(s *soak, ctx context.Context) error { return s.endAgent(ctx, syscall.SIGTERM) }},
	{"agent stopped for a while", 3, (*soak).stopAgent},
	{"connections cut", 3, (*soak).cutConnections},
	{"calls slow", 4, (*soak).slowDown},
	{"calls fail", 6, (*soak).failCalls},
	{"events lost", 3, (*soak).loseEvents},
	{"containerd killed", 1, (*soak).killContainerd},
}

// faultEvery is the mean number of changes between two faults.
const faultEvery = 12

// act does the next action.
func (s *soak) act(ctx context.Context) error {
	d := s.choose(changes)
	if s.artist.IntN(faultEvery) == 0 && s.now >= s.pods/20 {
		d = s.choose(faults)
	}
	wait := time.Duration(s.artist.IntN(200)) * time.Millisecond
	if err := s.do(ctx, d); err != nil {
		return err
	}
	return arm.Pause(ctx, wait)
}

func (s *soak) choose(from []deed) deed {
	all := 0
	for _, d := range from {
		all += d.weight
	}
	n := s.artist.IntN(all)
	for _, d := range from {
		if n -= d.weight; n < 0 {
			return d
		}
	}
	panic("weights do not add up")
}

func (s *soak) do(ctx context.Context, d deed) error {
	s.report.Deeds[d.name]++
	s.tell("%s", d.name)
	if err := d.do(s, ctx); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	return nil
}

// meanwhile makes changes while an agent or containerd is down.
func (s *soak) meanwhile(ctx context.Context) error {
	for range s.artist.IntN(5) {
		if err := s.do(ctx, s.choose(changes)); err != nil {
			return err
		}
	}
	return arm.Pause(ctx, time.Duration(s.artist.IntN(1000))*time.Millisecond)
}

// add writes a new manifest. When there are enough pods, it removes the oldest first.
func (s *soak) add(ctx context.Context) error {
	if len(s.wishes) >= s.atOnce {
		if err := s.take(s.wishes[0]); err != nil {
			return err
		}
	}
	w := &wish{name: fmt.Sprintf("p%d", s.now), house: pick(s.artist, s.houses...)}
	return s.place(w)
}

// place draws the pod of a new wish and writes its manifest.
func (s *soak) place(w *wish) error {
	s.now++
	w.pod, w.end = s.artist.draw(w.name, w.house.scratch())
	if n := len(s.wishes); n > 0 && s.artist.chance(12) {
		if on := s.wishes[s.artist.IntN(n)]; on.house == w.house && on.end != unwritten {
			w.after = on
			w.pod.Annotations = map[string]string{dependsOn: on.name + pick(s.artist, "", ":started", ":ready", ":done")}
		}
	}
	s.wishes = append(s.wishes, w)
	if s.artist.chance(3) {
		w.end = unwritten
		return s.spoil(w)
	}
	return s.write(w)
}

func (s *soak) write(w *wish) error {
	w.edits++
	w.vague = w.heir && w.end == stuck
	text, err := w.text()
	if err != nil {
		return err
	}
	s.tell("  %s on %s is to be %s, version %s", w.name, w.house.name, w.end, w.version())
	if w.edits > 1 || w.selfish() { // the agent may read an edited pod late; a pod that ends by itself has ended then
		w.house.scope.History.Excuse(w.full())
	}
	w.house.scope.History.Want(w.full(), w.pod)
	return w.house.write(w.name, text, s.artist.chance(10))
}

func (s *soak) spoil(w *wish) error {
	s.tell("  %s on %s is spoilt", w.name, w.house.name)
	w.house.scope.History.Break(w.full())
	return w.house.write(w.name, pick(s.artist, broken...), s.artist.chance(50))
}

// any returns one of the wishes that ok accepts; nil for none.
func (s *soak) any(ok func(*wish) bool) *wish {
	all := slices.DeleteFunc(slices.Clone(s.wishes), func(w *wish) bool { return !ok(w) })
	if len(all) == 0 {
		return nil
	}
	return pick(s.artist, all...)
}

func written(w *wish) bool { return w.end != unwritten }

func (s *soak) remove(context.Context) error {
	if w := s.any(func(*wish) bool { return true }); w != nil {
		return s.take(w)
	}
	return nil
}

// take removes a manifest.
func (s *soak) take(w *wish) error {
	w.gone = true
	s.wishes = slices.DeleteFunc(s.wishes, func(o *wish) bool { return o == w })
	s.tell("  %s on %s goes", w.name, w.house.name)
	w.house.scope.History.Away(w.full())
	_, err := w.house.Remove(w.name)
	return err
}

// again removes a pod and adds another of its name, which has to wait for it.
func (s *soak) again(ctx context.Context) error {
	w := s.any(written)
	if w == nil {
		return nil
	}
	if err := s.take(w); err != nil {
		return err
	}
	if err := arm.Pause(ctx, time.Duration(s.artist.IntN(400))*time.Millisecond); err != nil {
		return err
	}
	return s.place(&wish{name: w.name, house: w.house, edits: w.edits, heir: true})
}

// edit changes a pod's manifest, and mends a broken one.
func (s *soak) edit(change func(*v1.Pod)) error {
	w := s.any(written)
	if w == nil {
		return nil
	}
	w.pod = w.pod.DeepCopy()
	change(w.pod)
	return s.write(w)
}

func (s *soak) editLabels(context.Context) error {
	return s.edit(func(p *v1.Pod) { p.Labels = map[string]string{"edited": fmt.Sprint(s.now)} })
}

func (s *soak) editContainer(context.Context) error {
	return s.edit(func(p *v1.Pod) {
		c := &p.Spec.Containers[s.artist.IntN(len(p.Spec.Containers))]
		c.Env = []v1.EnvVar{{Name: "EDITED", Value: fmt.Sprint(s.now)}}
	})
}

func (s *soak) editResources(context.Context) error {
	return s.edit(func(p *v1.Pod) {
		c := &p.Spec.Containers[s.artist.IntN(len(p.Spec.Containers))]
		limit := resource.MustParse(pick(s.artist, "40Mi", "56Mi", "80Mi"))
		if old, ok := c.Resources.Limits[v1.ResourceMemory]; !ok || old.Value() > 30<<20 { // a limit that causes an OOM kill stays
			c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: limit}
		}
	})
}

func (s *soak) editPod(context.Context) error {
	return s.edit(func(p *v1.Pod) { p.Spec.Hostname = fmt.Sprintf("h%d", s.now) })
}

// breakIt overwrites a manifest with an invalid one; the pod stays as it was.
func (s *soak) breakIt(ctx context.Context) error {
	w := s.any(written)
	if w == nil {
		return nil
	}
	w.vague = true
	for limit := time.Now().Add(2 * time.Second); w.vague && time.Now().Before(limit); {
		if err := arm.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		w.vague = !w.read()
	}
	return s.spoil(w)
}

// killContainer kills a container's first process, if it runs.
func (s *soak) killContainer(ctx context.Context) error {
	w := s.any(func(w *wish) bool { return written(w) && len(w.mortal()) > 0 })
	if w == nil {
		return nil
	}
	name := pick(s.artist, w.mortal()...)
	s.tell("  %s/%s on %s", w.name, name, w.house.name)
	r, err := s.lab.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": w.full(), "io.kubernetes.container.name": name},
	}})
	if err != nil {
		return nil // containerd is down
	}
	for _, c := range r.Containers {
		for _, p := range s.lab.Node.Processes(c.Id) {
			if err := syscall.Kill(p.Pid, syscall.SIGKILL); err == nil {
				s.report.Deeds["  processes killed"]++
			}
		}
	}
	return nil
}

// ail makes the file that makes a container's probes fail, or removes it.
func (s *soak) ail(context.Context) error {
	w := s.any(func(w *wish) bool { return written(w) && len(w.pod.Spec.Volumes) > 1 })
	if w == nil {
		return nil
	}
	c := w.pod.Spec.Containers[s.artist.IntN(len(w.pod.Spec.Containers))]
	file := filepath.Join(w.house.scratch(), w.name+"-"+c.Name)
	if s.artist.chance(40) {
		_ = os.Remove(file)
		return nil
	}
	return os.WriteFile(file, nil, 0o600)
}

// endAgent ends the agent of the house whose agents are killed, and starts the next.
func (s *soak) endAgent(ctx context.Context, sig syscall.Signal) error {
	h := s.houses[1]
	began := time.Now()
	return h.end(ctx, sig, func() error {
		if sig == syscall.SIGTERM {
			s.report.Leave = max(s.report.Leave, time.Since(began).Seconds())
		}
		return s.meanwhile(ctx)
	})
}

func (s *soak) stopAgent(ctx context.Context) error {
	h := pick(s.artist, s.houses...)
	return h.stopped(ctx, time.Duration(300+s.artist.IntN(2500))*time.Millisecond)
}

func (s *soak) cutConnections(ctx context.Context) error {
	h := pick(s.artist, s.houses...)
	return h.cut(ctx, time.Duration(s.artist.IntN(2000))*time.Millisecond)
}

// slowDown makes every call slower until the next time, or the end of the round.
func (s *soak) slowDown(context.Context) error {
	h := pick(s.artist, s.houses...)
	h.gate.setSlow(time.Duration(s.artist.IntN(3)) * 300 * time.Millisecond)
	return nil
}

// failCalls makes the next calls of one kind fail: before the runtime gets them, or after it
// has done them and the answer is lost.
func (s *soak) failCalls(context.Context) error {
	h := pick(s.artist, s.houses...)
	r := criproxy.Rule{
		Method: pick(s.artist, "RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox",
			"ListContainers", "ListPodSandbox", "ContainerStatus", "PodSandboxStatus", "ExecSync", "UpdateContainerResources"),
		Times: 1 + s.artist.IntN(3),
		After: s.artist.chance(50),
		Delay: time.Duration(s.artist.IntN(2)) * time.Second,
		Err:   status.Error(pick(s.artist, codes.Unavailable, codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted), "the soak says no"),
	}
	if strings.HasPrefix(r.Method, "List") && s.artist.chance(50) {
		r.Err, r.Empty, r.Times = nil, true, 1
	}
	s.tell("  %s on %s: %+v", r.Method, h.name, r)
	h.rule(r)
	return nil
}

// loseEvents makes the next events come late, in another order, without their
// sandbox, or never.
func (s *soak) loseEvents(context.Context) error {
	h := pick(s.artist, s.houses...)
	r := criproxy.Rule{Method: criproxy.Event, Times: 1 + s.artist.IntN(10)}
	switch s.artist.IntN(4) {
	case 0:
		r.Drop = true
	case 1:
		r.Delay = 3 * time.Second
	case 2:
		r.Swap = true
	default:
		r.NoSandbox = true
	}
	s.tell("  events on %s: %+v", h.name, r)
	h.rule(r)
	return nil
}

// killContainerd kills containerd between two calls, and starts it again.
func (s *soak) killContainerd(ctx context.Context) error {
	if err := s.endContainerd(ctx); err != nil {
		return err
	}
	if err := s.meanwhile(ctx); err != nil {
		return err
	}
	_, err := s.runtime.Ensure(ctx)
	return err
}

func (s *soak) endContainerd(ctx context.Context) error {
	for _, h := range s.houses {
		err := h.gate.shut(ctx, h.proxy)
		defer h.gate.open()
		if err != nil {
			return err
		}
	}
	pid, err := arm.Peer(s.lab.Node.Endpoint)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	return arm.Until(ctx, 20*time.Second, 10*time.Millisecond, func() (bool, error) {
		st, err := s.runtime.Status(ctx)
		if err != nil || st.PID == 0 {
			return true, err
		}
		return false, errors.New("containerd still runs")
	})
}
