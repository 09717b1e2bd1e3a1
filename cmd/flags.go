package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/config"
)

// globalSettings names the settings every command takes.
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

// serveSettings names serve's own.
func serveSettings() []string {
	return slices.Concat([]string{"offline-start", "insecure-manifest-permissions", "image-gc-high-threshold", "image-gc-low-threshold",
		"minimum-image-ttl-duration", "maximum-image-ttl-duration"}, clusterNodeSettings(), tcpSettings(), kubeletSettings())
}

// clusterNodeSettings names the settings of a node in a cluster.
func clusterNodeSettings() []string {
	return []string{"bootstrap-kubeconfig", "cert-dir", "rotate-certificates", "rotate-server-certificates", "register-node", "node-ip", "provider-id",
		"node-status-update-frequency", "node-status-report-frequency", "node-lease-duration", "eviction-hard", "eviction-pressure-transition-period",
		"kube-api-qps", "kube-api-burst", "event-qps", "event-burst"}
}

// tcpSettings names the settings of the server that other machines reach.
func tcpSettings() []string {
	return []string{"address", "port", "client-ca-file", "tls-cert-file", "tls-private-key-file", "tls-min-version", "tls-cipher-suites",
		"streaming-connection-idle-timeout", "enable-debugging-handlers", "healthz-bind-address", "healthz-port",
		"authentication-token-webhook-cache-ttl", "authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl"}
}

// kubeletSettings names the settings that a machine with a kubelet's setup needs.
func kubeletSettings() []string {
	return []string{"kubelet-config", "config-dir", "protect-kernel-defaults", "fail-swap-on", "fail-cgroup-v1"}
}

// agentSettings names the settings of commands that run pods.
func agentSettings() []string {
	return append([]string{"sync-frequency", "image-dir", "max-parallel-image-pulls",
		"image-credential-provider-config", "image-credential-provider-bin-dir", "pod-cidr"}, nodeSettings()...)
}

// nodeSettings names the settings that decide which pods may start on this node, and
// what they find there.
func nodeSettings() []string {
	return []string{"runtime-class", "cluster-dns", "cluster-domain", "resolv-conf", "node-labels", "register-with-taints", "max-pods", "pod-pids-limit", "system-reserved", "kube-reserved",
		"allowed-unsafe-sysctls", "max-container-restart-period", "container-log-max-size", "container-log-max-files"}
}

// settingFlags defines a flag for every setting of config.Config, and --config.
func settingFlags() *pflag.FlagSet {
	d := config.Default()
	f := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	f.String("config", config.DefaultFile, "settings")
	f.String("log-level", d.LogLevel, "error, warn, info (serve's) or debug")
	f.String("color", d.Color, "auto, always or never")
	f.String("root-dir", d.RootDir, "kept state")
	f.String("run-dir", d.RunDir, "local socket (default /run/nodectl)")
	f.String("runtime-endpoint", d.RuntimeEndpoint, "container runtime (found if not given)")
	f.String("pod-logs-dir", d.PodLogsDir, "container logs")
	f.String("cgroup-root", d.CgroupRoot, "cgroup above all pods")
	f.String("node-name", d.NodeName, "name of this node (default: the host name)")

	f.StringSliceP("filename", "f", d.Filename, "file, directory or URL of manifests, - for standard input; may be repeated, the first one wins (default "+config.DefaultManifests+")")
	f.BoolP("recursive", "R", d.Recursive, "read directories below a directory too")
	f.StringArray("manifest-url-header", d.ManifestURLHeader, "'Name: value' sent with URLs; may be repeated")
	f.String("manifest-url-header-file", d.ManifestURLHeaderFile, "file of such headers, one a line")
	f.String("manifest-url-cacert", d.ManifestURLCACert, "authorities that sign the servers of URLs (default: the system's)")
	f.String("manifest-url-cert", d.ManifestURLCert, "client certificate for URLs")
	f.String("manifest-url-key", d.ManifestURLKey, "its key")
	f.Duration("file-check-frequency", d.FileCheckFrequency, "how often files are read again unasked")
	f.Duration("http-check-frequency", d.HTTPCheckFrequency, "how often URLs are read")
	f.String("validate", d.Validate, "unknown and duplicate fields: strict, warn or ignore")
	f.String("source-policy", d.SourcePolicy, "what pods of each source may ask for; see docs/source-policy.md")

	f.String("kubeconfig", d.Kubeconfig, "take the pods bound to this node from this API server too; serve is its node there")
	f.StringSlice("etcd-endpoints", d.EtcdEndpoints, "take manifests from this etcd too, one a key")
	f.String("etcd-prefix", d.EtcdPrefix, "the keys that hold manifests")
	f.String("etcd-cacert", d.EtcdCACert, "authorities that sign the etcd's servers (default: the system's)")
	f.String("etcd-cert", d.EtcdCert, "client certificate for the etcd")
	f.String("etcd-key", d.EtcdKey, "its key")
	f.String("etcd-user", d.EtcdUser, "user of the etcd")
	f.String("etcd-password-file", d.EtcdPasswordFile, "file that holds its password")

	f.Bool("insecure-sources", d.InsecureSources, "read http:// sources of other hosts: anyone on the network can change their pods")

	f.String("offline-start", d.OfflineStart, "start pods of these sources before they answer: none, api")
	f.Bool("insecure-manifest-permissions", d.InsecureManifestPermissions, "read manifests that others can write to")
	f.Duration("sync-frequency", d.SyncFrequency, "how often every pod is looked at unasked")
	f.String("image-dir", d.ImageDir, "image archives, imported before anything is pulled (default <root-dir>/images)")
	f.Int("max-parallel-image-pulls", d.MaxParallelImagePulls, "how many images are pulled from one registry at a time")
	f.Int("image-gc-high-threshold", d.ImageGCHighThreshold, "how full the images' disk is, in percent, before unused images are removed; 100 is never")
	f.Int("image-gc-low-threshold", d.ImageGCLowThreshold, "how full it is afterwards")
	f.Duration("minimum-image-ttl-duration", d.ImageMinimumGCAge, "how long an image stays in any case")
	f.Duration("maximum-image-ttl-duration", d.ImageMaximumGCAge, "how long an unused image stays at most; 0 is forever")
	f.String("image-credential-provider-config", d.ImageCredentialProviderConfig, "credential providers, as the kubelet's: a CredentialProviderConfig, or a directory of them")
	f.String("image-credential-provider-bin-dir", d.ImageCredentialProviderBinDir, "their programs")
	f.String("pod-cidr", d.PodCIDR, "network of pods on the bundled runtime")
	f.Duration("max-container-restart-period", d.MaxContainerRestartPeriod, "the longest wait before a crashed container starts again; 1s to 5m")
	f.String("container-log-max-size", d.ContainerLogMaxSize, "how large a container's log grows before it is rotated")
	f.Int("container-log-max-files", d.ContainerLogMaxFiles, "how many logs of a container are kept, the one written to included; at least 2")

	f.String("bootstrap-kubeconfig", d.BootstrapKubeconfig, "ask this API server for a certificate where --kubeconfig does not exist")
	f.String("cert-dir", d.CertDir, "certificates of this node (default <root-dir>/pki)")
	f.Bool("rotate-certificates", d.RotateCertificates, "ask for a new client certificate before the bootstrapped one expires")
	f.Bool("rotate-server-certificates", d.RotateServerCertificates, "ask the API server for the server's certificate too")
	f.Bool("register-node", d.RegisterNode, "make the Node object where there is none")
	f.StringSlice("node-ip", d.NodeIP, "address of this node, or one of each family")
	f.String("provider-id", d.ProviderID, "what the cloud calls this machine")
	f.Duration("node-status-update-frequency", d.NodeStatusUpdateFrequency, "how often the node's status is computed")
	f.Duration("node-status-report-frequency", d.NodeStatusReportFrequency, "how often it is sent where nothing changed")
	f.Duration("node-lease-duration", d.NodeLeaseDuration, "how long the node's lease holds; renewed four times in it")
	f.Int("kube-api-qps", d.KubeAPIQPS, "requests a second to the API server, watches besides")
	f.Int("kube-api-burst", d.KubeAPIBurst, "how many more at once")
	f.Int("event-qps", d.EventQPS, "events a second; 0 is no limit")
	f.Int("event-burst", d.EventBurst, "how many more at once")
	f.StringSlice("eviction-hard", d.EvictionHard, "when the node is under pressure: memory.available<100Mi,...")
	f.Duration("eviction-pressure-transition-period", d.PressureTransitionPeriod, "how long a pressure that is over is still told")
	f.String("address", d.Address, "address of the server")
	f.Int("port", d.Port, "port of the server; -1 is 10250 with an API server and none without, 0 is none")
	f.String("client-ca-file", d.ClientCAFile, "authorities that sign the server's clients")
	f.String("tls-cert-file", d.TLSCertFile, "certificate of the server (default: bootstrapped, or signed by itself)")
	f.String("tls-private-key-file", d.TLSPrivateKeyFile, "its key")
	f.String("tls-min-version", d.TLSMinVersion, "the oldest TLS the server speaks: VersionTLS12 or VersionTLS13")
	f.StringSlice("tls-cipher-suites", d.TLSCipherSuites, "cipher suites of TLS 1.2")
	f.Duration("streaming-connection-idle-timeout", d.StreamingConnectionIdleTimeout, "how long exec, attach and port-forward may be silent")
	f.Duration("authentication-token-webhook-cache-ttl", d.TokenCacheTTL, "how long whose a token is, is not asked again; 1s to 1h")
	f.Duration("authorization-webhook-cache-authorized-ttl", d.AuthorizedCacheTTL, "the same, of what somebody may do")
	f.Duration("authorization-webhook-cache-unauthorized-ttl", d.UnauthorizedCacheTTL, "the same, of what somebody may not do")
	f.Bool("enable-debugging-handlers", d.EnableDebuggingHandlers, "exec, attach, logs, run, port-forward and checkpoint on TCP too")
	f.String("healthz-bind-address", d.HealthzBindAddress, "address of --healthz-port")
	f.Int("healthz-port", d.HealthzPort, "port that answers /healthz alone, without TLS; 0 is none")
	f.Bool("protect-kernel-defaults", d.ProtectKernelDefaults, "do not start where the kernel's settings are not those a node needs")
	f.Bool("fail-swap-on", d.FailSwapOn, "do not start where swap is on")
	f.Bool("fail-cgroup-v1", d.FailCgroupV1, "do not start on cgroup v1")
	f.String("kubelet-config", d.KubeletConfig, "settings as a KubeletConfiguration")
	f.String("config-dir", d.KubeletConfigDir, "drop-ins of --kubelet-config: *.conf")

	f.StringSlice("cluster-dns", d.ClusterDNS, "DNS servers of the cluster, for pods whose dnsPolicy asks for them")
	f.String("cluster-domain", d.ClusterDomain, "domain of the cluster: cluster.local")
	f.String("resolv-conf", d.ResolvConf, "resolver configuration that pods start from; an empty one gives them no servers")

	f.StringSlice("node-labels", d.NodeLabels, "labels of this node, which pods may ask for: key=value,...")
	f.StringSlice("register-with-taints", d.RegisterWithTaints, "taints of this node: key=value:effect,...")
	f.Int("max-pods", d.MaxPods, "how many pods may be here; 0 is no limit")
	f.Int("pod-pids-limit", d.PodPidsLimit, "how many processes one pod may have; -1 is no limit")
	f.StringSlice("system-reserved", d.SystemReserved, "what pods do not get, for the system: cpu=500m,memory=1Gi,...")
	f.StringSlice("kube-reserved", d.KubeReserved, "the same, for nodectl and the container runtime")
	f.StringSlice("runtime-class", d.RuntimeClasses, "handlers of runtime classes: gvisor=runsc,...; a class that is not listed names its handler")
	f.StringSlice("allowed-unsafe-sysctls", d.AllowedUnsafeSysctls, "sysctls that pods may set beside the safe ones: kernel.msg*,...")
	for _, w := range [][2]string{
		{"config", "FILE"}, {"log-level", "LEVEL"}, {"color", "WHEN"}, {"root-dir", "DIR"}, {"runtime-endpoint", "SOCKET"},
		{"pod-logs-dir", "DIR"}, {"cgroup-root", "PATH"}, {"node-name", "NAME"}, {"filename", "PATH"},
		{"manifest-url-header", "HEADER"}, {"manifest-url-header-file", "FILE"}, {"validate", "HOW"}, {"source-policy", "FILE"},
		{"image-dir", "DIR"}, {"pod-cidr", "NETWORK"},
		{"image-credential-provider-config", "PATH"}, {"image-credential-provider-bin-dir", "DIR"},
		{"manifest-url-cacert", "FILE"}, {"manifest-url-cert", "FILE"}, {"manifest-url-key", "FILE"},
		{"run-dir", "DIR"}, {"bootstrap-kubeconfig", "FILE"}, {"cert-dir", "DIR"}, {"node-ip", "ADDRESSES"}, {"provider-id", "ID"}, {"eviction-hard", "THRESHOLDS"},
		{"address", "ADDRESS"}, {"healthz-bind-address", "ADDRESS"}, {"client-ca-file", "FILE"}, {"tls-cert-file", "FILE"}, {"tls-private-key-file", "FILE"}, {"tls-min-version", "VERSION"},
		{"tls-cipher-suites", "SUITES"}, {"kubelet-config", "FILE"}, {"config-dir", "DIR"},
		{"kubeconfig", "FILE"}, {"etcd-endpoints", "URLS"}, {"etcd-prefix", "PREFIX"}, {"etcd-cacert", "FILE"},
		{"etcd-cert", "FILE"}, {"etcd-key", "FILE"}, {"etcd-user", "NAME"}, {"etcd-password-file", "FILE"}, {"offline-start", "SOURCES"},
		{"container-log-max-size", "SIZE"}, {"node-labels", "LABELS"}, {"cluster-dns", "ADDRESSES"}, {"cluster-domain", "DOMAIN"}, {"resolv-conf", "FILE"},
		{"register-with-taints", "TAINTS"},
		{"system-reserved", "AMOUNTS"}, {"kube-reserved", "AMOUNTS"}, {"allowed-unsafe-sysctls", "NAMES"}, {"runtime-class", "CLASSES"},
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

// complete registers the values of a flag for completion.
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

// addChoice adds a flag with a fixed set of values, the first one its default.
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

// describeOutput replaces the help of -o, its default included.
func describeOutput(cmd *cobra.Command, usage string) {
	f := cmd.Flags().Lookup("output")
	f.Usage, f.DefValue = usage, ""
}
