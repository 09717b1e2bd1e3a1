package config

import "slices"

// disposition is how nodectl treats a field of a KubeletConfiguration.
type disposition string

const (
	honoured disposition = "honoured"
	warned   disposition = "ignored, with a warning" // not supported yet
	refused  disposition = "refused"                 // certain values cannot be ignored safely
)

// kubeletRow describes how nodectl treats one field.
type kubeletRow struct {
	path    string
	kind    fieldKind
	zero    bool // its type cannot distinguish zero from "not set"
	outcome disposition
	// setting is the setting that the field sets; "" if it sets none.
	setting  string
	gates    map[string]string                  // settings by feature gate, for the field with the gates
	off      map[string]offSetting              // settings of feature gates that are off
	as       func(leaf, map[string]leaf) any    // replaces the kind's conversion
	matching []string                           // values that match nodectl's behaviour
	any      bool                               // no value needs a warning
	warning  func(leaf) string                  // replaces matching: returns the text of the warning
	refuse   func(leaf) string                  // returns the reason to reject a value, or ""
	conflict func(leaf, map[string]leaf) string // returns the reason to reject it beside other fields, or ""
	note     string                             // for the list of fields
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

// sets returns the row of a field that sets one setting.
func sets(path string, kind fieldKind, setting string) kubeletRow {
	return kubeletRow{path: path, kind: kind, outcome: honoured, setting: setting}
}

// setsUnlessZero returns the row of a field that sets one setting, and whose type cannot
// distinguish zero from "not set".
func setsUnlessZero(path string, kind fieldKind, setting string) kubeletRow {
	return kubeletRow{path: path, kind: kind, zero: true, outcome: honoured, setting: setting}
}

// unsupported returns the row of a field that is not supported yet; its values in matching need no
// warning.
func unsupported(path string, kind fieldKind, note string, matching ...string) kubeletRow {
	return kubeletRow{path: path, kind: kind, outcome: warned, matching: matching, note: note}
}

// unsupportedZero is unsupported for a type that cannot distinguish zero from "not set".
func unsupportedZero(path string, kind fieldKind, note string, matching ...string) kubeletRow {
	row := unsupported(path, kind, note, matching...)
	row.zero = true
	return row
}

// noEffect returns the row of a field whose value has no effect in nodectl.
func noEffect(path string, kind fieldKind, zero bool, note string) kubeletRow {
	return kubeletRow{path: path, kind: kind, zero: zero, outcome: honoured, any: true, note: note}
}

// restricted returns the row of a field with rejected values.
func restricted(path string, kind fieldKind, zero bool, refuse func(leaf) string, note string) kubeletRow {
	return kubeletRow{path: path, kind: kind, zero: zero, outcome: refused, refuse: refuse, any: true, note: note}
}

func (row kubeletRow) noted(note string) kubeletRow { row.note = note; return row }

func (row kubeletRow) convertedBy(as func(leaf, map[string]leaf) any) kubeletRow {
	row.as = as
	return row
}

func (row kubeletRow) refusing(refuse func(leaf) string) kubeletRow { row.refuse = refuse; return row }

func (row kubeletRow) conflicting(conflict func(leaf, map[string]leaf) string) kubeletRow {
	row.conflict = conflict
	return row
}

// allowOnly returns a check that rejects all other values.
func allowOnly(msg string, matching ...string) func(leaf) string {
	return func(l leaf) string {
		if slices.Contains(matching, l.text()) {
			return ""
		}
		return msg
	}
}

func kubeletSources() []kubeletRow {
	return []kubeletRow{
		sets("enableServer", ofBool, "port").convertedBy(serverPort).noted("false sets `port: 0`"),
		setsUnlessZero("staticPodPath", ofPath, "filename").convertedBy(manifests).noted("read before staticPodURL if both are set; a `filename` from a flag, a variable or nodectl's own file replaces both"),
		setsUnlessZero("podLogsDir", ofPath, "pod-logs-dir"),
		setsUnlessZero("syncFrequency", ofDuration, "sync-frequency"),
		setsUnlessZero("fileCheckFrequency", ofDuration, "file-check-frequency"),
		setsUnlessZero("httpCheckFrequency", ofDuration, "http-check-frequency"),
		setsUnlessZero("staticPodURL", ofString, "filename").convertedBy(manifests),
		sets("staticPodURLHeader", ofListMap, "manifest-url-header"),
	}
}

func kubeletServer() []kubeletRow {
	return []kubeletRow{
		setsUnlessZero("address", ofString, "address"),
		setsUnlessZero("port", ofNumber, "port").convertedBy(serverPort),
		restricted("readOnlyPort", ofNumber, true, allowOnly("nodectl has no port without authentication"), "any port is refused: it would serve unauthenticated callers"),
		setsUnlessZero("tlsCertFile", ofPath, "tls-cert-file"),
		setsUnlessZero("tlsPrivateKeyFile", ofPath, "tls-private-key-file"),
		sets("tlsCipherSuites", ofStrings, "tls-cipher-suites").noted("for TLS 1.2; suites that Go's crypto/tls calls insecure are refused"),
		restricted("tlsCurvePreferences", ofNumbers, false, func(l leaf) string {
			if len(l.texts) == 0 {
				return ""
			}
			return "the server offers the curves of Go's crypto/tls, which cannot be configured"
		}, "any value is refused"),
		setsUnlessZero("tlsMinVersion", ofString, "tls-min-version").refusing(allowOnly("must be VersionTLS12 or VersionTLS13", "VersionTLS12", "VersionTLS13")).noted("versions before VersionTLS12 are refused; the default here is VersionTLS13"),
		sets("rotateCertificates", ofBool, "rotate-certificates").noted("the default here is true"),
		sets("serverTLSBootstrap", ofBool, "rotate-server-certificates"),
		setsUnlessZero("authentication.x509.clientCAFile", ofPath, "client-ca-file"),
		restricted("authentication.webhook.enabled", ofBool, false, allowOnly("nodectl always asks an API server to review bearer tokens", "true"), "false is refused: nodectl always asks an API server to review bearer tokens"),
		setsUnlessZero("authentication.webhook.cacheTTL", ofDuration, "authentication-token-webhook-cache-ttl").noted("from 1s to 1h"),
		restricted("authentication.anonymous.enabled", ofBool, false, allowOnly("nodectl rejects anonymous requests", "false"), "true is refused"),
		restricted("authorization.mode", ofString, true, allowOnly("nodectl asks the API server what a caller may do: only Webhook is supported", "Webhook"), "AlwaysAllow is refused"),
		setsUnlessZero("authorization.webhook.cacheAuthorizedTTL", ofDuration, "authorization-webhook-cache-authorized-ttl").noted("from 1s to 1h"),
		setsUnlessZero("authorization.webhook.cacheUnauthorizedTTL", ofDuration, "authorization-webhook-cache-unauthorized-ttl").noted("from 1s to 1h"),
	}
}

func kubeletNode() []kubeletRow {
	return []kubeletRow{
		sets("registryPullQPS", ofNumber, "registry-qps").noted("a pull waits for its turn, up to 10s, before it fails with `pull QPS exceeded`"),
		setsUnlessZero("registryBurst", ofNumber, "registry-burst"),
		setsUnlessZero("imagePullCredentialsVerificationPolicy", ofString, "image-pull-credentials-verification-policy").conflicting(needsGate(gatePulledImages)).
			noted("refused if the gate KubeletEnsureSecretPulledImages is off"),
		sets("preloadedImagesVerificationAllowlist", ofStrings, "preloaded-images-verification-allowlist").conflicting(needsGate(gatePulledImages)).
			noted("refused if the gate KubeletEnsureSecretPulledImages is off"),
		sets("eventRecordQPS", ofNumber, "event-qps"),
		setsUnlessZero("eventBurst", ofNumber, "event-burst"),
		sets("enableDebuggingHandlers", ofBool, "enable-debugging-handlers"),
		setsUnlessZero("enableContentionProfiling", ofBool, "contention-profiling"),
		sets("healthzPort", ofNumber, "healthz-port").noted("if it is not set, nodectl does not listen; the kubelet's default is 10248"),
		setsUnlessZero("healthzBindAddress", ofString, "healthz-bind-address"),
		sets("oomScoreAdj", ofNumber, "oom-score-adj").convertedBy(asText).noted("if it is not set, nodectl keeps the score that it was started with"),
		setsUnlessZero("clusterDomain", ofString, "cluster-domain"),
		sets("clusterDNS", ofStrings, "cluster-dns"),
		setsUnlessZero("streamingConnectionIdleTimeout", ofDuration, "streaming-connection-idle-timeout").noted("the default here is 30m; the kubelet's is 4h"),
		setsUnlessZero("nodeStatusUpdateFrequency", ofDuration, "node-status-update-frequency"),
		setsUnlessZero("nodeStatusReportFrequency", ofDuration, "node-status-report-frequency"),
		setsUnlessZero("nodeLeaseDurationSeconds", ofNumber, "node-lease-duration").convertedBy(seconds),
		setsUnlessZero("imageMinimumGCAge", ofDuration, "minimum-image-ttl-duration"),
		setsUnlessZero("imageMaximumGCAge", ofDuration, "maximum-image-ttl-duration").noted("counts from the last use, also across restarts of the agent"),
		sets("imageGCHighThresholdPercent", ofNumber, "image-gc-high-threshold"),
		sets("imageGCLowThresholdPercent", ofNumber, "image-gc-low-threshold"),
		setsUnlessZero("volumeStatsAggPeriod", ofDuration, "volume-stats-agg-period").noted("nodectl measures volumes on request, and uses the result for this time"),
		unsupportedZero("kubeletCgroups", ofString, "nodectl moves no process between cgroups, not even itself: set the agent's cgroup in the unit file"),
		unsupportedZero("systemCgroups", ofString, "nodectl moves no process between cgroups: systemd or another init system places those of the system"),
	}
}

func kubeletPods() []kubeletRow {
	return []kubeletRow{
		setsUnlessZero("cgroupRoot", ofString, "cgroup-root"),
		restricted("cgroupsPerQOS", ofBool, false, allowOnly("every pod has its own cgroup", "true"), "false is refused: every pod has its own cgroup, below that of its QoS class"),
		noEffect("cgroupDriver", ofString, true, "nodectl asks the runtime, as the kubelet does"),
		setsUnlessZero("cpuManagerPolicy", ofString, "cpu-manager-policy"),
		sets("singleProcessOOMKill", ofBool, "single-process-oom-kill").noted("without effect on cgroup v1, where the kernel always kills one process"),
		sets("cpuManagerPolicyOptions", ofStringMap, "cpu-manager-policy-options").conflicting(optionGates).noted("an alpha option is refused without the gate CPUManagerPolicyAlphaOptions, a beta one if CPUManagerPolicyBetaOptions is off"),
		noEffect("cpuManagerReconcilePeriod", ofDuration, true, "nodectl moves containers to other shared CPUs when these change"),
		setsUnlessZero("memoryManagerPolicy", ofString, "memory-manager-policy"),
		setsUnlessZero("topologyManagerPolicy", ofString, "topology-manager-policy"),
		setsUnlessZero("topologyManagerScope", ofString, "topology-manager-scope"),
		sets("topologyManagerPolicyOptions", ofStringMap, "topology-manager-policy-options"),
		noEffect("qosReserved", ofStringMap, false, "without effect, as in the kubelet, unless the gate QOSReserved (alpha) is true: then it is refused").conflicting(qosReserved),
		setsUnlessZero("runtimeRequestTimeout", ofDuration, "runtime-request-timeout").noted("from 1s to 1h; calls that only read end after 10s at the latest"),
		noEffect("hairpinMode", ofString, true, "the CNI plugins decide, as they do for the kubelet"),
		setsUnlessZero("maxPods", ofNumber, "max-pods"),
		setsUnlessZero("podCIDR", ofString, "pod-cidr").noted("for the bundled runtime"),
		sets("podPidsLimit", ofNumber, "pod-pids-limit"),
		sets("resolvConf", ofPath, "resolv-conf"),
		restricted("runOnce", ofBool, true, allowOnly("use 'nodectl runonce'", "false"), "true is refused: use `nodectl runonce`"),
		sets("cpuCFSQuota", ofBool, "cpu-cfs-quota"),
		sets("cpuCFSQuotaPeriod", ofDuration, "cpu-cfs-quota-period").conflicting(periodGate).noted("from 1ms to 1s; refused if the gate CustomCPUCFSQuotaPeriod is off and it is not 100ms"),
		sets("nodeStatusMaxImages", ofNumber, "node-status-max-images"),
		setsUnlessZero("maxOpenFiles", ofNumber, "max-open-files").noted("if it is not set, nodectl keeps the limit that it was started with"),
		noEffect("contentType", ofString, true, "nodectl chooses it for each kind of object"),
		sets("kubeAPIQPS", ofNumber, "kube-api-qps"),
		setsUnlessZero("kubeAPIBurst", ofNumber, "kube-api-burst"),
		sets("serializeImagePulls", ofBool, "max-parallel-image-pulls").convertedBy(parallelPulls).noted("true: one pull at a time from each registry; false: up to maxParallelImagePulls"),
		sets("maxParallelImagePulls", ofNumber, "max-parallel-image-pulls").convertedBy(parallelPulls).noted("from each registry"),
		sets("evictionHard", ofStringMap, "eviction-hard").convertedBy(hardThresholds).noted("a signal that is not named has no hard threshold"),
		sets("evictionSoft", ofStringMap, "eviction-soft").convertedBy(softThresholds).noted("each signal needs an evictionSoftGracePeriod"),
		sets("evictionSoftGracePeriod", ofStringMap, "eviction-soft-grace-period"),
		setsUnlessZero("evictionPressureTransitionPeriod", ofDuration, "eviction-pressure-transition-period"),
		setsUnlessZero("evictionMaxPodGracePeriod", ofNumber, "eviction-max-pod-grace-period"),
		sets("evictionMinimumReclaim", ofStringMap, "eviction-minimum-reclaim"),
		sets("mergeDefaultEvictionSettings", ofBool, "eviction-hard").convertedBy(func(leaf, map[string]leaf) any { return nil }).noted("true adds the defaults of signals that evictionHard does not name"),
		setsUnlessZero("podsPerCore", ofNumber, "pods-per-core"),
	}
}

func kubeletResources() []kubeletRow {
	return []kubeletRow{
		unsupported("enableControllerAttachDetach", ofBool, "the controller attaches the volumes of CSI drivers, and the Node says so; only one of the two may do it", "true"),
		sets("protectKernelDefaults", ofBool, "protect-kernel-defaults").noted("nodectl never changes kernel settings; with true it does not start if they differ from the kubelet's"),
		noEffect("makeIPTablesUtilChains", ofBool, false, "nodectl creates no iptables chains"),
		noEffect("iptablesMasqueradeBit", ofNumber, false, "nodectl creates no iptables chains"),
		noEffect("iptablesDropBit", ofNumber, false, "nodectl creates no iptables chains"),
		{path: "featureGates", kind: ofBoolMap, outcome: honoured, setting: "disabled-features", as: gatesOff, gates: gateSettings, off: gateOff, refuse: refusedGates, warning: ignoredGates,
			note: "see [Feature gates](#feature-gates)"},
		sets("failSwapOn", ofBool, "fail-swap-on").noted("if it is not set, only `nodectl doctor` reports swap"),
		setsUnlessZero("memorySwap.swapBehavior", ofString, "memory-swap-behavior").noted("LimitedSwap has an effect on cgroup v2 only; without a cluster, static pods get swap too"),
		setsUnlessZero("containerLogMaxSize", ofString, "container-log-max-size"),
		sets("containerLogMaxFiles", ofNumber, "container-log-max-files"),
		sets("containerLogMaxWorkers", ofNumber, "container-log-max-workers"),
		sets("containerLogMonitorInterval", ofDuration, "container-log-monitor-interval"),
		noEffect("configMapAndSecretChangeDetectionStrategy", ofString, true, "nodectl always watches the objects that pods use: a change reaches the pods at least as soon as with Get or Cache"),
		sets("systemReserved", ofStringMap, "system-reserved"),
		sets("kubeReserved", ofStringMap, "kube-reserved"),
		setsUnlessZero("reservedSystemCPUs", ofString, "reserved-cpus").noted("their number replaces cpu in systemReserved and kubeReserved"),
		noEffect("showHiddenMetricsForVersion", ofString, true, "nodectl hides no metric"),
		setsUnlessZero("systemReservedCgroup", ofString, "system-reserved-cgroup"),
		setsUnlessZero("kubeReservedCgroup", ofString, "kube-reserved-cgroup"),
		sets("enforceNodeAllocatable", ofStrings, "enforce-node-allocatable"),
		sets("allowedUnsafeSysctls", ofStrings, "allowed-unsafe-sysctls"),
		unsupportedZero("volumePluginDir", ofPath, "nodectl has no FlexVolumes, which Kubernetes has deprecated in favour of CSI", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
		setsUnlessZero("providerID", ofString, "provider-id"),
		setsUnlessZero("kernelMemcgNotification", ofBool, "kernel-memcg-notification").noted("the default here is true"),
	}
}

func kubeletRest() []kubeletRow {
	return []kubeletRow{
		setsUnlessZero("logging.format", ofString, "logging-format"),
		noEffect("logging.flushFrequency", ofAny, false, "nodectl writes every line immediately"),
		setsUnlessZero("logging.verbosity", ofNumber, "log-level").convertedBy(level).noted("4 and above sets debug"),
		sets("logging.vmodule", ofModules, "vmodule").noted("the patterns match the names of nodectl's source files; 4 and above logs their debug messages"),
		setsUnlessZero("logging.options.text.splitStream", ofBool, "log-split-stream").convertedBy(splitIn("text")).noted("used with the format text; the gate LoggingAlphaOptions is not needed"),
		noEffect("logging.options.text.infoBufferSize", ofAny, false, "nodectl writes every line immediately"),
		setsUnlessZero("logging.options.json.splitStream", ofBool, "log-split-stream").convertedBy(splitIn("json")).noted("used with the format json; the gate LoggingAlphaOptions is not needed"),
		noEffect("logging.options.json.infoBufferSize", ofAny, false, "nodectl writes every line immediately"),
		sets("enableSystemLogHandler", ofBool, "enable-system-log-handler").noted("the default here is false"),
		sets("enableSystemLogQuery", ofBool, "enable-system-log-query"),
		setsUnlessZero("shutdownGracePeriod", ofDuration, "shutdown-grace-period").conflicting(needsGate(gateShutdown)).noted("refused if the gate GracefulNodeShutdown is off"),
		setsUnlessZero("shutdownGracePeriodCriticalPods", ofDuration, "shutdown-grace-period-critical-pods").conflicting(needsGate(gateShutdown)).noted("refused if the gate GracefulNodeShutdown is off"),
		sets("shutdownGracePeriodByPodPriority", ofPriorities, "shutdown-grace-period-by-pod-priority").convertedBy(shutdownPriorities).conflicting(needsGate(gateShutdownPriority)).
			noted("refused if the gate GracefulNodeShutdownBasedOnPodPriority is off; without effect if GracefulNodeShutdown is off"),
		sets("crashLoopBackOff.maxContainerRestartPeriod", ofDuration, "max-container-restart-period").conflicting(needsGate(gateRestartPeriod)).noted("refused if the gate KubeletCrashLoopBackOffMax is off"),
		sets("reservedMemory", ofReservations, "reserved-memory"),
		sets("enableProfilingHandler", ofBool, "enable-profiling-handler").noted("the default here is false; the socket always has the profiles"),
		sets("enableDebugFlagsHandler", ofBool, "enable-debug-flags-handler").noted("the default here is false; the socket can always change the log level"),
		unsupported("seccompDefault", ofBool, "nodectl acts as if it were true, which is the safer value: a container that names no profile gets the runtime's. A pod that needs no profile names Unconfined", "true"),
		sets("memoryThrottlingFactor", ofFraction, "memory-throttling-factor").noted("needs the gate MemoryQoS and cgroup v2"),
		setsUnlessZero("memoryReservationPolicy", ofString, "memory-reservation-policy").noted("TieredReservation needs the gate MemoryQoS; it has an effect on cgroup v2"),
		sets("registerWithTaints", ofTaints, "register-with-taints"),
		sets("registerNode", ofBool, "register-node"),
		unsupported("tracing", ofAny, "nodectl has no tracing: OpenTelemetry's exporters would be a large part of the binary. `nodectl why`, events and metrics show what a pod waits for, and how long steps take"),
		sets("localStorageCapacityIsolation", ofBool, "local-storage-capacity-isolation"),
		setsUnlessZero("containerRuntimeEndpoint", ofString, "runtime-endpoint"),
		setsUnlessZero("imageServiceEndpoint", ofString, "image-service-endpoint"),
		sets("failCgroupV1", ofBool, "fail-cgroup-v1").noted("if it is not set, nodectl only warns about cgroup v1"),
		sets("userNamespaces.idsPerPod", ofNumber, "user-namespaces-ids-per-pod"),
	}
}
