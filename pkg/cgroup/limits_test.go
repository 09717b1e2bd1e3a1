package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

func (l limits) String() string {
	var pages []string
	for _, p := range l.pages {
		pages = append(pages, fmt.Sprintf("%s=%d", p.size, p.limit))
	}
	return fmt.Sprintf("shares=%d quota=%d memory=%d pids=%d %s", l.shares, l.quota, l.memory, l.pids, strings.Join(pages, " "))
}

// shapes are pods and their limits by C-1.41.2, calculated by hand.
func shapes() map[string]struct{ spec, want string } {
	return map[string]struct{ spec, want string }{
		"best effort": {bestEffortPod, "shares=2 quota=-1 memory=-1 pids=-1 1GB=0 2MB=0"},
		"guaranteed":  {guaranteed, "shares=512 quota=50000 memory=67108864 pids=-1 1GB=0 2MB=0"},
		"guaranteed, two": {
			`{containers: [{name: a, resources: {requests: {cpu: "1", memory: 1Mi}, limits: {cpu: "1", memory: 1Mi}}},
				{name: b, resources: {requests: {cpu: 250m, memory: 2Mi}, limits: {cpu: 250m, memory: 2Mi}}}]}`,
			"shares=1280 quota=125000 memory=3145728 pids=-1 1GB=0 2MB=0",
		},
		"burstable, no limit": {`{containers: [{name: a, resources: {requests: {cpu: 100m}}}]}`, "shares=102 quota=-1 memory=-1 pids=-1 1GB=0 2MB=0"},
		"burstable, all limited": {
			`{containers: [{name: a, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 300m, memory: 2Mi}}},
				{name: b, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 300m, memory: 2Mi}}}]}`,
			"shares=204 quota=60000 memory=4194304 pids=-1 1GB=0 2MB=0",
		},
		"burstable, memory of all, time of one": {
			`{containers: [{name: a, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 300m, memory: 2Mi}}},
				{name: b, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {memory: 2Mi}}}]}`,
			"shares=204 quota=-1 memory=4194304 pids=-1 1GB=0 2MB=0",
		},
		"burstable, an init container without limits": {
			`{initContainers: [{name: i}],
				containers: [{name: a, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 300m, memory: 2Mi}}}]}`,
			"shares=102 quota=-1 memory=-1 pids=-1 1GB=0 2MB=0",
		},
		"an init container that asks for more": {
			`{initContainers: [{name: i, resources: {requests: {cpu: "2", memory: 1Mi}, limits: {cpu: "2", memory: 8Mi}}}],
				containers: [{name: a, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 300m, memory: 2Mi}}}]}`,
			"shares=2048 quota=200000 memory=8388608 pids=-1 1GB=0 2MB=0",
		},
		"sidecars run beside": { // 100m + 50m; the init container with the sidecar before it: 1050m
			`{initContainers: [
				{name: s, restartPolicy: Always, resources: {requests: {cpu: 50m, memory: 1Mi}, limits: {cpu: 100m, memory: 4Mi}}},
				{name: i, resources: {requests: {cpu: "1", memory: 1Mi}, limits: {cpu: "1", memory: 1Mi}}}],
				containers: [{name: a, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 300m, memory: 2Mi}}}]}`,
			"shares=1075 quota=110000 memory=6291456 pids=-1 1GB=0 2MB=0",
		},
		"overhead": {
			`{overhead: {cpu: 250m, memory: 1Mi}, containers: [{name: a, resources: {requests: {cpu: 500m, memory: 1Mi}, limits: {cpu: 500m, memory: 1Mi}}}]}`,
			"shares=768 quota=75000 memory=2097152 pids=-1 1GB=0 2MB=0",
		},
		"overhead without limits": {
			`{overhead: {cpu: 250m, memory: 1Mi}, containers: [{name: a, resources: {requests: {cpu: 500m}}}]}`,
			"shares=768 quota=-1 memory=-1 pids=-1 1GB=0 2MB=0",
		},
		"overhead of a best effort pod": {`{overhead: {cpu: 250m}, containers: [{name: a}]}`, "shares=2 quota=-1 memory=-1 pids=-1 1GB=0 2MB=0"},
		"pod level": {
			`{resources: {requests: {cpu: "1", memory: 4Mi}, limits: {cpu: "2", memory: 8Mi}}, containers: [{name: a}, {name: b}]}`,
			"shares=1024 quota=200000 memory=8388608 pids=-1 1GB=0 2MB=0",
		},
		"pod level, guaranteed": {
			`{resources: {requests: {cpu: "1", memory: 4Mi}, limits: {cpu: "1", memory: 4Mi}}, containers: [{name: a, resources: {requests: {cpu: 10m}}}]}`,
			"shares=1024 quota=100000 memory=4194304 pids=-1 1GB=0 2MB=0",
		},
		"pod level, memory alone": {
			`{resources: {limits: {memory: 8Mi}, requests: {memory: 8Mi}}, containers: [{name: a, resources: {requests: {cpu: 100m}, limits: {cpu: 100m}}}, {name: b}]}`,
			"shares=102 quota=-1 memory=8388608 pids=-1 1GB=0 2MB=0",
		},
		"huge pages": {
			`{containers: [{name: a, resources: {requests: {memory: 1Mi, hugepages-2Mi: 4Mi}, limits: {memory: 1Mi, hugepages-2Mi: 4Mi}}},
				{name: b, resources: {requests: {hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 2Mi}}}]}`,
			"shares=2 quota=-1 memory=-1 pids=-1 1GB=0 2MB=6291456",
		},
		"a little time": {`{containers: [{name: a, resources: {requests: {cpu: 1m, memory: 1Mi}, limits: {cpu: 1m, memory: 1Mi}}}]}`,
			"shares=2 quota=1000 memory=1048576 pids=-1 1GB=0 2MB=0"},
		"much time": {`{containers: [{name: a, resources: {requests: {cpu: "300", memory: 1Mi}, limits: {cpu: "300", memory: 1Mi}}}]}`,
			"shares=262144 quota=30000000 memory=1048576 pids=-1 1GB=0 2MB=0"},
	}
}

// Shows: C-1.41.2
func TestC_1_41_2_LimitsOfAPod(t *testing.T) {
	sizes := []string{"1GB", "2MB"}
	for name, c := range shapes() {
		want(t, name, Config{PodPIDs: -1}.ofPod(shape(t, "a", c.spec).Pod, sizes), c.want)
	}
	want(t, "processes", Config{PodPIDs: 100}.ofPod(shape(t, "a", bestEffortPod).Pod, nil), "shares=2 quota=-1 memory=-1 pids=100 ")
	want(t, "no limit of processes", Config{}.ofPod(shape(t, "a", bestEffortPod).Pod, nil), "shares=2 quota=-1 memory=-1 pids=-1 ")
}

// TestOfSpec_ExclusiveCPUs_HaveAQuotaOnlyIfConfigured: with the gate DisableCPUQuotaWithExclusiveCPUs
// off, the limit counts.
//
// Shows: C-1.46.6
func TestOfSpec_ExclusiveCPUs_HaveAQuotaOnlyIfConfigured(t *testing.T) {
	s := shape(t, "a", guaranteed)
	s.Placed = map[string]pod.Placement{"a": {CPUs: "2-3"}}
	want(t, "no quota", Config{}.ofSpec(s, nil), "shares=512 quota=-1 memory=67108864 pids=-1 ")
	want(t, "quota", Config{Enforce: pod.Enforcement{OwnCPUQuota: true}}.ofSpec(s, nil), "shares=512 quota=50000 memory=67108864 pids=-1 ")
}

// TestC_1_41_2_LimitsOnCgroupV2 checks the limits as the library writes them for cgroup v2.
//
// Shows: C-1.41.2, C-1.41.10
func TestC_1_41_2_LimitsOnCgroupV2(t *testing.T) {
	cgroups.TestMode = true // makes the library write to plain files
	defer func() { cgroups.TestMode = false }()
	const burstableAsks = `{containers: [{name: a, resources: {requests: {memory: 16Mi}}}]}`
	reserving := Config{Enforce: pod.Enforcement{MemoryQoS: &pod.MemoryQoS{Reserve: true}}}
	burst, all := reserving.ofTiers(sums{milli: 1000, burstable: 30, guaranteed: 20})
	_, none := Config{Enforce: pod.Enforcement{MemoryQoS: &pod.MemoryQoS{}}}.ofTiers(sums{})
	for name, c := range map[string]struct {
		l    limits
		want string
	}{
		"guaranteed": {
			Config{PodPIDs: 50}.ofPod(shape(t, "a", guaranteed).Pod, []string{"2MB"}),
			"cpu.max=50000 100000 cpu.weight=20 hugetlb.2MB.max=0 hugetlb.2MB.rsvd.max=0 memory.max=67108864 pids.max=50",
		},
		"best effort": {
			Config{}.ofPod(shape(t, "a", bestEffortPod).Pod, nil),
			"cpu.max=max 100000 cpu.weight=1 memory.max=max memory.swap.max=max pids.max=max",
		},
		"no CPU quota": {
			Config{Enforce: pod.Enforcement{NoCPUQuota: true}}.ofPod(shape(t, "a", guaranteed).Pod, nil),
			"cpu.max=max 100000 cpu.weight=20 memory.max=67108864 pids.max=max",
		},
		"another period": {
			Config{Enforce: pod.Enforcement{CPUPeriod: 5 * time.Millisecond}}.ofPod(shape(t, "a", guaranteed).Pod, nil),
			"cpu.max=2500 5000 cpu.weight=20 memory.max=67108864 pids.max=max",
		},
		"memory QoS, guaranteed":              {reserving.ofPod(shape(t, "a", guaranteed).Pod, nil), "cpu.max=50000 100000 cpu.weight=20 memory.max=67108864 memory.min=67108864 pids.max=max"},
		"memory QoS, burstable":               {reserving.ofPod(shape(t, "a", burstableAsks).Pod, nil), "cpu.max=max 100000 cpu.weight=1 memory.low=16777216 memory.max=max memory.swap.max=max pids.max=max"},
		"memory QoS, burstable tier":          {burst, "cpu.weight=39 memory.low=30"},
		"memory QoS, kubepods":                {all, "memory.min=50"},
		"memory QoS without policy, kubepods": {none, "memory.min=0"},
		"tier":                                {ofTier(1000, []string{"1GB"}), "cpu.weight=39 hugetlb.1GB.max=4611686018427387904 hugetlb.1GB.rsvd.max=4611686018427387904"},
		"node": {
			ofNode(v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), resourcePID: resource.MustParse("10")}, nil),
			"cpu.weight=79 memory.max=1073741824 pids.max=10",
		},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory pids hugetlb\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := fs2.NewManager(&cgroups.Cgroup{}, dir)
		if err == nil {
			err = m.Set(c.l.resources(true))
		}
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if f.Name() != "cgroup.controllers" {
				got = append(got, f.Name()+"="+string(text))
			}
		}
		want(t, name, strings.Join(got, " "), c.want)
	}
}

// TestC_1_41_2_WeightOfShares: both ends of the range, and the kernel's defaults.
//
// Shows: C-1.41.2
func TestC_1_41_2_WeightOfShares(t *testing.T) {
	for shares, w := range map[uint64]uint64{0: 0, 1: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		want(t, fmt.Sprint(shares), weight(shares), w)
	}
	// The value read back is never greater than the one written.
	dir := t.TempDir()
	cgroups.TestMode = true
	defer func() { cgroups.TestMode = false }()
	for _, shares := range []uint64{2, 3, 27, 28, 29, 1023, 1024, 1025, 262143, 262144} {
		for file, text := range map[string]string{"cpu.weight": fmt.Sprint(weight(shares)), "cpu.max": "max 100000", "memory.max": "max"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l, err := readV2(dir)
		if err != nil || l.shares > shares || weight(l.shares) != weight(shares) || l.quota != unlimited || l.memory != unlimited {
			t.Errorf("shares %d are read as %s, %v", shares, l, err)
		}
	}
}

// TestC_1_34_5_BeyondTakesNothingAway: beyond lowers no limit, and "no limit" is the
// greatest.
//
// Shows: C-1.34.5
func TestC_1_34_5_BeyondTakesNothingAway(t *testing.T) {
	for _, c := range []struct {
		want, has limits
		out       string
	}{
		{limits{shares: 10, quota: 5000, memory: 100}, limits{shares: 5, quota: 4000, memory: 50}, "shares=10 quota=5000 memory=100 pids=0 "},
		{limits{shares: 5, quota: 4000, memory: 50}, limits{shares: 10, quota: 5000, memory: 100}, "shares=0 quota=0 memory=0 pids=0 "},
		{limits{shares: 5, quota: 4000, memory: 50}, limits{shares: 5, quota: 4000, memory: 50}, "shares=0 quota=0 memory=0 pids=0 "},
		{limits{shares: 5, quota: -1, memory: -1}, limits{shares: 5, quota: 4000, memory: 50}, "shares=0 quota=-1 memory=-1 pids=0 "},
		{limits{shares: 5, quota: 4000, memory: 50}, limits{shares: 5, quota: -1, memory: -1}, "shares=0 quota=0 memory=0 pids=0 "},
		{limits{shares: 5, quota: -1, memory: -1}, limits{shares: 5, quota: -1, memory: -1}, "shares=0 quota=0 memory=0 pids=0 "},
		{limits{quota: 2000, period: 5000}, limits{quota: 30000, period: 100000}, "shares=0 quota=2000 memory=0 pids=0 "},
		{limits{quota: 1000, period: 5000}, limits{quota: 30000, period: 100000}, "shares=0 quota=0 memory=0 pids=0 "},
		{limits{shares: 5, quota: 4000, memory: 100, pids: 7, pages: []pages{{"2MB", 1}}}, limits{shares: 2, quota: 5000, memory: 50}, "shares=5 quota=0 memory=100 pids=0 "},
	} {
		want(t, fmt.Sprintf("%s over %s", c.want, c.has), c.want.beyond(c.has), c.out)
	}
}

func TestPageSizesAreNamedAsTheKernelDoes(t *testing.T) {
	for bytes, name := range map[int64]string{0: "0B", 1: "1B", 65536: "64KB", 2 << 20: "2MB", 1 << 30: "1GB", 16 << 30: "16GB", 3 << 40: "3072GB"} {
		want(t, fmt.Sprint(bytes), pod.PageSize(bytes), name)
	}
	if !slices.Contains(classes(), v1.PodQOSBurstable) || len(classes()) != 3 {
		t.Error("not all classes")
	}
}

// TestMemoryOfTiers: the tiers protect the memory that their pods request. The requests of an
// earlier agent's pods are read from their cgroups.
//
// Shows: C-1.41.10
func TestMemoryOfTiers(t *testing.T) {
	dir := t.TempDir()
	cgroups.TestMode = true // makes the library read plain files
	defer func() { cgroups.TestMode = false }()
	if got := guarded(dir); got != 0 {
		t.Errorf("a cgroup without files protects %d", got)
	}
	for file, text := range map[string]string{memoryMin: "0\n", memoryLow: "4096\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := member{class: v1.PodQOSBurstable, milli: 5, memory: guarded(dir)}
	put := New(Config{Enforce: pod.Enforcement{MemoryQoS: &pod.MemoryQoS{Reserve: true}}}).memberOf(shape(t, "b", guaranteed).Pod)
	want(t, "sums", sumOf(map[string]member{"a": found, "b": put, "c": {class: v1.PodQOSBestEffort}}), sums{milli: 5, burstable: 4096, guaranteed: 64 << 20})
}
