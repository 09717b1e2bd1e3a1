package dra

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// counts are the metrics that an agent has reported.
type counts struct {
	mu  sync.Mutex
	all []string
}

func (n *counts) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, text)
}

// taken returns the counts since the last time.
func (n *counts) taken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

// counting starts an agent whose metrics are counted.
func (m *machine) counting() (*Claims, *counts) {
	m.Helper()
	n := &counts{}
	c := New(Config{
		Dir: filepath.Join(m.dir, "claims"), Log: slog.New(slog.DiscardHandler),
		Handled: func(operation string, _ time.Duration, err error) { n.add(fmt.Sprintf("%s %t", operation, err != nil)) },
		Called:  func(driver, method, code string, _ time.Duration) { n.add(driver + " " + method + " " + code) },
	})
	c.Join(Cluster{API: m.cluster, Node: m.Node})
	m.Cleanup(func() { disconnect(c) })
	return c, n
}

const (
	called   = driverName + " /k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
	prepares = called + "NodePrepareResources "
	undoes   = called + "NodeUnprepareResources "
)

// Operations on the claims of a pod and calls to drivers are counted with the kubelet's names: once for a
// pod that starts or stops, not for each look at a pod that runs. A claim is in use until its driver has
// unprepared it. A node without a driver has no such series.
func TestClaims_Metrics_CountOperationsCallsAndClaims(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, n := m.counting()
	inUse := func(c *Claims, want string) {
		t.Helper()
		all, drivers, ok := c.InUse()
		if got := fmt.Sprint(all, drivers, ok); got != want {
			t.Errorf("in use: %s, want %s", got, want)
		}
	}
	counted := func(want ...string) {
		t.Helper()
		if got := n.taken(); !slices.Equal(got, want) {
			t.Errorf("counted %q, want %q", got, want)
		}
	}
	inUse(c, "0 map[] false")
	f := newFake()
	m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1", "u2")
	inUse(c, "0 map[] true")
	f.set(func(f *fake) {
		f.before = func(string, string) error { return status.Error(codes.Unavailable, "starting") }
	})
	if err := c.Prepare(t.Context(), podOf("u1", "gpu")); err == nil {
		t.Error("a call that fails prepares a claim")
	}
	counted(prepares+"Unavailable", "PrepareResources true")
	inUse(c, "0 map[] true")
	f.set(func(f *fake) { f.before = func(string, string) error { return status.Error(codes.Code(4711), "odd") } })
	if err := c.Prepare(t.Context(), podOf("u1", "gpu")); err == nil {
		t.Error("a call that fails prepares a claim")
	}
	counted(prepares+"Unknown", "PrepareResources true")
	f.set(func(f *fake) { f.before = nil })
	prepare(t, c, podOf("u1", "gpu"))
	prepare(t, c, podOf("u1", "gpu"))
	counted(prepares+"OK", "PrepareResources false")
	inUse(c, "1 map[gpu.test:1] true")
	prepare(t, c, podOf("u2", "gpu"))
	counted("PrepareResources false")
	release(t, c, "u2")
	release(t, c, "u2")
	counted("UnprepareResources false")

	next, again := m.counting()
	n = again
	inUse(next, "1 map[gpu.test:1] true")
	m.register(next, driverName)
	f.set(func(f *fake) { f.before = func(string, string) error { return status.Error(codes.Internal, "busy") } })
	if err := next.Release(t.Context(), "u1"); err == nil {
		t.Error("a call that fails unprepares a claim")
	}
	counted(undoes+"Internal", "UnprepareResources true")
	inUse(next, "1 map[gpu.test:1] true")
	f.set(func(f *fake) { f.before = nil })
	release(t, next, "u1")
	counted(undoes+"OK", "UnprepareResources false")
	inUse(next, "0 map[] true")
}

// A claim without devices is in use as well, at no driver.
func TestClaims_ClaimWithoutDevices_IsInUse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, _ := m.counting()
	claim := m.claim("none", nil, "u1")
	m.set(func(*cluster) { claim.Status.Allocation = &resourcev1.AllocationResult{} })
	prepare(t, c, podOf("u1", "none"))
	if all, drivers, ok := c.InUse(); all != 1 || len(drivers) > 0 || !ok {
		t.Errorf("%d, %v, %t", all, drivers, ok)
	}
	release(t, c, "u1")
	if all, _, _ := c.InUse(); all != 0 {
		t.Errorf("%d after the release", all)
	}
}
