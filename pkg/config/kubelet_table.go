package config

import (
	"maps"
	"slices"
	"strings"
)

// disposition is how nodectl treats a field of a KubeletConfiguration.
type disposition string

const (
	honoured disposition = "honoured"
	warned   disposition = "warned about" // not supported yet
	refused  disposition = "refused"      // ignoring it would weaken security
)

// kubeletRow describes how nodectl treats one field.
type kubeletRow struct {
	path string
	kind fieldKind
	zero bool // its type cannot distinguish zero from "not set"
	does disposition
	// setting is the setting that it sets; "" means none: nodectl behaves that way anyway.
	setting string
	as      func(leaf, map[string]leaf) any // replaces the kind's conversion
	fine    []string                        // values that match nodectl's behaviour
	any     bool                            // no value needs a warning
	only    func(leaf) string               // replaces fine: returns the text of the warning
	refuse  func(leaf) string               // returns why a value is refused
	note    string                          // for the list of fields
}

// kubeletRows returns the table by path.
func kubeletRows() map[string]kubeletRow {
	all := map[string]kubeletRow{}
	for _, row := range kubeletTable() {
		all[row.path] = row
	}
	return all
}

// kubeletTable returns every field of a KubeletConfiguration, in the order of the type.
// Only a test compares the table with the type, so that the binary does not link the
// type's libraries.
func kubeletTable() []kubeletRow {
	return slices.Concat(kubeletSources(), kubeletServer(), kubeletNode(), kubeletPods(), kubeletResources(), kubeletRest())
}

// sets is a field that sets one setting.
func sets(path string, kind fieldKind, setting string) kubeletRow {
	return kubeletRow{path: path, kind: kind, does: honoured, setting: setting}
}

// zeroed is a field that sets one setting, and whose type cannot distinguish zero from
// "not set".
func zeroed(path string, kind fieldKind, setting string) kubeletRow {
	return kubeletRow{path: path, kind: kind, zero: true, does: honoured, setting: setting}
}

// idle is a field that is not supported yet; its values in fine need no warning.
func idle(path string, kind fieldKind, note string, fine ...string) kubeletRow {
	return kubeletRow{path: path, kind: kind, does: warned, fine: fine, note: note}
}

// idleZero is idle for a type that cannot distinguish zero from "not set".
func idleZero(path string, kind fieldKind, note string, fine ...string) kubeletRow {
	row := idle(path, kind, note, fine...)
	row.zero = true
	return row
}

// needless is a field whose value changes nothing here.
func needless(path string, kind fieldKind, zero bool, note string) kubeletRow {
	return kubeletRow{path: path, kind: kind, zero: zero, does: honoured, any: true, note: note}
}

// never is a field with refused values.
func never(path string, kind fieldKind, zero bool, refuse func(leaf) string, note string) kubeletRow {
	return kubeletRow{path: path, kind: kind, zero: zero, does: refused, refuse: refuse, any: true, note: note}
}

func (row kubeletRow) noted(note string) kubeletRow { row.note = note; return row }

func (row kubeletRow) made(as func(leaf, map[string]leaf) any) kubeletRow { row.as = as; return row }

func (row kubeletRow) but(refuse func(leaf) string) kubeletRow { row.refuse = refuse; return row }

// unless refuses every value but these.
func unless(msg string, fine ...string) func(leaf) string {
	return func(l leaf) string {
		if slices.Contains(fine, l.text()) {
			return ""
		}
		return msg
	}
}

func kubeletSources() []kubeletRow {
	return []kubeletRow{
		sets("enableServer", ofTruth, "port").made(serverPort).noted("false is `port: 0`"),
		zeroed("staticPodPath", ofPath, "filename").made(manifests).noted("before staticPodURL, where both are given; `filename` elsewhere replaces both"),
		zeroed("podLogsDir", ofPath, "pod-logs-dir"),
		zeroed("syncFrequency", ofSpan, "sync-frequency"),
		zeroed("fileCheckFrequency", ofSpan, "file-check-frequency"),
		zeroed("httpCheckFrequency", ofSpan, "http-check-frequency"),
		zeroed("staticPodURL", ofText, "filename").made(manifests),
		sets("staticPodURLHeader", ofHeaders, "manifest-url-header"),
	}
}

func kubeletServer() []kubeletRow {
	return []kubeletRow{
		zeroed("address", ofText, "address"),
		zeroed("port", ofNumber, "port").made(serverPort),
		never("readOnlyPort", ofNumber, true, unless("there is no port that asks nobody who they are"), "any port is refused: it would serve everybody"),
		zeroed("tlsCertFile", ofPath, "tls-cert-file"),
		zeroed("tlsPrivateKeyFile", ofPath, "tls-private-key-file"),
		sets("tlsCipherSuites", ofTexts, "tls-cipher-suites").noted("of TLS 1.2; names that the Go library calls insecure are refused"),
		never("tlsCurvePreferences", ofNumbers, false, func(l leaf) string {
			if len(l.texts) == 0 {
				return ""
			}
			return "the server offers the Go library's curves, and no choice of them"
		}, "any choice is refused"),
		zeroed("tlsMinVersion", ofText, "tls-min-version").but(unless("is older than TLS 1.2, or no version: VersionTLS12 and VersionTLS13 are served", "VersionTLS12", "VersionTLS13")).noted("older than VersionTLS12 is refused; not set, it is VersionTLS13 here"),
		sets("rotateCertificates", ofTruth, "rotate-certificates").noted("true here where it is not set"),
		sets("serverTLSBootstrap", ofTruth, "rotate-server-certificates"),
		zeroed("authentication.x509.clientCAFile", ofPath, "client-ca-file"),
		never("authentication.webhook.enabled", ofTruth, false, unless("tokens are always shown to the API server, where there is one", "true"), "false is refused: an API server is always asked who a token's bearer is"),
		zeroed("authentication.webhook.cacheTTL", ofSpan, "authentication-token-webhook-cache-ttl").noted("from a second to an hour"),
		never("authentication.anonymous.enabled", ofTruth, false, unless("nobody is let in who does not say who they are", "false"), "true is refused"),
		never("authorization.mode", ofText, true, unless("the API server is asked what a caller may do: only Webhook is there", "Webhook"), "AlwaysAllow is refused"),
		zeroed("authorization.webhook.cacheAuthorizedTTL", ofSpan, "authorization-webhook-cache-authorized-ttl").noted("from a second to an hour"),
		zeroed("authorization.webhook.cacheUnauthorizedTTL", ofSpan, "authorization-webhook-cache-unauthorized-ttl").noted("from a second to an hour"),
	}
}

func kubeletNode() []kubeletRow {
	return []kubeletRow{
		idle("registryPullQPS", ofNumber, "pulls are limited in number, not in rate", "5"),
		idleZero("registryBurst", ofNumber, "as registryPullQPS", "10"),
		never("imagePullCredentialsVerificationPolicy", ofText, true, unless("credentials are verified for every image that was pulled with some, and for no other: NeverVerifyPreloadedImages", "NeverVerifyPreloadedImages", "NeverVerify"),
			"NeverVerifyPreloadedImages is what happens, for NeverVerify too; AlwaysVerify and NeverVerifyAllowlistedImages are refused"),
		idle("preloadedImagesVerificationAllowlist", ofTexts, "it belongs to a policy that is refused", ""),
		sets("eventRecordQPS", ofNumber, "event-qps"),
		zeroed("eventBurst", ofNumber, "event-burst"),
		sets("enableDebuggingHandlers", ofTruth, "enable-debugging-handlers"),
		idleZero("enableContentionProfiling", ofTruth, "nothing is profiled", "false"),
		sets("healthzPort", ofNumber, "healthz-port").noted("not set, nothing listens; the kubelet's default is 10248"),
		zeroed("healthzBindAddress", ofText, "healthz-bind-address"),
		idle("oomScoreAdj", ofNumber, "the unit file sets it", "-999"),
		zeroed("clusterDomain", ofText, "cluster-domain"),
		sets("clusterDNS", ofTexts, "cluster-dns"),
		zeroed("streamingConnectionIdleTimeout", ofSpan, "streaming-connection-idle-timeout").noted("half an hour here where it is not set; the kubelet's default is four"),
		zeroed("nodeStatusUpdateFrequency", ofSpan, "node-status-update-frequency"),
		zeroed("nodeStatusReportFrequency", ofSpan, "node-status-report-frequency"),
		zeroed("nodeLeaseDurationSeconds", ofNumber, "node-lease-duration").made(seconds),
		idleZero("imageMinimumGCAge", ofSpan, "images are not collected yet", "2m0s"),
		idleZero("imageMaximumGCAge", ofSpan, "images are not collected yet"),
		idle("imageGCHighThresholdPercent", ofNumber, "images are not collected yet", "85"),
		idle("imageGCLowThresholdPercent", ofNumber, "images are not collected yet", "80"),
		idleZero("volumeStatsAggPeriod", ofSpan, "volumes are measured when somebody asks", "1m0s"),
		idleZero("kubeletCgroups", ofText, "the unit file places the agent"),
		idleZero("systemCgroups", ofText, "nothing is moved between cgroups"),
	}
}

func kubeletPods() []kubeletRow {
	return []kubeletRow{
		zeroed("cgroupRoot", ofText, "cgroup-root"),
		idle("cgroupsPerQOS", ofTruth, "pods always have cgroups of their own", "true"),
		needless("cgroupDriver", ofText, true, "the runtime is asked, as the kubelet asks it"),
		idleZero("cpuManagerPolicy", ofText, "there is no CPU manager yet", "none"),
		idle("singleProcessOOMKill", ofTruth, "the cgroup decides", "false"),
		idle("cpuManagerPolicyOptions", ofAmounts, "there is no CPU manager yet"),
		idleZero("cpuManagerReconcilePeriod", ofSpan, "there is no CPU manager yet", "10s"),
		idleZero("memoryManagerPolicy", ofText, "there is no memory manager yet", "None"),
		idleZero("topologyManagerPolicy", ofText, "there is no topology manager yet", "none"),
		idleZero("topologyManagerScope", ofText, "there is no topology manager yet", "container"),
		idle("topologyManagerPolicyOptions", ofAmounts, "there is no topology manager yet"),
		idle("qosReserved", ofAmounts, "nothing is reserved for a class of pods"),
		idleZero("runtimeRequestTimeout", ofSpan, "each call to the runtime has its own limit", "2m0s"),
		needless("hairpinMode", ofText, true, "the CNI plugins' business, for the kubelet too"),
		zeroed("maxPods", ofNumber, "max-pods"),
		zeroed("podCIDR", ofText, "pod-cidr").noted("of the bundled runtime"),
		sets("podPidsLimit", ofNumber, "pod-pids-limit"),
		sets("resolvConf", ofPath, "resolv-conf"),
		never("runOnce", ofTruth, true, unless("use 'nodectl runonce'", "false"), "true is refused: `nodectl runonce` is that"),
		idle("cpuCFSQuota", ofTruth, "limits of CPU are always held", "true"),
		idle("cpuCFSQuotaPeriod", ofSpan, "a tenth of a second here", "100ms"),
		idle("nodeStatusMaxImages", ofNumber, "fifty here", "50"),
		idleZero("maxOpenFiles", ofNumber, "the unit file sets it", "1000000"),
		needless("contentType", ofText, true, "chosen for each kind of object"),
		sets("kubeAPIQPS", ofNumber, "kube-api-qps"),
		zeroed("kubeAPIBurst", ofNumber, "kube-api-burst"),
		sets("serializeImagePulls", ofTruth, "max-parallel-image-pulls").made(parallelPulls).noted("true is one at a time from one registry, false as many as maxParallelImagePulls says"),
		sets("maxParallelImagePulls", ofNumber, "max-parallel-image-pulls").made(parallelPulls).noted("from one registry"),
		sets("evictionHard", ofAmounts, "eviction-hard").made(hardThresholds).noted("for the node's conditions; a signal that is not named has no threshold. Nothing is evicted yet"),
		idle("evictionSoft", ofAmounts, "nothing is evicted yet"),
		idle("evictionSoftGracePeriod", ofAmounts, "nothing is evicted yet"),
		zeroed("evictionPressureTransitionPeriod", ofSpan, "eviction-pressure-transition-period"),
		idleZero("evictionMaxPodGracePeriod", ofNumber, "nothing is evicted yet"),
		idle("evictionMinimumReclaim", ofAmounts, "nothing is evicted yet"),
		sets("mergeDefaultEvictionSettings", ofTruth, "eviction-hard").made(func(leaf, map[string]leaf) any { return nil }).noted("true adds the defaults of signals that evictionHard does not name"),
		idleZero("podsPerCore", ofNumber, "maxPods alone counts"),
	}
}

func kubeletResources() []kubeletRow {
	return []kubeletRow{
		idle("enableControllerAttachDetach", ofTruth, "nothing is attached yet", "true"),
		sets("protectKernelDefaults", ofTruth, "protect-kernel-defaults").noted("nodectl never changes the kernel's settings; true makes other values an error"),
		needless("makeIPTablesUtilChains", ofTruth, false, "nodectl makes no iptables chains"),
		needless("iptablesMasqueradeBit", ofNumber, false, "nodectl makes no iptables chains"),
		needless("iptablesDropBit", ofNumber, false, "nodectl makes no iptables chains"),
		{path: "featureGates", kind: ofGates, does: warned, refuse: refusedGates, only: ignoredGates, note: "each is named; ContainerCheckpoint: false and ProcMountType: false are refused"},
		sets("failSwapOn", ofTruth, "fail-swap-on").noted("not set, swap is a finding of `nodectl doctor`"),
		idleZero("memorySwap.swapBehavior", ofText, "pods get no swap of their own", "NoSwap"),
		zeroed("containerLogMaxSize", ofText, "container-log-max-size"),
		sets("containerLogMaxFiles", ofNumber, "container-log-max-files"),
		idle("containerLogMaxWorkers", ofNumber, "one is enough", "1"),
		idle("containerLogMonitorInterval", ofSpan, "ten seconds here", "10s"),
		idleZero("configMapAndSecretChangeDetectionStrategy", ofText, "what pods use is watched", "Watch"),
		sets("systemReserved", ofAmounts, "system-reserved"),
		sets("kubeReserved", ofAmounts, "kube-reserved"),
		idleZero("reservedSystemCPUs", ofText, "there is no CPU manager yet"),
		idleZero("showHiddenMetricsForVersion", ofText, "no metric is hidden"),
		idleZero("systemReservedCgroup", ofText, "the system's cgroup is not limited"),
		idleZero("kubeReservedCgroup", ofText, "the agent's cgroup is not limited"),
		idle("enforceNodeAllocatable", ofTexts, "pods together are held to allocatable, and nothing else is", "pods"),
		sets("allowedUnsafeSysctls", ofTexts, "allowed-unsafe-sysctls"),
		idleZero("volumePluginDir", ofPath, "there are no FlexVolumes", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
		zeroed("providerID", ofText, "provider-id"),
		idleZero("kernelMemcgNotification", ofTruth, "nothing is evicted yet", "false"),
	}
}

func kubeletRest() []kubeletRow {
	return []kubeletRow{
		idleZero("logging.format", ofText, "logs are key=value lines", "text"),
		needless("logging.flushFrequency", ofWhole, false, "every line is written at once"),
		zeroed("logging.verbosity", ofNumber, "log-level").made(level).noted("4 and more is debug"),
		idle("logging.vmodule", ofWhole, "one level for all"),
		idle("logging.options", ofWhole, "logs go to standard error, unbuffered"),
		idle("enableSystemLogHandler", ofTruth, "the machine's own logs are not served", "false"),
		idle("enableSystemLogQuery", ofTruth, "the machine's own logs are not served", "false"),
		idleZero("shutdownGracePeriod", ofSpan, "pods outlive the agent; systemd ends them with the machine"),
		idleZero("shutdownGracePeriodCriticalPods", ofSpan, "as shutdownGracePeriod"),
		idle("shutdownGracePeriodByPodPriority", ofWhole, "as shutdownGracePeriod"),
		sets("crashLoopBackOff.maxContainerRestartPeriod", ofSpan, "max-container-restart-period"),
		idle("reservedMemory", ofWhole, "there is no memory manager yet"),
		idle("enableProfilingHandler", ofTruth, "nothing is profiled", "false"),
		idle("enableDebugFlagsHandler", ofTruth, "the log level is not changed from outside", "false"),
		idle("seccompDefault", ofTruth, "true is what happens: a container that names no profile has the runtime's", "true"),
		idle("memoryThrottlingFactor", ofFraction, "memory.high is not set"),
		idleZero("memoryReservationPolicy", ofText, "memory.min and memory.low are not set", "None"),
		sets("registerWithTaints", ofTaints, "register-with-taints"),
		sets("registerNode", ofTruth, "register-node"),
		idle("tracing", ofWhole, "nothing is traced"),
		idle("localStorageCapacityIsolation", ofTruth, "pods' local storage is always counted", "true"),
		zeroed("containerRuntimeEndpoint", ofText, "runtime-endpoint"),
		idleZero("imageServiceEndpoint", ofText, "images are the runtime's"),
		sets("failCgroupV1", ofTruth, "fail-cgroup-v1").noted("not set, cgroup v1 is a finding of `nodectl doctor`"),
		idle("userNamespaces.idsPerPod", ofNumber, "65536 here", "65536"),
	}
}

// refusedGates refuses feature gates that disable a feature of the server or of pods which
// nodectl cannot disable.
func refusedGates(l leaf) string {
	for _, name := range []string{"ContainerCheckpoint", "ProcMountType"} {
		if v := l.pairs[name]; len(v) > 0 && v[0] == "false" {
			return name + " cannot be turned off"
		}
	}
	return ""
}

// ignoredGates names the feature gates: nodectl has none.
func ignoredGates(l leaf) string {
	if len(l.pairs) == 0 {
		return ""
	}
	return "featureGates " + strings.Join(slices.Sorted(maps.Keys(l.pairs)), ", ")
}
