package nodeapi

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/node/apiserver"
)

// TestNodeAtAnAPIServer tests a node with a real API server with the node authorizer, RBAC
// and NodeRestriction.
//
// Shows: C-1.25, C-1.25.2
func TestNodeAtAnAPIServer(t *testing.T) {
	a := server(t)
	t.Run("Beside", func(t *testing.T) { // returns when all have
		for name, run := range map[string]func(*testing.T, audited){
			"C_1_25_2_Registers":        registers,
			"C_1_25_2_TakesWhatIsThere": takes,
			"C_1_25_2_OthersRegister":   othersRegister,
			"C_1_25_3_IdleIsSilent":     idle,
			"C_1_25_6_NotReadyAndBack":  notReady,
			"C_1_25_8_Lease":            leases,
			"F73_VanishesAndComesBack":  vanishes,
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); run(t, a) })
		}
	})
	t.Run("F70_APIServerAway", func(t *testing.T) { away(t, a) })
}

// registers: a new node has the fields that a scheduler needs, in one request.
func registers(t *testing.T, a audited) {
	m := a.join(t, "fresh")
	n := a.until(t, "fresh", "ready", ready)
	for key, want := range map[string]string{
		"kubernetes.io/hostname": "fresh", "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux",
		"disk": "ssd", "node.kubernetes.io/pool": "blue",
	} {
		if n.Labels[key] != want {
			t.Errorf("label %s is %q, want %q", key, n.Labels[key], want)
		}
	}
	if n.Spec.ProviderID != "test://fresh" || !slices.ContainsFunc(n.Spec.Taints, func(o v1.Taint) bool { return o.Key == "new" }) {
		t.Errorf("spec %+v", n.Spec)
	}
	var kinds []v1.NodeConditionType
	for _, c := range n.Status.Conditions {
		kinds = append(kinds, c.Type)
	}
	if want := []v1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"}; !slices.Equal(kinds, want) {
		t.Errorf("conditions %v, want %v", kinds, want)
	}
	pods, free, all := n.Status.Allocatable[v1.ResourcePods], n.Status.Allocatable[v1.ResourceMemory], n.Status.Capacity[v1.ResourceMemory]
	if pods.Value() != 110 || all.Value()-free.Value() < 1<<20 {
		t.Errorf("allocatable %v of %v", n.Status.Allocatable, n.Status.Capacity)
	}
	if n.Status.NodeInfo.KubeletVersion != node.KubernetesVersion() || n.Status.NodeInfo.ContainerRuntimeVersion != "critest://0.0.0" {
		t.Errorf("nodeInfo %+v", n.Status.NodeInfo)
	}
	if n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 || len(n.Status.Addresses) < 2 {
		t.Errorf("endpoint %v, addresses %v", n.Status.DaemonEndpoints, n.Status.Addresses)
	}
	l := a.lease(t, "fresh", "there", anyLease)
	if len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != n.UID || *l.Spec.HolderIdentity != "fresh" {
		t.Errorf("lease %+v", l)
	}
	so(t, func() error {
		if m.UID() != n.UID || !ready(m.Node()) {
			return fmt.Errorf("UID %q, want %q, ready", m.UID(), n.UID)
		}
		return nil
	})
	m.stop()
	events := m.said()
	for _, want := range []string{"Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"} {
		if !slices.Contains(events, want) {
			t.Errorf("events %v lack %s", events, want)
		}
	}
	if made := count(a.asked(t, "fresh"), "create", "nodes", ""); made != 1 {
		t.Errorf("%d nodes created", made)
	}
	a.nobodyRefused(t, "fresh")
}

// takes: an existing Node keeps the fields of other writers, and gets the node's own labels.
func takes(t *testing.T, a audited) {
	old := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "taken", Labels: map[string]string{"team": "red", "kubernetes.io/hostname": "wrong", "disk": "tape"}},
		Spec:       v1.NodeSpec{PodCIDR: "10.1.2.0/24", PodCIDRs: []string{"10.1.2.0/24"}, Unschedulable: true},
		Status: v1.NodeStatus{
			Capacity:   v1.ResourceList{"example.com/gpu": *pods(3), "hugepages-3Mi": *pods(0)},
			Conditions: []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "RouteCreated"}},
		},
	}
	if _, err := a.admin.CoreV1().Nodes().Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m := a.join(t, "taken")
	n := a.until(t, "taken", "ready", ready)
	so(t, func() error {
		if events := m.said(); !slices.Contains(events, "NodeNotSchedulable") {
			return fmt.Errorf("events %v", events)
		}
		return nil
	})
	m.stop()
	if n.Labels["kubernetes.io/hostname"] != "taken" || n.Labels["team"] != "red" || n.Labels["disk"] != "tape" {
		t.Errorf("labels %v", n.Labels)
	}
	if n.Spec.PodCIDR != "10.1.2.0/24" || !n.Spec.Unschedulable || len(n.Spec.Taints) > 0 && n.Spec.Taints[0].Key == "new" || n.Spec.ProviderID != "" {
		t.Errorf("spec %+v", n.Spec)
	}
	for _, unserved := range []v1.ResourceName{"example.com/gpu", "hugepages-3Mi"} {
		if _, there := n.Status.Capacity[unserved]; there {
			t.Errorf("the node still has %s, which nothing serves: %v", unserved, n.Status.Capacity)
		}
	}
	if c := node.Condition(n, v1.NodeNetworkUnavailable); c.Reason != "RouteCreated" {
		t.Errorf("a foreign condition is %+v", c)
	}
	a.nobodyRefused(t, "taken")
}

// othersRegister: without --register-node the node waits for its Node, and does not create
// it.
func othersRegister(t *testing.T, a audited) {
	m := a.join(t, "awaited", func(c *apiserver.Config, _ *node.ObserverConfig) { c.Register = false })
	so(t, func() error {
		if count(a.asked(t, "awaited"), "get", "nodes", "") < 2 {
			return errors.New("no request reads the node")
		}
		return nil
	})
	a.CreateNode(t, "awaited")
	n := a.until(t, "awaited", "ready", ready)
	a.lease(t, "awaited", "there", anyLease)
	m.stop()
	if n.Labels["disk"] != "" || count(a.asked(t, "awaited"), "create", "nodes", "") != 0 {
		t.Errorf("the node was made: labels %v", n.Labels)
	}
	a.nobodyRefused(t, "awaited")
}

// idle: many rounds without a change send nothing.
func idle(t *testing.T, a audited) {
	m := a.join(t, "idle")
	a.until(t, "idle", "ready with its images", ready)
	rounds := func() int { return count(a.asked(t, "idle"), "update", "leases", "") }
	patches := func() int { return count(a.asked(t, "idle"), "patch", "nodes", "status") }
	so(t, func() error {
		before, from := patches(), rounds()
		so(t, func() error { // four seconds: a dozen rounds
			if n := rounds(); n < from+4 {
				return fmt.Errorf("the lease was renewed %d times", n)
			}
			return nil
		})
		if patches() != before {
			return errors.New("an idle node patches its status again and again")
		}
		return nil
	})
	m.stop()
	if n := patches(); n > 4 {
		t.Errorf("%d patches of an idle node", n)
	}
	a.nobodyRefused(t, "idle")
}

func notReady(t *testing.T, a audited) {
	var stopping sync.Map
	m := a.join(t, "flaps", func(_ *apiserver.Config, o *node.ObserverConfig) {
		o.ShuttingDown = func() bool { _, ok := stopping.Load("now"); return ok }
	})
	was := node.Condition(a.until(t, "flaps", "ready", ready), v1.NodeReady)
	stopping.Store("now", true)
	is := node.Condition(a.until(t, "flaps", "not ready", func(n *v1.Node) bool { return !ready(n) }), v1.NodeReady)
	if is.Reason != "KubeletNotReady" || is.Message != "node is shutting down" || is.LastTransitionTime.Before(&was.LastTransitionTime) {
		t.Errorf("C-1.25.9: %+v", is)
	}
	stopping.Delete("now")
	a.until(t, "flaps", "ready again", ready)
	so(t, func() error { // the observer is called a moment after the API server has it
		events := m.said()
		if i := slices.Index(events, "NodeNotReady"); i < 0 || !slices.Contains(events[i:], "NodeReady") {
			return fmt.Errorf("events %v", events)
		}
		return nil
	})
	m.stop()
	a.nobodyRefused(t, "flaps")
}

func leases(t *testing.T, a audited) {
	m := a.join(t, "leased")
	first := a.lease(t, "leased", "there", anyLease)
	if *first.Spec.LeaseDurationSeconds != 4 {
		t.Errorf("lease %+v", first.Spec)
	}
	last := first.Spec.RenewTime.Time
	for range 2 {
		l := a.lease(t, "leased", "renewed", func(l *coordinationv1.Lease) bool { return l.Spec.RenewTime.After(last) })
		last = l.Spec.RenewTime.Time
	}
	if err := a.admin.CoordinationV1().Leases("kube-node-lease").Delete(t.Context(), "leased", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.lease(t, "leased", "made again", func(l *coordinationv1.Lease) bool { return l.UID != first.UID })
	m.stop()
	a.nobodyRefused(t, "leased")
}

// vanishes: a Node that another client deletes is registered again, and its lease belongs to
// the new one.
func vanishes(t *testing.T, a audited) {
	m := a.join(t, "gone", func(c *apiserver.Config, _ *node.ObserverConfig) { c.UpdateFrequency = time.Minute })
	first := a.until(t, "gone", "ready", ready)
	if err := a.admin.CoreV1().Nodes().Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := a.until(t, "gone", "registered again", func(n *v1.Node) bool { return n.UID != first.UID })
	if second.Labels["disk"] != "ssd" || !slices.ContainsFunc(second.Spec.Taints, func(o v1.Taint) bool { return o.Key == "new" }) || !ready(second) {
		t.Errorf("the second registration: %+v %+v", second.Labels, second.Spec)
	}
	a.lease(t, "gone", "of the new object", func(l *coordinationv1.Lease) bool {
		return len(l.OwnerReferences) == 1 && l.OwnerReferences[0].UID == second.UID
	})
	m.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	var uids []types.UID
	for _, n := range m.seen {
		uid := types.UID("")
		if n != nil {
			uid = n.UID
		}
		if len(uids) == 0 || uids[len(uids)-1] != uid {
			uids = append(uids, uid)
		}
	}
	if want := []types.UID{first.UID, "", second.UID}; !slices.Equal(uids, want) {
		t.Errorf("seen %v, want %v", uids, want)
	}
	a.nobodyRefused(t, "gone")
}

// away: an outage of the API server only delays.
func away(t *testing.T, a audited) {
	m := a.join(t, "patient")
	n := a.until(t, "patient", "ready", ready)
	l := a.lease(t, "patient", "there", anyLease)
	a.Restart(t)
	back := time.Now()
	again := a.lease(t, "patient", "renewed", func(is *coordinationv1.Lease) bool {
		return is.Spec.RenewTime.After(back)
	})
	patch := []byte(`{"metadata":{"labels":{"after":"restart"}}}`)
	if _, err := a.admin.CoreV1().Nodes().Patch(t.Context(), "patient", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	so(t, func() error {
		if m.Node() == nil || m.Node().Labels["after"] != "restart" {
			return fmt.Errorf("the watch does not come back; the node is %+v", m.Node())
		}
		return nil
	})
	m.stop()
	if m.UID() != n.UID || again.UID != l.UID {
		t.Errorf("another object: %s, %s", m.UID(), n.UID)
	}
	a.nobodyRefused(t, "patient")
}

func pods(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
