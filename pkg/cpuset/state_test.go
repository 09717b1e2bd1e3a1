package cpuset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
)

// testPod returns a pod of a text that cpusettest.Pod reads.
var testPod = cpusettest.Pod

func cpu(amount string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(amount)}
}

func allocator(t testing.TB, m Machine, p Policy) *Allocator {
	t.Helper()
	if p.Reservation == nil {
		p.Reservation = cpu("1")
	}
	if p.Memory == memoryStatic {
		p.Reservation[v1.ResourceMemory] = resource.MustParse("1Gi")
		p.ReservedMemory = map[int]Reserved{0: {v1.ResourceMemory: 1 << 30}}
	}
	a, err := New(m, p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func show(s *State, uid string) string {
	var words []string
	of := s.Of(uid)
	for _, name := range slices.Sorted(maps.Keys(of)) {
		text := name + "=" + of[name].CPUs
		if mems := of[name].Mems(); mems != "" {
			text += "@" + mems
		}
		words = append(words, text)
	}
	return strings.Join(words, " ")
}

// Shows: C-1.46.1, C-1.46.3, C-1.46.5, C-1.46.9
func TestAdmit_Pods_GetTheKubeletsSets(t *testing.T) {
	on := func(names ...string) map[string]string {
		all := map[string]string{}
		for _, n := range names {
			all[n] = "true"
		}
		return all
	}
	for _, c := range []struct {
		name, machine string
		policy        Policy
		pods          [][]string
		want          []string // of each pod; a reason and message for one that is rejected
		shared        string
	}{
		{"whole cores", "two-sockets-smt", Policy{CPU: static}, [][]string{{"a=2"}, {"a=3"}}, []string{"a=1,13", "a=2,12,14"}, "0,3-11,15-23"},
		{"whole socket", "two-sockets-smt", Policy{CPU: static}, [][]string{{"a=12"}}, []string{"a=6-11,18-23"}, "0-5,12-17"},
		{"part of a CPU", "two-sockets-smt", Policy{CPU: static}, [][]string{{"a=1500m", "b=1"}}, []string{"b=12"}, "0-11,13-23"},
		{"reuse of init containers", "two-sockets-smt", Policy{CPU: static}, [][]string{{"i:a=4", "s:b=2", "c=2"}}, []string{"a=1-2,13-14 b=1,13 c=2,14"}, "0,3-12,15-23"},
		{"not enough", "one-socket", Policy{CPU: static}, [][]string{{"a=4", "b=4"}}, []string{"UnexpectedAdmissionError Allocate failed due to not enough cpus available to satisfy request: requested=4, available=3, which is unexpected"}, "0-7"},
		{"uneven", "two-sockets-smt", Policy{CPU: static, CPUOptions: on(optionFullCores)}, [][]string{{"a=3"}}, []string{"SMTAlignmentError SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"}, "0-23"},
		{"no whole cores", "two-sockets-smt", Policy{CPU: static, CPUOptions: on(optionFullCores)}, [][]string{{"a=24"}}, []string{"SMTAlignmentError SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 22, requested CPUs = 24, CPUs per core = 2"}, "0-23"},
		{"across NUMA nodes", "two-sockets-smt", Policy{CPU: static, CPUOptions: on(optionAcrossNUMA)}, [][]string{{"a=14"}}, []string{"a=1-3,6-9,12-15,18-20"}, "0,4-5,10-11,16-17,21-23"},
		{"across cores", "two-sockets-smt", Policy{CPU: static, CPUOptions: on(optionAcrossCores)}, [][]string{{"a=4"}}, []string{"a=1-4"}, "0,5-23"},
		{"strict reservation", "one-socket", Policy{CPU: static, CPUOptions: on(optionStrict), Reserved: cpuset.New(6, 7), Reservation: cpu("2")}, [][]string{{"a=2"}}, []string{"a=0-1"}, "2-5"},
		{"uncore cache", "eight-nodes", Policy{CPU: static, CPUOptions: on(optionByCache)}, [][]string{{"a=4"}, {"a=3"}}, []string{"a=2-3,34-35", "a=1,32-33"}, "0,4-31,36-63"},
		{"single NUMA node", "two-sockets-smt", Policy{CPU: static, Memory: memoryStatic, Topology: singleNUMANode}, [][]string{{"a=10/20Gi"}, {"a=12/20Gi"}, {"a=2/20Gi"}}, []string{
			"a=1-5,13-17@0", "a=6-11,18-23@1", "TopologyAffinityError Resources cannot be allocated with Topology locality",
		}, "0,12"},
		{"pod on one NUMA node", "two-sockets-smt", Policy{CPU: static, Topology: singleNUMANode, Scope: scopePod}, [][]string{{"a=6", "b=6"}, {"a=8", "b=4"}}, []string{
			"a=6-8,18-20 b=9-11,21-23", "TopologyAffinityError Resources cannot be allocated with Topology locality",
		}, "0-5,12-17"},
		{"memory of two nodes", "two-sockets-smt", Policy{Memory: memoryStatic, Topology: restricted}, [][]string{{"a=1/100Gi"}, {"a=1/10Gi"}}, []string{
			"a=@0,1", "TopologyAffinityError Resources cannot be allocated with Topology locality",
		}, ""},
		{"memory that no node has", "two-sockets-smt", Policy{Memory: memoryStatic}, [][]string{{"a=1/200Gi"}}, []string{
			"UnexpectedAdmissionError Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected",
		}, ""},
	} {
		s := allocator(t, machine(t, c.machine), c.policy).State()
		for i, list := range c.pods {
			uid := fmt.Sprint("pod-", i)
			got := ""
			if r := s.Admit(testPod(uid, list...)); r != nil {
				got = r.Reason + " " + r.Message
			} else {
				got = show(s, uid)
			}
			if got != c.want[i] {
				t.Errorf("%s, pod %d: %s, want %s", c.name, i, got, c.want[i])
			}
		}
		if got := s.Shared(); got != c.shared {
			t.Errorf("%s: shared CPUs %s, want %s", c.name, got, c.shared)
		}
	}
}

// Shows: C-1.46.1
func TestAdmit_AnyPodsOnAnyMachine_NeverShareNorLeak(t *testing.T) {
	policies := []Policy{
		{CPU: static},
		{CPU: static, CPUOptions: map[string]string{optionFullCores: "true"}, Topology: bestEffort},
		{CPU: static, CPUOptions: map[string]string{optionAcrossNUMA: "true"}, Topology: restricted},
		{CPU: static, CPUOptions: map[string]string{optionBySocket: "true", optionByCache: "true"}, Topology: restricted, Scope: scopePod},
		{CPU: static, CPUOptions: map[string]string{optionAcrossCores: "true", optionStrict: "true"}, Memory: memoryStatic},
		{CPU: static, Memory: memoryStatic, Topology: bestEffort, Scope: scopePod},
		{CPU: static, Memory: memoryStatic, Topology: singleNUMANode},
	}
	for _, name := range cpusettest.Machines {
		m := machine(t, name)
		for i, p := range policies {
			if p.Memory != "" && m.Nodes[0].Memory == 0 {
				continue
			}
			random := rand.New(rand.NewPCG(uint64(i), uint64(len(name))))
			t.Run(fmt.Sprint(name, "/", i), func(t *testing.T) { neverShares(t, allocator(t, m, p), random) })
		}
	}
}

// neverShares adds, changes and removes random pods. After a change, the old containers run until
// they have stopped.
func neverShares(t *testing.T, a *Allocator, random *rand.Rand) {
	empty := a.State()
	s, running, old := empty.Clone(), map[string]*v1.Pod{}, map[string]Set{}
	some := func(uid string) *v1.Pod {
		var list []string
		for j := range 1 + random.IntN(3) {
			list = append(list, fmt.Sprintf("%sc%d=%d/%dGi", []string{"", "", "i:", "s:"}[random.IntN(4)], j, 1+random.IntN(6), 1+random.IntN(12)))
		}
		return testPod(uid, append(list, fmt.Sprintf("z=%d/1Gi", 1+random.IntN(2)))...)
	}
	for i := range 60 {
		uid := fmt.Sprint("pod-", i)
		if n := len(running); n > 0 && random.IntN(2) == 0 {
			uid = slices.Sorted(maps.Keys(running))[random.IntN(n)]
		}
		was, try := running[uid], s.Clone()
		now, r := some(uid), (*Rejection)(nil)
		switch n := random.IntN(3); {
		case was == nil:
			r = try.Admit(now)
		case n == 0:
			delete(running, uid)
			delete(old, uid)
			s = s.Without(func(u string) bool { return u == uid })
			r = &Rejection{} // nothing else changes
		case n == 1:
			try.Replace(was, now)
			r = try.Admit(now)
		default:
			now = was.DeepCopy()
			now.Spec.Containers = append(now.Spec.Containers[random.IntN(len(was.Spec.Containers)):], testPod("", fmt.Sprintf("x%d=2", i)).Spec.Containers...)
			_, r = try.Edit(was, now)
		}
		switch {
		case r == nil:
			for _, set := range s.cpus[uid] {
				old[uid] = old[uid].Union(set)
			}
			s, running[uid] = try, now
		case was == nil && !reflect.DeepEqual(s.Files(), try.Files()):
			t.Fatalf("a rejected pod changed the state: %v", r)
		}
		check(t, s, running, old)
		if random.IntN(3) == 0 { // all of them have stopped, and the caller makes the state again
			old, try = map[string]Set{}, empty.Clone()
			for uid := range running {
				for name, has := range s.Of(uid) {
					try.Put(uid, name, has)
				}
			}
			s = try
			check(t, s, running, old)
		}
	}
	s = s.Without(func(string) bool { return true })
	if !reflect.DeepEqual(s.Files(), empty.Files()) {
		t.Errorf("something is left: %s", s.Files())
	}
}

// check checks the invariants. old has the CPUs of containers that a change has replaced and that
// still run.
func check(t *testing.T, s *State, running map[string]*v1.Pod, old map[string]Set) {
	t.Helper()
	used, blocked := cpuset.New(), cpuset.New()
	for _, set := range old {
		blocked = blocked.Union(set)
	}
	for uid, p := range running {
		of, together := s.cpus[uid], cpuset.New()
		others := cpuset.New()
		for other, set := range old {
			if other != uid {
				others = others.Union(set)
			}
		}
		for _, c := range containers(p) {
			set := of[c.Name]
			if set.Size() != exclusive(p, c) {
				t.Fatalf("%s/%s has %s, wants %d", uid, c.Name, set, exclusive(p, c))
			}
			if !set.Intersection(used).IsEmpty() || !set.Intersection(others).IsEmpty() || !set.Intersection(together).IsEmpty() {
				t.Fatalf("%s/%s shares CPUs of %s", uid, c.Name, set)
			}
			if lasts(p, c) {
				together = together.Union(set)
			}
		}
		for _, c := range containers(p) {
			used = used.Union(of[c.Name])
		}
	}
	all := s.allocator.cpus.all()
	if s.allocator.strict {
		all = all.Difference(s.allocator.reserved)
	}
	if !used.Intersection(s.allocator.reserved).IsEmpty() || !used.Union(blocked).Intersection(s.shared).IsEmpty() || !used.Union(blocked, s.shared).Equals(all) {
		t.Fatalf("exclusive %s, blocked %s, shared %s, reserved %s of %s", used, blocked, s.shared, s.allocator.reserved, all)
	}
	again := s.Without(func(string) bool { return false }) // as after a restart of the agent
	if !again.shared.Equals(s.shared) || !reflect.DeepEqual(again.Of("pod-0"), s.Of("pod-0")) {
		t.Fatal("another agent would see another state")
	}
}

func TestReplace_EditedPod_KeepsWhatItStillRequests(t *testing.T) {
	s := allocator(t, machine(t, "two-sockets-smt"), Policy{CPU: static}).State()
	was, now := testPod("old", "a=2", "b=2"), testPod("new", "a=4", "b=2")
	if r := s.Admit(was); r != nil {
		t.Fatal(r)
	}
	before := show(s, "old")
	s.Replace(was, now)
	if r := s.Admit(now); r != nil {
		t.Fatal(r)
	}
	if got := before + " → " + show(s, "new") + " " + show(s, "old"); got != "a=1,13 b=2,14 → a=1,3,13,15 b=2,14 " {
		t.Error(got)
	}
}

// Shows: C-1.46.7
func TestInfeasible_ResizeOfGuaranteedPod_NamesThePolicy(t *testing.T) {
	a := allocator(t, machine(t, "two-sockets-smt"), Policy{CPU: static, Memory: memoryStatic}).State()
	was := testPod("p", "a=2")
	for now, want := range map[string]string{
		"a=2":     "",
		"a=3":     `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`,
		"a=2/2Gi": `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`,
	} {
		if got := a.Infeasible(was, testPod("p", now)); got != want {
			t.Errorf("%s: %q, want %q", now, got, want)
		}
	}
}

func TestNew_UnsuitablePolicies_AreErrors(t *testing.T) {
	m := machine(t, "two-sockets-smt")
	for _, c := range []struct {
		policy Policy
		want   string
	}{
		{Policy{CPU: static}, "greater than zero"},
		{Policy{CPU: static, Reservation: cpu("1"), Reserved: cpuset.New(40)}, "not online"},
		{Policy{CPU: static, Reservation: cpu("1"), CPUOptions: map[string]string{optionBySocket: "true"}, Topology: singleNUMANode}, "incompatible"},
		{Policy{Memory: memoryStatic, Reservation: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}, "is not equal"},
		{Policy{Memory: memoryStatic, ReservedMemory: map[int]Reserved{7: {v1.ResourceMemory: 1}}}, "NUMA node 7"},
	} {
		if _, err := New(m, c.policy); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.policy, err, c.want)
		}
	}
	if a, err := New(m, Policy{Topology: none}); a != nil || err != nil {
		t.Errorf("policies that allocate nothing: %v, %v", a, err)
	}
	if err := CheckCPU("none", map[string]string{optionStrict: "true"}); err == nil {
		t.Error("options of the policy none")
	}
}

// Shows: C-1.46.1
func TestReplace_OldContainersRun_OthersDoNotGetTheirCPUs(t *testing.T) {
	s := allocator(t, machine(t, "one-socket"), Policy{CPU: static}).State()
	was, now := testPod("old", "a=4"), testPod("new", "a=1")
	if r := s.Admit(was); r != nil {
		t.Fatal(r)
	}
	s.Replace(was, now)
	if r := s.Admit(now); r != nil {
		t.Fatal(r)
	}
	if r := s.Admit(testPod("other", "a=4")); r == nil {
		t.Errorf("another pod has %s", show(s, "other"))
	}
	if r := s.Admit(testPod("other", "a=3")); r != nil {
		t.Fatal(r)
	}
	if got := show(s, "new") + ", " + show(s, "other") + ", " + s.Shared(); got != "a=1, a=5-7, 0" {
		t.Error(got)
	}
	s = s.Without(func(uid string) bool { return uid == "new" })
	if got := s.Shared(); got != "0-4" {
		t.Errorf("shared without the pod: %s", got)
	}
}

// Shows: C-1.46.1
func TestEdit_ContainersAreAddedAndRemoved_OthersKeepTheirCPUs(t *testing.T) {
	s := allocator(t, machine(t, "one-socket"), Policy{CPU: static}).State()
	was := testPod("p", "a=2", "b=2")
	if r := s.Admit(was); r != nil {
		t.Fatal(r)
	}
	for _, step := range []struct {
		now  []string
		want string
	}{
		{[]string{"a=2", "b=2"}, "false <nil> a=1-2 b=3-4, 0,5-7"},
		{[]string{"a=2", "c=3"}, "true <nil> a=1-2 c=3-5, 0,6-7"}, // c starts when b has stopped
		{[]string{"a=2", "c=3", "d=3"}, "false Allocate failed due to not enough cpus available to satisfy request: requested=3, available=2, which is unexpected a=1-2 c=3-5, 0,6-7"},
		{[]string{"c=3"}, "true <nil> c=3-5, 0,6-7"}, // a runs until it has stopped
	} {
		now := testPod("p", step.now...)
		changed, r := s.Edit(was, now)
		var err any
		if r != nil {
			err = r
		}
		if got := fmt.Sprint(changed, " ", err, " ", show(s, "p"), ", ", s.Shared()); got != step.want {
			t.Errorf("%s: %s, want %s", step.now, got, step.want)
		}
		if r == nil {
			was = now
		}
	}
}

func TestShared_NoCPUIsFree_IsTheReservedOnes(t *testing.T) {
	s := allocator(t, machine(t, "one-socket"), Policy{CPU: static, CPUOptions: map[string]string{optionStrict: "true"}, Reserved: cpuset.New(6, 7), Reservation: cpu("2")}).State()
	if r := s.Admit(testPod("p", "a=6")); r != nil {
		t.Fatal(r)
	}
	if got := s.Shared(); got != "6-7" {
		t.Errorf("shared CPUs %q", got)
	}
	if files := s.Files(); !strings.Contains(string(files[CPUStateFile]), `"defaultCpuSet":""`) {
		t.Errorf("%s", files[CPUStateFile])
	}
}

// Shows: C-1.46.10
func TestAllocatable_ReservedParts_AreLeftOut(t *testing.T) {
	m := Machine{CPUs: map[int]CPU{}, Nodes: []Node{{ID: 0, Memory: 8 << 30, HugePages: map[v1.ResourceName]uint64{"hugepages-2Mi": 1 << 30}}}}
	for i := range 4 {
		m.CPUs[i] = CPU{Core: i}
	}
	a, err := New(m, Policy{
		CPU: static, Memory: memoryStatic, ReservedMemory: map[int]Reserved{0: {v1.ResourceMemory: 1 << 30}},
		Reservation: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi")},
	})
	if err != nil {
		t.Fatal(err)
	}
	ids, memory := a.Allocatable()
	want := []Block{{NUMAAffinity: []int{0}, Type: "hugepages-2Mi", Size: 1 << 30}, {NUMAAffinity: []int{0}, Type: v1.ResourceMemory, Size: 6 << 30}}
	if !reflect.DeepEqual(ids, []int{1, 2, 3}) || !reflect.DeepEqual(memory, want) {
		t.Errorf("CPUs %v, memory %v", ids, memory)
	}
}
