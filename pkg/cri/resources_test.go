package cri

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// asking returns a container; empty quantities are left out.
func asking(name, cpuRequest, cpuLimit, memRequest, memLimit string) v1.Container {
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}}
	set := func(l v1.ResourceList, n v1.ResourceName, q string) {
		if q != "" {
			l[n] = resource.MustParse(q)
		}
	}
	set(c.Resources.Requests, v1.ResourceCPU, cpuRequest)
	set(c.Resources.Limits, v1.ResourceCPU, cpuLimit)
	set(c.Resources.Requests, v1.ResourceMemory, memRequest)
	set(c.Resources.Limits, v1.ResourceMemory, memLimit)
	return c
}

// TestC_1_22_14_CPUAndMemory: the period is set without a quota too.
//
// Shows: C-1.22.14
func TestC_1_22_14_CPUAndMemory(t *testing.T) {
	for _, c := range []struct{ cpuRequest, cpuLimit, memLimit, want string }{
		{"", "", "", "shares=2 quota=0/100000 memory=0"},
		{"1m", "", "", "shares=2 quota=0/100000 memory=0"},
		{"100m", "", "", "shares=102 quota=0/100000 memory=0"},
		{"1", "2", "64Mi", "shares=1024 quota=200000/100000 memory=67108864"},
		{"", "500m", "", "shares=512 quota=50000/100000 memory=0"}, // a limit alone is the request
		{"0", "5m", "", "shares=2 quota=1000/100000 memory=0"},     // the quota's floor
		{"1000", "", "", "shares=262144 quota=0/100000 memory=0"},
		{"1", "0", "", "shares=1024 quota=0/100000 memory=0"},
	} {
		con := asking("a", c.cpuRequest, c.cpuLimit, "", c.memLimit)
		r := machine{memory: 1 << 30}.resources(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{con}}}, &con)
		got := fmt.Sprintf("shares=%d quota=%d/%d memory=%d", r.CpuShares, r.CpuQuota, r.CpuPeriod, r.MemoryLimitInBytes)
		if got != c.want {
			t.Errorf("request %q limit %q memory %q: %s, want %s", c.cpuRequest, c.cpuLimit, c.memLimit, got, c.want)
		}
	}
}

// otherResources is the part of resources that is not CPU time or memory.
func otherResources(r *runtimeapi.LinuxContainerResources) string {
	var parts []string
	for _, l := range r.HugepageLimits {
		parts = append(parts, fmt.Sprintf("%s=%d", l.PageSize, l.Limit))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Unified)) {
		parts = append(parts, name+"="+r.Unified[name])
	}
	return fmt.Sprintf("swap=%d %s", r.MemorySwapLimitInBytes, strings.Join(parts, " "))
}

// TestC_1_41_8_WhatTheKernelHas: huge pages, swap and the OOM killer are set as this kernel
// supports them.
//
// Shows: C-1.41.8
func TestC_1_41_8_WhatTheKernelHas(t *testing.T) {
	sizes := []string{"1GB", "2MB"}
	pages := asking("a", "1", "1", "64Mi", "64Mi")
	pages.Resources.Limits["hugepages-2Mi"] = resource.MustParse("4Mi")
	for _, c := range []struct {
		name    string
		machine machine
		c       v1.Container
		want    string
	}{
		{"v1", machine{hugePages: sizes}, pages, "swap=0 1GB=0 2MB=4194304"},
		{"v1, limits swap", machine{swap: true}, pages, "swap=67108864 "},
		{"v1, limits swap, no limit", machine{swap: true}, asking("a", "1", "", "", ""), "swap=0 "},
		{"v2", machine{unified: true}, pages, "swap=0 memory.oom.group=1"},
		{"v2, limits swap", machine{unified: true, swap: true, hugePages: sizes[:1]}, pages, "swap=0 1GB=0 memory.oom.group=1 memory.swap.max=0"},
	} {
		got := otherResources(c.machine.resources(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c.c}}}, &c.c))
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestCPUQuotas: limits that are not enforced have neither quota nor period.
//
// Shows: C-1.22.14
func TestCPUQuotas(t *testing.T) {
	con := asking("a", "500m", "500m", "", "")
	for want, e := range map[string]pod.Enforcement{
		"0/0":         {NoCPUQuota: true, CPUPeriod: time.Second},
		"25000/50000": {CPUPeriod: 50 * time.Millisecond},
		"1000/1000":   {CPUPeriod: time.Millisecond},
	} {
		r := machine{enforce: e}.resources(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{con}}}, &con)
		if got := fmt.Sprintf("%d/%d", r.CpuQuota, r.CpuPeriod); got != want {
			t.Errorf("%+v: %s, want %s", e, got, want)
		}
	}
}

// TestMemoryOnCgroupV2: which containers get how much swap, and the memory that memory QoS protects
// and throttles.
//
// Shows: C-1.41.8, C-1.41.9, C-1.41.10
func TestMemoryOnCgroupV2(t *testing.T) {
	critical := int32(pod.PriorityClusterCritical)
	qos := func(reserve bool) pod.Enforcement {
		return pod.Enforcement{OOMKillsOne: true, MemoryQoS: &pod.MemoryQoS{Throttling: 0.9, Reserve: reserve, Allocatable: 1 << 30}}
	}
	limited := pod.Enforcement{LimitedSwap: true}
	for name, c := range map[string]struct {
		e        pod.Enforcement
		c        v1.Container
		priority *int32
		want     string
	}{
		"no swap":             {pod.Enforcement{}, asking("a", "", "", "256Mi", ""), nil, "memory.oom.group=1 memory.swap.max=0"},
		"one process":         {pod.Enforcement{OOMKillsOne: true}, asking("a", "", "", "", ""), nil, "memory.swap.max=0"},
		"a quarter":           {limited, asking("a", "", "", "256Mi", ""), nil, "memory.oom.group=1 memory.swap.max=536870912"},
		"with a limit":        {limited, asking("a", "", "", "256Mi", "512Mi"), nil, "memory.oom.group=1 memory.swap.max=536870912"},
		"limit is request":    {limited, asking("a", "1", "", "256Mi", "256Mi"), nil, "memory.oom.group=1 memory.swap.max=0"},
		"guaranteed":          {limited, asking("a", "1", "1", "256Mi", "256Mi"), nil, "memory.oom.group=1 memory.swap.max=0"},
		"no request":          {limited, asking("a", "1", "", "", ""), nil, "memory.oom.group=1 memory.swap.max=0"},
		"best effort":         {limited, asking("a", "", "", "", ""), nil, "memory.oom.group=1 memory.swap.max=0"},
		"critical":            {limited, asking("a", "", "", "256Mi", ""), &critical, "memory.oom.group=1 memory.swap.max=0"},
		"more than there is":  {limited, asking("a", "", "", "2Gi", ""), nil, "memory.oom.group=1 memory.swap.max=0"},
		"QoS, guaranteed":     {qos(true), asking("a", "1", "1", "64Mi", "64Mi"), nil, "memory.min=67108864 memory.swap.max=0"},
		"QoS, burstable":      {qos(true), asking("a", "", "", "10Mi", "20Mi"), nil, "memory.high=19922944 memory.low=10485760 memory.swap.max=0"},
		"QoS, no limit":       {qos(true), asking("a", "", "", "24Mi", ""), nil, "memory.high=968884224 memory.low=25165824 memory.swap.max=0"},
		"QoS, best effort":    {qos(true), asking("a", "", "", "", ""), nil, "memory.low=0 memory.min=0 memory.swap.max=0"},
		"QoS, no reservation": {qos(false), asking("a", "", "", "10Mi", "20Mi"), nil, "memory.high=19922944 memory.low=0 memory.min=0 memory.swap.max=0"},
	} {
		m := machine{unified: true, swap: true, memory: 1 << 30, swapBytes: 2 << 30, pageSize: 4096, enforce: c.e}
		p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c.c}, Priority: c.priority}}
		if got := otherResources(m.resources(p, &c.c)); got != "swap=0 "+c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestSwap_StaticPods: the static pods of a cluster's node are critical; without a cluster
// they are not.
//
// Shows: C-1.41.9
func TestSwap_StaticPods(t *testing.T) {
	con := asking("a", "", "", "256Mi", "")
	for _, c := range []struct {
		cluster bool
		source  string
		want    string
	}{{false, "file", "536870912"}, {true, "file", "0"}, {true, pod.SourceAPI, "536870912"}} {
		r := &Runtime{machine: machine{
			unified: true, swap: true, memory: 1 << 30, swapBytes: 2 << 30,
			enforce: pod.Enforcement{LimitedSwap: true, Cluster: c.cluster},
		}}
		s := &pod.Spec{Pod: &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{con}}}, Origin: pod.Origin{Source: c.source}}
		if got := r.resources(s, &con).Unified["memory.swap.max"]; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestResources_ExclusiveCPUs_HaveAQuotaOnlyIfConfigured: with the gate DisableCPUQuotaWithExclusiveCPUs
// off, the limit counts.
//
// Shows: C-1.46.6
func TestResources_ExclusiveCPUs_HaveAQuotaOnlyIfConfigured(t *testing.T) {
	con := asking("a", "2", "2", "", "")
	s := &pod.Spec{Pod: &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{con}}}, Placed: map[string]pod.Placement{"a": {CPUs: "2-3"}}}
	for own, want := range map[bool]int64{false: -1, true: 200000} {
		r := &Runtime{machine: machine{enforce: pod.Enforcement{OwnCPUQuota: own}}}
		if got := r.resources(s, &con); got.CpuQuota != want || got.CpusetCpus != "2-3" {
			t.Errorf("quota %d of CPUs %q, want %d", got.CpuQuota, got.CpusetCpus, want)
		}
	}
}

// whole returns a pod with pod-level resources.
func whole(of v1.Container, list ...v1.Container) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Resources: &of.Resources, Containers: list}}
}

// TestC_1_34_7_PodLevelResources: for a container without a limit, its pod's limit counts.
//
// Shows: C-1.34.7
func TestC_1_34_7_PodLevelResources(t *testing.T) {
	of := asking("", "1", "2", "512Mi", "1Gi")
	of.Resources.Limits["hugepages-2Mi"] = resource.MustParse("2Mi")
	own := asking("own", "100m", "200m", "", "64Mi")
	own.Resources.Limits["hugepages-2Mi"] = resource.MustParse("6Mi")
	none := asking("none", "", "", "", "")
	p := whole(of, own, none)
	for i, want := range []string{
		"shares=102 quota=20000 memory=67108864 2MB=6291456",
		"shares=2048 quota=200000 memory=1073741824 2MB=2097152",
	} {
		r := machine{hugePages: []string{"2MB"}}.resources(p, &p.Spec.Containers[i])
		got := fmt.Sprintf("shares=%d quota=%d memory=%d 2MB=%d", r.CpuShares, r.CpuQuota, r.MemoryLimitInBytes, r.HugepageLimits[0].Limit)
		if got != want {
			t.Errorf("container %d: %s, want %s", i, got, want)
		}
	}
}

// TestC_1_41_2_SandboxResources: the sandbox gets the resources of its pod.
//
// Shows: C-1.41.2
func TestC_1_41_2_SandboxResources(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	sidecar := asking("side", "50m", "100m", "", "16Mi")
	sidecar.RestartPolicy = &always
	text := func(r *runtimeapi.LinuxContainerResources) string {
		return fmt.Sprintf("shares=%d quota=%d/%d memory=%d oom=%d %s", r.CpuShares, r.CpuQuota, r.CpuPeriod, r.MemoryLimitInBytes, r.OomScoreAdj, otherResources(r))
	}
	for _, c := range []struct {
		name                string
		machine             machine
		pod                 v1.PodSpec
		overhead, resources string
	}{
		{
			"nothing", machine{swap: true, hugePages: []string{"2MB"}}, v1.PodSpec{Containers: []v1.Container{asking("a", "", "", "", "")}},
			"shares=0 quota=0/0 memory=0 oom=0 swap=0 ", "shares=2 quota=0/100000 memory=0 oom=0 swap=0 ",
		},
		{ // the sidecar runs beside the container: 550m, 600m, 80Mi; the init container alone needs more memory
			"sums", machine{}, v1.PodSpec{
				InitContainers: []v1.Container{sidecar, asking("init", "100m", "100m", "", "128Mi")},
				Containers:     []v1.Container{asking("a", "500m", "500m", "", "64Mi")},
				Overhead:       v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m"), v1.ResourceMemory: resource.MustParse("8Mi")},
			},
			"shares=256 quota=25000/100000 memory=8388608 oom=0 swap=0 ",
			"shares=563 quota=60000/100000 memory=150994944 oom=0 swap=0 ",
		},
		{
			"v2", machine{unified: true}, v1.PodSpec{Containers: []v1.Container{asking("a", "", "1", "", "")}},
			"shares=0 quota=0/0 memory=0 oom=0 swap=0 ", "shares=1024 quota=100000/100000 memory=0 oom=0 swap=0 memory.oom.group=1",
		},
		{
			"pod level", machine{}, whole(asking("", "2", "3", "", "1Gi"), asking("a", "1", "", "", "")).Spec,
			"shares=0 quota=0/0 memory=0 oom=0 swap=0 ", "shares=2048 quota=300000/100000 memory=1073741824 oom=0 swap=0 ",
		},
	} {
		overhead, resources := c.machine.sandboxResources(&v1.Pod{Spec: c.pod})
		if got := text(overhead); got != c.overhead {
			t.Errorf("%s: overhead %q, want %q", c.name, got, c.overhead)
		}
		if got := text(resources); got != c.resources {
			t.Errorf("%s: resources %q, want %q", c.name, got, c.resources)
		}
	}
}

// Shows: C-1.22.13
func TestC_1_22_13_OOMScore(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	sidecar := asking("side", "", "", "", "")
	sidecar.RestartPolicy = &always
	const memory = 4 << 30
	for name, c := range map[string]struct {
		pod  v1.PodSpec
		of   string
		want int64
	}{
		"best effort":                        {v1.PodSpec{Containers: []v1.Container{asking("a", "", "", "", "")}}, "a", 1000},
		"guaranteed":                         {v1.PodSpec{Containers: []v1.Container{asking("a", "1", "1", "1Gi", "1Gi")}}, "a", -997},
		"guaranteed by limits alone":         {v1.PodSpec{Containers: []v1.Container{asking("a", "", "1", "", "1Gi")}}, "a", -997},
		"half limited":                       {v1.PodSpec{Containers: []v1.Container{asking("a", "1", "1", "1Gi", "1Gi"), asking("b", "", "", "", "")}}, "a", 750},
		"node critical":                      {v1.PodSpec{PriorityClassName: "system-node-critical", Containers: []v1.Container{asking("a", "", "", "", "")}}, "a", -997},
		"burstable, a quarter of the memory": {v1.PodSpec{Containers: []v1.Container{asking("a", "", "", "1Gi", "")}}, "a", 750},
		"burstable, no memory asked for":     {v1.PodSpec{Containers: []v1.Container{asking("a", "1", "", "", "")}}, "a", 999},
		"burstable, more than there is":      {v1.PodSpec{Containers: []v1.Container{asking("a", "", "", "9Gi", "")}}, "a", 3},
		"sidecar no worse than the served": {v1.PodSpec{
			InitContainers: []v1.Container{sidecar}, Containers: []v1.Container{asking("a", "", "", "2Gi", "")},
		}, "side", 500},
		// 1Gi of 4Gi for the pod; its containers ask for 512Mi and nothing: each gets half
		// of the other 512Mi.
		"pod level, with a request": {whole(asking("", "", "", "1Gi", ""), asking("a", "", "", "512Mi", ""), asking("b", "", "", "", "")).Spec, "a", 813},
		"pod level, without":        {whole(asking("", "", "", "1Gi", ""), asking("a", "", "", "512Mi", ""), asking("b", "", "", "", "")).Spec, "b", 938},
		"pod level, guaranteed":     {whole(asking("", "1", "1", "1Gi", "1Gi"), asking("a", "", "", "", "")).Spec, "a", -997},
		"pod level, cpu alone":      {whole(asking("", "1", "", "", ""), asking("a", "", "", "1Gi", "")).Spec, "a", 750},
		"pod level, sidecar": {func() v1.PodSpec {
			s := whole(asking("", "", "", "3Gi", ""), asking("a", "", "", "1Gi", "")).Spec
			s.InitContainers = []v1.Container{sidecar} // as the container: 1Gi, and half of the other 2Gi
			return s
		}(), "side", 500},
	} {
		p := &v1.Pod{Spec: c.pod}
		of, _ := (&pod.Spec{Pod: p}).Container(c.of)
		if got := oomScore(p, of, memory); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNodeMemoryIsRead(t *testing.T) {
	if got := meminfo("MemTotal"); got < 64<<20 {
		t.Errorf("MemTotal = %d bytes", got)
	}
}

// TestHugePageSizesAreRead: sizes are named as the kernel names their cgroup files.
func TestHugePageSizesAreRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"hugepages-64kB", "hugepages-2048kB", "hugepages-1048576kB", "hugepages-kB", "other"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := hugePages(dir)
	slices.Sort(got)
	if want := []string{"1GB", "2MB", "64KB"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := hugePages(filepath.Join(dir, "none")); got != nil {
		t.Errorf("of a kernel without: %v", got)
	}
}

// updates is a runtime that records the resources of updates.
type updates struct {
	runtimeapi.RuntimeServiceClient
	got *runtimeapi.LinuxContainerResources
}

func (u *updates) UpdateContainerResources(_ context.Context, q *runtimeapi.UpdateContainerResourcesRequest, _ ...grpc.CallOption) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	u.got = q.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// TestC_1_34_4_SwapGoesWithTheMemoryLimit: on cgroup v1 an unchanged limit of memory and
// swap would be below the new memory limit, and the kernel would refuse it.
//
// Shows: C-1.34.4
func TestC_1_34_4_SwapGoesWithTheMemoryLimit(t *testing.T) {
	con := asking("a", "1", "", "", "")
	want := &pod.Spec{Pod: &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{con}}}}
	for _, c := range []struct {
		name string
		m    machine
		want string
	}{
		{"v1", machine{swap: true}, "memory=-1 swap=-1 "},
		{"v1 without", machine{}, "memory=-1 swap=0 "},
		{"v2", machine{unified: true, swap: true}, "memory=-1 swap=0 memory.oom.group=1 memory.swap.max=0"},
	} {
		u := &updates{}
		r := New(Config{Node: "n1"}, u, nil)
		r.machine = c.m
		if err := r.UpdateContainer(t.Context(), "x", want, "a"); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("memory=%d %s", u.got.MemoryLimitInBytes, otherResources(u.got)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
