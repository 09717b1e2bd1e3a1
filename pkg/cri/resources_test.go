package cri

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

func TestC_1_22_14_CPUAndMemory(t *testing.T) {
	for _, c := range []struct{ cpuRequest, cpuLimit, memLimit, want string }{
		{"", "", "", "shares=2 quota=0/0 memory=0"},
		{"1m", "", "", "shares=2 quota=0/0 memory=0"},
		{"100m", "", "", "shares=102 quota=0/0 memory=0"},
		{"1", "2", "64Mi", "shares=1024 quota=200000/100000 memory=67108864"},
		{"", "500m", "", "shares=512 quota=50000/100000 memory=0"}, // a limit alone is the request
		{"0", "5m", "", "shares=2 quota=1000/100000 memory=0"},     // the quota's floor
		{"1000", "", "", "shares=262144 quota=0/0 memory=0"},
		{"1", "0", "", "shares=1024 quota=0/0 memory=0"},
	} {
		con := asking("a", c.cpuRequest, c.cpuLimit, "", c.memLimit)
		r := resources(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{con}}}, &con, 1<<30)
		got := fmt.Sprintf("shares=%d quota=%d/%d memory=%d", r.CpuShares, r.CpuQuota, r.CpuPeriod, r.MemoryLimitInBytes)
		if got != c.want {
			t.Errorf("request %q limit %q memory %q: %s, want %s", c.cpuRequest, c.cpuLimit, c.memLimit, got, c.want)
		}
	}
}

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
	} {
		p := &v1.Pod{Spec: c.pod}
		of, _ := (&pod.Spec{Pod: p}).Container(c.of)
		if got := oomScore(p, of, memory); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNodeMemoryIsRead(t *testing.T) {
	if got := nodeMemory(); got < 64<<20 {
		t.Errorf("nodeMemory = %d bytes", got)
	}
}
