package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
)

// engine is a healthy container runtime, or one that hangs.
type engine struct {
	hangs  atomic.Bool
	down   atomic.Bool
	images atomic.Int64 // the size of the one that there is
}

func (e *engine) wait(ctx context.Context) error {
	if e.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if e.down.Load() {
		return errors.New("connection refused")
	}
	return nil
}

func (e *engine) Facts(ctx context.Context) (pod.RuntimeFacts, error) {
	ok := pod.RuntimeCondition{Known: true, OK: true}
	return pod.RuntimeFacts{Runtime: ok, Network: ok}, e.wait(ctx)
}

func (e *engine) Version(ctx context.Context) (string, string, error) {
	return "testd", "v1.0.0", e.wait(ctx)
}

func (e *engine) Images(ctx context.Context) ([]pod.Image, error) {
	return []pod.Image{{ID: "i", Size: e.images.Load()}}, e.wait(ctx)
}

// world is a node and its API server, with time of their own.
type world struct {
	*Heartbeat
	server  *server
	runtime *engine
	mu      sync.Mutex
	events  []string
}

func (w *world) said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// in runs f beside a node that has been started, in a bubble of time.
func in(t *testing.T, before func(*world, *Config), f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	ips, err := node.HostIPs(t.Context(), "no-such-name.invalid", nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world{server: newServer(t), runtime: &engine{}}
		facts := node.Facts{OS: "linux", Arch: "amd64", BootID: "b", Capacity: v1.ResourceList{
			"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "ephemeral-storage": resource.MustParse("100Gi"),
		}}
		cfg := Config{
			REST: &rest.Config{Host: "https://api.invalid", Transport: w.server}, Register: true,
			Event: func(reason, _, _ string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.events = append(w.events, reason)
			},
			Observer: node.NewObserver(node.ObserverConfig{
				Settings: node.Settings{Name: "n1", Labels: facts.Labels("n1", nil), MaxPods: 110, MaxImages: 50}, NodeIPs: ips, Facts: facts, Runtime: w.runtime,
			}),
		}
		if before != nil {
			before(w, &cfg)
		}
		h, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.Heartbeat = h
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { h.Run(ctx) })
		synctest.Wait()
		f(t, w)
	})
}

// TestC_1_25_3_StatusOfAnIdleHour: a node that does not change sends a status about
// every five minutes, and its patches contain only the time.
//
// Shows: C-1.25.3
func TestC_1_25_3_StatusOfAnIdleHour(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		if n := len(w.server.count("patch nodes")); n > 1 { // not ready when it was made, perhaps
			t.Errorf("%d patches in the first minute", n)
		}
		time.Sleep(time.Hour)
		at := w.server.count("patch nodes")
		if n := len(at); n < 11 || n > 15 {
			t.Errorf("%d patches in an hour: %v", n, at)
		}
		for i := 2; i < len(at); i++ {
			if d := at[i].Sub(at[i-1]); d < 5*time.Minute || d > 5*time.Minute+11*time.Second {
				t.Errorf("reports %s apart", d)
			}
		}
		var patch struct {
			Status map[string]json.RawMessage
			Spec   any
		}
		if err := json.Unmarshal(w.server.last("patch nodes"), &patch); err != nil || patch.Spec != nil {
			t.Fatalf("patch %s: %v", w.server.last("patch nodes"), err)
		}
		for name := range patch.Status {
			if !strings.Contains(name, "conditions") {
				t.Errorf("a report changes %s", name)
			}
		}
	})
}

// TestC_1_25_3_AServerThatKeepsNotAll: a server without a feature drops a field. The
// node does not send it every ten seconds, and still sends changes at once.
//
// Shows: C-1.25.3
func TestC_1_25_3_AServerThatKeepsNotAll(t *testing.T) {
	in(t, func(w *world, _ *Config) {
		w.server.drops = func(n *v1.Node) { n.Status.DeclaredFeatures, n.Status.RuntimeHandlers = nil, nil }
	}, func(t *testing.T, w *world) {
		time.Sleep(time.Hour)
		if n := len(w.server.count("patch nodes")); n > 17 {
			t.Errorf("%d patches in an hour", n)
		}
		for i := range 5 {
			n := len(w.server.count("patch nodes"))
			w.runtime.images.Store(int64(i + 1))
			time.Sleep(time.Minute)
			if w.server.object().Status.Images[0].SizeBytes != int64(i+1) {
				t.Error("a change is not reported")
			}
			if more := len(w.server.count("patch nodes")) - n; more > 3 {
				t.Errorf("%d patches for a change", more)
			}
		}
		w.server.change(func(n *v1.Node) { n.Status.Capacity["cpu"] = resource.MustParse("1") })
		time.Sleep(time.Minute)
		if q := w.server.object().Status.Capacity["cpu"]; q.String() != "4" {
			t.Errorf("another client's change stays: %s", q.String())
		}
	})
}

// TestC_1_25_3_ReportAfterAChange: the first report after a change comes 2½ to 7½
// minutes later, and not at the same time on every node.
//
// Shows: C-1.25.3
func TestC_1_25_3_ReportAfterAChange(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		seen := map[time.Duration]bool{}
		time.Sleep(time.Minute) // a node that was not ready at first has a patch more
		for i := range 20 {
			w.runtime.images.Store(int64(i + 1))
			n := len(w.server.count("patch nodes"))
			time.Sleep(70 * time.Second) // images are listed every half minute
			at := w.server.count("patch nodes")
			if len(at) != n+1 {
				t.Fatalf("%d patches for a change", len(at)-n)
			}
			for len(w.server.count("patch nodes")) == n+1 {
				time.Sleep(time.Second)
			}
			d := w.server.count("patch nodes")[n+1].Sub(at[n])
			if d < 150*time.Second || d > 461*time.Second {
				t.Errorf("a report %s after a change", d)
			}
			seen[d.Round(time.Minute)] = true
		}
		if len(seen) < 2 {
			t.Errorf("every report comes %v after the change", seen)
		}
	})
}

// TestC_1_25_8_LeaseEveryTenSeconds, independently of status and runtime.
//
// Shows: C-1.25.8
func TestC_1_25_8_LeaseEveryTenSeconds(t *testing.T) {
	in(t, func(w *world, _ *Config) {
		w.server.fail = func(what string) int {
			if what == "patch nodes" {
				return 500
			}
			return 0
		}
	}, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		w.runtime.hangs.Store(true)
		time.Sleep(9 * time.Minute)
		at := w.server.count("update leases")
		if n := len(at); n < 56 || n > 60 {
			t.Errorf("%d renewals in ten minutes", n)
		}
		for i := 1; i < len(at); i++ {
			if d := at[i].Sub(at[i-1]); d < 10*time.Second || d > 10400*time.Millisecond {
				t.Errorf("renewed after %s", d)
			}
		}
		l := w.server.lease
		if *l.Spec.LeaseDurationSeconds != 40 || *l.Spec.HolderIdentity != "n1" || l.OwnerReferences[0].UID != w.UID() || l.Spec.RenewTime.Time.Before(at[len(at)-1].Add(-time.Second)) {
			t.Errorf("lease %+v", l)
		}
	})
}

// TestC_1_25_8_LeaseThatCouldNotBeMade: the next try makes it, and it is renewed then. An object
// that a client returns beside an error is not a lease.
//
// Shows: C-1.25.8
func TestC_1_25_8_LeaseThatCouldNotBeMade(t *testing.T) {
	for name, code := range map[string]int{"NoAnswer": -1, "ServerError": 500, "Conflict": 409} {
		t.Run(name, func(t *testing.T) {
			failed := false // guarded by the server's mu
			in(t, func(w *world, _ *Config) {
				w.server.fail = func(what string) int {
					if what != "create leases" || failed {
						return 0
					}
					failed = true
					return code
				}
			}, func(t *testing.T, w *world) {
				time.Sleep(time.Minute)
				if n := len(w.server.count("create leases")); n != 2 {
					t.Errorf("%d tries to make the lease, want 2", n)
				}
				if n := len(w.server.count("update leases")); n < 4 {
					t.Errorf("%d renewals in a minute", n)
				}
				if l := w.server.lease; l == nil || l.Name != "n1" || *l.Spec.HolderIdentity != "n1" {
					t.Errorf("lease %+v", l)
				}
			})
		})
	}
}

// TestC_1_25_6_HangingRuntimeShows: the rounds go on, and say so.
//
// Shows: C-1.25.6
func TestC_1_25_6_HangingRuntimeShows(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		w.runtime.hangs.Store(true)
		time.Sleep(45 * time.Second)
		if c := node.Condition(w.Node(), v1.NodeReady); c.Status != v1.ConditionFalse || c.Message != "container runtime is down" {
			t.Errorf("ready: %+v", c)
		}
		w.runtime.hangs.Store(false)
		time.Sleep(45 * time.Second)
		if c := node.Condition(w.Node(), v1.NodeReady); c.Status != v1.ConditionTrue {
			t.Errorf("ready: %+v", c)
		}
		if said := w.said(); !slices.Equal(said[len(said)-2:], []string{"NodeNotReady", "NodeReady"}) {
			t.Errorf("events %v", said)
		}
	})
}

// TestC_1_25_5_ReadyAtOnce: a node that starts before its runtime is registered as
// not ready, and is ready a tenth of a second after it.
//
// Shows: C-1.25.5
func TestC_1_25_5_ReadyAtOnce(t *testing.T) {
	in(t, func(w *world, _ *Config) { w.runtime.down.Store(true) }, func(t *testing.T, w *world) {
		time.Sleep(13 * time.Second)
		if c := node.Condition(w.Node(), v1.NodeReady); c.Status != v1.ConditionFalse || !strings.Contains(c.Message, "container runtime status check may not have completed yet") {
			t.Errorf("ready: %+v", c)
		}
		if n := len(w.server.count("patch nodes")); n != 0 {
			t.Errorf("%d patches of a node that waits", n)
		}
		w.runtime.down.Store(false)
		time.Sleep(101 * time.Millisecond)
		if c := node.Condition(w.Node(), v1.NodeReady); c.Status != v1.ConditionTrue {
			t.Errorf("ready: %+v", c)
		}
		if said := w.said(); !slices.Equal(said, []string{"Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"}) {
			t.Errorf("events %v", said)
		}
		time.Sleep(time.Minute)
		if n := len(w.server.count("patch nodes")); n > 2 { // ready, then with its images
			t.Errorf("%d patches of a start", n)
		}
	})
}

// TestC_1_25_4_FiveTries: five attempts in every round, and all but the first read the
// object again.
//
// Shows: C-1.25.4
func TestC_1_25_4_FiveTries(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		w.server.mu.Lock()
		w.server.fail = func(what string) int {
			if what == "patch nodes" {
				return 500
			}
			return 0
		}
		w.server.mu.Unlock()
		patches, gets := len(w.server.count("patch nodes")), len(w.server.count("get nodes"))
		w.runtime.images.Store(7)
		for len(w.server.count("patch nodes")) == patches {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if n, m := len(w.server.count("patch nodes"))-patches, len(w.server.count("get nodes"))-gets; n != 5 || m != 4 {
			t.Errorf("%d patches and %d reads of one round", n, m)
		}
	})
}

// TestC_1_25_2_RegistrationBacksOff: 100 ms, doubling, to 7 s, forever.
//
// Shows: C-1.25.2
func TestC_1_25_2_RegistrationBacksOff(t *testing.T) {
	in(t, func(w *world, _ *Config) { w.server.fail = func(string) int { return -1 } }, func(t *testing.T, w *world) {
		time.Sleep(5 * time.Minute)
		at := w.server.count("create nodes")
		for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000} {
			if d := at[i+1].Sub(at[i]); d != want*time.Millisecond {
				t.Errorf("wait %d is %s, want %d ms", i, d, want)
			}
		}
		if len(w.server.count("create leases")) != 0 {
			t.Error("a lease without a node")
		}
		w.server.mu.Lock()
		w.server.fail = nil
		w.server.mu.Unlock()
		time.Sleep(8 * time.Second)
		if w.UID() == "" || len(w.server.count("create leases")) != 1 {
			t.Errorf("UID %q after the server came back, %d leases", w.UID(), len(w.server.count("create leases")))
		}
	})
}

// TestF73_ObjectVanishes: it is created again at once, once.
//
// Shows: F73
func TestF73_ObjectVanishes(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		first := w.UID()
		w.server.remove()
		time.Sleep(time.Second)
		if w.UID() == first || w.UID() == "" || len(w.server.count("create nodes")) != 2 {
			t.Errorf("UID %q after %q, %d registrations", w.UID(), first, len(w.server.count("create nodes")))
		}
		if l := w.server.lease; l.OwnerReferences[0].UID != w.UID() {
			t.Errorf("lease of %q, node %q", l.OwnerReferences[0].UID, w.UID())
		}
	})
}

// TestF73_LateAnswer: a late answer about a deleted object does not bring it back,
// unless the server lists it and no other answer came during the list.
//
// Shows: F73
func TestF73_LateAnswer(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		old := w.Node().DeepCopy()
		w.server.mu.Lock()
		w.server.fail = func(what string) int {
			if what == "create nodes" {
				return 500
			}
			return 0
		}
		w.server.mu.Unlock()
		w.server.remove()
		time.Sleep(time.Second)
		old.ResourceVersion = "999"
		if w.update(old); w.Node() != nil {
			t.Error("a late answer brought the node back")
		}
		if w.updateListed(old, w.changeCount()-1) || w.Node() != nil {
			t.Error("a late list brought the node back")
		}
		if w.updateListed(old, w.changeCount()); w.Node() == nil {
			t.Error("a list does not count")
		}
		older := old.DeepCopy()
		older.ResourceVersion = "998"
		if w.updateListed(older, w.changeCount()-1) || w.Node() != old {
			t.Error("a late list replaces what the watch showed meanwhile, or a watch may start from it")
		}
		if w.updateListed(older, w.changeCount()); w.Node() != older {
			t.Error("the list of a restored server is not accepted")
		}
	})
}

// The Node of a server that was restored from a backup is listed again, at once: a watch
// of a resource version of the future gets no events.
//
// Shows: F71
func TestFollow_DataSetBack_ListsAgain(t *testing.T) {
	var epoch atomic.Pointer[context.Context]
	var end context.CancelFunc
	next := func() {
		var ctx context.Context
		ctx, end = context.WithCancel(context.Background())
		epoch.Store(&ctx)
	}
	in(t, func(_ *world, cfg *Config) {
		next()
		cfg.Epoch = func() context.Context { return *epoch.Load() }
	}, func(t *testing.T, w *world) {
		time.Sleep(15 * time.Second)
		w.server.change(func(n *v1.Node) { n.Labels["later"] = "than the backup" })
		time.Sleep(time.Second)
		lists := len(w.server.count("list nodes"))
		w.server.mu.Lock()
		restored := w.server.node.DeepCopy()
		restored.ResourceVersion, restored.Spec.Unschedulable = "1", true
		w.server.node, w.server.version, w.server.history = restored, 1, w.server.history[:1]
		w.server.mu.Unlock()
		over := end
		next()
		over()
		time.Sleep(2 * time.Second)
		if n := len(w.server.count("list nodes")) - lists; n != 1 || !w.Node().Spec.Unschedulable {
			t.Errorf("%d lists, want 1; unschedulable %t", n, w.Node().Spec.Unschedulable)
		}
		w.server.change(func(n *v1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(time.Second)
		if w.Node().Spec.Unschedulable {
			t.Error("the object of the restored server is not read")
		}
		end()
	})
}

// TestF72_WatchCutEverySecond: the object is followed all the same, by one watch a
// second at most, and without a list.
//
// Shows: F72
func TestF72_WatchCutEverySecond(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		time.Sleep(3 * time.Second) // the first list may have been overtaken by the registration
		watches, lists := len(w.server.count("watch nodes")), len(w.server.count("list nodes"))
		for range 60 {
			w.server.cut()
			time.Sleep(time.Second)
		}
		if n := len(w.server.count("watch nodes")) - watches; n < 50 || n > 62 {
			t.Errorf("%d watches in a minute", n)
		}
		if n := len(w.server.count("list nodes")) - lists; n != 0 {
			t.Errorf("%d lists", n)
		}
		w.server.cut() // changes between two watches are not lost
		w.server.mu.Lock()
		n := w.server.node.DeepCopy()
		n.Spec.Unschedulable = true
		w.server.put(n, "MODIFIED")
		w.server.mu.Unlock()
		time.Sleep(15 * time.Second) // the next watch, and the next round
		if !w.Node().Spec.Unschedulable || !slices.Contains(w.said(), "NodeNotSchedulable") {
			t.Errorf("unschedulable %t, events %v", w.Node().Spec.Unschedulable, w.said())
		}
	})
}

// TestF70_WatchBacksOff: the node retries a server that is unavailable, or never
// permits the watch, more and more rarely; it notices soon when the server is back.
//
// Shows: F70
func TestF70_WatchBacksOff(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world) {
		for _, code := range []int{-1, 403, 500} {
			w.server.mu.Lock()
			w.server.fail = func(what string) int {
				if what == "list nodes" || what == "watch nodes" {
					return code
				}
				return 0
			}
			w.server.mu.Unlock()
			before := len(w.server.count("list nodes")) + len(w.server.count("watch nodes"))
			w.server.cut()
			time.Sleep(10 * time.Minute)
			if n := len(w.server.count("list nodes")) + len(w.server.count("watch nodes")) - before; n > 100 {
				t.Errorf("%d: asked %d times in ten minutes", code, n)
			}
			w.server.mu.Lock()
			w.server.fail = nil
			w.server.mu.Unlock()
			w.server.change(func(n *v1.Node) { n.Labels["answer"] = "after " + strconv.Itoa(code) })
			time.Sleep(15 * time.Second)
			if got := w.Node().Labels["answer"]; got != "after "+strconv.Itoa(code) {
				t.Errorf("%d: the node is not followed again", code)
			}
		}
	})
}

// TestC_1_25_2_ForbiddenLabels: New refuses them before any request.
//
// Shows: C-1.25.2
func TestC_1_25_2_ForbiddenLabels(t *testing.T) {
	t.Parallel()
	o := node.NewObserver(node.ObserverConfig{})
	cfg := Config{REST: &rest.Config{}, Observer: o, Register: true, Labels: map[string]string{"node-restriction.kubernetes.io/x": "y", "node-role.kubernetes.io/worker": ""}}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "node-restriction.kubernetes.io/x, node-role.kubernetes.io/worker") {
		t.Errorf("%v", err)
	}
	cfg.Register = false
	if _, err := New(cfg); err != nil {
		t.Errorf("without registration: %v", err)
	}
}

// TestC_1_25_2_PatchOfTwoAddresses: two of one type are both kept.
//
// Shows: C-1.25.2
func TestC_1_25_2_PatchOfTwoAddresses(t *testing.T) {
	t.Parallel()
	before, after := &v1.Node{}, &v1.Node{}
	before.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeHostName, Address: "n"}}
	after.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "fd00::1"}, {Type: v1.NodeHostName, Address: "n"}}
	after.Spec.PodCIDR = "10.0.0.0/8"
	patch, err := difference(before, after)
	const want = `{"status":{"addresses":[{"$patch":"replace"},{"type":"InternalIP","address":"10.0.0.1"},{"type":"InternalIP","address":"fd00::1"},{"type":"Hostname","address":"n"}]}}`
	if err != nil || string(patch) != want {
		t.Errorf("%s, %v", patch, err)
	}
	if patch, err = difference(before, before); err != nil || string(patch) != "{}" {
		t.Errorf("nothing: %s, %v", patch, err)
	}
}

// TestPresence_ExtendedResources_OfOthersStay: of a Node that another agent has left, extended resources
// go, because those of device plugins are among them. Those that another writer advertises later stay.
//
// Shows: C-1.25.2
func TestPresence_ExtendedResources_OfOthersStay(t *testing.T) {
	in(t, func(w *world, _ *Config) {
		old := &v1.Node{}
		old.Name, old.UID = "n1", "old"
		old.Status.Capacity = v1.ResourceList{"x.com/gpu": resource.MustParse("8")}
		old.Status.Allocatable = old.Status.Capacity.DeepCopy()
		w.server.mu.Lock()
		w.server.put(old, "ADDED")
		w.server.mu.Unlock()
	}, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		status := w.server.object().Status
		_, gpu := status.Capacity["x.com/gpu"]
		_, usable := status.Allocatable["x.com/gpu"]
		if gpu || usable || !w.Settled() || len(status.Capacity) == 0 {
			t.Errorf("capacity %v, allocatable %v, settled %t", status.Capacity, status.Allocatable, w.Settled())
		}
		w.server.change(func(n *v1.Node) {
			n.Status.Capacity["x.com/dongle"], n.Status.Allocatable["x.com/dongle"] = resource.MustParse("4"), resource.MustParse("4")
		})
		w.runtime.images.Store(7) // something else changes
		time.Sleep(time.Minute)
		status = w.server.object().Status
		capacity, allocatable := status.Capacity["x.com/dongle"], status.Allocatable["x.com/dongle"]
		if capacity.Value() != 4 || allocatable.Value() != 4 {
			t.Errorf("capacity %v, allocatable %v", status.Capacity, status.Allocatable)
		}
	})
}

// TestPresence_CloudControllerWroteAddresses_TheyStay: the node does not overwrite them, not
// when something else of it changes, and not when the agent starts again. Nothing is sent
// back and forth.
//
// Shows: C-1.25.2
func TestPresence_CloudControllerWroteAddresses_TheyStay(t *testing.T) {
	cloud := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "172.16.0.9"}, {Type: v1.NodeExternalIP, Address: "203.0.113.7"}}
	in(t, func(w *world, c *Config) {
		c.Observer = node.NewObserver(node.ObserverConfig{
			Settings: node.Settings{Name: "n1", ExternalCloud: true, MaxPods: 110}, Runtime: w.runtime,
			Facts: node.Facts{OS: "linux", Arch: "amd64", Capacity: v1.ResourceList{
				"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "ephemeral-storage": resource.MustParse("100Gi"),
			}},
		})
	}, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		if got := w.server.object().Status.Addresses; len(got) != 1 || got[0].Type != v1.NodeHostName {
			t.Errorf("addresses before the controller has come: %v", got)
		}
		w.server.change(func(n *v1.Node) { n.Status.Addresses = cloud })
		before := len(w.server.count("patch nodes"))
		w.runtime.images.Store(7)
		time.Sleep(time.Minute)
		if got := w.server.object().Status.Addresses; !slices.Equal(got, cloud) {
			t.Errorf("addresses are %v, want what the cloud controller wrote", got)
		}
		if n := len(w.server.count("patch nodes")) - before; n > 1 {
			t.Errorf("%d patches for one change", n)
		}
	})
}
