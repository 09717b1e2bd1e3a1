package config

// KubeletAliases returns the kubelet's flags whose settings have another name in nodectl.
func KubeletAliases() map[string]string {
	return map[string]string{
		"hostname-override":          "node-name",
		"container-runtime-endpoint": "runtime-endpoint",
		"pod-manifest-path":          "filename",
		"manifest-url":               "filename",
		"pod-max-pids":               "pod-pids-limit",
	}
}

// KubeletFieldFlags returns the kubelet's flags that set a field of its configuration.
func KubeletFieldFlags() map[string]string {
	return map[string]string{
		"enable-server": "enableServer", "read-only-port": "readOnlyPort",
		"anonymous-auth": "authentication.anonymous.enabled", "authentication-token-webhook": "authentication.webhook.enabled",
		"authorization-mode": "authorization.mode",

		"feature-gates":   "featureGates",
		"kubelet-cgroups": "kubeletCgroups", "system-cgroups": "systemCgroups", "cgroups-per-qos": "cgroupsPerQOS", "cgroup-driver": "cgroupDriver",
		"cpu-manager-reconcile-period": "cpuManagerReconcilePeriod", "qos-reserved": "qosReserved",
		"hairpin-mode": "hairpinMode", "kube-api-content-type": "contentType",
		"serialize-image-pulls":           "serializeImagePulls",
		"enable-controller-attach-detach": "enableControllerAttachDetach", "make-iptables-util-chains": "makeIPTablesUtilChains",
		"iptables-masquerade-bit": "iptablesMasqueradeBit", "iptables-drop-bit": "iptablesDropBit",
		"volume-plugin-dir": "volumePluginDir", "seccomp-default": "seccompDefault",
		"show-hidden-metrics-for-version": "showHiddenMetricsForVersion", "runonce": "runOnce",
		"v": "logging.verbosity", "log-flush-frequency": "logging.flushFrequency",
		"log-text-split-stream": "logging.options.text.splitStream", "log-text-info-buffer-size": "logging.options.text.infoBufferSize",
		"log-json-split-stream": "logging.options.json.splitStream", "log-json-info-buffer-size": "logging.options.json.infoBufferSize",
	}
}

// KubeletIdleFlags returns the kubelet's flags that nodectl accepts and ignores, with the reasons.
func KubeletIdleFlags() map[string]string {
	const gone, collected, cadvisor, logs = "current kubelets do not have it", "nodectl has its own rules for removing exited containers", "nodectl has no cAdvisor", "nodectl logs to standard error"
	return map[string]string{
		"pod-infra-container-image": "the runtime chooses it", "runtime-cgroups": "set it in the runtime's unit file", "cloud-config": gone,
		"lock-file": "nodectl locks the root directory", "exit-on-lock-contention": "nodectl locks the root directory",
		"minimum-container-ttl-duration": collected, "maximum-dead-containers": collected, "maximum-dead-containers-per-container": collected,
		"keep-terminated-pod-volumes": gone, "register-schedulable": "use --register-with-taints", "really-crash-for-testing": "it is for tests only",
		"experimental-allocatable-ignore-eviction": "in a cluster, what eviction thresholds keep back is never allocatable", "experimental-mounter-path": gone,
		"housekeeping-interval": cadvisor, "global-housekeeping-interval": cadvisor, "container-hints": cadvisor, "log-cadvisor-usage": cadvisor,
		"boot-id-file": cadvisor, "machine-id-file": cadvisor, "enable-load-reader": cadvisor, "event-storage-age-limit": cadvisor,
		"event-storage-event-limit": cadvisor, "application-metrics-count-limit": cadvisor,
		"alsologtostderr": logs, "logtostderr": logs, "log-dir": logs, "log-file": logs, "log-file-max-size": logs, "stderrthreshold": logs,
	}
}

// KubeletGoneFlags returns flags of old kubelets that newer kubelets do not have.
func KubeletGoneFlags() []string {
	return []string{"network-plugin", "network-plugin-mtu", "cni-bin-dir", "cni-conf-dir", "cni-cache-dir", "docker-endpoint", "image-pull-progress-deadline",
		"non-masquerade-cidr", "cadvisor-port", "allow-privileged", "dynamic-config-dir", "bootstrap-checkpoint-path", "experimental-bootstrap-kubeconfig", "api-servers"}
}

// KubeletSwitches returns those of these flags that take no value.
func KubeletSwitches() []string {
	return []string{"enable-server", "anonymous-auth", "authentication-token-webhook", "cgroups-per-qos",
		"serialize-image-pulls", "enable-controller-attach-detach", "make-iptables-util-chains", "seccomp-default",
		"runonce", "exit-on-lock-contention", "keep-terminated-pod-volumes", "register-schedulable", "really-crash-for-testing",
		"experimental-allocatable-ignore-eviction", "log-cadvisor-usage", "enable-load-reader", "alsologtostderr", "logtostderr", "log-json-split-stream", "log-text-split-stream"}
}
