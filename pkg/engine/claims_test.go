package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pod"
)

// desk is a fake of Claims: one claim, which its driver prepares while it is there.
type desk struct {
	changed chan struct{}
	sick    chan struct{}
	busy    func() bool // something of the pod runs

	mu       sync.Mutex
	there    bool
	hangs    bool // calls end with their context, or with answers
	answers  chan struct{}
	prepared bool
	health   pod.DeviceHealth // of the device
	log      []string
	adopted  []pod.ClaimHolder
}

func (d *desk) Changed() <-chan struct{} { return d.changed }

func (d *desk) HealthChanged() <-chan struct{} { return d.sick }

// plug has the driver register, or go away.
func (d *desk) plug(there bool) {
	d.mu.Lock()
	d.there = there
	d.mu.Unlock()
	d.changed <- struct{}{}
}

func (d *desk) Adopt(holders []pod.ClaimHolder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.adopted = append(d.adopted, holders...)
}

func (d *desk) Prepare(ctx context.Context, _ *pod.Spec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.prepared:
		return nil
	case d.hangs:
		d.mu.Unlock()
		end := activity.Begin(ctx, activity.Call{Kind: activity.Claim, Name: "NodePrepareResources", Target: "gpu", Host: "x.test"})
		select {
		case <-ctx.Done():
		case <-d.answers:
		}
		end()
		d.mu.Lock()
		if ctx.Err() == nil {
			break
		}
		return &pod.StartError{Reason: pod.ReasonPrepareClaims, Err: ctx.Err()}
	case !d.there:
		return &pod.StartError{Reason: pod.ReasonWaitsForDriver, Err: errors.New("prepare dynamic resources: DRA driver x.test is not registered")}
	}
	d.prepared = true
	d.log = append(d.log, "prepare")
	return nil
}

func (d *desk) Of(_ *pod.Spec, container string) ([]pod.ClaimAllocation, error) {
	return []pod.ClaimAllocation{{Namespace: "default", Name: "gpu", UID: "uid-gpu", Devices: []pod.ClaimDevice{{Driver: "x.test", CDI: []string{"x.test/gpu=" + container}}}}}, nil
}

func (d *desk) Health(string) map[string]map[pod.DeviceName]pod.DeviceHealth {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.prepared {
		return nil
	}
	if d.health.Status == "" {
		return map[string]map[pod.DeviceName]pod.DeviceHealth{"uid-gpu": nil}
	}
	return map[string]map[pod.DeviceName]pod.DeviceHealth{"uid-gpu": {{Driver: "x.test"}: d.health}}
}

// say has the driver report the health of the device.
func (d *desk) say(health v1.ResourceHealthStatus) {
	d.mu.Lock()
	d.health.Status = health
	d.mu.Unlock()
	d.sick <- struct{}{}
}

func (d *desk) Uses(string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prepared
}

func (d *desk) Release(context.Context, string) error {
	busy := d.busy()
	d.mu.Lock()
	defer d.mu.Unlock()
	if busy {
		d.log = append(d.log, "release while it runs")
	}
	if !d.there {
		return errors.New("unprepare dynamic resources: DRA driver x.test is not registered")
	}
	if d.prepared {
		d.log = append(d.log, "unprepare")
	}
	d.prepared = false
	return nil
}

func (d *desk) Leave(uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.prepared {
		d.log = append(d.log, "leave "+uid)
	}
}

func (d *desk) Sweep(keep func(uid string) bool) { keep("uid-app") }

// calls returns the calls of the driver.
func (d *desk) calls() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.log, " ")
}

// newDesk returns a desk that the next agents of the machine have.
func newDesk(m *machine, there bool) *desk {
	d := &desk{changed: make(chan struct{}, 1), sick: make(chan struct{}, 1), there: there, busy: func() bool { return strings.Contains(m.rt.State(), "running") }}
	m.alter = func(c *Config) { c.Claims = d }
	return d
}

// usesClaim has the container app use the claim gpu.
func usesClaim(p *v1.Pod) {
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
}

// A pod waits for the driver of its claim before it has a sandbox, and starts as soon as the driver is
// there. The next agent reads the claim back from the container, and asks for nothing.
func TestClaims_DriverComesLate_PodWaitsAndGetsItsDevices(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		d := newDesk(m, false)
		m.src.set(ofAPI("app", usesClaim))
		m.arrive()
		m.pass(30 * time.Second)
		m.expect("app", "Pending", false)
		if w := m.statusOf("app").ContainerStatuses[0].State.Waiting; w == nil || w.Message != "WaitsForResourceDriver: prepare dynamic resources: DRA driver x.test is not registered" {
			t.Errorf("waiting: %+v", w)
		}
		d.plug(true)
		m.pass(time.Second)
		m.expect("app", "Running", true)
		m.die()
		m.arrive()
		m.pass(time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.adopted) != 1 || d.adopted[0].UID != "uid-app" || len(d.adopted[0].Claims) != 1 || d.adopted[0].Claims[0].UID != "uid-gpu" || d.adopted[0].Claims[0].Devices[0].CDI[0] != "x.test/gpu=app" {
			t.Errorf("the next agent adopted %+v", d.adopted)
		}
		if !slices.Equal(d.log, []string{"prepare"}) {
			t.Errorf("calls %v", d.log)
		}
	})
}

// The status of a pod says that it has terminated only after its claims are unprepared: then the
// cluster gives the devices to others. While the driver is away, the pod stays Running.
func TestClaims_PodTerminates_StatusFollowsTheDriver(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		d := newDesk(m, true)
		m.exits(3*time.Second, 0)
		m.src.set(ofAPI("app", usesClaim, policy(v1.RestartPolicyNever)))
		m.arrive()
		m.pass(time.Second)
		d.plug(false)
		m.pass(time.Minute)
		if got := m.phase("app"); got != "Running" || d.calls() != "prepare" {
			t.Errorf("without the driver: %s, calls %s", got, d.calls())
		}
		if rec := m.disk.records[pod.Key{Namespace: "default", Name: "app"}]; rec.Terminal == "" {
			t.Error("no later agent knows that the pod has terminated")
		}
		m.die() // the next agent waits as well
		m.arrive()
		m.pass(time.Minute)
		if got := m.phase("app"); got != "Running" {
			t.Errorf("the next agent: %s", got)
		}
		d.plug(true)
		m.pass(time.Minute)
		if got := m.phase("app"); got != "Succeeded" || d.calls() != "prepare unprepare" {
			t.Errorf("with the driver: %s, calls %s", got, d.calls())
		}
	})
}

// A pod whose extended resource a claim provides starts without a device plugin, and waits for its driver.
func TestClaims_ExtendedResource_NeedsNoDevicePlugin(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		p := newPlugin(m, false)
		withPlugin := m.alter
		d := newDesk(m, false)
		withDesk := m.alter
		m.alter = func(c *Config) { withPlugin(c); withDesk(c) }
		backed := func(p *v1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "gpu", RequestMappings: []v1.ContainerExtendedResourceRequest{
				{ContainerName: "app", ResourceName: "x.com/gpu", RequestName: "container-0-request-0"},
			}}
		}
		m.src.set(ofAPI("app", usesGPU, backed))
		m.arrive()
		m.pass(30 * time.Second)
		if w := m.statusOf("app").ContainerStatuses[0].State.Waiting; w == nil || !strings.HasPrefix(w.Message, "WaitsForResourceDriver") {
			t.Errorf("waiting: %+v", w)
		}
		d.plug(true)
		m.pass(time.Second)
		m.expect("app", "Running", true)
		p.mu.Lock()
		if len(p.asked) > 0 {
			t.Errorf("the plugin is asked for %+v", p.asked)
		}
		p.mu.Unlock()
		m.src.set(ofAPI("app", usesGPU, backed, func(p *v1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
		}))
		m.pass(time.Minute)
		if d.calls() != "prepare unprepare" {
			t.Errorf("calls %s", d.calls())
		}
	})
}

// The status of a container follows the health of its devices, and has none once the claim is unprepared.
func TestClaims_DriverReportsHealth_StatusFollows(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		d := newDesk(m, true)
		m.exits(time.Hour, 0)
		m.src.set(ofAPI("app", usesClaim, policy(v1.RestartPolicyNever)))
		m.arrive()
		m.pass(time.Second)
		shown := func(want string) {
			t.Helper()
			got := ""
			for _, r := range m.statusOf("app").ContainerStatuses[0].AllocatedResourcesStatus {
				got += string(r.Name) + " " + string(r.Resources[0].ResourceID) + " " + string(r.Resources[0].Health)
			}
			if got != want {
				t.Errorf("the status has %q, want %q", got, want)
			}
		}
		shown("claim:gpu x.test/gpu=app Unknown")
		for _, health := range []v1.ResourceHealthStatus{v1.ResourceHealthStatusHealthy, v1.ResourceHealthStatusUnhealthy} {
			d.say(health)
			m.pass(time.Second)
			shown("claim:gpu x.test/gpu=app " + string(health))
		}
		m.pass(2 * time.Hour)
		if got := m.phase("app"); got != "Succeeded" {
			t.Errorf("the pod is %s", got)
		}
		shown("")
	})
}

// A pod is deleted while its driver hangs, before it has a sandbox: the call is cancelled. A pod that
// runs stops first, and is gone after its claims are unprepared.
func TestClaims_PodIsDeleted_ClaimsAreUnpreparedAfterItsContainers(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		d := newDesk(m, true)
		d.hangs = true
		deleted := func(p *v1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
		}
		finished := func() bool {
			l := m.disk.last(pod.Key{Namespace: "default", Name: "app"})
			return l.finished || l.gone
		}
		m.src.set(ofAPI("app", usesClaim))
		m.arrive()
		m.pass(time.Minute)
		m.expect("app", "Pending", false)
		m.src.set(ofAPI("app", usesClaim, deleted))
		m.pass(5 * time.Second)
		if !finished() || d.calls() != "" {
			t.Errorf("it waits for a driver that hangs: %s", m.phase("app"))
		}
		m.src.set()
		m.pass(5 * time.Second)
		d.mu.Lock()
		d.hangs = false
		d.mu.Unlock()
		m.src.set(ofAPI("app", usesClaim, image("slow-term-3s")))
		m.pass(5 * time.Second)
		m.expect("app", "Running", true)
		d.plug(false)
		m.src.set(ofAPI("app", usesClaim, image("slow-term-3s"), deleted))
		m.pass(time.Minute)
		if finished() || d.calls() != "prepare" {
			t.Errorf("gone although its claim is prepared: %s", d.calls())
		}
		d.plug(true)
		m.pass(time.Minute)
		if !finished() || d.calls() != "prepare unprepare" {
			t.Errorf("%s, calls %s", m.phase("app"), d.calls())
		}
	})
}

// A manifest with the UID of a pod that runs is refused, and removed. The claims of the pod stay.
func TestClaims_UIDOfARunningPod_ClaimsStay(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		d := newDesk(m, true)
		m.src.set(ofAPI("app", usesClaim))
		m.arrive()
		m.pass(time.Second)
		m.src.set(ofAPI("app", usesClaim), mkpod("copy", func(p *v1.Pod) { p.UID = "uid-app" }))
		m.pass(time.Minute)
		m.expect("app", "Running", true)
		m.src.set(ofAPI("app", usesClaim))
		m.pass(time.Minute)
		if m.expect("app", "Running", true); d.calls() != "prepare" {
			t.Errorf("calls %s", d.calls())
		}
	})
}

// A pod of the same name replaces one whose driver is away: it does not wait for that driver.
func TestClaims_NewPodOfTheName_DoesNotWaitForTheOldDriver(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		d := newDesk(m, true)
		m.src.set(ofAPI("app", usesClaim))
		m.arrive()
		m.pass(time.Second)
		d.plug(false)
		m.src.set(ofAPI("app", func(p *v1.Pod) { p.UID = "uid-new" }))
		m.pass(2 * time.Minute)
		m.expect("app", "Running", true)
		if got := d.calls(); !strings.HasPrefix(got, "prepare leave uid-app") {
			t.Errorf("calls %s", got)
		}
	})
}
