package cmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/config"
)

// kubeletName is the name that makes nodectl the kubelet of a unit file.
const kubeletName = "kubelet"

// asKubelet turns a call by the kubelet's name into one of serve. It answers --version,
// which kubeadm calls, as the kubelet does.
func (p *program) asKubelet(name string, args []string) []string {
	if filepath.Base(name) != kubeletName {
		return args
	}
	p.named = map[string]any{
		"cert-dir":     "/var/lib/kubelet/pki", // the kubelet's, so that one can switch back
		"healthz-port": "10248",
	}
	if slices.Contains(args, "--version") || slices.Contains(args, "--version=true") {
		return []string{"version", "--of-kubernetes"}
	}
	return append([]string{"serve"}, args...)
}

// kubernetesVersion returns the version of Kubernetes that this binary implements: that of
// its libraries, whose v0.x.y belongs to Kubernetes v1.x.y.
func kubernetesVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if rest, ok := strings.CutPrefix(m.Version, "v0."); ok && m.Path == "k8s.io/api" {
				return "v1." + rest
			}
		}
	}
	return "v1.36.0"
}

// kubeletAliases are the kubelet's flags for settings that have another name here.
func kubeletAliases() map[string]string {
	return map[string]string{
		"hostname-override":          "node-name",
		"container-runtime-endpoint": "runtime-endpoint",
		"pod-manifest-path":          "filename",
		"manifest-url":               "filename",
		"pod-max-pids":               "pod-pids-limit",
	}
}

// kubeletFieldFlags are the kubelet's flags that set a field of its configuration.
func kubeletFieldFlags() map[string]string {
	return map[string]string{
		"enable-server": "enableServer", "read-only-port": "readOnlyPort",
		"anonymous-auth": "authentication.anonymous.enabled", "authentication-token-webhook": "authentication.webhook.enabled",
		"authorization-mode": "authorization.mode",
		"registry-qps":       "registryPullQPS", "registry-burst": "registryBurst", "contention-profiling": "enableContentionProfiling",
		"oom-score-adj": "oomScoreAdj", "minimum-image-ttl-duration": "imageMinimumGCAge", "image-gc-high-threshold": "imageGCHighThresholdPercent",
		"image-gc-low-threshold": "imageGCLowThresholdPercent", "volume-stats-agg-period": "volumeStatsAggPeriod", "feature-gates": "featureGates",
		"kubelet-cgroups": "kubeletCgroups", "system-cgroups": "systemCgroups", "cgroups-per-qos": "cgroupsPerQOS", "cgroup-driver": "cgroupDriver",
		"cpu-manager-policy": "cpuManagerPolicy", "cpu-manager-policy-options": "cpuManagerPolicyOptions", "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod",
		"memory-manager-policy": "memoryManagerPolicy", "reserved-memory": "reservedMemory", "topology-manager-policy": "topologyManagerPolicy",
		"topology-manager-policy-options": "topologyManagerPolicyOptions", "topology-manager-scope": "topologyManagerScope", "qos-reserved": "qosReserved",
		"runtime-request-timeout": "runtimeRequestTimeout", "hairpin-mode": "hairpinMode", "cpu-cfs-quota": "cpuCFSQuota", "cpu-cfs-quota-period": "cpuCFSQuotaPeriod",
		"node-status-max-images": "nodeStatusMaxImages", "max-open-files": "maxOpenFiles", "kube-api-content-type": "contentType",
		"serialize-image-pulls": "serializeImagePulls", "eviction-soft": "evictionSoft", "eviction-soft-grace-period": "evictionSoftGracePeriod",
		"eviction-max-pod-grace-period": "evictionMaxPodGracePeriod", "eviction-minimum-reclaim": "evictionMinimumReclaim", "pods-per-core": "podsPerCore",
		"enable-controller-attach-detach": "enableControllerAttachDetach", "make-iptables-util-chains": "makeIPTablesUtilChains",
		"iptables-masquerade-bit": "iptablesMasqueradeBit", "iptables-drop-bit": "iptablesDropBit", "reserved-cpus": "reservedSystemCPUs",
		"system-reserved-cgroup": "systemReservedCgroup", "kube-reserved-cgroup": "kubeReservedCgroup", "enforce-node-allocatable": "enforceNodeAllocatable",
		"volume-plugin-dir": "volumePluginDir", "kernel-memcg-notification": "kernelMemcgNotification", "seccomp-default": "seccompDefault",
		"local-storage-capacity-isolation": "localStorageCapacityIsolation", "image-service-endpoint": "imageServiceEndpoint",
		"show-hidden-metrics-for-version": "showHiddenMetricsForVersion", "runonce": "runOnce",
		"v": "logging.verbosity", "vmodule": "logging.vmodule", "logging-format": "logging.format", "log-flush-frequency": "logging.flushFrequency",
	}
}

// kubeletIdleFlags are the kubelet's flags without a field that nodectl ignores, with the
// reasons.
func kubeletIdleFlags() map[string]string {
	const gone, collected, cadvisor, logs = "the kubelet has none any more", "what ends is collected by rules of nodectl's own", "there is no cAdvisor here", "logs go to standard error"
	return map[string]string{
		"pod-infra-container-image": "the runtime chooses it", "runtime-cgroups": "the runtime's unit places it", "cloud-config": gone,
		"lock-file": "the root directory is locked", "exit-on-lock-contention": "the root directory is locked",
		"minimum-container-ttl-duration": collected, "maximum-dead-containers": collected, "maximum-dead-containers-per-container": collected,
		"keep-terminated-pod-volumes": gone, "register-schedulable": "use --register-with-taints", "really-crash-for-testing": "it is not for running",
		"experimental-allocatable-ignore-eviction": "nothing is evicted yet", "experimental-mounter-path": gone,
		"housekeeping-interval": cadvisor, "global-housekeeping-interval": cadvisor, "container-hints": cadvisor, "log-cadvisor-usage": cadvisor,
		"boot-id-file": cadvisor, "machine-id-file": cadvisor, "enable-load-reader": cadvisor, "event-storage-age-limit": cadvisor,
		"event-storage-event-limit": cadvisor, "application-metrics-count-limit": cadvisor,
		"alsologtostderr": logs, "logtostderr": logs, "log-dir": logs, "log-file": logs, "log-file-max-size": logs, "stderrthreshold": logs,
		"log-json-info-buffer-size": logs, "log-json-split-stream": logs, "log-text-info-buffer-size": logs, "log-text-split-stream": logs,
	}
}

// kubeletGoneFlags are flags of old kubelets that newer ones have removed.
func kubeletGoneFlags() []string {
	return []string{"network-plugin", "network-plugin-mtu", "cni-bin-dir", "cni-conf-dir", "cni-cache-dir", "docker-endpoint", "image-pull-progress-deadline",
		"non-masquerade-cidr", "cadvisor-port", "allow-privileged", "dynamic-config-dir", "bootstrap-checkpoint-path", "experimental-bootstrap-kubeconfig", "api-servers"}
}

// kubeletFlags defines the kubelet's flags that nodectl itself does not have. They are
// hidden: they are for unit files.
func kubeletFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	truths := []string{"enable-server", "anonymous-auth", "authentication-token-webhook", "contention-profiling", "cgroups-per-qos", "cpu-cfs-quota",
		"serialize-image-pulls", "enable-controller-attach-detach", "make-iptables-util-chains", "kernel-memcg-notification", "seccomp-default",
		"local-storage-capacity-isolation", "runonce", "exit-on-lock-contention", "keep-terminated-pod-volumes", "register-schedulable", "really-crash-for-testing",
		"experimental-allocatable-ignore-eviction", "log-cadvisor-usage", "enable-load-reader", "alsologtostderr", "logtostderr", "log-json-split-stream", "log-text-split-stream"}
	add := func(name, usage string) {
		short := ""
		if name == "v" {
			short = "v"
		}
		f.StringP(name, short, "", usage)
		if slices.Contains(truths, name) {
			f.Lookup(name).NoOptDefVal = "true"
		}
		f.Lookup(name).Hidden = true
	}
	for name, field := range kubeletFieldFlags() {
		add(name, "as "+field+" of a KubeletConfiguration")
	}
	for name, why := range kubeletIdleFlags() {
		add(name, "does nothing: "+why)
	}
	add("container-runtime", "remote")
	add("cloud-provider", "external: the node waits for its cloud, which sets its addresses")
	return f
}

// addKubeletFlags adds the kubelet's flags to a command.
func (p *program) addKubeletFlags(cmd *cobra.Command) { cmd.Flags().AddFlagSet(p.kubeletFlags) }

// kubeletFields returns the fields that the kubelet's flags set.
func (p *program) kubeletFields() (all []config.Given) {
	fields := kubeletFieldFlags()
	p.kubeletFlags.VisitAll(func(f *pflag.Flag) {
		if path, ok := fields[f.Name]; ok && f.Changed {
			all = append(all, config.Given{Path: path, Text: f.Value.String(), By: "--" + f.Name})
		}
	})
	return all
}

// applyKubeletFlags applies the kubelet's flags that are not fields.
func (p *program) applyKubeletFlags(cfg *config.Config) error {
	idle := kubeletIdleFlags()
	p.kubeletFlags.VisitAll(func(f *pflag.Flag) {
		if why, ok := idle[f.Name]; ok && f.Changed {
			p.kubelet.Ignored = append(p.kubelet.Ignored, "--"+f.Name+" ("+why+")")
		}
	})
	if f := p.kubeletFlags.Lookup("container-runtime"); f.Changed && f.Value.String() != "remote" {
		return fmt.Errorf("--container-runtime: %q is gone; --runtime-endpoint names a runtime's socket", f.Value.String())
	}
	switch f := p.kubeletFlags.Lookup("cloud-provider"); f.Value.String() {
	case "":
	case "external":
		const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"
		cfg.RegisterWithTaints = append(slices.Clone(cfg.RegisterWithTaints), uninitialized)
	default:
		return errors.New("--cloud-provider: only external is left")
	}
	return nil
}

// externalCloud reports whether a cloud controller sets the node's addresses.
func (p *program) externalCloud() bool {
	return p.kubeletFlags.Lookup("cloud-provider").Value.String() == "external"
}

// kubeletNotices returns the notices about a KubeletConfiguration.
func (p *program) kubeletNotices() (all []string) {
	if n := p.kubelet.Unknown; len(n) > 0 {
		all = append(all, "no fields of a KubeletConfiguration, and ignored: "+strings.Join(n, ", "))
	}
	if n := p.kubelet.Ignored; len(n) > 0 {
		all = append(all, "set for the kubelet, and not done here yet: "+strings.Join(n, ", "))
	}
	return all
}
