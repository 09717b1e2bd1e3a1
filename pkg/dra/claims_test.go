package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// Two pods share a claim: it is prepared once, and unprepared with the last of them. Each container
// gets the devices that it asks for. A running pod needs neither the API server nor the driver.
func TestPrepare_TwoPodsShareAClaim_IsPreparedOnceAndUnpreparedOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	stop := m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1", "u2")
	one, two := podOf("u1", "gpu"), podOf("u2", "gpu")
	prepare(t, c, one)
	prepare(t, c, two)
	if got := f.called(); !slices.Equal(got, []string{"prepare uid-gpu"}) || !c.Uses("u1") || !c.Uses("u2") || c.Uses("u3") {
		t.Errorf("calls %v", got)
	}
	all, err := c.Of(one, "app")
	if err != nil || len(all) != 1 || all[0].UID != "uid-gpu" || all[0].Name != "gpu" || len(all[0].Devices) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if d := all[0].Devices[0]; d.Driver != driverName || d.Pool != "n1" || d.Device != "gpu-0" || d.ShareID != "share" || !slices.Equal(d.CDI, []string{"gpu.test/gpu=big-uid-gpu"}) {
		t.Errorf("%+v", d)
	}
	two.Pod.Spec.Containers[0].Resources.Claims[0].Request = "small"
	two.Pod.Spec.Containers = append(two.Pod.Spec.Containers, v1.Container{Name: "side"})
	if all, err = c.Of(two, "app"); err != nil || len(all) != 1 || len(all[0].Devices) != 1 || all[0].Devices[0].Device != "gpu-1" {
		t.Errorf("one request: %+v, %v", all, err)
	}
	for _, container := range []string{"side", "absent"} {
		if all, err = c.Of(two, container); err != nil || len(all) > 0 {
			t.Errorf("%s, which asks for nothing: %+v, %v", container, all, err)
		}
	}
	stop()
	c.Unregister(driverName, m.socket(driverName))
	reads := m.reads
	prepare(t, c, one)
	if m.reads != reads {
		t.Error("a prepared claim is read again")
	}
	release(t, c, "u1")
	if got := f.called(); len(got) > 0 {
		t.Errorf("after the first pod: %v", got)
	}
	m.plug(c, f)
	release(t, c, "u2")
	release(t, c, "u2")
	if got := f.called(); !slices.Equal(got, []string{"unprepare uid-gpu"}) || c.Uses("u1") || c.Uses("u2") {
		t.Errorf("after the last pod: %v", got)
	}
	if left := m.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A pod whose claim cannot be used waits, with the kubelet's text. Nothing is prepared, and nothing
// written, so the pod can be deleted.
func TestPrepare_ClaimCannotBeUsed_PodWaitsWithTheReason(t *testing.T) {
	t.Parallel()
	template := func(p *pod.Spec, statuses ...v1.PodResourceClaimStatus) {
		p.Pod.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpus")}
		p.Pod.Status.ResourceClaimStatuses = statuses
	}
	made := v1.PodResourceClaimStatus{Name: "gpu", ResourceClaimName: ptr.To("gpu")}
	for want, change := range map[string]func(m *machine, claim *resourcev1.ResourceClaim, p *pod.Spec){
		`WaitsForResourceClaim: fetch ResourceClaim gpu: resourceclaims.resource.k8s.io "gpu" not found`: func(m *machine, _ *resourcev1.ResourceClaim, _ *pod.Spec) { delete(m.claims, "gpu") },
		"WaitsForResourceClaim: ResourceClaim gpu: not allocated":                                        func(_ *machine, c *resourcev1.ResourceClaim, _ *pod.Spec) { c.Status.Allocation = nil },
		"WaitsForResourceClaim: pod pod-u1 (u1) is not allowed to use ResourceClaim gpu (uid-gpu)":       func(_ *machine, c *resourcev1.ResourceClaim, _ *pod.Spec) { c.Status.ReservedFor = nil },
		`WaitsForResourceClaim: pod "shop/pod-u1": ResourceClaim not created yet`:                        func(_ *machine, _ *resourcev1.ResourceClaim, p *pod.Spec) { template(p) },
		"WaitsForResourceClaim: ResourceClaim shop/gpu was not created for Pod shop/pod-u1 (Pod is not owner)": func(_ *machine, _ *resourcev1.ResourceClaim, p *pod.Spec) {
			template(p, made)
		},
		`WaitsForResourceClaim: pod "shop/pod-u1", spec.resourceClaim "gpu": none of the supported fields are set`: func(_ *machine, _ *resourcev1.ResourceClaim, p *pod.Spec) {
			p.Pod.Spec.ResourceClaims[0].ResourceClaimName = nil
		},
		"FailedPrepareDynamicResources: fetch ResourceClaim gpu: server is away": func(m *machine, _ *resourcev1.ResourceClaim, _ *pod.Spec) { m.fails = errors.New("server is away") },
		"WaitsForResourceDriver: DRA driver other.test is not registered": func(_ *machine, c *resourcev1.ResourceClaim, _ *pod.Spec) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Driver: "other.test"})
		},
	} {
		m := newMachine(t)
		c, f := m.agent(), newFake()
		m.plug(c, f)
		claim, p := m.claim("gpu", []string{driverName}, "u1"), podOf("u1", "gpu")
		m.set(func(*cluster) { change(m, claim, p) })
		of, text := reason(c.Prepare(t.Context(), p))
		if got := of + ": " + strings.TrimPrefix(text, "prepare dynamic resources: "); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if got := f.called(); len(got)+len(m.left()) > 0 || c.Uses("u1") {
			t.Errorf("%s: calls %v, left %v", want, got, m.left())
		}
		if _, err := c.Of(p, "app"); err == nil {
			t.Errorf("%s: a container gets devices", want)
		}
	}
}

// A claim of a template belongs to its pod. A pod that needs no claim gets none.
func TestPrepare_ClaimOfATemplate_IsFoundByTheStatusOfThePod(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	claim := m.claim("pod-u1-gpu-x7", []string{driverName}, "u1")
	m.set(func(*cluster) {
		claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "pod-u1", UID: "u1", Controller: ptr.To(true)}}
		claim.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	})
	p := podOf("u1", "gpu", "none")
	p.Pod.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpus")}
	p.Pod.Spec.ResourceClaims[1] = v1.PodResourceClaim{Name: "none", ResourceClaimTemplateName: ptr.To("nones")}
	p.Pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim.Name}, {Name: "none"}}
	prepare(t, c, p)
	all, err := c.Of(p, "app")
	if err != nil || len(all) != 1 || all[0].Name != claim.Name {
		t.Errorf("%+v, %v", all, err)
	}
}

// The claim that the scheduler has made for a pod's extended resources is prepared and unprepared as others
// are. Each container gets the devices of the requests that are mapped to it, also from the next agent.
func TestPrepare_ExtendedResources_ContainersGetTheirDevices(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	claim := m.claim("pod-u1-extended-x7", []string{driverName})
	p := podOf("u1")
	one := v1.ResourceList{"x.com/gpu": resource.MustParse("1")}
	wants := v1.ResourceRequirements{Requests: one, Limits: one}
	p.Pod.Spec.InitContainers = []v1.Container{{Name: "init", Resources: wants}}
	p.Pod.Spec.Containers = []v1.Container{{Name: "app", Resources: wants}, {Name: "side"}}
	p.Pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: claim.Name, RequestMappings: []v1.ContainerExtendedResourceRequest{
		{ContainerName: "init", ResourceName: "x.com/gpu", RequestName: "small"},
		{ContainerName: "app", ResourceName: "x.com/gpu", RequestName: "big"},
		{ContainerName: "side", ResourceName: "x.com/gpu", RequestName: "big"},
	}}
	if of, text := reason(c.Prepare(t.Context(), p)); of != pod.ReasonWaitsForClaim || !strings.Contains(text, "is not allowed to use ResourceClaim") {
		t.Errorf("a claim of another pod: %s: %s", of, text)
	}
	if _, err := c.Of(p, "app"); err == nil {
		t.Error("a container gets devices of a claim that is not prepared")
	}
	m.claim(claim.Name, []string{driverName}, "u1")
	prepare(t, c, p)
	next := m.agent()
	prepare(t, next, p)
	for container, want := range map[string]string{"init": "gpu-1", "app": "gpu-0", "side": ""} {
		all, err := next.Of(p, container)
		got := ""
		for _, a := range all {
			for _, d := range a.Devices {
				got += d.Device
			}
		}
		if err != nil || got != want {
			t.Errorf("%s gets %q, %v; want %q", container, got, err, want)
		}
	}
	m.register(next, driverName)
	release(t, next, "u1")
	if got := f.called(); !slices.Equal(got, []string{"prepare uid-" + claim.Name, "unprepare uid-" + claim.Name}) || len(m.left()) > 0 {
		t.Errorf("calls %v, left %v", got, m.left())
	}
}

// An agent is killed at each point of starting a pod and of stopping it. The next one prepares the
// claims that are not certainly prepared, and leaves nothing.
//
// Shows: F1
func TestPrepare_KilledAtEachPoint_NextAgentGoesOn(t *testing.T) {
	t.Parallel()
	up := []string{"noted", "prepare begun", "prepared", "prepare done"}
	down := []string{"unprepare begun", "unprepared", "unprepare done", "forgotten"}
	again := map[string]string{"prepared": "prepare", "unprepared": "unprepare"} // their answers were lost
	for _, at := range slices.Concat(up, down) {
		m := newMachine(t)
		f := newFake()
		first := m.agent()
		m.plug(first, f)
		m.claim("gpu", []string{driverName}, "u1")
		killed := errors.New("killed")
		first.cut = func(point string) error {
			if point == at {
				return killed
			}
			return nil
		}
		p := podOf("u1", "gpu")
		err := first.Prepare(t.Context(), p)
		if wanted := slices.Contains(up, at); errors.Is(err, killed) != wanted {
			t.Fatalf("%s: %v", at, err)
		}
		if err == nil {
			if err = first.Release(t.Context(), "u1"); !errors.Is(err, killed) {
				t.Fatalf("%s: %v", at, err)
			}
		}
		next := m.agent()
		m.register(next, driverName)
		if slices.Contains(up, at) {
			prepare(t, next, p)
			if all, err := next.Of(p, "app"); err != nil || len(all[0].Devices) != 2 {
				t.Errorf("%s: %+v, %v", at, all, err)
			}
		}
		release(t, next, "u1")
		counts := make(map[string]int)
		for _, call := range f.called() {
			counts[strings.Fields(call)[0]]++
		}
		for _, call := range []string{"prepare", "unprepare"} {
			want := 1
			if again[at] == call {
				want = 2
			}
			if counts[call] != want {
				t.Errorf("%s: %d calls of %s, want %d", at, counts[call], call, want)
			}
		}
		if left := m.left(); f.has() > 0 || len(left) > 0 || next.Uses("u1") {
			t.Errorf("%s: left %v, prepared %d", at, left, f.has())
		}
	}
}

// A driver is killed, and its socket stays: it stays registered, as with the kubelet. Calls fail, and each try
// after the first one writes nothing. The next driver of the name prepares the claim.
func TestPrepare_DriverIsDead_TriesWriteNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	stop := m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1")
	stop()
	p, file := podOf("u1", "gpu"), filepath.Join(m.dir, "claims", "uid-gpu.json")
	try := func() {
		t.Helper()
		if of, text := reason(c.Prepare(t.Context(), p)); of != pod.ReasonPrepareClaims || !strings.Contains(text, "Unavailable") {
			t.Fatalf("%s: %s", of, text)
		}
	}
	try()
	wrote, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte("as it was"), 0o600)
	}
	if err != nil || !strings.Contains(string(wrote), "begun") {
		t.Fatalf("%s, %v", wrote, err)
	}
	try()
	if text, err := os.ReadFile(file); err != nil || string(text) != "as it was" {
		t.Errorf("the second try wrote %s, %v", text, err)
	}
	c.Unregister(driverName, m.socket(driverName))
	m.plug(c, f)
	prepare(t, c, p)
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "done") || !slices.Equal(f.called(), []string{"prepare uid-gpu"}) {
		t.Errorf("after the driver is back: %s, %v", text, err)
	}
	release(t, c, "u1")
	if left := m.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	m.claim("gpu", []string{driverName}, "u1")
	prepare(t, c, p) // a file of the same content as before is written again
	if left := m.left(); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
}

// node is a machine with a driver, whose pods use the claims a and b.
type node struct {
	*machine
	driver *fake
	claims *Claims
	boot   string
	runs   map[string][]string // the claims of pods that run
}

var errKilled = errors.New("killed")

// start starts an agent; the one before was killed.
func (n *node) start(registered bool) {
	if n.claims != nil {
		disconnect(n.claims)
	}
	n.claims = n.agent()
	n.claims.boot = n.boot
	if registered {
		n.register(n.claims, driverName)
	}
}

// change does something that happens to a node. The agent may be killed meanwhile.
func (n *node) change(r *rapid.T) {
	uid := rapid.SampledFrom([]string{"u1", "u2", "u3"}).Draw(r, "pod")
	left := rapid.IntRange(0, 12).Draw(r, "points until a kill")
	n.claims.cut = func(string) error {
		if left--; left < 0 {
			return errKilled
		}
		return nil
	}
	var err error
	switch rapid.IntRange(0, 5).Draw(r, "change") {
	case 0, 1:
		names := n.runs[uid]
		if names == nil {
			names = rapid.SampledFrom([][]string{{"a"}, {"b"}, {"a", "b"}}).Draw(r, "claims")
		}
		if err = n.claims.Prepare(n.Context(), podOf(uid, names...)); err == nil {
			n.runs[uid] = names
		}
	case 2, 3:
		delete(n.runs, uid) // its containers have exited
		err = n.claims.Release(n.Context(), uid)
	case 4:
		n.start(rapid.Bool().Draw(r, "registered"))
	case 5:
		clear(n.runs)
		n.boot += "x"
		n.start(true)
	}
	if errors.Is(err, errKilled) {
		n.start(rapid.Bool().Draw(r, "registered"))
	}
}

// Pods come and go, the driver too, agents are killed at any point, and the machine reboots. No claim is
// unprepared while a pod uses it, and in the end nothing is left.
//
// Shows: F1
func TestClaims_RandomPodsKillsAndReboots_NothingIsLeft(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		n := &node{machine: newMachine(t), driver: newFake(), boot: "boot-1", runs: make(map[string][]string)}
		stop := n.driver.serve(t, n.socket(driverName))
		defer stop()
		for _, name := range []string{"a", "b"} {
			n.claim(name, []string{driverName}, "u1", "u2", "u3")
		}
		n.driver.set(func(f *fake) {
			f.before = func(call, uid string) error {
				for p, claims := range n.runs {
					if call == "unprepare" && slices.Contains(claims, strings.TrimPrefix(uid, "uid-")) {
						r.Errorf("%s is unprepared while %s runs", uid, p)
					}
				}
				return nil
			}
		})
		n.start(true)
		for range rapid.IntRange(1, 25).Draw(r, "changes") {
			n.change(r)
		}
		clear(n.runs)
		n.start(true)
		n.claims.Sweep(func(string) bool { return false })
		n.claims.retryLeft(t.Context())
		defer disconnect(n.claims)
		if left := n.left(); n.driver.has() > 0 || len(left) > 0 {
			r.Fatalf("left %v, prepared %d", left, n.driver.has())
		}
	})
}

// After a reboot the driver prepares the claim again. A claim of a pod that did not come back is
// unprepared.
func TestPrepare_AfterAReboot_IsPreparedAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	m.claim("a", []string{driverName}, "u1")
	m.claim("b", []string{driverName}, "u2")
	p := podOf("u1", "a")
	prepare(t, c, p)
	prepare(t, c, podOf("u2", "b"))
	next := m.agent()
	next.boot = "another boot"
	if _, err := next.Of(p, "app"); err == nil {
		t.Error("the devices of another boot are given to a container")
	}
	m.register(next, driverName)
	f.called()
	prepare(t, next, p)
	next.Sweep(func(uid string) bool { return uid == "u1" })
	next.retryLeft(t.Context())
	if got := f.called(); !slices.Equal(got, []string{"prepare uid-a", "unprepare uid-b"}) || len(m.left()) != 1 || len(next.left) > 0 {
		t.Errorf("calls %v, left %v", got, m.left())
	}
}

// The files are lost. The containers still name their claims: those are unprepared with the pod.
func TestAdopt_FilesAreLost_ClaimsAreReadBackFromContainers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1")
	p := podOf("u1", "gpu")
	prepare(t, c, p)
	all, err := c.Of(p, "app")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(m.dir, "claims")); err != nil {
		t.Fatal(err)
	}
	next := m.agent()
	m.register(next, driverName)
	next.Adopt([]pod.ClaimHolder{{Key: p.Key, UID: "u1", Claims: append(all, pod.ClaimAllocation{Name: "x", UID: "../x"})}})
	f.called()
	if !next.Uses("u1") || len(next.claims) != 1 {
		t.Fatalf("%+v", next.claims)
	}
	prepare(t, next, p) // a container restarts: the annotation may lack devices of others
	release(t, next, "u1")
	if got := f.called(); !slices.Equal(got, []string{"prepare uid-gpu", "unprepare uid-gpu"}) || len(m.left()) > 0 {
		t.Errorf("calls %v, left %v", got, m.left())
	}
}

// A claim that was deleted and made again, or allocated again, waits until the node has unprepared the
// earlier one.
func TestPrepare_ClaimIsAnotherOne_WaitsUntilTheEarlierIsUnprepared(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1")
	prepare(t, c, podOf("u1", "gpu"))
	again := m.claim("gpu", []string{driverName}, "u2")
	m.set(func(*cluster) { again.Status.Allocation.Devices.Results[0].Device = "gpu-7" })
	if of, text := reason(c.Prepare(t.Context(), podOf("u2", "gpu"))); of != pod.ReasonWaitsForClaim || !strings.Contains(text, "its earlier allocation is not unprepared yet") {
		t.Errorf("%s, %s", of, text)
	}
	m.set(func(*cluster) { again.UID = "uid-2" })
	if of, text := reason(c.Prepare(t.Context(), podOf("u2", "gpu"))); of != pod.ReasonWaitsForClaim || !strings.Contains(text, "old ResourceClaim with same name gpu and different UID uid-gpu still exists") {
		t.Errorf("%s, %s", of, text)
	}
	release(t, c, "u1")
	prepare(t, c, podOf("u2", "gpu"))
	if got := f.called(); !slices.Equal(got, []string{"prepare uid-gpu", "unprepare uid-gpu", "prepare uid-2"}) {
		t.Errorf("calls %v", got)
	}
}

// The driver is away when a pod ends: the pod waits for it, and other pods do not.
func TestRelease_DriverIsAway_IsTriedAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f, other := m.agent(), newFake(), newFake()
	other.name = "other.test"
	m.plug(c, f)
	m.plug(c, other)
	m.claim("gpu", []string{driverName, "other.test"}, "u1")
	prepare(t, c, podOf("u1", "gpu"))
	c.Unregister(driverName, m.socket(driverName))
	if err := c.Release(t.Context(), "u1"); err == nil || err.Error() != "unprepare dynamic resources: DRA driver gpu.test is not registered" {
		t.Errorf("%v", err)
	}
	if got := other.called(); !slices.Equal(got, []string{"prepare uid-gpu", "unprepare uid-gpu"}) {
		t.Errorf("the other driver: %v", got)
	}
	m.register(c, driverName)
	release(t, c, "u1")
	if len(m.left()) > 0 || f.has()+other.has() > 0 {
		t.Errorf("left %v", m.left())
	}
}

// ResourceSlices of a driver that is away for 30 s are deleted, and those of all drivers at the start.
// A driver that is connected keeps its slices.
func TestRun_DriverIsAway_ItsSlicesAreDeleted(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.set(func(of *cluster) { of.wiping = errors.New("busy") })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	wait.Equal(t, "deletions at the start", "n1 ", func() string { return strings.Join(m.wipes(), ",") })
	stop()
	<-done
	due := func(name string) (wipe, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if w := c.wipes[name]; w != nil {
			return *w, true
		}
		return wipe{}, false
	}
	now := func(name string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wipes[name] = &wipe{at: time.Now()}
	}
	if w, is := due(""); !is || w.failures != 1 {
		t.Errorf("a deletion that failed: %+v", w)
	}
	m.set(func(of *cluster) { of.wiping, of.wiped = nil, nil })
	m.set(func(of *cluster) { of.unknown = true })
	now("")
	c.wipeDue(t.Context())
	if _, is := due(""); !is || len(m.wipes()) > 0 {
		t.Errorf("without a Node: %v", m.wipes())
	}
	m.set(func(of *cluster) { of.unknown = false })
	now("")
	c.wipeDue(t.Context())
	if _, is := due(""); is || !slices.Equal(m.wipes(), []string{"n1 "}) {
		t.Errorf("deleted: %v", m.wipes())
	}
	unplug := m.plug(c, f)
	wait.True(t, "the driver is connected", func() bool { _, is := due(driverName); return !is })
	unplug() // its socket is still registered
	wait.True(t, "the driver is away", func() bool { _, is := due(driverName); return is })
	if w, _ := due(driverName); time.Until(w.at) > wipeAfter || c.wipeDue(t.Context()) > wipeAfter || len(m.wipes()) != 1 {
		t.Errorf("at once: %v", m.wipes())
	}
	c.Unregister(driverName, m.socket(driverName))
	now(driverName)
	c.wipeDue(t.Context())
	if got := m.wipes(); len(got) != 2 || got[1] != "n1 "+driverName {
		t.Errorf("deleted: %v", got)
	}
}

// A driver connects while the API server hangs with the deletion of its slices: the request is
// cancelled. Deleting those of all drivers spares it.
func TestRun_DriverIsBack_ItsSlicesStay(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.set(func(of *cluster) { of.hangs = true })
	c.wipes[driverName] = &wipe{at: time.Now()}
	done := make(chan struct{})
	go func() { c.wipeDue(t.Context()); close(done) }()
	wait.Equal(t, "deletions", 1, func() int { return len(m.wipes()) })
	m.plug(c, f)
	<-done
	if len(c.wipes) > 0 {
		t.Errorf("due: %v", c.wipes)
	}
	m.set(func(of *cluster) { of.hangs = false })
	c.wipeOne(t.Context(), driverName) // it was due when the round began
	c.wipes[""] = &wipe{at: time.Now()}
	c.wipeDue(t.Context())
	if got := m.wipes(); len(got) != 2 || got[1] != "n1 !"+driverName {
		t.Errorf("deleted: %q; the last one has to spare the driver", got)
	}
}

// A file without a pod is a leftover: it is unprepared.
func TestSweep_FileWithoutAPod_IsUnprepared(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1")
	prepare(t, c, podOf("u1", "gpu"))
	if err := c.change("uid-gpu", func(r record) record { return r.without("u1") }, ""); err != nil {
		t.Fatal(err)
	}
	next := m.agent()
	m.register(next, driverName)
	next.Sweep(func(string) bool { return false })
	next.retryLeft(t.Context())
	if f.has() > 0 || len(m.left()) > 0 {
		t.Errorf("left %v", m.left())
	}
}

// A driver that knows only the older version is called by it. Of two plugins of a driver, the newest
// one that is connected is called.
func TestRegister_VersionsAndPlugins_TheRightOneIsCalled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, old, next := m.agent(), newFake(), newFake()
	socket := m.socket("old")
	stop := old.serve(t, socket)
	if err := c.Register(t.Context(), driverName, socket, []string{"v7.DRAPlugin", drabeta.DRAPluginService}); err != nil {
		t.Fatal(err)
	}
	m.claim("a", []string{driverName}, "u1")
	m.claim("b", []string{driverName}, "u1", "u2")
	prepare(t, c, podOf("u1", "a"))
	if all, err := c.Of(podOf("u1", "a"), "app"); err != nil || len(all[0].Devices) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	m.plug(c, next)
	connected := func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		var all []string
		for _, d := range c.drivers[driverName] {
			all = append(all, fmt.Sprint(d.connected))
		}
		return strings.Join(all, " ")
	}
	wait.Equal(t, "connected", "true true", connected)
	prepare(t, c, podOf("u2", "b"))
	if got := next.called(); !slices.Equal(got, []string{"prepare uid-b"}) {
		t.Errorf("the newest plugin: %v", got)
	}
	stop()
	wait.Equal(t, "connected", "false true", connected)
	release(t, c, "u1")
	if got := next.called(); !slices.Equal(got, []string{"unprepare uid-a"}) {
		t.Errorf("the newest plugin: %v", got)
	}
}
