package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/pod"
)

func TestEnforcement(t *testing.T) {
	t.Parallel()
	c := valid()
	if diff := cmp.Diff(pod.Enforcement{CPUPeriod: cfsPeriod}, c.Enforcement(5)); diff != "" {
		t.Error(diff)
	}
	c.CPUCFSQuota, c.MemorySwapBehavior, c.SingleProcessOOMKill, c.Kubeconfig = false, "LimitedSwap", true, "k"
	c.MemoryQoS, c.MemoryReservationPolicy, c.DisabledFeatures = true, tiered, []string{"DisableCPUQuotaWithExclusiveCPUs"}
	want := pod.Enforcement{
		NoCPUQuota: true, CPUPeriod: cfsPeriod, LimitedSwap: true, Cluster: true, OOMKillsOne: true, OwnCPUQuota: true,
		MemoryQoS: &pod.MemoryQoS{Throttling: 0.9, Reserve: true, Allocatable: 5},
	}
	if diff := cmp.Diff(want, c.Enforcement(5)); diff != "" {
		t.Error(diff)
	}
}

func TestPodLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pods, perCore, want int }{{110, 0, 110}, {0, 0, 0}, {110, 10, 40}, {30, 10, 30}, {0, 10, 40}} {
		if got := (Config{MaxPods: c.pods, PodsPerCore: c.perCore}).PodLimit(4); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestReservedCgroups(t *testing.T) {
	t.Parallel()
	c := valid()
	if !c.EnforcesPods() || len(c.ReservedCgroups()) > 0 {
		t.Error("the default is to limit the pods alone")
	}
	c.EnforceNodeAllocatable, c.SystemReservedCgroup, c.KubeReservedCgroup = []string{"system-reserved,kube-reserved-compressible"}, "/system.slice", "/kube"
	want := []ReservedCgroup{{Name: "/system.slice", Of: "system"}, {Name: "/kube", Of: "kube", Compressible: true}}
	if diff := cmp.Diff(want, c.ReservedCgroups()); diff != "" || c.EnforcesPods() || c.Check() != nil {
		t.Error(diff, c.Check())
	}
}
