package config

import "testing"

// The full names of pods end in the domain that the node's own DNS server answers; a cluster names its
// own, as does a kubelet without a DNS server.
//
// Shows: C-1.38.6
func TestPodDomain_WithAndWithoutACluster(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(*Config)
		want string
	}{
		"own DNS":                {func(*Config) {}, "cluster.local"},
		"own DNS, other domain":  {func(c *Config) { c.ClusterDomain = "home.example" }, "home.example"},
		"no DNS":                 {func(c *Config) { c.DNS = false }, ""},
		"another server":         {func(c *Config) { c.ClusterDNS = []string{"192.0.2.53"} }, ""},
		"cluster":                {func(c *Config) { c.Kubeconfig = "/k" }, ""},
		"cluster to be joined":   {func(c *Config) { c.BootstrapKubeconfig = "/b" }, ""},
		"cluster with a domain":  {func(c *Config) { c.Kubeconfig, c.ClusterDomain = "/k", "corp.example" }, "corp.example"},
		"no DNS, but its domain": {func(c *Config) { c.DNS, c.ClusterDomain = false, "corp.example" }, "corp.example"},
	} {
		cfg := valid()
		cfg.DNS = true
		c.set(&cfg)
		if got := cfg.PodDomain(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
