package cpuset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// showDevices returns the NUMA nodes and the reserved devices of a pod's containers.
func showDevices(s *State, uid string) string {
	var words []string
	of := s.Of(uid)
	for _, name := range slices.Sorted(maps.Keys(of)) {
		word := name + "@" + strings.Trim(strings.ReplaceAll(fmt.Sprint(of[name].NUMA), " ", ","), "[]")
		for _, resource := range slices.Sorted(maps.Keys(of[name].Devices)) {
			word += " " + strings.TrimPrefix(resource, "x.com/") + ":" + strings.Join(of[name].Devices[resource], ",")
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

// The hints of a resource are the sets of NUMA nodes that have enough devices. A set is preferred if it is as
// small as the smallest one with enough listed devices, also unhealthy ones and those in use.
//
// Shows: C-1.46.11
func TestDeviceHints_LayoutsAndRequests_AreTheKubelets(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c", "d", "e"}
	for _, c := range []struct {
		name, devices string
		free, reuse   []string
		n             int
		want          string
	}{
		{"one node has it", "gpu a@0 b@1", []string{"b"}, nil, 1, "[1]+ [0 1]"},
		{"both nodes have it", "gpu a@0 b@1", all[:2], nil, 1, "[0]+ [1]+ [0 1]"},
		{"two nodes are needed", "gpu a@0 b@1", all[:2], nil, 2, "[0 1]+"},
		{"one node would be enough if none was in use", "gpu a@0 b@0 c@1", []string{"b", "c"}, nil, 2, "[0 1]"},
		{"unhealthy devices count as listed", "gpu a@0 b!@0 c@1", []string{"a", "c"}, nil, 2, "[0 1]"},
		{"a device of two nodes", "gpu a@0,1 b@1", all[:2], nil, 2, "[1]+ [0 1]"},
		{"devices without nodes do not count", "gpu a@0 b c", all[:3], nil, 2, ""},
		{"nodes that have no device are not tried", "gpu a@1 b@1", all[:2], nil, 1, "[1]+"},
		{"too few", "gpu a@0", nil, nil, 1, ""},
		{"devices of init containers", "gpu a@0 b@1", []string{"b"}, []string{"a"}, 1, "[0]+ [0 1]"},
		{"devices of init containers and others", "gpu a@0 b@1 c@0", []string{"b"}, []string{"a"}, 2, "[0 1]"},
		{"a device of an init container without nodes", "gpu a b@1", []string{"b"}, []string{"a"}, 1, "[1]+"},
		{"a device of an init container on a node that the machine lacks", "gpu a@7 b@1", []string{"b"}, []string{"a"}, 1, ""},
		{"nodes that the machine lacks", "gpu a@7 b@-1 c@64", all[:3], nil, 1, ""},
	} {
		s := allocator(t, machine(t, "two-sockets-smt"), Policy{Topology: bestEffort}).State()
		s.SetDevices(cpusettest.Devices(t, c.devices))
		var words []string
		for _, h := range s.layouts["x.com/gpu"].hints(c.free, c.reuse, c.n) {
			word := fmt.Sprint(h.nodes.ids())
			if h.preferred {
				word += "+"
			}
			words = append(words, word)
		}
		if got := strings.Join(words, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

const noLocality = "TopologyAffinityError Resources cannot be allocated with Topology locality"

// Pods get devices and CPUs of the same NUMA nodes, or are refused, by policy and scope.
//
// Shows: C-1.46.9, C-1.46.11, C-1.46.12
func TestAdmit_PodsRequestDevices_GetThemWithTheirCPUs(t *testing.T) {
	t.Parallel()
	const few = "UnexpectedAdmissionError Allocate failed due to requested number of devices unavailable for x.com/gpu. Requested: 2, Available: 1, which is unexpected"
	onlyOne := []string{"gpu a@1 b@1"}
	split := []string{"gpu a@0 b@1"}
	apart := []string{"gpu a@0", "nic m@1"}
	for _, c := range []struct {
		name    string
		policy  Policy
		devices []string
		pods    [][]string
		want    []string // CPUs | devices of each pod, or a reason and message
	}{
		{"none", Policy{CPU: static, Topology: none}, onlyOne, [][]string{{"c=2+gpu:1"}}, []string{"c=1,13 | c@"}},
		{"the CPUs follow the devices", Policy{CPU: static, Topology: bestEffort}, onlyOne, [][]string{{"c=2+gpu:1"}}, []string{"c=6,18 | c@1 gpu:a"}},
		{"without a CPU policy", Policy{Topology: singleNUMANode}, onlyOne, [][]string{{"c=2+gpu:1"}, {"c=2+gpu:1"}}, []string{"c= | c@1 gpu:a", "c= | c@1 gpu:b"}},
		{"a part of a CPU", Policy{CPU: static, Topology: singleNUMANode}, onlyOne, [][]string{{"c=1500m+gpu:2"}}, []string{"c= | c@1 gpu:a,b"}},
		{"apart, best effort", Policy{Topology: bestEffort}, apart, [][]string{{"c=1+gpu:1+nic:1"}}, []string{"c= | c@0,1 gpu:a nic:m"}},
		{"apart, restricted", Policy{Topology: restricted}, apart, [][]string{{"c=1+gpu:1+nic:1"}}, []string{noLocality}},
		{"apart, single node", Policy{Topology: singleNUMANode}, apart, [][]string{{"c=1+gpu:1+nic:1"}}, []string{noLocality}},
		{"two nodes, restricted", Policy{Topology: restricted}, split, [][]string{{"c=1+gpu:2"}}, []string{"c= | c@0,1 gpu:a,b"}},
		{"two nodes, single node", Policy{Topology: singleNUMANode}, split, [][]string{{"c=1+gpu:2"}}, []string{noLocality}},
		{"each container alone", Policy{Topology: singleNUMANode, Scope: scopeContainer}, split, [][]string{{"c=1+gpu:1", "d=1+gpu:1"}}, []string{"c= d= | c@0 gpu:a; d@1 gpu:b"}},
		{"the pod as a whole", Policy{Topology: singleNUMANode, Scope: scopePod}, split, [][]string{{"c=1+gpu:1", "d=1+gpu:1"}}, []string{noLocality}},
		{"the pod as a whole, init containers first", Policy{Topology: singleNUMANode, Scope: scopePod}, split, [][]string{{"i:a=1+gpu:1", "c=1+gpu:1"}}, []string{"a= c= | a@0 gpu:a; c@0 gpu:a"}},
		{"a sidecar keeps its device", Policy{Topology: singleNUMANode}, []string{"gpu a@0 b@0"}, [][]string{{"i:a=1+gpu:1", "s:b=1+gpu:1", "c=1+gpu:1"}}, []string{"a= b= c= | a@0 gpu:a; b@0 gpu:a; c@0 gpu:b"}},
		{"too few, best effort", Policy{Topology: bestEffort}, split, [][]string{{"c=1+gpu:1"}, {"c=1+gpu:2"}}, []string{"c= | c@0 gpu:a", few}},
		{"too few, restricted", Policy{Topology: restricted}, split, [][]string{{"c=1+gpu:1"}, {"c=1+gpu:2"}}, []string{"c= | c@0 gpu:a", noLocality}},
		{"unhealthy", Policy{Topology: restricted}, []string{"gpu a!@0 b@1"}, [][]string{{"c=1+gpu:1"}}, []string{"c= | c@1 gpu:b"}},
		{"devices without nodes align nothing", Policy{Topology: singleNUMANode}, []string{"gpu a b"}, [][]string{{"c=1+gpu:2"}}, []string{"c= | c@"}},
		{"a node without free CPUs", Policy{CPU: static, Topology: singleNUMANode}, onlyOne, [][]string{{"c=12"}, {"c=2+gpu:1"}}, []string{"c=6-11,18-23 | ", noLocality}},
	} {
		s := allocator(t, machine(t, "two-sockets-smt"), c.policy).State()
		s.SetDevices(cpusettest.Devices(t, c.devices...))
		for i, of := range c.pods {
			got := ""
			uid := fmt.Sprint("p", i)
			if r := s.Admit(testPod(uid, of...)); r != nil {
				got = r.Reason + " " + r.Message
			} else {
				got = showCPUs(s, uid, of) + " | " + devicesIn(s, uid, of)
			}
			if got != c.want[i] {
				t.Errorf("%s: %v: %s, want %s", c.name, of, got, c.want[i])
			}
		}
	}
}

// showCPUs returns the exclusive CPUs of all containers of a pod.
func showCPUs(s *State, uid string, list []string) string {
	of, words := s.Of(uid), []string{}
	for _, c := range containers(testPod(uid, list...)) {
		words = append(words, c.Name+"="+of[c.Name].CPUs)
	}
	return strings.Join(words, " ")
}

// devicesIn is showDevices, for all containers that request devices.
func devicesIn(s *State, uid string, list []string) string {
	text := showDevices(s, uid)
	if p := testPod(uid, list...); text == "" && pod.RequestsDevices(p) {
		return p.Spec.Containers[0].Name + "@"
	}
	if !strings.Contains(strings.Join(list, " "), "+") {
		return ""
	}
	return text
}

// users returns the devices with containers that have them: "p/c" by ID.
func users(supply map[v1.ResourceName]pod.DeviceSupply, has map[string]string) map[v1.ResourceName]pod.DeviceSupply {
	for id, of := range has {
		uid, container, _ := strings.Cut(of, "/")
		l := supply["x.com/gpu"].Layout
		if l.Users[uid] == nil {
			l.Users[uid] = map[string][]string{}
		}
		l.Users[uid][container] = append(l.Users[uid][container], id)
		slices.Sort(l.Users[uid][container])
	}
	return supply
}

// The next state has the allocations of the one before. A container that has its devices needs no reserved
// ones. Reserved devices that are not healthy any more, or that another pod has, are dropped.
//
// Shows: C-1.46.12
func TestPut_ReservedDevices_AreFreeOnceTheContainerHasOthers(t *testing.T) {
	t.Parallel()
	a := allocator(t, machine(t, "two-sockets-smt"), Policy{Topology: singleNUMANode})
	p := testPod("p", "i:a=1+gpu:1", "c=1+gpu:1")
	first := a.State()
	first.SetDevices(cpusettest.Devices(t, "gpu a@0 b@0 d@1"))
	if r := first.Admit(p); r != nil || showDevices(first, "p") != "a@0 gpu:a; c@0 gpu:a" {
		t.Fatalf("%v, %s", r, showDevices(first, "p"))
	}
	for _, c := range []struct {
		name, devices string
		has           map[string]string
		want, other   string // the pod, and another one that requests a device
	}{
		{"nothing has changed", "gpu a@0 b@0 d@1", nil, "a@0 gpu:a; c@0 gpu:a", "c@0 gpu:b"},
		{"the plugin preferred another", "gpu a@0 b@0 d@1", map[string]string{"b": "p/a"}, "a@0; c@0 gpu:b", "c@0 gpu:a"},
		{"it is not healthy", "gpu a!@0 b@0 d@1", nil, "a@0; c@0", "c@0 gpu:b"},
		{"another pod has it", "gpu a@0 b@0 d@1", map[string]string{"a": "q/"}, "a@0; c@0", "c@0 gpu:b"},
	} {
		s := a.State()
		s.SetDevices(users(cpusettest.Devices(t, c.devices), c.has))
		for name, has := range first.Of("p") {
			s.Put("p", name, has)
		}
		s.Settle(p)
		s = s.Clone()
		if r := s.Admit(testPod("other", "c=1+gpu:1")); r != nil {
			t.Errorf("%s: %v", c.name, r)
		}
		if got, other := showDevices(s, "p"), showDevices(s, "other"); got != c.want || other != c.other {
			t.Errorf("%s: %s and %s, want %s and %s", c.name, got, other, c.want, c.other)
		}
		for _, r := range s.Reserved() {
			if r.UID == "p" && r.Container == "a" && c.has["b"] != "" {
				t.Errorf("%s: %+v is reserved for a container with devices", c.name, r)
			}
		}
		if rest := s.Without(func(uid string) bool { return uid == "other" }); showDevices(rest, "p") != c.want || showDevices(rest, "other") != "" {
			t.Errorf("%s: without the other pod: %s and %s", c.name, showDevices(rest, "p"), showDevices(rest, "other"))
		}
	}
}

// An edited pod keeps the devices of containers that request as many. Others get new ones, or the edit
// is refused.
//
// Shows: C-1.46.9
func TestEdit_RequestsForDevicesChange_AreAligned(t *testing.T) {
	t.Parallel()
	a := allocator(t, machine(t, "two-sockets-smt"), Policy{Topology: singleNUMANode})
	was := testPod("p", "c=1+gpu:1")
	for _, c := range []struct {
		name    string
		to      []string
		changed bool
		want    string
	}{
		{"the same", []string{"c=2+gpu:1"}, false, ""},
		{"another container", []string{"c=1+gpu:1", "d=1+gpu:1"}, true, "c@0; d@1 gpu:b"},
		{"more devices", []string{"c=1+gpu:2"}, true, "c@1 gpu:b,d"},
		{"too many for a node", []string{"c=1+gpu:3"}, false, noLocality},
		{"a container less", []string{"d=1"}, true, ""},
	} {
		s := a.State()
		s.SetDevices(users(cpusettest.Devices(t, "gpu a@0 b@1 d@1"), map[string]string{"a": "p/c"}))
		changed, r := s.Edit(was, testPod("p", c.to...))
		got := showDevices(s, "p")
		if r != nil {
			got = r.Reason + " " + r.Message
		}
		if changed != c.changed || got != c.want {
			t.Errorf("%s: %t, %s, want %t, %s", c.name, changed, got, c.changed, c.want)
		}
	}
	for uid, want := range map[string]string{"p": "c@0", "q": "c@1 gpu:b"} { // a pod that replaces it
		s := a.State()
		s.SetDevices(users(cpusettest.Devices(t, "gpu a!@0 b@1 d@1"), map[string]string{"a": "p/c"}))
		next := testPod(uid, "c=2+gpu:1")
		s.Replace(was, next)
		if r := s.Admit(next); r != nil || showDevices(s, uid) != want {
			t.Errorf("%s: %v, %s, want %s", uid, r, showDevices(s, uid), want)
		}
	}
}

// Drawn pods on drawn devices: two pods never get the same device, and with single-numa-node the devices of each
// container, and its CPUs, are on one node. A pod that is refused changes nothing.
//
// Shows: C-1.46.11, C-1.46.12
func TestAdmit_AnyDevices_AreNeverSharedAndStayOnTheirNode(t *testing.T) {
	t.Parallel()
	admitted, refused := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := machine(t, []string{"two-sockets-smt", "eight-nodes"}[r.IntN(2)])
		a := allocator(t, m, Policy{CPU: static, Topology: singleNUMANode, Scope: []string{scopeContainer, scopePod}[r.IntN(2)]})
		at, texts := map[string]int{}, []string{"gpu", "nic"}
		for i := range texts {
			for d := range 1 + r.IntN(8) {
				id := fmt.Sprint(texts[i][:1], d)
				at[id] = r.IntN(len(m.Nodes))
				if r.IntN(8) == 0 {
					id += "!"
				}
				texts[i] += fmt.Sprintf(" %s@%d", id, at[strings.TrimSuffix(id, "!")])
			}
		}
		s := a.State()
		s.SetDevices(cpusettest.Devices(t, texts...))
		for step := range 12 {
			uid := fmt.Sprint("p", r.IntN(6))
			if step%3 == 2 {
				s = s.Without(func(of string) bool { return of == uid })
				continue
			}
			if len(s.Of(uid)) > 0 {
				continue
			}
			p := testPod(uid, fmt.Sprintf("i:a=1+gpu:%d", 1+r.IntN(2)), fmt.Sprintf("c=%d+gpu:%d+nic:1", 1+r.IntN(4), 1+r.IntN(2)))
			before := s.Clone()
			if rejected := s.Admit(p); rejected == nil {
				admitted++
			} else if refused++; !maps.EqualFunc(s.reserved, before.reserved, slices.Equal[[]string]) || rejected.Reason != reasonTopology {
				t.Fatalf("seed %d: %+v", seed, rejected)
			}
			owner := map[string]string{}
			for u, ids := range s.reserved {
				if u.container == "c" && len(s.Of(u.uid)["c"].NUMA) != 1 {
					t.Fatalf("seed %d: %+v", seed, s.Of(u.uid))
				}
				for _, id := range ids {
					if other := owner[id]; other != "" && other != u.uid || strings.Contains(strings.Join(texts, " ")+" ", " "+id+"!@") {
						t.Fatalf("seed %d: %s of %s, and of %q", seed, id, u.uid, other)
					}
					if owner[id] = u.uid; at[id] != s.Of(u.uid)[u.container].NUMA[0] {
						t.Fatalf("seed %d: %s is on node %d: %+v", seed, id, at[id], s.Of(u.uid)[u.container])
					}
				}
			}
			for uid, of := range s.cpus {
				for name, set := range of {
					for _, cpu := range set.List() {
						if nodes := s.Of(uid)[name].NUMA; m.CPUs[cpu].Node != nodes[0] {
							t.Fatalf("seed %d: CPU %d of %s is not on node %v", seed, cpu, name, nodes)
						}
					}
				}
			}
		}
	}
	if admitted < 100 || refused < 100 {
		t.Errorf("%d pods were admitted, %d refused", admitted, refused)
	}
}
