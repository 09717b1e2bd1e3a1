package config

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Check returns an *Error for the first invalid setting in the order of the fields, and
// nil if all are valid.
func (c Config) Check() error {
	for _, f := range []struct {
		key string
		msg string
	}{
		{"log-level", oneOf(c.LogLevel, "", "error", "warn", "info", "debug")},
		{"logging-format", oneOf(c.LoggingFormat, "text", "json")},
		{"vmodule", errText(modules(c.VModule))},
		{"color", oneOf(c.Color, "auto", "always", "never")},
		{"root-dir", absolute(c.RootDir)},
		{"runtime-endpoint", endpoint(c.RuntimeEndpoint)},
		{"pod-logs-dir", absolute(c.PodLogsDir)},
		{"cgroup-root", absolute(c.CgroupRoot)},
		{"node-name", nodeName(c.NodeName)},
		{"kubelet-dir", absolute(cmp.Or(c.KubeletDir, "/"))},
		{"filename", filenames(c.Filename)},
		{"manifest-url-header", headers(c.ManifestURLHeader)},
		{"file-check-frequency", positive(c.FileCheckFrequency)},
		{"http-check-frequency", positive(c.HTTPCheckFrequency)},
		{"validate", oneOf(c.Validate, "strict", "warn", "ignore")},
		{"manifest-url-cert", together(c.ManifestURLCert, c.ManifestURLKey, "manifest-url-key")},
		{"etcd-endpoints", endpoints(c.EtcdEndpoints)},
		{"etcd-prefix", prefix(c.EtcdPrefix)},
		{"etcd-cert", together(c.EtcdCert, c.EtcdKey, "etcd-key")},
		{"etcd-user", together(c.EtcdUser, c.EtcdPasswordFile, "etcd-password-file")},
		{"offline-start", oneOf(c.OfflineStart, "none", pod.SourceAPI)},
		{"workloads", oneOf(c.Workloads, "refuse", "stop")},
		{"sync-frequency", positive(c.SyncFrequency)},
		{"node-status-update-frequency", positive(c.NodeStatusUpdateFrequency)},
		{"node-status-report-frequency", positive(c.NodeStatusReportFrequency)},
		{"node-lease-duration", between(c.NodeLeaseDuration, 4*time.Second, time.Hour)},
		{"node-status-max-images", between(c.NodeStatusMaxImages, -1, 1<<20)},
		{"eviction-hard", errText(pod.ParseThresholds(c.EvictionHard))},
		{"eviction-soft", errText(pod.ParseThresholds(c.EvictionSoft))},
		{"eviction-soft-grace-period", errText(graces(c.EvictionSoftGracePeriod))},
		{"eviction-soft", softWithoutGrace(c)},
		{"eviction-max-pod-grace-period", between(c.EvictionMaxPodGracePeriod, 0, math.MaxInt32)},
		{"eviction-minimum-reclaim", errText(amounts(c.EvictionMinimumReclaim))},
		{"eviction-pressure-transition-period", notNegative(c.PressureTransitionPeriod)},
		{"kube-api-qps", between(c.KubeAPIQPS, 1, 1<<20)},
		{"kube-api-burst", between(c.KubeAPIBurst, 1, 1<<20)},
		{"event-qps", between(c.EventQPS, 0, 1<<20)},
		{"event-burst", between(c.EventBurst, 1, 1<<20)},
		{"node-ip", nodeIPs(c.NodeIP)},
		{"address", addresses([]string{c.Address})},
		{"port", between(c.Port, -1, 65535)},
		{"tls-cert-file", together(c.TLSCertFile, c.TLSPrivateKeyFile, "tls-private-key-file")},
		{"tls-min-version", oneOf(c.TLSMinVersion, "VersionTLS12", "VersionTLS13")},
		{"tls-cipher-suites", errText(c.cipherSuites())},
		{"streaming-connection-idle-timeout", positive(c.StreamingConnectionIdleTimeout)},
		{"authentication-token-webhook-cache-ttl", cacheTTL(c.TokenCacheTTL)},
		{"authorization-webhook-cache-authorized-ttl", cacheTTL(c.AuthorizedCacheTTL)},
		{"authorization-webhook-cache-unauthorized-ttl", cacheTTL(c.UnauthorizedCacheTTL)},
		{"enable-system-log-query", needs(c.EnableSystemLogQuery, c.EnableSystemLogHandler, "enable-system-log-handler")},
		{"healthz-bind-address", addresses([]string{c.HealthzBindAddress})},
		{"healthz-port", between(c.HealthzPort, 0, 65535)},
		{"image-service-endpoint", endpoint(c.ImageServiceEndpoint)},
		{"runtime-request-timeout", between(c.RuntimeRequestTimeout, time.Second, time.Hour)},
		{"max-parallel-image-pulls", between(c.MaxParallelImagePulls, 1, maxPulls)},
		{"registry-qps", between(c.RegistryQPS, 0, 1<<20)},
		{"registry-burst", between(c.RegistryBurst, 1, 1<<20)},
		{"image-pull-credentials-verification-policy", oneOf(c.ImageVerificationPolicy, VerifyPreloaded, "NeverVerify", verifyListed, "AlwaysVerify")},
		{"preloaded-images-verification-allowlist", allowlist(c.ImageVerificationPolicy, c.Allowlist())},
		{"image-gc-high-threshold", between(c.ImageGCHighThreshold, 0, 100)},
		{"image-gc-low-threshold", below(c.ImageGCLowThreshold, c.ImageGCHighThreshold)},
		{"minimum-image-ttl-duration", notNegative(c.ImageMinimumGCAge)},
		{"maximum-image-ttl-duration", longer(c.ImageMaximumGCAge, c.ImageMinimumGCAge)},
		{"image-credential-provider-config", together(c.ImageCredentialProviderConfig, c.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir")},
		{"pod-cidr", network(c.PodCIDR)},
		{"service-cidr", serviceNetworks(c.ServiceCIDR, c.podNetwork())},
		{"cluster-dns", addresses(c.ClusterDNS)},
		{"cluster-domain", domain(c.ClusterDomain)},
		{"resolv-conf", resolvConf(c.ResolvConf)},
		{"node-labels", errText(labels(c.NodeLabels))},
		{"node-labels", reservedLabels(c)},
		{"register-with-taints", errText(taints(c.RegisterWithTaints))},
		{"max-pods", between(c.MaxPods, 0, 1<<20)},
		{"pods-per-core", between(c.PodsPerCore, 0, 1<<20)},
		{"pod-pids-limit", between(c.PodPidsLimit, -1, 1<<22)},
		{"system-reserved", errText(reserved(c.SystemReserved))},
		{"kube-reserved", errText(reserved(c.KubeReserved))},
		{"system-reserved-cgroup", reservedCgroup(c.SystemReservedCgroup)},
		{"kube-reserved-cgroup", reservedCgroup(c.KubeReservedCgroup)},
		{"enforce-node-allocatable", enforcements(c)},
		{"runtime-class", errText(classes(c.RuntimeClasses))},
		{"allowed-unsafe-sysctls", sysctls(c.AllowedUnsafeSysctls)},
		{"container-log-max-size", errText(size(c.ContainerLogMaxSize))},
		{"container-log-max-files", between(c.ContainerLogMaxFiles, 2, 1<<10)},
		{"container-log-max-workers", between(c.ContainerLogMaxWorkers, 1, 1<<10)},
		{"container-log-monitor-interval", between(c.ContainerLogInterval, 3*time.Second, 24*time.Hour)},
		{"user-namespaces-ids-per-pod", multiple(int64(c.UserNamespaceIDs), 65536, 1<<32)},
		{"oom-score-adj", oomScore(c.OOMScoreAdj)},
		{"max-open-files", between(c.MaxOpenFiles, 0, 1<<30)},
		{"shutdown-grace-period", shutdownPeriod(c.ShutdownGracePeriod)},
		{"shutdown-grace-period-critical-pods", criticalPeriod(c)},
		{"shutdown-grace-period-by-pod-priority", byPriority(c)},
		{"max-container-restart-period", between(c.MaxContainerRestartPeriod, time.Second, 5*time.Minute)},
		{"cpu-manager-policy", oneOf(c.CPUManagerPolicy, noCPUs, "static")},
		{"cpu-manager-policy-options", cpuOptions(c)},
		{"reserved-cpus", reservedCPUs(c)},
		{"memory-manager-policy", oneOf(c.MemoryManagerPolicy, noMemory, "Static")},
		{"reserved-memory", errText(reservedMemory(c.ReservedMemory))},
		{"topology-manager-policy", oneOf(c.TopologyManagerPolicy, noTopology, "best-effort", "restricted", "single-numa-node")},
		{"topology-manager-policy-options", topologyOptions(c)},
		{"topology-manager-scope", oneOf(c.TopologyManagerScope, "container", "pod")},
		{"cpu-cfs-quota-period", between(c.CPUCFSQuotaPeriod, time.Millisecond, time.Second)},
		{"memory-swap-behavior", oneOf(c.MemorySwapBehavior, "NoSwap", "LimitedSwap")},
		{"memory-throttling-factor", factor(c.MemoryThrottlingFactor)},
		{"memory-reservation-policy", reservation(c)},
		{"disabled-features", disabledFeatures(c.DisabledFeatures)},
	} {
		if f.msg != "" {
			return &Error{Key: f.key, Msg: f.msg}
		}
	}
	return nil
}

func oneOf(v string, allowed ...string) string {
	if slices.Contains(allowed, v) {
		return ""
	}
	if allowed[0] == "" {
		allowed = allowed[1:]
	}
	return fmt.Sprintf("%q is not one of %s", v, strings.Join(allowed, ", "))
}

func absolute(path string) string {
	if strings.HasPrefix(path, "/") {
		return ""
	}
	return fmt.Sprintf("%q is not an absolute path", path)
}

func endpoint(v string) string {
	switch {
	case v == "", strings.HasPrefix(v, "/"):
		return ""
	case strings.HasPrefix(v, "unix:///"):
		return ""
	}
	return fmt.Sprintf("%q is not a unix socket, such as unix:///run/containerd/containerd.sock", v)
}

func nodeName(v string) string {
	if v == "" {
		return "is empty, and the host name is not known"
	}
	if problems := validation.IsDNS1123Subdomain(v); len(problems) > 0 {
		return fmt.Sprintf("%q cannot be a node name: %s", v, problems[0])
	}
	return ""
}

// filenames checks names of sources. Its message never contains a URL, which may hold a secret.
func filenames(names []string) string {
	dashes := 0
	for _, n := range names {
		if n == "" {
			return "a path is empty"
		}
		if n == "-" {
			dashes++
		}
		if scheme, _, ok := strings.Cut(n, "://"); ok && !IsURL(n) && !strings.ContainsAny(scheme, "/.") {
			return fmt.Sprintf("scheme %q is not supported: use http:// or https://", scheme+"://")
		}
	}
	if dashes > 1 {
		return "standard input (-) can be read only once"
	}
	return ""
}

// headers checks headers. Its message never contains a value, which may be a secret.
func headers(lines []string) string {
	for i, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) == "" || strings.ContainsAny(strings.TrimSpace(name), " \t\r\n") || strings.ContainsAny(value, "\r\n") {
			return fmt.Sprintf("header %d is not of the form 'Name: value'", i+1)
		}
	}
	return ""
}

// together reports that one of two settings that need each other is missing.
func together(a, b, other string) string {
	if (a == "") != (b == "") {
		return "must be set together with --" + other
	}
	return ""
}

// endpoints checks etcd's endpoints. Its message never contains an endpoint, which may hold a
// password.
func endpoints(urls []string) string {
	for i, v := range urls {
		u, err := url.Parse(v)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return fmt.Sprintf("endpoint %d is not a URL, such as https://127.0.0.1:2379", i+1)
		case u.User != nil:
			return fmt.Sprintf("endpoint %d contains a user name: use --etcd-user and --etcd-password-file", i+1)
		}
	}
	return ""
}

func prefix(v string) string {
	if strings.Trim(v, "/") == "" {
		return "is empty: nodectl would read every key in etcd as a manifest"
	}
	return ""
}

func network(v string) string {
	if p, err := netip.ParsePrefix(v); err != nil || p != p.Masked() {
		return fmt.Sprintf("%q is not a network in CIDR notation, such as 10.88.0.0/16", v)
	}
	return ""
}

func addresses(list []string) string {
	for _, v := range list {
		if ip, err := netip.ParseAddr(v); err != nil || ip.Zone() != "" {
			return fmt.Sprintf("%q is not an IP address, such as 10.96.0.10", v)
		}
	}
	return ""
}

func domain(v string) string {
	if problems := validation.IsDNS1123Subdomain(v); v != "" && len(problems) > 0 {
		return fmt.Sprintf("%q is not a domain, such as cluster.local: %s", v, problems[0])
	}
	return ""
}

func resolvConf(v string) string {
	if v == "" {
		return ""
	}
	return absolute(v)
}

// nodeIPs accepts one address, or one of each family.
func nodeIPs(list []string) string {
	all := items(list)
	if msg := addresses(all); msg != "" {
		return msg
	}
	if len(all) > 2 || len(all) == 2 && netip.MustParseAddr(all[0]).Is4() == netip.MustParseAddr(all[1]).Is4() {
		return "takes one address, or an IPv4 and an IPv6 address"
	}
	return ""
}

func notNegative(d time.Duration) string {
	if d >= 0 {
		return ""
	}
	return fmt.Sprintf("must not be negative (got %s)", d)
}

// cacheTTL limits how long reviews of the API server are cached: zero does not mean "without
// limit", and a revoked right must end within an hour.
func cacheTTL(d time.Duration) string { return between(d, time.Second, time.Hour) }

// below accepts a low threshold of images. As in the kubelet, it must be below the high threshold.
func below(low, high int) string {
	if msg := between(low, 0, 100); msg != "" {
		return msg
	}
	if low >= high {
		return fmt.Sprintf("must be below image-gc-high-threshold, %[2]d (got %[1]d)", low, high)
	}
	return ""
}

// longer accepts a maximum age of images that is 0 or above the minimum.
func longer(most, least time.Duration) string {
	if most < 0 || most > 0 && most <= least {
		return fmt.Sprintf("must be longer than minimum-image-ttl-duration, %[2]s (got %[1]s)", most, least)
	}
	return ""
}

// needs rejects a setting if the setting that it extends is off.
func needs(on, other bool, name string) string {
	if on && !other {
		return "needs --" + name
	}
	return ""
}

// multiple accepts positive multiples of unit below limit.
func multiple(v, unit, limit int64) string {
	if v > 0 && v < limit && v%unit == 0 {
		return ""
	}
	return fmt.Sprintf("must be a multiple of %d below %d (got %d)", unit, limit, v)
}

// oomScore accepts "" and the values that the kernel accepts.
func oomScore(v string) string {
	if n, err := strconv.Atoi(v); v == "" || err == nil && n >= -1000 && n <= 1000 {
		return ""
	}
	return fmt.Sprintf("%q is not a number between -1000 and 1000", v)
}

func positive(d time.Duration) string {
	if d > 0 {
		return ""
	}
	return fmt.Sprintf("must be greater than zero (got %s)", d)
}
