// Package config is nodectl's typed configuration: its fields, their defaults and their checks.
//
// cmd fills a Config from flags, environment and file. Other packages do not know where
// a value came from.
//
// It has no viper, no cobra and no I/O.
package config

import (
	"net/http"
	"strings"
	"time"
)

// DefaultFile is the configuration file that nodectl reads if it exists and no other file is named.
const DefaultFile = "/etc/nodectl/config.yaml"

// DefaultManifests is the directory that nodectl reads if no source is configured.
const DefaultManifests = "/etc/nodectl/manifests"

// DefaultEtcdPrefix is the prefix of the etcd source's manifests.
const DefaultEtcdPrefix = "/nodectl/manifests/"

// Config has all settings that flags, environment and file share. The
// mapstructure tag is the flag's name, which is also the key in the file and,
// as NODECTL_NAME, in the environment.
type Config struct {
	LogLevel        string   `mapstructure:"log-level"`      // error, warn, info, debug; "" is the command's own default
	LoggingFormat   string   `mapstructure:"logging-format"` // text, json
	LogSplitStream  bool     `mapstructure:"log-split-stream"`
	VModule         []string `mapstructure:"vmodule"` // "engine*=4"
	Color           string   `mapstructure:"color"`   // auto, always, never
	RootDir         string   `mapstructure:"root-dir"`
	RuntimeEndpoint string   `mapstructure:"runtime-endpoint"` // unix://…; "": the agent searches for one
	PodLogsDir      string   `mapstructure:"pod-logs-dir"`
	CgroupRoot      string   `mapstructure:"cgroup-root"`
	NodeName        string   `mapstructure:"node-name"`
	KubeletDir      string   `mapstructure:"kubelet-dir"` // of the sockets of plugins; "": see Plugins

	Filename              []string      `mapstructure:"filename"` // files, directories, URLs, "-"; in layer order
	Recursive             bool          `mapstructure:"recursive"`
	ManifestURLHeader     []string      `mapstructure:"manifest-url-header"` // "Name: value"
	ManifestURLHeaderFile string        `mapstructure:"manifest-url-header-file"`
	ManifestURLCACert     string        `mapstructure:"manifest-url-cacert"`
	ManifestURLCert       string        `mapstructure:"manifest-url-cert"`
	ManifestURLKey        string        `mapstructure:"manifest-url-key"`
	FileCheckFrequency    time.Duration `mapstructure:"file-check-frequency"`
	HTTPCheckFrequency    time.Duration `mapstructure:"http-check-frequency"`
	Validate              string        `mapstructure:"validate"`      // strict, warn, ignore
	SourcePolicy          string        `mapstructure:"source-policy"` // a file; "" is none

	Kubeconfig       string   `mapstructure:"kubeconfig"`     // "" is no api source
	EtcdEndpoints    []string `mapstructure:"etcd-endpoints"` // none is no etcd source
	EtcdPrefix       string   `mapstructure:"etcd-prefix"`
	EtcdCACert       string   `mapstructure:"etcd-cacert"`
	EtcdCert         string   `mapstructure:"etcd-cert"`
	EtcdKey          string   `mapstructure:"etcd-key"`
	EtcdUser         string   `mapstructure:"etcd-user"`
	EtcdPasswordFile string   `mapstructure:"etcd-password-file"`
	InsecureSources  bool     `mapstructure:"insecure-sources"` // http of other hosts, for -f and etcd

	RunDir string `mapstructure:"run-dir"` // of the local socket; "": see Run

	// A node of a cluster.
	BootstrapKubeconfig       string        `mapstructure:"bootstrap-kubeconfig"` // "": request no certificate
	CertDir                   string        `mapstructure:"cert-dir"`             // "" is RootDir/pki
	RotateCertificates        bool          `mapstructure:"rotate-certificates"`
	RotateServerCertificates  bool          `mapstructure:"rotate-server-certificates"`
	RegisterNode              bool          `mapstructure:"register-node"`
	NodeIP                    []string      `mapstructure:"node-ip"` // one, or one of each family; empty: detected
	ProviderID                string        `mapstructure:"provider-id"`
	NodeStatusUpdateFrequency time.Duration `mapstructure:"node-status-update-frequency"`
	NodeStatusReportFrequency time.Duration `mapstructure:"node-status-report-frequency"`
	NodeLeaseDuration         time.Duration `mapstructure:"node-lease-duration"`
	KubeAPIQPS                int           `mapstructure:"kube-api-qps"`
	KubeAPIBurst              int           `mapstructure:"kube-api-burst"`
	EventQPS                  int           `mapstructure:"event-qps"` // 0 is no limit
	EventBurst                int           `mapstructure:"event-burst"`
	NodeStatusMaxImages       int           `mapstructure:"node-status-max-images"` // the largest images; -1 is no limit

	// The thresholds of pressure, and the limits of evictions.
	EvictionHard              []string      `mapstructure:"eviction-hard"`                 // "memory.available<100Mi"
	EvictionSoft              []string      `mapstructure:"eviction-soft"`                 // "memory.available<1Gi"
	EvictionSoftGracePeriod   []string      `mapstructure:"eviction-soft-grace-period"`    // "memory.available=1m30s"
	EvictionMaxPodGracePeriod int           `mapstructure:"eviction-max-pod-grace-period"` // in seconds, for soft thresholds
	EvictionMinimumReclaim    []string      `mapstructure:"eviction-minimum-reclaim"`      // "imagefs.available=2Gi"
	PressureTransitionPeriod  time.Duration `mapstructure:"eviction-pressure-transition-period"`
	KernelMemcgNotification   bool          `mapstructure:"kernel-memcg-notification"`

	// The server on TCP.
	Address                        string        `mapstructure:"address"`
	Port                           int           `mapstructure:"port"` // -1: 10250 with an API server, else none; 0: none
	ClientCAFile                   string        `mapstructure:"client-ca-file"`
	TLSCertFile                    string        `mapstructure:"tls-cert-file"`
	TLSPrivateKeyFile              string        `mapstructure:"tls-private-key-file"`
	TLSMinVersion                  string        `mapstructure:"tls-min-version"` // VersionTLS12, VersionTLS13
	TLSCipherSuites                []string      `mapstructure:"tls-cipher-suites"`
	StreamingConnectionIdleTimeout time.Duration `mapstructure:"streaming-connection-idle-timeout"`

	// How long to cache token reviews, allowed access and denied access.
	TokenCacheTTL        time.Duration `mapstructure:"authentication-token-webhook-cache-ttl"`
	AuthorizedCacheTTL   time.Duration `mapstructure:"authorization-webhook-cache-authorized-ttl"`
	UnauthorizedCacheTTL time.Duration `mapstructure:"authorization-webhook-cache-unauthorized-ttl"`

	EnableDebuggingHandlers bool   `mapstructure:"enable-debugging-handlers"`  // exec, attach, port-forward, run, /containerLogs, /runningpods, /debug, /logs on TCP
	EnableProfilingHandler  bool   `mapstructure:"enable-profiling-handler"`   // /debug/pprof on TCP
	EnableDebugFlagsHandler bool   `mapstructure:"enable-debug-flags-handler"` // /debug/flags/v on TCP
	EnableSystemLogHandler  bool   `mapstructure:"enable-system-log-handler"`  // /logs
	EnableSystemLogQuery    bool   `mapstructure:"enable-system-log-query"`    // /logs?query=
	ContentionProfiling     bool   `mapstructure:"contention-profiling"`
	HealthzBindAddress      string `mapstructure:"healthz-bind-address"`
	HealthzPort             int    `mapstructure:"healthz-port"` // plain HTTP for /healthz alone; 0: none

	// Requirements on this machine, without which serve does not start.
	ProtectKernelDefaults bool `mapstructure:"protect-kernel-defaults"`
	FailSwapOn            bool `mapstructure:"fail-swap-on"`
	FailCgroupV1          bool `mapstructure:"fail-cgroup-v1"`

	KubeletConfig    string `mapstructure:"kubelet-config"` // a KubeletConfiguration; "" is none
	KubeletConfigDir string `mapstructure:"config-dir"`     // of its drop-ins

	SyncFrequency                 time.Duration `mapstructure:"sync-frequency"`
	ImageServiceEndpoint          string        `mapstructure:"image-service-endpoint"` // "" is RuntimeEndpoint
	RuntimeRequestTimeout         time.Duration `mapstructure:"runtime-request-timeout"`
	ImageDir                      string        `mapstructure:"image-dir"`                // "" is RootDir/images
	MaxParallelImagePulls         int           `mapstructure:"max-parallel-image-pulls"` // from one registry
	RegistryQPS                   int           `mapstructure:"registry-qps"`             // image pulls per second; 0 is no limit
	RegistryBurst                 int           `mapstructure:"registry-burst"`
	ImageVerificationPolicy       string        `mapstructure:"image-pull-credentials-verification-policy"` // NeverVerify, …
	ImageVerificationAllowlist    []string      `mapstructure:"preloaded-images-verification-allowlist"`    // image names, and beginnings that end in /*
	ImageGCHighThreshold          int           `mapstructure:"image-gc-high-threshold"`                    // percent of the disk; 100 is never
	ImageGCLowThreshold           int           `mapstructure:"image-gc-low-threshold"`
	ImageMinimumGCAge             time.Duration `mapstructure:"minimum-image-ttl-duration"`
	ImageMaximumGCAge             time.Duration `mapstructure:"maximum-image-ttl-duration"`       // 0 is never
	ImageCredentialProviderConfig string        `mapstructure:"image-credential-provider-config"` // a file or directory; "" is none
	ImageCredentialProviderBinDir string        `mapstructure:"image-credential-provider-bin-dir"`
	PodCIDR                       string        `mapstructure:"pod-cidr"`     // pod network of the bundled runtime
	ServiceCIDR                   []string      `mapstructure:"service-cidr"` // of cluster IPs; at most one of each family
	ClusterDNS                    []string      `mapstructure:"cluster-dns"`  // addresses; empty: pods get no cluster DNS
	ClusterDomain                 string        `mapstructure:"cluster-domain"`
	ResolvConf                    string        `mapstructure:"resolv-conf"`   // "": pods get no name servers of the node
	DNS                           bool          `mapstructure:"dns"`           // answer names of Services, without a cluster
	OfflineStart                  string        `mapstructure:"offline-start"` // none, api
	Workloads                     string        `mapstructure:"workloads"`     // workloads in files, on a node of a cluster: refuse, stop
	InsecureManifestPermissions   bool          `mapstructure:"insecure-manifest-permissions"`

	NodeLabels                []string      `mapstructure:"node-labels"`          // "key=value"
	RegisterWithTaints        []string      `mapstructure:"register-with-taints"` // "key=value:effect"
	MaxPods                   int           `mapstructure:"max-pods"`             // 0 is no limit
	PodsPerCore               int           `mapstructure:"pods-per-core"`        // 0 is no limit
	PodPidsLimit              int           `mapstructure:"pod-pids-limit"`       // of one pod; less than 1 is no limit
	SystemReserved            []string      `mapstructure:"system-reserved"`      // "cpu=500m"
	KubeReserved              []string      `mapstructure:"kube-reserved"`
	SystemReservedCgroup      string        `mapstructure:"system-reserved-cgroup"`
	KubeReservedCgroup        string        `mapstructure:"kube-reserved-cgroup"`
	EnforceNodeAllocatable    []string      `mapstructure:"enforce-node-allocatable"`       // "pods", "system-reserved", …
	RuntimeClasses            []string      `mapstructure:"runtime-class"`                  // "name=handler"
	AllowedUnsafeSysctls      []string      `mapstructure:"allowed-unsafe-sysctls"`         // names, and beginnings that end in *
	ContainerLogMaxSize       string        `mapstructure:"container-log-max-size"`         // a quantity: "10Mi"
	ContainerLogMaxWorkers    int           `mapstructure:"container-log-max-workers"`      // logs rotated at the same time
	ContainerLogInterval      time.Duration `mapstructure:"container-log-monitor-interval"` // between checks of log sizes
	VolumeStatsPeriod         time.Duration `mapstructure:"volume-stats-agg-period"`        // how long a measured disk usage is valid; negative measures none
	VolumeHealth              bool          `mapstructure:"volume-health"`                  // report whether volumes of CSI drivers are healthy
	UserNamespaceIDs          int           `mapstructure:"user-namespaces-ids-per-pod"`
	OOMScoreAdj               string        `mapstructure:"oom-score-adj"`                // of this process; "" leaves it
	MaxOpenFiles              int           `mapstructure:"max-open-files"`               // of this process; 0 leaves the limit
	ContainerLogMaxFiles      int           `mapstructure:"container-log-max-files"`      // of one container, including the current one
	MaxContainerRestartPeriod time.Duration `mapstructure:"max-container-restart-period"` // cap of the crash back-off

	// How long a shutdown of the machine is delayed for pods.
	ShutdownGracePeriod             time.Duration `mapstructure:"shutdown-grace-period"`                 // for all pods together; 0: it is not delayed
	ShutdownGracePeriodCriticalPods time.Duration `mapstructure:"shutdown-grace-period-critical-pods"`   // the part for critical pods
	ShutdownGracePeriodByPriority   []string      `mapstructure:"shutdown-grace-period-by-pod-priority"` // "1000=20s", instead of the two

	// The allocation of exclusive CPUs and NUMA memory to containers.
	CPUManagerPolicy             string   `mapstructure:"cpu-manager-policy"`         // none, static
	CPUManagerPolicyOptions      []string `mapstructure:"cpu-manager-policy-options"` // "full-pcpus-only=true"
	ReservedCPUs                 string   `mapstructure:"reserved-cpus"`              // "0-1"; "": the reserved amount of CPU, rounded up
	MemoryManagerPolicy          string   `mapstructure:"memory-manager-policy"`      // None, Static
	ReservedMemory               []string `mapstructure:"reserved-memory"`            // "0:memory=1Gi,hugepages-2Mi=1Gi"
	TopologyManagerPolicy        string   `mapstructure:"topology-manager-policy"`    // none, best-effort, restricted, single-numa-node
	TopologyManagerPolicyOptions []string `mapstructure:"topology-manager-policy-options"`
	TopologyManagerScope         string   `mapstructure:"topology-manager-scope"` // container, pod

	// How the kernel enforces the resources of pods.
	CPUCFSQuota                   bool          `mapstructure:"cpu-cfs-quota"`
	CPUCFSQuotaPeriod             time.Duration `mapstructure:"cpu-cfs-quota-period"`
	MemorySwapBehavior            string        `mapstructure:"memory-swap-behavior"` // NoSwap, LimitedSwap
	SingleProcessOOMKill          bool          `mapstructure:"single-process-oom-kill"`
	MemoryQoS                     bool          `mapstructure:"memory-qos"`
	MemoryThrottlingFactor        float64       `mapstructure:"memory-throttling-factor"`
	MemoryReservationPolicy       string        `mapstructure:"memory-reservation-policy"`        // None, TieredReservation
	LocalStorageCapacityIsolation bool          `mapstructure:"local-storage-capacity-isolation"` // count ephemeral storage
	DisabledFeatures              []string      `mapstructure:"disabled-features"`                // by the names of the kubelet's gates
}

// Default returns the default configuration. NodeName is empty: cmd sets it to the host
// name.
func Default() Config {
	return Config{
		LoggingFormat:      "text",
		Color:              "auto",
		RootDir:            "/var/lib/nodectl",
		PodLogsDir:         "/var/log/pods",
		CgroupRoot:         "/",
		FileCheckFrequency: 20 * time.Second,
		HTTPCheckFrequency: 20 * time.Second,
		Validate:           "strict",
		EtcdPrefix:         DefaultEtcdPrefix,
		OfflineStart:       "none",
		Workloads:          "refuse",
		SyncFrequency:      time.Minute,

		RotateCertificates:        true,
		RegisterNode:              true,
		NodeStatusUpdateFrequency: 10 * time.Second,
		NodeStatusReportFrequency: 5 * time.Minute,
		NodeLeaseDuration:         40 * time.Second,
		NodeStatusMaxImages:       50,
		KubeAPIQPS:                50,
		KubeAPIBurst:              100,
		EventQPS:                  50,
		EventBurst:                100,
		EvictionHard:              []string{"memory.available<100Mi", "nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<5%"},
		PressureTransitionPeriod:  5 * time.Minute,
		KernelMemcgNotification:   true,

		Address:                        "0.0.0.0",
		Port:                           -1,
		TLSMinVersion:                  "VersionTLS13",
		StreamingConnectionIdleTimeout: 30 * time.Minute,
		TokenCacheTTL:                  2 * time.Minute,
		AuthorizedCacheTTL:             5 * time.Minute,
		UnauthorizedCacheTTL:           30 * time.Second,
		EnableDebuggingHandlers:        true,
		HealthzBindAddress:             "127.0.0.1",

		RuntimeRequestTimeout: 2 * time.Minute,
		MaxParallelImagePulls: 3,
		RegistryQPS:           5,
		RegistryBurst:         10,

		ImageVerificationPolicy: VerifyPreloaded,
		ImageGCHighThreshold:    85,
		ImageGCLowThreshold:     80,
		ImageMinimumGCAge:       2 * time.Minute,
		PodCIDR:                 "10.88.0.0/16",
		ServiceCIDR:             []string{DefaultServiceCIDR},
		ResolvConf:              "/etc/resolv.conf",
		DNS:                     true,

		MaxPods:                   110,
		PodPidsLimit:              -1,
		ContainerLogMaxSize:       "10Mi",
		ContainerLogMaxFiles:      5,
		ContainerLogMaxWorkers:    1,
		ContainerLogInterval:      10 * time.Second,
		VolumeStatsPeriod:         time.Minute,
		UserNamespaceIDs:          65536,
		MaxContainerRestartPeriod: 5 * time.Minute,
		EnforceNodeAllocatable:    []string{enforcePods},

		CPUCFSQuota:                   true,
		CPUCFSQuotaPeriod:             cfsPeriod,
		MemorySwapBehavior:            "NoSwap",
		CPUManagerPolicy:              noCPUs,
		MemoryManagerPolicy:           noMemory,
		TopologyManagerPolicy:         noTopology,
		TopologyManagerScope:          "container",
		MemoryThrottlingFactor:        0.9,
		MemoryReservationPolicy:       "None",
		LocalStorageCapacityIsolation: true,
	}
}

// Error is one wrong setting. Key is the flag's name.
type Error struct{ Key, Msg string }

func (e *Error) Error() string { return e.Key + ": " + e.Msg }

// Headers returns ManifestURLHeader as an HTTP header. Check has accepted it.
func (c Config) Headers() http.Header {
	h := http.Header{}
	for _, line := range c.ManifestURLHeader {
		name, value, _ := strings.Cut(line, ":")
		h.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return h
}

// CheckHeaders returns an error for an invalid ManifestURLHeader. The error never has a
// value.
func (c Config) CheckHeaders() *Error {
	if msg := headers(c.ManifestURLHeader); msg != "" {
		return &Error{Key: "manifest-url-header", Msg: msg}
	}
	return nil
}

// IsURL reports whether a filename names an HTTP source.
func IsURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// Run returns the directory of the local socket: RunDir, else /run/nodectl for the
// default root directory and the root directory itself for another, so that agents
// with different roots have different sockets.
func (c Config) Run() string {
	switch {
	case c.RunDir != "":
		return c.RunDir
	case c.RootDir == Default().RootDir:
		return "/run/nodectl"
	}
	return c.RootDir
}
