package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func valid() Config {
	c := Default()
	c.NodeName = "n1"
	return c
}

func TestDefaultNeedsOnlyANodeName(t *testing.T) {
	t.Parallel()
	if err := valid().Check(); err != nil {
		t.Fatalf("Check refuses the defaults: %v", err)
	}
	var e *Error
	if err := Default().Check(); !errors.As(err, &e) || e.Key != "node-name" {
		t.Fatalf("an empty node name: got %v, want an error for node-name", err)
	}
}

// Plugins find the kubelet's directory only where one agent of the machine can have it.
func TestPlugins_RootDirectoryOfOnesOwn_HasPluginsOfItsOwn(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"/var/lib/kubelet": {RootDir: Default().RootDir},
		"/srv/n1/kubelet":  {RootDir: "/srv/n1"},
		"/srv/plugins":     {RootDir: "/srv/n1", KubeletDir: "/srv/plugins"},
	} {
		if got := c.Plugins(); got != want {
			t.Errorf("%+v: %s, want %s", c.RootDir, got, want)
		}
	}
}

func TestCheckNamesTheWrongSetting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, says string
		set       func(*Config)
	}{
		{"log-level", "error, warn, info, debug", func(c *Config) { c.LogLevel = "loud" }},
		{"color", "auto, always, never", func(c *Config) { c.Color = "yes" }},
		{"root-dir", "absolute", func(c *Config) { c.RootDir = "var" }},
		{"runtime-endpoint", "unix", func(c *Config) { c.RuntimeEndpoint = "tcp://h:1" }},
		{"pod-logs-dir", "absolute", func(c *Config) { c.PodLogsDir = "" }},
		{"cgroup-root", "absolute", func(c *Config) { c.CgroupRoot = "x" }},
		{"node-name", "node name", func(c *Config) { c.NodeName = "Node_1" }},
		{"kubelet-dir", "absolute", func(c *Config) { c.KubeletDir = "kubelet" }},
		{"filename", "only once", func(c *Config) { c.Filename = []string{"-", "a", "-"} }},
		{"filename", `scheme "ftp://" is not supported`, func(c *Config) { c.Filename = []string{"ftp://me:hunter2@h/x"} }},
		{"filename", "empty", func(c *Config) { c.Filename = []string{""} }},
		{"manifest-url-header", "header 2", func(c *Config) { c.ManifestURLHeader = []string{"A: b", "hunter2"} }},
		{"manifest-url-header", "header 1", func(c *Config) { c.ManifestURLHeader = []string{"A: b\r\nX: hunter2"} }},
		{"file-check-frequency", "0s", func(c *Config) { c.FileCheckFrequency = 0 }},
		{"http-check-frequency", "-1s", func(c *Config) { c.HTTPCheckFrequency = -time.Second }},
		{"validate", "strict, warn, ignore", func(c *Config) { c.Validate = "" }},
		{"pod-cidr", "network", func(c *Config) { c.PodCIDR = "10.88.0.1/16" }},
		{"service-cidr", "network", func(c *Config) { c.ServiceCIDR = []string{"10.96.0.1/16"} }},
		{"service-cidr", "overlaps the pod network", func(c *Config) { c.ServiceCIDR = []string{"10.88.128.0/17"} }},
		{"service-cidr", "second network of its family", func(c *Config) { c.ServiceCIDR = []string{"10.96.0.0/16", "10.97.0.0/16"} }},
		{"service-cidr", "too few addresses", func(c *Config) { c.ServiceCIDR = []string{"10.96.0.0/30"} }},
		{"cluster-dns", `"dns.example" is not an IP address`, func(c *Config) { c.ClusterDNS = []string{"10.96.0.10", "dns.example"} }},
		{"cluster-dns", `"fe80::1%eth0" is not`, func(c *Config) { c.ClusterDNS = []string{"fe80::1%eth0"} }},
		{"cluster-domain", `"cluster_local" is not a domain`, func(c *Config) { c.ClusterDomain = "cluster_local" }},
		{"resolv-conf", "absolute", func(c *Config) { c.ResolvConf = "resolv.conf" }},
		{"eviction-hard", `"x" is not of the form`, func(c *Config) { c.EvictionHard = []string{"x"} }},
		{"eviction-soft", "memory.available has no grace period", func(c *Config) { c.EvictionSoft = []string{"memory.available<1Gi"} }},
		{"eviction-soft-grace-period", `"-1s" is not a duration`, func(c *Config) { c.EvictionSoftGracePeriod = []string{"memory.available=-1s"} }},
		{"eviction-soft-grace-period", "is not a signal", func(c *Config) { c.EvictionSoftGracePeriod = []string{"memory=1s"} }},
		{"eviction-minimum-reclaim", "is neither a quantity", func(c *Config) { c.EvictionMinimumReclaim = []string{"memory.available=lots"} }},
		{"eviction-max-pod-grace-period", "-1 is not between", func(c *Config) { c.EvictionMaxPodGracePeriod = -1 }},
		{"eviction-pressure-transition-period", "-1s", func(c *Config) { c.PressureTransitionPeriod = -time.Second }},
		{"kube-api-qps", "0 is not between", func(c *Config) { c.KubeAPIQPS = 0 }},
		{"event-burst", "0 is not between", func(c *Config) { c.EventBurst = 0 }},
		{"node-ip", "an IPv4 and an IPv6 address", func(c *Config) { c.NodeIP = []string{"10.0.0.1", "10.0.0.2"} }},
		{"node-ip", "not an IP address", func(c *Config) { c.NodeIP = []string{"10.0.0.1,h"} }},
		{"healthz-bind-address", "not an IP address", func(c *Config) { c.HealthzBindAddress = "h" }},
		{"healthz-port", "65536", func(c *Config) { c.HealthzPort = 65536 }},
		{"authentication-token-webhook-cache-ttl", "0s is not between 1s and 1h", func(c *Config) { c.TokenCacheTTL = 0 }},
		{"authorization-webhook-cache-authorized-ttl", "1h0m1s is not between", func(c *Config) { c.AuthorizedCacheTTL = time.Hour + time.Second }},
		{"authorization-webhook-cache-unauthorized-ttl", "-1s is not between", func(c *Config) { c.UnauthorizedCacheTTL = -time.Second }},
		{"tls-min-version", "VersionTLS12", func(c *Config) { c.TLSMinVersion = "VersionTLS11" }},
		{"tls-cipher-suites", "is insecure", func(c *Config) { c.TLSCipherSuites = []string{"TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA"} }},
		{"tls-cipher-suites", "is not a cipher suite", func(c *Config) { c.TLSCipherSuites = []string{"AES"} }},
		{"node-labels", "a node must not set the label", func(c *Config) { c.Kubeconfig, c.NodeLabels = "k", []string{"a.k8s.io/x=1"} }},
		{"node-labels", "a node must not set the label", func(c *Config) { c.Kubeconfig, c.NodeLabels = "k", []string{"kubernetes.io/x=1"} }},
		{"sync-frequency", "0s", func(c *Config) { c.SyncFrequency = 0 }},
		{"node-labels", `"disk" is not of the form key=value`, func(c *Config) { c.NodeLabels = []string{"zone=a", "disk"} }},
		{"node-labels", `"-disk" cannot be a key`, func(c *Config) { c.NodeLabels = []string{"-disk=ssd"} }},
		{"node-labels", `"s s" cannot be the value of disk`, func(c *Config) { c.NodeLabels = []string{"disk=s s"} }},
		{"register-with-taints", "key=value:effect", func(c *Config) { c.RegisterWithTaints = []string{"a=b"} }},
		{"register-with-taints", `"Sometimes" is not one of NoSchedule, PreferNoSchedule, NoExecute`, func(c *Config) { c.RegisterWithTaints = []string{"a=b:Sometimes"} }},
		{"register-with-taints", "cannot be a key", func(c *Config) { c.RegisterWithTaints = []string{":NoExecute"} }},
		{"register-with-taints", "taint a:NoExecute is set twice", func(c *Config) { c.RegisterWithTaints = []string{"a=b:NoExecute,a=c:NoExecute"} }},
		{"max-pods", "-1", func(c *Config) { c.MaxPods = -1 }},
		{"registry-qps", "-1", func(c *Config) { c.RegistryQPS = -1 }},
		{"registry-burst", "0 is not between", func(c *Config) { c.RegistryBurst = 0 }},
		{"node-status-max-images", "-2", func(c *Config) { c.NodeStatusMaxImages = -2 }},
		{"runtime-request-timeout", "0s is not between 1s", func(c *Config) { c.RuntimeRequestTimeout = 0 }},
		{"image-service-endpoint", "not a unix socket", func(c *Config) { c.ImageServiceEndpoint = "tcp://h" }},
		{"image-pull-credentials-verification-policy", "NeverVerifyPreloadedImages", func(c *Config) { c.ImageVerificationPolicy = "Never" }},
		{"preloaded-images-verification-allowlist", "only image-pull-credentials-verification-policy", func(c *Config) { c.ImageVerificationAllowlist = []string{"a"} }},
		{"preloaded-images-verification-allowlist", "no tag and no digest", withAllowlist("r.io:5000/a:1")},
		{"preloaded-images-verification-allowlist", "no tag and no digest", withAllowlist("r.io/a@sha256:0")},
		{"preloaded-images-verification-allowlist", "names no registry", withAllowlist("/*")},
		{"preloaded-images-verification-allowlist", "ends in /*", withAllowlist("r.io/a*")},
		{"preloaded-images-verification-allowlist", "ends in /*", withAllowlist("*.io/*")},
		{"container-log-max-workers", "0 is not between", func(c *Config) { c.ContainerLogMaxWorkers = 0 }},
		{"container-log-monitor-interval", "2s is not between 3s", func(c *Config) { c.ContainerLogInterval = 2 * time.Second }},
		{"user-namespaces-ids-per-pod", "a multiple of 65536", func(c *Config) { c.UserNamespaceIDs = 65537 }},
		{"user-namespaces-ids-per-pod", "below 4294967296", func(c *Config) { c.UserNamespaceIDs = 1 << 32 }},
		{"oom-score-adj", `"-1001" is not a number between -1000 and 1000`, func(c *Config) { c.OOMScoreAdj = "-1001" }},
		{"max-open-files", "-1", func(c *Config) { c.MaxOpenFiles = -1 }},
		{"enable-system-log-query", "needs --enable-system-log-handler", func(c *Config) { c.EnableSystemLogQuery = true }},
		{"logging-format", `"xml" is not one of text, json`, func(c *Config) { c.LoggingFormat = "xml" }},
		{"system-reserved", `"gpu" is not one of cpu, memory`, func(c *Config) { c.SystemReserved = []string{"gpu=1"} }},
		{"system-reserved", "resource=quantity", func(c *Config) { c.SystemReserved = []string{"cpu"} }},
		{"kube-reserved", `"-1Gi" is not a quantity of memory`, func(c *Config) { c.KubeReserved = []string{"cpu=1", "memory=-1Gi"} }},
		{"allowed-unsafe-sysctls", `"vm.swappiness" is not a namespaced sysctl`, func(c *Config) { c.AllowedUnsafeSysctls = []string{"net.*", "vm.swappiness"} }},
		{"allowed-unsafe-sysctls", `"*"`, func(c *Config) { c.AllowedUnsafeSysctls = []string{"*"} }},
		{"allowed-unsafe-sysctls", `"net.*.forwarding"`, func(c *Config) { c.AllowedUnsafeSysctls = []string{"net.*.forwarding"} }},
		{"container-log-max-size", `"0" is not a size`, func(c *Config) { c.ContainerLogMaxSize = "0" }},
		{"container-log-max-size", `"big" is not a size`, func(c *Config) { c.ContainerLogMaxSize = "big" }},
		{"container-log-max-files", "1 is not between 2 and", func(c *Config) { c.ContainerLogMaxFiles = 1 }},
		{"shutdown-grace-period", "500ms is neither 0 nor at least 1s", func(c *Config) { c.ShutdownGracePeriod = 500 * time.Millisecond }},
		{"shutdown-grace-period-critical-pods", "20s is longer than --shutdown-grace-period (10s)", func(c *Config) {
			c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods = 10*time.Second, 20*time.Second
		}},
		{"shutdown-grace-period-by-pod-priority", "priority=duration", func(c *Config) { c.ShutdownGracePeriodByPriority = []string{"a=5s"} }},
		{"shutdown-grace-period-by-pod-priority", "whole seconds", func(c *Config) { c.ShutdownGracePeriodByPriority = []string{"1=5ms"} }},
		{"shutdown-grace-period-by-pod-priority", "priority 1 is set twice", func(c *Config) { c.ShutdownGracePeriodByPriority = []string{"1=5s,1=6s"} }},
		{"shutdown-grace-period-by-pod-priority", "together with --shutdown-grace-period", func(c *Config) {
			c.ShutdownGracePeriodByPriority, c.ShutdownGracePeriod = []string{"1=5s"}, time.Second
		}},
		{"cpu-cfs-quota-period", "999µs is not between 1ms and 1s", func(c *Config) { c.CPUCFSQuotaPeriod = 999 * time.Microsecond }},
		{"memory-swap-behavior", "NoSwap, LimitedSwap", func(c *Config) { c.MemorySwapBehavior = "UnlimitedSwap" }},
		{"memory-throttling-factor", "greater than 0 and at most 1", func(c *Config) { c.MemoryThrottlingFactor = 1.1 }},
		{"memory-reservation-policy", "needs --memory-qos", func(c *Config) { c.MemoryReservationPolicy = "TieredReservation" }},
		{"memory-reservation-policy", "None, TieredReservation", func(c *Config) { c.MemoryReservationPolicy = "x" }},
		{"enforce-node-allocatable", `"x" is not one of pods, system-reserved, system-reserved-compressible`, func(c *Config) { c.EnforceNodeAllocatable = []string{"x"} }},
		{"enforce-node-allocatable", "pods is named twice", func(c *Config) { c.EnforceNodeAllocatable = []string{"pods", "pods"} }},
		{"enforce-node-allocatable", "none cannot be combined", func(c *Config) { c.EnforceNodeAllocatable = []string{"pods,none"} }},
		{"enforce-node-allocatable", "system-reserved needs --system-reserved-cgroup", func(c *Config) { c.EnforceNodeAllocatable = []string{"system-reserved-compressible"} }},
		{"enforce-node-allocatable", "kube-reserved and kube-reserved-compressible cannot be combined", func(c *Config) {
			c.EnforceNodeAllocatable, c.KubeReservedCgroup = []string{"kube-reserved", "kube-reserved-compressible"}, "/k"
		}},
		{"disabled-features", `"DynamicResourceAllocation" is not one of DisableCPUQuotaWithExclusiveCPUs, `, func(c *Config) { c.DisabledFeatures = []string{"PodLevelResources,DynamicResourceAllocation"} }},
		{"vmodule", `"a" is not of the form PATTERN=LEVEL`, func(c *Config) { c.VModule = []string{"b=1,a"} }},
		{"vmodule", `"=4"`, func(c *Config) { c.VModule = []string{"=4"} }},
		{"vmodule", `"a=-1"`, func(c *Config) { c.VModule = []string{"a=-1"} }},
		{"vmodule", `"[a=4"`, func(c *Config) { c.VModule = []string{"[a=4"} }},
		{"kube-reserved-cgroup", "must not be the root", func(c *Config) { c.KubeReservedCgroup = "/" }},
		{"max-container-restart-period", "999ms is not between 1s and 5m0s", func(c *Config) { c.MaxContainerRestartPeriod = 999 * time.Millisecond }},
		{"max-container-restart-period", "5m1s is not between", func(c *Config) { c.MaxContainerRestartPeriod = 301 * time.Second }},
	} {
		cfg := valid()
		c.set(&cfg)
		err := cfg.Check()
		var e *Error
		if !errors.As(err, &e) || e.Key != c.key || !strings.Contains(e.Msg, c.says) {
			t.Errorf("%s: got %v, want an error that says %q", c.key, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error repeats a header's value: %v", c.key, err)
		}
	}
}

// withAllowlist sets an allowlist of images, with the policy that uses it.
func withAllowlist(pattern string) func(*Config) {
	return func(c *Config) {
		c.ImageVerificationPolicy, c.ImageVerificationAllowlist = verifyListed, []string{pattern}
	}
}

// Shows: C-1.39.9
func TestAllowlist_ImageNames_AreAccepted(t *testing.T) {
	t.Parallel()
	c := valid()
	withAllowlist("busybox, r.io:5000/a/b,r.io/*,r.io:5000/*")(&c)
	if err := c.Check(); err != nil || len(c.Allowlist()) != 4 {
		t.Errorf("error %v, items %q", err, c.Allowlist())
	}
}

func TestDebugFiles_LowVerbosity_IsLeftOut(t *testing.T) {
	t.Parallel()
	c := valid()
	c.VModule = []string{"engine*=4,low=3", "[a-c]x=10"}
	if got := c.DebugFiles(); c.Check() != nil || !slices.Equal(got, []string{"engine*", "[a-c]x"}) {
		t.Errorf("%q, error %v", got, c.Check())
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	c := Config{ManifestURLHeader: []string{"x-a: 1", "X-A:2", "Authorization:  Bearer a:b"}}
	h := c.Headers()
	if got := h.Values("X-A"); len(got) != 2 || got[0] != "1" || got[1] != "2" {
		t.Errorf("X-A = %q", got)
	}
	if got := h.Get("Authorization"); got != "Bearer a:b" {
		t.Errorf("Authorization = %q", got)
	}
}

// TestAKubeletsLabels: the labels that NodeRestriction lets a node set on itself.
func TestAKubeletsLabels(t *testing.T) {
	t.Parallel()
	c := valid()
	c.Kubeconfig = "k"
	c.NodeLabels = []string{"mine=1,example.com/x=2,notk8s.io/x=3", "node.kubernetes.io/pool=a", "kubelet.kubernetes.io/x=1", "topology.kubernetes.io/zone=z", "x.node.kubernetes.io/y=1"}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

func TestCipherSuites(t *testing.T) {
	t.Parallel()
	c := valid()
	c.TLSMinVersion, c.TLSCipherSuites = "VersionTLS12", []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
	if got := c.CipherSuites(); len(got) != 2 || got[0] != 0xc02f || got[1] != 0xc02c || c.MinTLS() != 0x0303 || Default().MinTLS() != 0x0304 {
		t.Errorf("%x, %x", got, c.MinTLS())
	}
}
