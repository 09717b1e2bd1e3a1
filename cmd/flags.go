package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/config"
)

// globalSettings names the settings of every command.
func globalSettings() []string {
	return []string{"cgroup-root", "color", "config", "log-level", "node-name", "pod-logs-dir", "root-dir", "run-dir", "runtime-endpoint"}
}

// sourceSettings names the settings of commands that read sources.
func sourceSettings() []string {
	return []string{"filename", "recursive", "file-check-frequency", "http-check-frequency", "manifest-url-header", "manifest-url-header-file",
		"manifest-url-cacert", "manifest-url-cert", "manifest-url-key", "validate", "source-policy", "insecure-sources"}
}

// clusterSettings names the settings of the sources that runonce does not read.
func clusterSettings() []string {
	return []string{"kubeconfig", "etcd-endpoints", "etcd-prefix", "etcd-cacert", "etcd-cert", "etcd-key", "etcd-user", "etcd-password-file"}
}

// serveSettings names the settings that only serve uses.
func serveSettings() []string {
	return slices.Concat([]string{"kubelet-dir", "offline-start", "workloads", "insecure-manifest-permissions", "image-gc-high-threshold", "image-gc-low-threshold",
		"minimum-image-ttl-duration", "maximum-image-ttl-duration", "eviction-hard", "eviction-soft", "eviction-soft-grace-period", "eviction-minimum-reclaim",
		"eviction-max-pod-grace-period", "eviction-pressure-transition-period", "kernel-memcg-notification",
		"shutdown-grace-period", "shutdown-grace-period-critical-pods", "shutdown-grace-period-by-pod-priority"}, clusterNodeSettings(), tcpSettings(), kubeletSettings())
}

// clusterNodeSettings names the settings of a node in a cluster.
func clusterNodeSettings() []string {
	return []string{"bootstrap-kubeconfig", "cert-dir", "rotate-certificates", "rotate-server-certificates", "register-node", "node-ip", "provider-id",
		"node-status-update-frequency", "node-status-report-frequency", "node-status-max-images", "node-lease-duration",
		"kube-api-qps", "kube-api-burst", "event-qps", "event-burst"}
}

// tcpSettings names the settings of the server that other machines reach.
func tcpSettings() []string {
	return []string{"address", "port", "client-ca-file", "tls-cert-file", "tls-private-key-file", "tls-min-version", "tls-cipher-suites",
		"streaming-connection-idle-timeout", "enable-debugging-handlers", "enable-profiling-handler", "enable-debug-flags-handler", "enable-system-log-handler", "enable-system-log-query", "contention-profiling", "healthz-bind-address", "healthz-port",
		"authentication-token-webhook-cache-ttl", "authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl"}
}

// kubeletSettings names the settings for a machine that was set up for a kubelet.
func kubeletSettings() []string {
	return []string{"kubelet-config", "config-dir", "logging-format", "log-split-stream", "vmodule", "oom-score-adj", "max-open-files", "volume-stats-agg-period", "volume-health", "protect-kernel-defaults", "fail-swap-on", "fail-cgroup-v1"}
}

// agentSettings names the settings of commands that run pods.
func agentSettings() []string {
	return append([]string{"sync-frequency", "image-service-endpoint", "runtime-request-timeout", "image-dir", "max-parallel-image-pulls", "registry-qps", "registry-burst",
		"image-pull-credentials-verification-policy", "preloaded-images-verification-allowlist",
		"image-credential-provider-config", "image-credential-provider-bin-dir", "pod-cidr", "service-cidr"}, nodeSettings()...)
}

// nodeSettings names the settings that decide which pods may start on this node, and in which
// environment.
func nodeSettings() []string {
	return []string{"runtime-class", "cluster-dns", "cluster-domain", "resolv-conf", "dns", "node-labels", "register-with-taints", "max-pods", "pod-pids-limit", "system-reserved", "kube-reserved",
		"allowed-unsafe-sysctls", "max-container-restart-period", "container-log-max-size", "container-log-max-files",
		"container-log-max-workers", "container-log-monitor-interval", "user-namespaces-ids-per-pod",
		"pods-per-core", "enforce-node-allocatable", "system-reserved-cgroup", "kube-reserved-cgroup", "local-storage-capacity-isolation",
		"cpu-cfs-quota", "cpu-cfs-quota-period", "memory-swap-behavior", "single-process-oom-kill",
		"memory-qos", "memory-throttling-factor", "memory-reservation-policy", "disabled-features",
		"cpu-manager-policy", "cpu-manager-policy-options", "reserved-cpus", "memory-manager-policy", "reserved-memory",
		"topology-manager-policy", "topology-manager-policy-options", "topology-manager-scope"}
}

// settingFlags defines a flag for every setting of config.Config, and --config.
func settingFlags() *pflag.FlagSet {
	d := config.Default()
	f := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	f.String("config", config.DefaultFile, "config file")
	f.String("log-level", d.LogLevel, "error, warn, info (default of serve) or debug")
	f.Bool("log-split-stream", d.LogSplitStream, "write the log of serve to standard output, and only its errors to standard error")
	f.StringSlice("vmodule", d.VModule, "also write debug messages of these source files of nodectl to the log: evict*=4,...")
	f.String("logging-format", d.LoggingFormat, "format of the log: text, or json with the kubelet's keys")
	f.String("color", d.Color, "auto, always or never")
	f.String("root-dir", d.RootDir, "state directory")
	f.String("run-dir", d.RunDir, "socket directory (default /run/nodectl)")
	f.String("runtime-endpoint", d.RuntimeEndpoint, "runtime socket (detected if not given)")
	f.String("pod-logs-dir", d.PodLogsDir, "container log files")
	f.String("cgroup-root", d.CgroupRoot, "parent cgroup of all pods")
	f.String("node-name", d.NodeName, "name of this node (default: the host name)")
	f.String("kubelet-dir", d.KubeletDir, "directory of the sockets of device plugins (default /var/lib/kubelet)")

	f.StringSliceP("filename", "f", d.Filename, "file, directory or URL of manifests, - for standard input; may be repeated, the first one wins (default "+config.DefaultManifests+")")
	f.BoolP("recursive", "R", d.Recursive, "also read subdirectories")
	f.StringArray("manifest-url-header", d.ManifestURLHeader, "HTTP header for URLs, 'Name: value'; may be repeated")
	f.String("manifest-url-header-file", d.ManifestURLHeaderFile, "file with HTTP headers for URLs, one per line")
	f.String("manifest-url-cacert", d.ManifestURLCACert, "CA certificates for the servers of URLs (default: the system's)")
	f.String("manifest-url-cert", d.ManifestURLCert, "client certificate for URLs")
	f.String("manifest-url-key", d.ManifestURLKey, "key of the client certificate for URLs")
	f.Duration("file-check-frequency", d.FileCheckFrequency, "how often files are read again if no change is seen")
	f.Duration("http-check-frequency", d.HTTPCheckFrequency, "how often URLs are read")
	f.String("validate", d.Validate, "unknown and duplicate fields: strict, warn or ignore")
	f.String("source-policy", d.SourcePolicy, "policy that limits what pods of each source may use; see docs/source-policy.md")

	f.String("kubeconfig", d.Kubeconfig, "also read the pods that this API server binds to this node; serve joins its cluster")
	f.StringSlice("etcd-endpoints", d.EtcdEndpoints, "also read manifests from this etcd, one per key")
	f.String("etcd-prefix", d.EtcdPrefix, "prefix of the keys that hold manifests")
	f.String("etcd-cacert", d.EtcdCACert, "CA certificates for the servers of etcd (default: the system's)")
	f.String("etcd-cert", d.EtcdCert, "client certificate for etcd")
	f.String("etcd-key", d.EtcdKey, "key of the client certificate for etcd")
	f.String("etcd-user", d.EtcdUser, "user name for etcd")
	f.String("etcd-password-file", d.EtcdPasswordFile, "file with the password for etcd")

	f.Bool("insecure-sources", d.InsecureSources, "allow http:// sources on other hosts; anyone on the network can then change their pods")

	f.String("offline-start", d.OfflineStart, "start the last known pods of these sources without waiting for their answer: none, api")
	f.String("workloads", d.Workloads, "with --kubeconfig, for workloads of files: refuse to start, or stop their pods first")
	f.Bool("insecure-manifest-permissions", d.InsecureManifestPermissions, "read manifests that other users can write")
	f.Duration("sync-frequency", d.SyncFrequency, "how often all containers are listed, to find changes that the runtime did not report")
	f.String("image-service-endpoint", d.ImageServiceEndpoint, "socket of the service that pulls images (default: the runtime's)")
	f.Duration("runtime-request-timeout", d.RuntimeRequestTimeout, "timeout of calls to the runtime that change something; pulls, commands and stops have their own")
	f.String("image-dir", d.ImageDir, "directory of image archives, imported before any pull (default <root-dir>/images)")
	f.Int("max-parallel-image-pulls", d.MaxParallelImagePulls, "how many images are pulled from one registry at once")
	f.Int("registry-qps", d.RegistryQPS, "image pulls per second from all registries; 0 means no limit")
	f.Int("registry-burst", d.RegistryBurst, "burst of image pulls")
	f.String("image-pull-credentials-verification-policy", d.ImageVerificationPolicy, "which images of the node a pod may use only with the credentials that pulled them: NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify")
	f.StringSlice("preloaded-images-verification-allowlist", d.ImageVerificationAllowlist, "images that NeverVerifyAllowlistedImages exempts: registry/path, or registry/*")
	f.Int("image-gc-high-threshold", d.ImageGCHighThreshold, "disk usage in percent from which unused images are removed; 100 means never")
	f.Int("image-gc-low-threshold", d.ImageGCLowThreshold, "disk usage in percent down to which unused images are removed")
	f.Duration("minimum-image-ttl-duration", d.ImageMinimumGCAge, "minimum age of an unused image before it is removed")
	f.Duration("maximum-image-ttl-duration", d.ImageMaximumGCAge, "how long an image may be unused before it is removed; 0 means without limit")
	f.Duration("shutdown-grace-period", d.ShutdownGracePeriod, "how long a shutdown of the machine waits for pods; 0 means it does not wait")
	f.Duration("shutdown-grace-period-critical-pods", d.ShutdownGracePeriodCriticalPods, "the part of --shutdown-grace-period for critical pods")
	f.StringSlice("shutdown-grace-period-by-pod-priority", d.ShutdownGracePeriodByPriority, "how long a shutdown waits for pods of this priority and above: PRIORITY=TIME,...")
	f.String("image-credential-provider-config", d.ImageCredentialProviderConfig, "the kubelet's CredentialProviderConfig, or a directory of them")
	f.String("image-credential-provider-bin-dir", d.ImageCredentialProviderBinDir, "directory of the credential provider programs")
	f.String("pod-cidr", d.PodCIDR, "pod network of the bundled runtime")
	f.StringSlice("service-cidr", d.ServiceCIDR, "network of the cluster IPs of Services, or one of each family")
	f.Duration("max-container-restart-period", d.MaxContainerRestartPeriod, "longest back-off before a crashed container restarts; 1s to 5m")
	f.String("container-log-max-size", d.ContainerLogMaxSize, "size at which a container's log is rotated")
	f.Int("container-log-max-files", d.ContainerLogMaxFiles, "log files kept of a container, the current one included; at least 2")

	f.Int("container-log-max-workers", d.ContainerLogMaxWorkers, "how many logs are rotated at once")
	f.Duration("container-log-monitor-interval", d.ContainerLogInterval, "how often the sizes of logs are checked; at least 3s")
	f.Int("user-namespaces-ids-per-pod", d.UserNamespaceIDs, "user IDs of a pod with hostUsers: false; a multiple of 65536")
	f.String("oom-score-adj", d.OOMScoreAdj, "oom_score_adj of the agent (default: the one it was started with)")
	f.Int("max-open-files", d.MaxOpenFiles, "how many files the agent may open (default: the limit it was started with)")
	f.Duration("volume-stats-agg-period", d.VolumeStatsPeriod, "minimum time between two measurements of the disk usage of a pod; negative means none")
	f.Bool("volume-health", d.VolumeHealth, "report volumes whose CSI drivers find them abnormal (alpha)")

	f.String("bootstrap-kubeconfig", d.BootstrapKubeconfig, "kubeconfig to request a client certificate with if --kubeconfig does not exist")
	f.String("cert-dir", d.CertDir, "directory of this node's certificates (default <root-dir>/pki)")
	f.Bool("rotate-certificates", d.RotateCertificates, "request a new client certificate before the bootstrapped one expires")
	f.Bool("rotate-server-certificates", d.RotateServerCertificates, "also request the server's certificate from the API server")
	f.Bool("register-node", d.RegisterNode, "create the Node object if it does not exist")
	f.StringSlice("node-ip", d.NodeIP, "IP address of this node, or one of each family")
	f.String("provider-id", d.ProviderID, "ID of this machine at the cloud provider")
	f.Duration("node-status-update-frequency", d.NodeStatusUpdateFrequency, "how often the node's status is computed")
	f.Duration("node-status-report-frequency", d.NodeStatusReportFrequency, "how often an unchanged node status is sent")
	f.Int("node-status-max-images", d.NodeStatusMaxImages, "how many images the node's status lists, largest first; -1 means all")
	f.Duration("node-lease-duration", d.NodeLeaseDuration, "duration of the node's lease; it is renewed four times in this time")
	f.Int("kube-api-qps", d.KubeAPIQPS, "requests per second to the API server, watches not counted")
	f.Int("kube-api-burst", d.KubeAPIBurst, "burst of requests to the API server")
	f.Int("event-qps", d.EventQPS, "events per second; 0 means no limit")
	f.Int("event-burst", d.EventBurst, "burst of events")
	f.StringSlice("eviction-hard", d.EvictionHard, "thresholds below which the node removes unused data, then evicts pods: memory.available<100Mi,...")
	f.StringSlice("eviction-soft", d.EvictionSoft, "thresholds that evict pods after a grace period: memory.available<1Gi,...")
	f.StringSlice("eviction-soft-grace-period", d.EvictionSoftGracePeriod, "grace periods of soft thresholds: memory.available=1m30s,...")
	f.StringSlice("eviction-minimum-reclaim", d.EvictionMinimumReclaim, "amount to free beyond a threshold: imagefs.available=2Gi,...")
	f.Int("eviction-max-pod-grace-period", d.EvictionMaxPodGracePeriod, "maximum grace period of a pod that a soft threshold evicts, in seconds")
	f.Duration("eviction-pressure-transition-period", d.PressureTransitionPeriod, "how long a pressure condition stays true after the pressure ends")
	f.Bool("kernel-memcg-notification", d.KernelMemcgNotification, "check memory as soon as the kernel notifies that it is short")
	f.String("address", d.Address, "IP address that the server listens on")
	f.Int("port", d.Port, "port of the server; -1 means 10250 with an API server and none without, 0 means none")
	f.String("client-ca-file", d.ClientCAFile, "CA certificates for the server's clients")
	f.String("tls-cert-file", d.TLSCertFile, "certificate of the server (default: bootstrapped or self-signed)")
	f.String("tls-private-key-file", d.TLSPrivateKeyFile, "key of the server's certificate")
	f.String("tls-min-version", d.TLSMinVersion, "minimum TLS version of the server: VersionTLS12 or VersionTLS13")
	f.StringSlice("tls-cipher-suites", d.TLSCipherSuites, "cipher suites of TLS 1.2")
	f.Duration("streaming-connection-idle-timeout", d.StreamingConnectionIdleTimeout, "idle time after which exec, attach and port-forward end")
	f.Duration("authentication-token-webhook-cache-ttl", d.TokenCacheTTL, "how long the result of a token review is cached; 1s to 1h")
	f.Duration("authorization-webhook-cache-authorized-ttl", d.AuthorizedCacheTTL, "how long a granted authorization is cached; 1s to 1h")
	f.Duration("authorization-webhook-cache-unauthorized-ttl", d.UnauthorizedCacheTTL, "how long a denied authorization is cached; 1s to 1h")
	f.Bool("enable-debugging-handlers", d.EnableDebuggingHandlers, "also serve exec, attach, port-forward, run, /containerLogs, /runningpods, /debug and /logs on TCP")
	f.Bool("enable-profiling-handler", d.EnableProfilingHandler, "also serve profiles of the agent on TCP (/debug/pprof)")
	f.Bool("enable-debug-flags-handler", d.EnableDebugFlagsHandler, "also let callers on TCP change the log level (/debug/flags/v)")
	f.Bool("enable-system-log-handler", d.EnableSystemLogHandler, "serve the files below /var/log (/logs)")
	f.Bool("enable-system-log-query", d.EnableSystemLogQuery, "also serve the logs of services from the journal (/logs/?query=NAME)")
	f.Bool("contention-profiling", d.ContentionProfiling, "record where goroutines block, for the profile named block")
	f.String("healthz-bind-address", d.HealthzBindAddress, "IP address of --healthz-port")
	f.Int("healthz-port", d.HealthzPort, "port that serves only /healthz, /livez and /readyz, without TLS; 0 means none")
	f.Bool("protect-kernel-defaults", d.ProtectKernelDefaults, "do not start if kernel settings differ from those a node needs")
	f.Bool("fail-swap-on", d.FailSwapOn, "do not start if swap is on")
	f.Bool("fail-cgroup-v1", d.FailCgroupV1, "do not start on cgroup v1")
	f.String("kubelet-config", d.KubeletConfig, "KubeletConfiguration file")
	f.String("config-dir", d.KubeletConfigDir, "directory of drop-ins for --kubelet-config: *.conf")

	f.StringSlice("cluster-dns", d.ClusterDNS, "DNS servers of the cluster, for pods whose dnsPolicy uses them")
	f.String("cluster-domain", d.ClusterDomain, "DNS domain of the cluster, such as cluster.local")
	f.String("resolv-conf", d.ResolvConf, "resolver configuration file for pods; an empty value gives them no servers")
	f.Bool("dns", d.DNS, "answer the names of Services for pods, if there are Services and no cluster")

	f.StringSlice("node-labels", d.NodeLabels, "labels of this node, for node selectors of pods: key=value,...")
	f.StringSlice("register-with-taints", d.RegisterWithTaints, "taints of this node: key=value:effect,...")
	f.Int("max-pods", d.MaxPods, "maximum number of pods; 0 means no limit")
	f.Int("pod-pids-limit", d.PodPidsLimit, "maximum number of processes in a pod; -1 means no limit")
	f.StringSlice("system-reserved", d.SystemReserved, "resources reserved for the system: cpu=500m,memory=1Gi,...")
	f.StringSlice("kube-reserved", d.KubeReserved, "resources reserved for nodectl and the container runtime")
	f.Int("pods-per-core", d.PodsPerCore, "maximum number of pods for each CPU; 0 means no limit")
	f.StringSlice("enforce-node-allocatable", d.EnforceNodeAllocatable, "cgroups to limit: pods, system-reserved, kube-reserved, the last two also with -compressible, or none")
	f.String("system-reserved-cgroup", d.SystemReservedCgroup, "cgroup that gets the limits of --system-reserved")
	f.String("kube-reserved-cgroup", d.KubeReservedCgroup, "cgroup that gets the limits of --kube-reserved")
	f.Bool("local-storage-capacity-isolation", d.LocalStorageCapacityIsolation, "account for ephemeral storage")
	f.Bool("cpu-cfs-quota", d.CPUCFSQuota, "enforce CPU limits")
	f.Duration("cpu-cfs-quota-period", d.CPUCFSQuotaPeriod, "period of CPU limits; 1ms to 1s")
	f.String("memory-swap-behavior", d.MemorySwapBehavior, "swap of containers on cgroup v2: NoSwap or LimitedSwap")
	f.Bool("single-process-oom-kill", d.SingleProcessOOMKill, "if a container is out of memory, kill one process instead of all (cgroup v2)")
	f.Bool("memory-qos", d.MemoryQoS, "throttle and protect memory on cgroup v2 (alpha)")
	f.Float64("memory-throttling-factor", d.MemoryThrottlingFactor, "with --memory-qos, where throttling starts: from 0 (memory request) to 1 (memory limit)")
	f.String("memory-reservation-policy", d.MemoryReservationPolicy, "with --memory-qos, memory to protect: None or TieredReservation")
	f.StringSlice("disabled-features", d.DisabledFeatures, "features of the kubelet that this node does without, by the names of their gates: NodeDeclaredFeatures,...")
	f.String("cpu-manager-policy", d.CPUManagerPolicy, "exclusive CPUs for containers: none or static")
	f.StringSlice("cpu-manager-policy-options", d.CPUManagerPolicyOptions, "options of the CPU manager policy static: full-pcpus-only=true,...")
	f.String("reserved-cpus", d.ReservedCPUs, "CPUs that are never exclusive: 0-1,8; replaces reserved amounts of CPU")
	f.String("memory-manager-policy", d.MemoryManagerPolicy, "memory of certain NUMA nodes for containers: None or Static")
	f.StringSlice("reserved-memory", d.ReservedMemory, "memory of NUMA nodes that containers do not get: 0:memory=1Gi,...")
	f.String("topology-manager-policy", d.TopologyManagerPolicy, "NUMA nodes of CPUs and memory: none, best-effort, restricted or single-numa-node")
	f.StringSlice("topology-manager-policy-options", d.TopologyManagerPolicyOptions, "options of the topology manager policy: prefer-closest-numa-nodes=true,...")
	f.String("topology-manager-scope", d.TopologyManagerScope, "scope of alignment to NUMA nodes: container or pod")
	f.StringSlice("runtime-class", d.RuntimeClasses, "handlers of runtime classes: gvisor=runsc,... (default: the name of the class)")
	f.StringSlice("allowed-unsafe-sysctls", d.AllowedUnsafeSysctls, "unsafe sysctls that pods may set: kernel.msg*,...")
	for _, w := range [][2]string{
		{"config", "FILE"}, {"log-level", "LEVEL"}, {"color", "WHEN"}, {"root-dir", "DIR"}, {"runtime-endpoint", "SOCKET"},
		{"pod-logs-dir", "DIR"}, {"cgroup-root", "PATH"}, {"node-name", "NAME"}, {"filename", "PATH"},
		{"manifest-url-header", "HEADER"}, {"manifest-url-header-file", "FILE"}, {"validate", "HOW"}, {"source-policy", "FILE"},
		{"image-dir", "DIR"}, {"image-gc-high-threshold", "PERCENT"}, {"image-gc-low-threshold", "PERCENT"}, {"pod-cidr", "NETWORK"}, {"service-cidr", "NETWORKS"},
		{"image-credential-provider-config", "PATH"}, {"image-credential-provider-bin-dir", "DIR"},
		{"manifest-url-cacert", "FILE"}, {"manifest-url-cert", "FILE"}, {"manifest-url-key", "FILE"},
		{"run-dir", "DIR"}, {"kubelet-dir", "DIR"}, {"bootstrap-kubeconfig", "FILE"}, {"cert-dir", "DIR"}, {"node-ip", "ADDRESSES"}, {"provider-id", "ID"}, {"eviction-hard", "THRESHOLDS"},
		{"eviction-soft", "THRESHOLDS"}, {"eviction-soft-grace-period", "DURATIONS"}, {"eviction-minimum-reclaim", "AMOUNTS"}, {"eviction-max-pod-grace-period", "SECONDS"},
		{"address", "ADDRESS"}, {"healthz-bind-address", "ADDRESS"}, {"client-ca-file", "FILE"}, {"tls-cert-file", "FILE"}, {"tls-private-key-file", "FILE"}, {"tls-min-version", "VERSION"},
		{"tls-cipher-suites", "SUITES"}, {"kubelet-config", "FILE"}, {"config-dir", "DIR"},
		{"kubeconfig", "FILE"}, {"etcd-endpoints", "URLS"}, {"etcd-prefix", "PREFIX"}, {"etcd-cacert", "FILE"},
		{"etcd-cert", "FILE"}, {"etcd-key", "FILE"}, {"etcd-user", "NAME"}, {"etcd-password-file", "FILE"}, {"offline-start", "SOURCES"}, {"workloads", "refuse|stop"},
		{"container-log-max-size", "SIZE"}, {"node-labels", "LABELS"}, {"cluster-dns", "ADDRESSES"}, {"cluster-domain", "DOMAIN"}, {"resolv-conf", "FILE"},
		{"register-with-taints", "TAINTS"}, {"shutdown-grace-period-by-pod-priority", "PERIODS"},
		{"system-reserved", "AMOUNTS"}, {"kube-reserved", "AMOUNTS"}, {"enforce-node-allocatable", "NAMES"}, {"system-reserved-cgroup", "PATH"}, {"kube-reserved-cgroup", "PATH"},
		{"cpu-manager-policy", "POLICY"}, {"cpu-manager-policy-options", "OPTIONS"}, {"reserved-cpus", "CPUS"}, {"memory-manager-policy", "POLICY"}, {"reserved-memory", "AMOUNTS"},
		{"topology-manager-policy", "POLICY"}, {"topology-manager-policy-options", "OPTIONS"}, {"topology-manager-scope", "SCOPE"},
		{"image-pull-credentials-verification-policy", "POLICY"}, {"preloaded-images-verification-allowlist", "IMAGES"}, {"image-service-endpoint", "SOCKET"},
		{"logging-format", "FORMAT"}, {"vmodule", "PATTERNS"}, {"disabled-features", "NAMES"}, {"oom-score-adj", "N"}, {"memory-throttling-factor", "FACTOR"},
		{"memory-swap-behavior", "BEHAVIOR"}, {"memory-reservation-policy", "POLICY"}, {"allowed-unsafe-sysctls", "NAMES"}, {"runtime-class", "CLASSES"},
	} {
		word(f, w[0], w[1])
	}
	return f
}

// addSettings adds the flags of these settings to a command.
func (p *program) addSettings(to *pflag.FlagSet, names []string) {
	for _, name := range names {
		to.AddFlag(p.settings.Lookup(name))
	}
}

// addSources adds the flags of all sources to a command.
func (p *program) addSources(cmd *cobra.Command) {
	p.addSettings(cmd.Flags(), sourceSettings())
	complete(cmd, "validate", "strict", "warn", "ignore")
}

// addClusterSources adds the flags of the sources that runonce does not read to a command.
func (p *program) addClusterSources(cmd *cobra.Command) {
	p.addSettings(cmd.Flags(), clusterSettings())
}

// complete registers the values that completion offers for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// choice is a flag with a fixed set of values.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "string" }

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("not one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = s
	return nil
}

// addChoice adds a flag with a fixed set of values. The first one is the default.
func addChoice(cmd *cobra.Command, name, short, usage string, allowed ...string) *choice {
	c := &choice{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, short, usage)
	complete(cmd, name, allowed...)
	return c
}

// addOutput adds -o.
func addOutput(cmd *cobra.Command, allowed ...string) *choice {
	c := addChoice(cmd, "output", "o", strings.Join(allowed, ", "), allowed...)
	word(cmd.Flags(), "output", "FORMAT")
	return c
}

// describeOutput replaces the help of -o. usage names the default.
func describeOutput(cmd *cobra.Command, usage string) {
	f := cmd.Flags().Lookup("output")
	f.Usage, f.DefValue = usage, ""
}
