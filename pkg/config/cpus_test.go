package config

import (
	"fmt"
	"strings"
	"testing"
)

// Shows: C-1.46.2
func TestCPUs_ReservedCPUs_ReplaceAmountsOfCPU(t *testing.T) {
	t.Parallel()
	c := Default()
	c.NodeName, c.CPUManagerPolicy, c.ReservedCPUs = "n", "static", "0-1,4"
	c.SystemReserved, c.KubeReserved = []string{"cpu=500m", "memory=1Gi"}, []string{"cpu=1"}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	system, kube := c.Reserved()
	if got := fmt.Sprint(system.Cpu(), system.Memory(), kube.Cpu(), c.CPUs(nil).Reserved); got != "3 1Gi 0 0-1,4" {
		t.Error(got)
	}
}

func TestCheck_PoliciesOfCPUs_AreNamedWithAHint(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(*Config){
		`"dynamic" is not one of none, static`:   func(c *Config) { c.CPUManagerPolicy = "dynamic" },
		"options need the policy static":         func(c *Config) { c.CPUManagerPolicyOptions = []string{"full-pcpus-only=true"} },
		`unknown CPU Manager Policy option: "x"`: func(c *Config) { c.CPUManagerPolicy, c.CPUManagerPolicyOptions = "static", []string{"x=true"} },
		"can not be used at the same time": func(c *Config) {
			c.CPUManagerPolicy, c.CPUManagerPolicyOptions = "static", []string{"full-pcpus-only=true,distribute-cpus-across-cores=true"}
		},
		`"a-b" is not a list of CPUs`:                          func(c *Config) { c.ReservedCPUs = "a-b" },
		"cannot be combined with --system-reserved-cgroup":     func(c *Config) { c.ReservedCPUs, c.KubeReservedCgroup = "0", "/kube" },
		`"memory=1Gi" is not of the form node:memory=quantity`: func(c *Config) { c.ReservedMemory = []string{"memory=1Gi"} },
		`"cpu" is neither memory nor hugepages-SIZE`:           func(c *Config) { c.ReservedMemory = []string{"0:cpu=1"} },
		"memory of NUMA node 0 is reserved twice":              func(c *Config) { c.ReservedMemory = []string{"0:memory=1Gi", "0:memory=1Gi"} },
		"must be at least 8":                                   func(c *Config) { c.TopologyManagerPolicyOptions = []string{"max-allowable-numa-nodes=4"} },
	} {
		c := Default()
		c.NodeName = "n"
		set(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
