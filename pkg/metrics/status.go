package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kubelet's names for kinds of containers.
const (
	kindContainer = "container"
	kindInit      = "init_container"
	kindEphemeral = "ephemeral_container"
)

// each calls f for every container of a status.
func each(s *v1.PodStatus, f func(kind string, c *v1.ContainerStatus)) {
	for _, list := range []struct {
		kind string
		of   []v1.ContainerStatus
	}{{kindInit, s.InitContainerStatuses}, {kindContainer, s.ContainerStatuses}, {kindEphemeral, s.EphemeralContainerStatuses}} {
		for i := range list.of {
			f(list.kind, &list.of[i])
		}
	}
}

// kindOfPath is the kind of a container by its field path.
func kindOfPath(path string) string {
	switch {
	case strings.HasPrefix(path, "spec.initContainers"):
		return kindInit
	case strings.HasPrefix(path, "spec.ephemeralContainers"):
		return kindEphemeral
	}
	return kindContainer
}

// startErrors are the waiting reasons that are errors (C-1.22.9).
var startErrors = map[string]bool{
	"CreateContainerConfigError": true, "CreateContainerError": true, "RunContainerError": true, "PreCreateHookError": true,
	"PreStartHookError": true, "PostStartHookError": true, "ErrImagePull": true, "ErrImageNeverPull": true, "ImageInspectError": true,
	"InvalidImageName": true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
}

// ending is the label for a container's termination reason: runtimes use a few reasons, and
// all others share one label.
func ending(reason string) string {
	switch reason {
	case "Completed", "Error", "OOMKilled", "ContainerCannotRun", "ContainerStatusUnknown", "StartError", "Unknown", "":
		return reason
	}
	return "Other"
}

// rejections are the kubelet's reasons of admission; others get one of two more labels.
var rejections = map[string]bool{
	"AppArmor": true, "PodOSSelectorNodeLabelDoesNotMatch": true, "PodOSNotSupported": true, "InvalidNodeInfo": true,
	"InitContainerRestartPolicyForbidden": true, "SupplementalGroupsPolicyNotSupported": true, "UnexpectedAdmissionError": true,
	"UnknownReason": true, "UnexpectedPredicateFailureType": true, "OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true,
	"OutOfpods": true, "PodLevelResourcesNotSupported": true, "PodFeatureUnsupported": true, "TaintToleration": true, "NodeAffinity": true,
	"NodeName": true, "NodePorts": true, "SysctlForbidden": true, "TopologyAffinityError": true, "NodeShutdown": true,
	"VolumeAttachmentLimitExceeded": true,
}

func rejection(reason string) string {
	switch {
	case rejections[reason]:
		return reason
	case strings.HasPrefix(reason, "OutOf"):
		return "OutOfExtendedResources"
	}
	return "Other"
}

// signal is the kubelet's label for the cause of an eviction.
func signal(message string) string {
	switch {
	case strings.Contains(message, "EmptyDir volume"):
		return "emptydirfs.limit"
	case strings.Contains(message, "Container "):
		return "ephemeralcontainerfs.limit"
	case strings.Contains(message, "ephemeral local storage"):
		return "ephemeralpodfs.limit"
	}
	return "other"
}

// allStarted reports whether every regular container of the pod has been started.
func allStarted(s *v1.PodStatus) bool {
	for i := range s.ContainerStatuses {
		if c := &s.ContainerStatuses[i]; c.State.Running == nil && c.State.Terminated == nil {
			return false
		}
	}
	return len(s.ContainerStatuses) > 0
}

// anyMade reports whether any container was ever created.
func anyMade(s *v1.PodStatus) bool {
	made := false
	each(s, func(_ string, c *v1.ContainerStatus) { made = made || c.ContainerID != "" })
	return made
}

// running reports whether a pod has a running sandbox.
func running(s *v1.PodStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == v1.PodReadyToStartContainers {
			return c.Status == v1.ConditionTrue
		}
	}
	up := false
	each(s, func(_ string, c *v1.ContainerStatus) { up = up || c.State.Running != nil })
	return up
}

// tally is the present counts.
type tally struct {
	pods, ephemeral int
	containers      map[string]int // by state
	desired, active map[bool]int   // by static
	working         map[workKind]int
	resizing        int
	pending         map[string]int // waiting resizes, by reason
	volumes         map[volumeKind]int
}

// workKind is a series of kubelet_working_pods.
type workKind struct{ config, lifecycle, static string }

func (p *pods) tally() tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := tally{containers: map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}, desired: map[bool]int{}, active: map[bool]int{}, working: map[workKind]int{}, pending: map[string]int{}, volumes: map[volumeKind]int{}}
	for _, s := range p.known {
		status := &s.pod.Status
		if running(status) {
			t.pods++
		}
		t.ephemeral += len(s.pod.Spec.EphemeralContainers)
		each(status, func(_ string, c *v1.ContainerStatus) {
			switch {
			case c.State.Running != nil:
				t.containers["running"]++
			case c.State.Terminated != nil || c.LastTerminationState.Terminated != nil:
				t.containers["exited"]++
			}
		})
		lifecycle := "sync"
		switch over := pod.IsPhaseTerminal(status.Phase); {
		case s.finished:
			lifecycle = "terminated"
		case s.pod.DeletionTimestamp != nil || over || s.notDesired:
			lifecycle = "terminating"
		}
		kind := workKind{"desired", lifecycle, staticWord(s.static)}
		if s.notDesired {
			kind.config = "orphan"
		} else {
			t.desired[s.static]++
		}
		if lifecycle == "sync" {
			t.active[s.static]++
			count(t.volumes, "desired_state_of_world", s.pod)
		}
		if running(status) {
			count(t.volumes, "actual_state_of_world", s.pod)
		}
		t.working[kind]++
		for _, c := range status.Conditions {
			switch {
			case c.Status != v1.ConditionTrue:
			case c.Type == v1.PodResizeInProgress:
				t.resizing++
			case c.Type == v1.PodResizePending && c.Reason == v1.PodReasonDeferred:
				t.pending["deferred"]++
			case c.Type == v1.PodResizePending && c.Reason == v1.PodReasonInfeasible:
				t.pending["infeasible"]++
			}
		}
	}
	return t
}

// Describe implements prometheus.Collector.
func (p *pods) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector: it sends the values that exist at any moment.
func (p *pods) Collect(out chan<- prometheus.Metric) {
	t := p.tally()
	put := func(name, help string, value int, labels ...string) {
		names, values := []string{}, []string{}
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), prometheus.GaugeValue, float64(value), values...)
	}
	put("kubelet_running_pods", "Number of pods that have a running pod sandbox", t.pods)
	for state, n := range t.containers {
		put("kubelet_running_containers", "Number of containers currently running", n, "container_state", state)
	}
	put("kubelet_managed_ephemeral_containers", "Current number of ephemeral containers in pods managed by this kubelet.", t.ephemeral)
	put("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.", t.resizing)
	for reason, n := range t.pending {
		put("kubelet_pod_pending_resizes", "Number of pending resizes for pods.", n, "reason", reason)
	}
	for kind, n := range t.volumes {
		put("volume_manager_total_volumes", "Number of volumes in Volume Manager", n, "plugin_name", kind.plugin, "state", kind.state)
	}
	for _, static := range []bool{true, false} {
		word := staticWord(static)
		put("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
			t.desired[static], "static", word)
		put("kubelet_active_pods", "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
			t.active[static], "static", word)
	}
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		// A pod that only the runtime has gets a worker, and no source desires it: an
		// orphan.
		for _, kind := range []workKind{{"desired", lifecycle, ""}, {"desired", lifecycle, "true"}, {"orphan", lifecycle, ""}, {"orphan", lifecycle, "true"}, {"runtime_only", lifecycle, "unknown"}} {
			put("kubelet_working_pods", "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
				t.working[kind], "config", kind.config, "lifecycle", kind.lifecycle, "static", kind.static)
		}
	}
}

// staticWord is the kubelet's value of the label static.
func staticWord(static bool) string {
	if static {
		return "true"
	}
	return ""
}
