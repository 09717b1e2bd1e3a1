package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// groups is a Cgroups that records each pod's memory limit, by UID.
type groups struct {
	mu     sync.Mutex
	memory map[string]int64
	err    error // of Lower
}

// fail sets what Lower returns.
func (g *groups) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

func memoryOf(p *v1.Pod) (sum int64) {
	for i := range p.Spec.Containers {
		sum += p.Spec.Containers[i].Resources.Limits.Memory().Value()
	}
	return sum
}

func (g *groups) set(want *pod.Spec, to func(now, want int64) int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory[want.UID()] = to(g.memory[want.UID()], memoryOf(want.Pod))
}

func (g *groups) Ensure(want *pod.Spec) (string, error) {
	g.set(want, func(_, want int64) int64 { return want })
	return g.Parent(want), nil
}

func (g *groups) Raise(want *pod.Spec) error {
	g.set(want, func(now, want int64) int64 { return max(now, want) })
	return nil
}

func (g *groups) Lower(want *pod.Spec) error {
	g.mu.Lock()
	err := g.err
	g.mu.Unlock()
	if err == nil {
		g.set(want, func(now, want int64) int64 { return min(now, want) })
	}
	return err
}

func (g *groups) Parent(want *pod.Spec) string { return "/kubepods/pod" + want.UID() }

func (g *groups) Destroy(uid string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.memory, uid)
	return nil
}

func (g *groups) Sweep(map[string]bool) ([]string, error) { return nil, nil }

// all lists the pods that have a cgroup.
func (g *groups) all() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(g.memory)), " ")
}

func (g *groups) of(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, ok := g.memory["uid-"+name]
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%dMi", n>>20)
}

// limitedTo gives the pod's container a limit; a change of it restarts the container.
func limitedTo(memory string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		limits := v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory), v1.ResourceCPU: resource.MustParse("1")}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: limits, Requests: limits}
		p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	}
}

// C-1.34.5: the pod's cgroup follows every edit of its containers at any time. It grows
// before one of them does, and shrinks at the end.
//
// Shows: C-1.34.5
func TestC_1_34_5_CgroupFollowsEveryEdit(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		g := &groups{memory: map[string]int64{}}
		m.alter = func(c *Config) { c.Cgroups = g }
		two := func(p *v1.Pod) {
			c := *p.Spec.Containers[0].DeepCopy()
			c.Name = "two"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		base := mkpod("a", limitedTo("64Mi"))
		m.src.set(base)
		m.arrive()
		for _, step := range []struct {
			want string
			spec *pod.Spec
		}{
			{"64Mi", base},
			{"256Mi", resized(base, limitedTo("256Mi"))},
			{"32Mi", resized(base, limitedTo("32Mi"))},
			{"128Mi", mkpod("a", limitedTo("64Mi"), two)},
			{"64Mi", mkpod("a", limitedTo("64Mi"))},
		} {
			m.src.set(step.spec)
			m.pass(time.Minute)
			if got := g.of("a"); got != step.want {
				t.Errorf("the pod's cgroup has %s, want %s", got, step.want)
			}
		}
		m.src.set()
		m.pass(time.Minute)
		if got := g.of("a"); got != "none" {
			t.Errorf("the pod is gone, and its cgroup has %s", got)
		}
	})
}

// overdueToken is a Volumes whose token is due for renewal, and whose server is down.
type overdueToken struct {
	*disk
	due time.Time
}

func (o *overdueToken) SetUp(ctx context.Context, want *pod.Spec, p pod.Place, instance int) error {
	if !o.due.IsZero() {
		return errors.New("volume token: the API server does not answer")
	}
	o.due = time.Now().Add(time.Minute)
	return o.disk.SetUp(ctx, want, p, instance)
}

func (o *overdueToken) Ready(want *pod.Spec, instance int) (put, current bool, until time.Time) {
	put, current, _ = o.disk.Ready(want, instance)
	return put, current && time.Now().Before(o.due), o.due
}

// C-1.38.11: a volume that cannot be renewed keeps no container from restarting.
//
// Shows: C-1.38.11
func TestC_1_38_11_StaleVolumesBlockNoRestart(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		o := &overdueToken{disk: m.disk}
		m.alter = func(c *Config) { c.Volumes = o }
		m.src.set(mkpod("web", mounting("page"), func(p *v1.Pod) { p.Spec.Volumes[0].ConfigMap.Optional = new(true) }))
		m.arrive()
		m.pass(5 * time.Minute)
		m.rt.Exit(webKey, "app", 1)
		m.pass(time.Minute)
		if !strings.Contains(m.rt.State(), "web/app attempt=1 running") {
			t.Errorf("it does not start while its token cannot be renewed:\n%s", m.rt.State())
		}
	})
}

// Data that changes faster than a worker reads blocks nothing: the worker sets up the newest,
// and restarts its container when it exits.
func TestDataThatNeverStandsStillHoldsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.hold(configMap("page", "0"))
		m.exits(10*time.Second, 1)
		m.src.set(mkpod("web", mounting("page")))
		m.arrive()
		m.pass(5 * time.Second)
		for _, method := range []string{"ListContainers", "ListPodSandbox"} {
			m.rt.Fault(critest.Fault{Method: method, Delay: 15 * time.Millisecond})
		}
		before := m.disk.setUps
		for i := range 1000 {
			m.src.hold(configMap("page", fmt.Sprint(i)))
			m.pass(10 * time.Millisecond)
		}
		if n := m.disk.setUps - before; n < 33 {
			t.Errorf("%d puts in 10 s", n)
		}
		if !strings.Contains(m.rt.State(), "web/app attempt=1") {
			t.Errorf("it did not start again:\n%s", m.rt.State())
		}
	})
}
