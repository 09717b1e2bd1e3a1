package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// container is a fake runtime with settable answers.
type container struct {
	facts    atomic.Pointer[pod.RuntimeFacts]
	broken   atomic.Bool // answers with an error
	hangs    atomic.Bool
	versions atomic.Int32
	lists    atomic.Int32
}

func well() *container {
	c := &container{}
	ok := pod.RuntimeCondition{Known: true, OK: true}
	c.facts.Store(&pod.RuntimeFacts{Runtime: ok, Network: ok})
	return c
}

func (c *container) wait(ctx context.Context) error {
	if c.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if c.broken.Load() {
		return errors.New("connection refused")
	}
	return nil
}

func (c *container) Facts(ctx context.Context) (pod.RuntimeFacts, error) {
	return *c.facts.Load(), c.wait(ctx)
}

func (c *container) Version(ctx context.Context) (string, string, error) {
	c.versions.Add(1)
	return "testd", "v1.0.0", c.wait(ctx)
}

func (c *container) Images(ctx context.Context) ([]pod.Image, error) {
	c.lists.Add(1)
	return []pod.Image{{ID: "i", Size: 1}}, c.wait(ctx)
}

func observer(t *testing.T, r Runtime, ips []string) *Observer {
	return NewObserver(ObserverConfig{
		Settings: Settings{Name: "n1", MaxPods: 110, MaxImages: 50}, NodeIPs: ips, Facts: someFacts(), Runtime: r,
	})
}

// known are addresses of this machine, found where a name server may be asked.
func known(t *testing.T) []string {
	t.Helper()
	ips, err := HostIPs(t.Context(), "no-such-name.invalid", nil)
	if err != nil {
		t.Fatal(err)
	}
	return ips
}

// TestC_1_25_AddressesAreFoundOnce: the Observer does not query DNS, which may hang,
// again before pods start; it does when the machine no longer has the address.
//
// Shows: C-1.25
func TestC_1_25_AddressesAreFoundOnce(t *testing.T) {
	t.Parallel()
	ips := known(t)
	found := slices.Repeat(ips, 2)
	o := NewObserver(ObserverConfig{Settings: Settings{Name: "n1"}, HostIPs: found})
	if got := o.addresses(t.Context()); !slices.Equal(got, found) {
		t.Errorf("%v, want %v", got, found)
	}
	o = NewObserver(ObserverConfig{Settings: Settings{Name: "n1"}, NodeIPs: ips, HostIPs: []string{"203.0.113.7"}})
	if got := o.addresses(t.Context()); !slices.Equal(got, ips) {
		t.Errorf("%v, want %v", got, ips)
	}
}

// TestC_1_25_6_RuntimeThatHangs: Node does not wait for it, and after half a minute the
// node is not ready; it is ready again as soon as the runtime answers.
//
// Shows: C-1.25.6
func TestC_1_25_6_RuntimeThatHangs(t *testing.T) {
	t.Parallel()
	ips := known(t)
	synctest.Test(t, func(t *testing.T) {
		r := well()
		o := observer(t, r, ips)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		message := func() string {
			start := time.Now()
			c := Condition(o.Node(ctx, nil), v1.NodeReady)
			if time.Since(start) != 0 {
				t.Errorf("a Node took %s", time.Since(start))
			}
			return c.Message
		}
		if got := message(); got != "[container runtime status check may not have completed yet, network state unknown]" {
			t.Errorf("before: %s", got)
		}
		wg.Go(func() { o.Run(ctx) })
		synctest.Wait()
		const ok = "kubelet is posting ready status"
		select {
		case <-o.Changed():
		default:
			t.Error("the change of readiness is not signalled")
		}
		if got := message(); got != ok {
			t.Errorf("ready: %s", got)
		}
		time.Sleep(time.Minute + time.Second)
		if n := r.versions.Load(); n != 1 {
			t.Errorf("asked %d times for the version", n)
		}
		if n := r.lists.Load(); n != 3 {
			t.Errorf("asked %d times for images in a minute", n)
		}
		r.hangs.Store(true)
		time.Sleep(15 * time.Second)
		if got := message(); got != ok {
			t.Errorf("after 15 s: %s", got)
		}
		time.Sleep(20 * time.Second)
		if got := message(); got != "container runtime is down" {
			t.Errorf("after 35 s: %s", got)
		}
		r.hangs.Store(false)
		time.Sleep(21 * time.Second)
		if got := message(); got != ok {
			t.Errorf("back: %s", got)
		}
		if n := r.versions.Load(); n != 2 {
			t.Errorf("the runtime that came back was asked for its version %d times", n-1)
		}
	})
}

// TestC_1_25_5_FastUntilReadyOnce: after a start the runtime is asked ten times a
// second, for two minutes; afterwards seldom.
//
// Shows: C-1.25.5
func TestC_1_25_5_FastUntilReadyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := well()
		r.broken.Store(true)
		o := observer(t, r, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { o.Run(ctx) })
		time.Sleep(time.Minute + 50*time.Millisecond)
		r.broken.Store(false)
		time.Sleep(100 * time.Millisecond)
		if n := r.versions.Load(); n != 1 {
			t.Errorf("asked %d times within a tenth of a second", n)
		}
		cancel()
		wg.Wait()
	})
}

// TestC_1_25_6_MessagesOfNotReady: each reason in the kubelet's order.
//
// Shows: C-1.25.6
func TestC_1_25_6_MessagesOfNotReady(t *testing.T) {
	t.Parallel()
	r := well()
	r.facts.Store(&pod.RuntimeFacts{
		Runtime: pod.RuntimeCondition{Known: true, OK: true},
		Network: pod.RuntimeCondition{Known: true, Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
	})
	o := observer(t, r, known(t))
	stopping := false
	o.cfg.ShuttingDown = func() bool { return stopping }
	o.cfg.Health = func() error { return nil }
	o.PollRuntime(t.Context())
	const network = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"
	if c := Condition(o.Node(t.Context(), nil), v1.NodeReady); c.Message != network {
		t.Errorf("network: %s", c.Message)
	}
	r.facts.Store(&pod.RuntimeFacts{Runtime: pod.RuntimeCondition{Known: true, Reason: "R", Message: "m"}, Network: pod.RuntimeCondition{Known: true, OK: true}})
	o.cfg.Health = func() error { return errors.New("PLEG is not healthy: x") }
	stopping = true
	o.PollRuntime(t.Context())
	if c := Condition(o.Node(t.Context(), nil), v1.NodeReady); c.Message != "[PLEG is not healthy: x, container runtime not ready: RuntimeReady=false reason:R message:m, node is shutting down]" {
		t.Errorf("all: %s", c.Message)
	}
}

// TestC_1_25_2_LookedAtOnDemand: without Run, Look polls the runtime on demand, and the
// node is as old as the first Look.
//
// Shows: C-1.25.2
func TestC_1_25_2_LookedAtOnDemand(t *testing.T) {
	t.Parallel()
	ips := known(t)
	synctest.Test(t, func(t *testing.T) {
		o := observer(t, well(), ips)
		first := o.PollNode(t.Context())
		time.Sleep(time.Hour)
		again := o.PollNode(t.Context())
		if Condition(first, v1.NodeReady).Status != v1.ConditionTrue || len(first.Status.Images) != 1 || first.CreationTimestamp.IsZero() ||
			!again.CreationTimestamp.Equal(&first.CreationTimestamp) {
			t.Errorf("first %+v, again %+v", first, again)
		}
		if was, is := Condition(first, v1.NodeReady), Condition(again, v1.NodeReady); is.LastTransitionTime != was.LastTransitionTime || is.LastHeartbeatTime == was.LastHeartbeatTime {
			t.Errorf("conditions %+v, %+v", was, is)
		}
		if got := o.Addresses(t.Context()); !slices.Equal(got, first.Status.Addresses) {
			t.Errorf("addresses %v, the node has %v", got, first.Status.Addresses)
		}
	})
}

// TestC_1_35_4_PressureOnTheNode: a pressure that the node is under now is a condition now.
//
// Shows: C-1.35.4
func TestC_1_35_4_PressureOnTheNode(t *testing.T) {
	t.Parallel()
	o := observer(t, well(), known(t))
	o.cfg.Under = func() []v1.NodeConditionType { return []v1.NodeConditionType{v1.NodeDiskPressure} }
	n := o.Node(t.Context(), nil)
	if c := Condition(n, v1.NodeDiskPressure); c.Status != v1.ConditionTrue || !strings.Contains(c.Reason, "DiskPressure") {
		t.Errorf("%+v", c)
	}
	if c := Condition(n, v1.NodeMemoryPressure); c.Status != v1.ConditionFalse {
		t.Errorf("%+v", c)
	}
}
