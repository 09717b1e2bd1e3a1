package engine

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
)

// plugin is a fake of Devices: one device, d1, of x.com/gpu.
type plugin struct {
	changed chan struct{}

	hangs chan struct{} // Allocate returns when it is closed; nil: at once

	mu      sync.Mutex
	there   bool
	flaps   bool // it is registered while there is no device
	adopted []pod.DeviceHolder
	asked   []map[string][]pod.DeviceAllocation
	near    [][]int // of each call of Allocate
	only    []bool  // of each call of Allocate
	layout  *pod.DeviceLayout
	// reserved are the devices of the last call of Reserve with a reservation.
	reserved []pod.DeviceReservation
	kept     map[string]bool // the containers of the last call of Keep
}

func (p *plugin) plug(there bool) {
	p.mu.Lock()
	p.there = there
	p.mu.Unlock()
	p.changed <- struct{}{}
}

func (p *plugin) Changed() <-chan struct{} { return p.changed }

func (p *plugin) Supply() map[v1.ResourceName]pod.DeviceSupply {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := pod.DeviceSupply{Registered: p.there || p.flaps, Usable: 1, Layout: p.layout}
	if p.there || p.flaps {
		s.Healthy = 1
	}
	return map[v1.ResourceName]pod.DeviceSupply{"x.com/gpu": s}
}

func (p *plugin) Reserve(all []pod.DeviceReservation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(all) > 0 {
		p.reserved = all
	}
}

// list changes the devices by NUMA node.
func (p *plugin) list(devices map[string]pod.DevicePlace) {
	p.mu.Lock()
	p.layout = &pod.DeviceLayout{Devices: devices}
	p.mu.Unlock()
	p.changed <- struct{}{}
}

// reserves checks that the last reservation is one of a device for the container app.
func (p *plugin) reserves(t *testing.T, device string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if want := []pod.DeviceReservation{{UID: "uid-app", Container: "app", Resource: "x.com/gpu", Devices: []string{device}}}; !reflect.DeepEqual(p.reserved, want) {
		t.Errorf("reserved %+v, want %+v", p.reserved, want)
	}
}

func (p *plugin) Adopt(holders []pod.DeviceHolder, _ bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adopted = append(p.adopted, holders...)
}

func (p *plugin) Allocate(ctx context.Context, r pod.DeviceRequest) ([]pod.DeviceAllocation, error) {
	if p.hangs != nil {
		end := activity.Begin(ctx, activity.Call{Kind: activity.Plugin, Name: "allocate devices", Target: r.Container, Host: "x.com/gpu"})
		<-p.hangs
		end()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.near = append(p.asked, r.Have), append(p.near, r.Near)
	p.only = append(p.only, r.Only)
	if !p.there {
		return nil, &pod.StartError{Reason: pod.ReasonWaitsForDevices, Err: context.DeadlineExceeded}
	}
	return []pod.DeviceAllocation{{Resource: "x.com/gpu", Devices: []string{"d1"}}}, nil
}

func (p *plugin) Healthy(string, string) bool { return false }

func (p *plugin) Keep(_ string, containers map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = containers
}

// keeps returns the containers of the last call of Keep.
func (p *plugin) keeps() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.kept)
}

// holders returns the pods with devices that agents have adopted.
func (p *plugin) holders() []pod.DeviceHolder {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.adopted)
}

// newPlugin returns a plugin that the next agents of the machine have.
func newPlugin(m *machine, there bool) *plugin {
	p := &plugin{changed: make(chan struct{}, 1), there: there}
	m.alter = func(c *Config) { c.Devices = p }
	return p
}

// usesGPU has the container app request one device.
func usesGPU(p *v1.Pod) {
	one := v1.ResourceList{"x.com/gpu": resource.MustParse("1")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: one, Requests: one}
}

// holds checks that the one pod with devices that agents have adopted has d1 in its container app.
func (p *plugin) holds(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.adopted) != 1 || p.adopted[0].UID != "uid-app" || len(p.adopted[0].Containers["app"]) != 1 || p.adopted[0].Containers["app"][0].Devices[0] != "d1" {
		t.Errorf("the next agent adopted %+v", p.adopted)
	}
}

// A pod waits for its plugin, starts as soon as it is there, and runs on without it. The next
// agent reads its devices from the runtime, and a container that restarts asks for them again.
//
// Shows: C-1.31.6
func TestDevices_PluginComesLate_PodWaitsAndKeepsItsDevices(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		p := newPlugin(m, false)
		m.src.set(mkpod("app", usesGPU))
		m.arrive()
		m.pass(30 * time.Second)
		m.expect("app", "Pending WaitsForDevicePlugin", false)
		p.plug(true)
		m.pass(time.Second)
		status := func() v1.ContainerStatus {
			return m.disk.last(pod.Key{Namespace: "default", Name: "app"}).pod.Status.ContainerStatuses[0]
		}
		c := status()
		if c.State.Running == nil || len(c.AllocatedResourcesStatus) != 1 || c.AllocatedResourcesStatus[0].Resources[0] != (v1.ResourceHealth{ResourceID: "d1", Health: v1.ResourceHealthStatusUnhealthy}) {
			t.Fatalf("with the plugin: %+v", c)
		}
		p.plug(false)
		m.leave()
		m.arrive()
		m.pass(time.Second)
		if p.holds(t); status().State.Running == nil {
			t.Errorf("%+v", status())
		}
	})
}

// twoNodes returns the allocator of a machine with two NUMA nodes of two CPUs, of which one is reserved.
func twoNodes(t *testing.T, policy string) *cpuset.Allocator {
	t.Helper()
	of := cpuset.Machine{CPUs: map[int]cpuset.CPU{}, Nodes: []cpuset.Node{{ID: 0, Memory: 8 << 30}, {ID: 1, Memory: 8 << 30}}}
	for id := range 4 {
		of.CPUs[id] = cpuset.CPU{Core: id, Socket: id / 2, Node: id / 2}
	}
	a, err := cpuset.New(of, cpuset.Policy{CPU: "static", Topology: policy, Reservation: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// withGPU lets a pod of guaranteedPod request one device.
func withGPU(p *v1.Pod) {
	p.Spec.Containers[0].Resources.Limits["x.com/gpu"] = resource.MustParse("1")
	p.Spec.Containers[0].Resources.Requests["x.com/gpu"] = resource.MustParse("1")
}

// Devices of a container with exclusive CPUs are chosen by the NUMA nodes of these CPUs.
//
// Shows: C-1.46.12
func TestDevices_ContainerHasExclusiveCPUs_DevicesAreNearThem(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		a, p := twoNodes(t, "best-effort"), newPlugin(m, true)
		m.alter = func(c *Config) {
			c.Devices, c.CPUs, c.SaveCPUs = p, a, func(map[string][]byte) error { return nil }
		}
		m.src.set(mkpod("app", guaranteedPod("2"), withGPU)) // node 0 has one CPU that is not reserved
		m.arrive()
		m.pass(time.Minute)
		m.expect("app", "Running", true)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.near) != 1 || !slices.Equal(p.near[0], []int{1}) {
			t.Errorf("devices near NUMA nodes %v", p.near)
		}
	})
}

// The device is on NUMA node 1, and so are the CPUs of the pod that requests it. Admission reserves the device
// until the container has it, and another one if the first one is not healthy any more. The next agent reads
// the node and the device in the record.
//
// Shows: C-1.46.9, C-1.46.11, C-1.46.12
func TestDevices_TopologyPolicy_AdmissionChoosesTheNodeOfTheDevice(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		a, p := twoNodes(t, "single-numa-node"), newPlugin(m, true)
		p.layout = &pod.DeviceLayout{Devices: map[string]pod.DevicePlace{"d1": {Healthy: true, NUMA: []int64{1}}}}
		m.alter = func(c *Config) {
			c.Devices, c.CPUs, c.SaveCPUs = p, a, func(map[string][]byte) error { return nil }
		}
		p.there, p.flaps = false, true // the plugin has no device for the container yet
		app, two := mkpod("app", guaranteedPod("1"), withGPU), mkpod("two", guaranteedPod("2"))
		m.src.set(app)
		m.arrive()
		m.pass(time.Minute)
		p.reserves(t, "d1")
		p.list(map[string]pod.DevicePlace{"d1": {NUMA: []int64{1}}, "d2": {Healthy: true, NUMA: []int64{1}}})
		m.pass(time.Minute)
		p.reserves(t, "d2")
		m.leave()
		p.list(map[string]pod.DevicePlace{"d1": {Healthy: true, NUMA: []int64{1}}, "d2": {Healthy: true, NUMA: []int64{1}}})
		m.arrive()
		m.pass(time.Minute)
		p.reserves(t, "d2")
		m.src.set(app, two)
		m.pass(time.Minute)
		if got := m.stands("two"); !strings.Contains(got, "TopologyAffinityError") || !strings.Contains(got, "Resources cannot be allocated with Topology locality") {
			t.Errorf("two: %s", got)
		}
		p.plug(true)
		m.pass(time.Minute)
		m.expect("app", "Running", true)
		if got := cpusOf(m, "app"); got != "2@" {
			t.Errorf("app runs on %s", got)
		}
		if note := m.rt.ContainerConfig(app.Key, "app").Annotations[pod.AnnotationPlacement]; note != `{"cpus":"2","numa":[1]}` {
			t.Errorf("annotation %s", note)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, near := range p.near {
			if !slices.Equal(near, []int{1}) || !p.only[i] {
				t.Errorf("call %d: devices near NUMA nodes %v, no others: %t", i, near, p.only[i])
			}
		}
		if len(p.near) < 3 {
			t.Errorf("%d calls", len(p.near))
		}
	})
}

// A plugin changes its devices all the time. The pod that waits for it tries ever more seldom, and starts
// soon after the plugin has a device.
func TestDevices_PluginChangesEverySecond_TriesBackOff(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		p := newPlugin(m, false)
		p.flaps = true
		m.src.set(mkpod("app", usesGPU))
		m.arrive()
		m.pass(time.Minute)
		tries := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.asked)
		}
		before := tries()
		for range 120 {
			p.plug(false)
			m.pass(time.Second)
		}
		if n := tries() - before; n < 10 || n > 30 {
			t.Errorf("%d tries in two minutes, want 10 to 30", n)
		}
		if w := m.statusOf("app").ContainerStatuses[0].State.Waiting; w == nil || w.Reason != pod.ReasonWaitsForDevices {
			t.Errorf("waiting: %+v", w)
		}
		p.plug(true)
		m.pass(11 * time.Second)
		m.expect("app", "Running", true)
	})
}

// A container is removed, as in a restart of all containers, and its successor waits for the
// plugin. An agent that is killed then loses nothing: the record has the devices until there is a
// successor.
func TestDevices_AgentIsKilledBetweenTwoContainers_NextOneKnowsThem(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		p := newPlugin(m, true)
		m.exits(3*time.Second, 88)
		m.src.set(mkpod("app", usesGPU, own("app", v1.ContainerRestartPolicyNever, onExit(88, v1.ContainerRestartRuleActionRestartAllContainers))))
		m.arrive()
		m.pass(time.Second)
		p.plug(false)
		m.pass(time.Minute)
		m.die()
		m.arrive()
		m.pass(time.Minute)
		p.holds(t)
		p.mu.Lock()
		if had := p.asked[len(p.asked)-1]["app"]; len(had) != 1 || had[0].Devices[0] != "d1" {
			t.Errorf("the successor asked with %+v", p.asked)
		}
		p.mu.Unlock()
		p.plug(true)
		m.pass(time.Second)
		if rec := m.disk.records[pod.Key{Namespace: "default", Name: "app"}]; m.phase("app") != "Running" || len(rec.Devices) != 0 {
			t.Errorf("%s, record %+v", m.phase("app"), rec.Devices)
		}
	})
}

// A pod that has terminated frees its devices, although its containers are still there, also for
// the next agent. A running pod keeps them.
func TestDevices_PodTerminates_DevicesAreFree(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		p := newPlugin(m, true)
		m.exits(3*time.Second, 0)
		m.src.set(mkpod("app", usesGPU, func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
		m.arrive()
		m.pass(time.Second)
		if kept := p.keeps(); !kept["app"] {
			t.Errorf("a running pod keeps %v", kept)
		}
		m.pass(time.Minute)
		if kept := p.keeps(); len(kept) != 0 || m.phase("app") != "Succeeded" {
			t.Errorf("a terminated pod keeps %v, phase %s", kept, m.phase("app"))
		}
		m.leave()
		m.arrive()
		m.pass(time.Second)
		if adopted := p.holders(); len(adopted) != 0 {
			t.Errorf("the next agent adopted %+v", adopted)
		}
	})
}

// A listing that was made before a pod freed its devices does not bring them back.
func TestDevices_ListingIsOld_FreedDevicesStayFree(t *testing.T) {
	t.Parallel()
	p := &plugin{}
	l := &loop{cfg: Config{Devices: p}, orphans: make(map[pod.Key]orphan)}
	key := pod.Key{Namespace: "default", Name: "app"}
	found := listing{pods: []pod.Actual{{Key: key, UID: "uid-app", Containers: map[string]pod.Container{
		"app": {Name: "app", State: pod.StateRunning, Devices: []pod.DeviceAllocation{{Resource: "x.com/gpu", Devices: []string{"d1"}}}},
	}}}}
	l.nodeState.devicesKnown = true
	if l.adoptDevices(found); len(p.adopted) != 0 {
		t.Errorf("adopted %+v of a pod that has, or had, a worker", p.adopted)
	}
	l.orphans[key] = orphan{}
	l.adoptDevices(found)
	p.holds(t)
	l.nodeState.devicesKnown = false
	if l.adoptDevices(found); len(p.adopted) != 2 || !l.nodeState.devicesKnown {
		t.Errorf("the first complete listing adopted %+v", p.adopted)
	}
}
