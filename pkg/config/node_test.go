package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestWhatTheNodeIs: a list may be one text with commas, as from a variable or a file, or
// several texts.
func TestWhatTheNodeIs(t *testing.T) {
	t.Parallel()
	c := valid()
	c.NodeLabels = []string{"disk=ssd, example.com/zone=", "disk=hdd"}
	c.RegisterWithTaints = []string{"hot=yes:NoExecute,cold:NoSchedule", "hot=yes:NoSchedule"}
	c.SystemReserved = []string{"cpu=500m,memory=1Gi"}
	c.KubeReserved = []string{"pid=1000", "ephemeral-storage=1G"}
	c.AllowedUnsafeSysctls = []string{"kernel.msg*,net.core.somaxconn", "net/ipv4/*", "fs.mqueue.*"}
	c.ContainerLogMaxSize = "1.5Mi"
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	system, kube := c.Reserved()
	for _, pair := range [][2]any{
		{map[string]string{"disk": "hdd", "example.com/zone": ""}, c.Labels()},
		{[]v1.Taint{{Key: "hot", Value: "yes", Effect: v1.TaintEffectNoExecute}, {Key: "cold", Effect: v1.TaintEffectNoSchedule}, {Key: "hot", Value: "yes", Effect: v1.TaintEffectNoSchedule}}, c.Taints()},
		{v1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("1Gi")}, system},
		{v1.ResourceList{"pid": resource.MustParse("1000"), "ephemeral-storage": resource.MustParse("1G")}, kube},
		{[]string{"kernel.msg*", "net.core.somaxconn", "net/ipv4/*", "fs.mqueue.*"}, c.Sysctls()},
		{int64(3 << 19), c.LogMaxBytes()},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Error(diff)
		}
	}
}

// TestTheKubeletsDefaults: the defaults are the kubelet's (C-1.22.5, C-1.40.2, C-1.43.1).
func TestTheKubeletsDefaults(t *testing.T) {
	t.Parallel()
	d := Default()
	if d.MaxPods != 110 || d.LogMaxBytes() != 10<<20 || d.ContainerLogMaxFiles != 5 || d.MaxContainerRestartPeriod.Seconds() != 300 ||
		d.TokenCacheTTL.Seconds() != 120 || d.AuthorizedCacheTTL.Seconds() != 300 || d.UnauthorizedCacheTTL.Seconds() != 30 {
		t.Errorf("%+v", d)
	}
}
