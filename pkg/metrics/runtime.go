package metrics

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// operations maps CRI calls to the kubelet's names.
var operations = map[string]string{
	"Version": "version", "Status": "status", "RuntimeConfig": "runtime_config", "UpdateRuntimeConfig": "update_runtime_config",
	"CreateContainer": "create_container", "StartContainer": "start_container", "StopContainer": "stop_container",
	"RemoveContainer": "remove_container", "ListContainers": "list_containers", "ContainerStatus": "container_status",
	"UpdateContainerResources": "update_container", "ReopenContainerLog": "reopen_container_log",
	"CheckpointContainer": "checkpoint_container", "ExecSync": "exec_sync", "Exec": "exec", "Attach": "attach",
	"PortForward": "port_forward", "RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox",
	"RemovePodSandbox": "remove_podsandbox", "PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
	"UpdatePodSandboxResources": "update_podsandbox_resources", "ContainerStats": "container_stats",
	"ListContainerStats": "list_container_stats", "PodSandboxStats": "podsandbox_stats", "ListPodSandboxStats": "list_podsandbox_stats",
	"ListImages": "list_images", "ImageStatus": "image_status", "PullImage": "pull_image", "RemoveImage": "remove_image",
	"ImageFsInfo": "image_fs_info",
}

// calls holds the metrics of calls to the container runtime.
type calls struct {
	total, errors *prometheus.CounterVec
	took          *prometheus.HistogramVec
	sandboxes     *prometheus.HistogramVec
	refused       *prometheus.CounterVec
	pods, broken  prometheus.Counter
	namespaced    namespaced
}

// namespaced counts pods with a user namespace of their own (hostUsers: false).
type namespaced struct{ started, failed prometheus.Counter }

func newNamespaced(r *prometheus.Registry) namespaced {
	return namespaced{
		started: counter(r, "kubelet_started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux."),
		failed:  counter(r, "kubelet_started_user_namespaced_pods_errors_total", "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux."),
	}
}

func newCalls(r *prometheus.Registry, n namespaced) calls {
	return calls{
		total: counters(r, "kubelet_runtime_operations_total", "Cumulative number of runtime operations by operation type.", "operation_type"),
		took: histograms(r, "kubelet_runtime_operations_duration_seconds", "Duration in seconds of runtime operations. Broken down by operation type.",
			prometheus.ExponentialBuckets(.005, 2.5, 14), "operation_type"),
		errors: counters(r, "kubelet_runtime_operations_errors_total", "Cumulative number of runtime operation errors by operation type.", "operation_type"),
		sandboxes: histograms(r, "kubelet_run_podsandbox_duration_seconds", "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
			prometheus.DefBuckets, "runtime_handler"),
		refused:    counters(r, "kubelet_run_podsandbox_errors_total", "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler"),
		pods:       counter(r, "kubelet_started_pods_total", "Cumulative number of pods started"),
		broken:     counter(r, "kubelet_started_pods_errors_total", "Cumulative number of errors when starting pods"),
		namespaced: n,
	}
}

// Call counts a finished call to the runtime: its name in CRI, the runtime handler of a
// RunPodSandbox and whether it has a user namespace, its duration, and its error. Each
// sandbox counts as a pod start, as in the kubelet.
func (m *Metrics) Call(method, handler string, userNamespace bool, took time.Duration, err error) {
	name := cmp.Or(operations[method], "other")
	m.calls.total.WithLabelValues(name).Inc()
	m.calls.took.WithLabelValues(name).Observe(took.Seconds())
	if err != nil {
		m.calls.errors.WithLabelValues(name).Inc()
	}
	if method != "RunPodSandbox" {
		return
	}
	m.calls.pods.Inc()
	if userNamespace {
		m.calls.namespaced.started.Inc()
		if err != nil {
			m.calls.namespaced.failed.Inc()
		}
	}
	m.calls.sandboxes.WithLabelValues(handler).Observe(took.Seconds())
	if err != nil {
		m.calls.broken.Inc()
		m.calls.refused.WithLabelValues(handler).Inc()
	}
}

// lists holds the metrics of PLEG's relists.
type lists struct {
	took, since prometheus.Histogram
	seen        prometheus.Gauge
}

func newLists(r *prometheus.Registry) lists {
	l := lists{
		took:  histogram(r, "kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", prometheus.DefBuckets),
		since: histogram(r, "kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", prometheus.DefBuckets),
		seen:  gauge(r, "kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active."),
	}
	counter(r, "kubelet_pleg_discard_events", "The number of discard events in PLEG.") // always 0: hints are never dropped
	return l
}

// Relist counts a finished relist of PLEG: its duration, the time since the start of the
// one before (0 for the first), and its error.
func (m *Metrics) Relist(took, since time.Duration, err error) {
	m.lists.took.Observe(took.Seconds())
	if since > 0 {
		m.lists.since.Observe(since.Seconds())
	}
	if err == nil {
		m.lists.seen.Set(float64(time.Now().Unix()))
	}
}

// Pulled counts a successful pull, and the size of its image in bytes.
func (m *Metrics) Pulled(took time.Duration, size uint64) {
	m.images.WithLabelValues(sizeClass(size)).Observe(took.Seconds())
}

// ImageCollected counts an image that was removed as garbage: for its age, or for space.
func (m *Metrics) ImageCollected(reason string) { m.removed.WithLabelValues(reason).Inc() }

// sizeClass is the kubelet's label for the size of an image.
func sizeClass(size uint64) string {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		from uint64
		name string
	}{
		{100 * gib, "GT100GB"}, {60 * gib, "60GB-100GB"}, {40 * gib, "40GB-60GB"}, {30 * gib, "30GB-40GB"}, {20 * gib, "20GB-30GB"},
		{10 * gib, "10GB-20GB"}, {5 * gib, "5GB-10GB"}, {gib, "1GB-5GB"}, {500 * mib, "500MB-1GB"}, {100 * mib, "100MB-500MB"},
		{10 * mib, "10MB-100MB"},
	} {
		if size >= c.from {
			return c.name
		}
	}
	return "0-10MB"
}

// workers holds the metrics of the pods' workers.
type workers struct {
	turns  *prometheus.HistogramVec
	starts prometheus.Histogram
	synced prometheus.Histogram
}

func newWorkers(r *prometheus.Registry) workers {
	return workers{
		turns: histograms(r, "kubelet_pod_worker_duration_seconds",
			"Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", prometheus.DefBuckets, "operation_type"),
		starts: histogram(r, "kubelet_pod_worker_start_duration_seconds",
			"Duration in seconds from kubelet seeing a pod to starting a worker.", prometheus.DefBuckets),
		synced: histogram(r, "kubelet_pod_status_sync_duration_seconds",
			"Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
			[]float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60}),
	}
}

// PodWorkerDuration records how long a pod's worker took for the steps of one plan; operation is
// create, sync or kill.
func (m *Metrics) PodWorkerDuration(operation string, took time.Duration) {
	m.workers.turns.WithLabelValues(operation).Observe(took.Seconds())
}

// WorkerStarted records the time from when a pod was first seen until its worker started.
func (m *Metrics) WorkerStarted(took time.Duration) { m.workers.starts.Observe(took.Seconds()) }

// StatusSynced records the time from a status change until the API server had it.
func (m *Metrics) StatusSynced(took time.Duration) { m.workers.synced.Observe(took.Seconds()) }

// Cgroup counts a finished operation on a pod's cgroup: create, update or destroy.
func (m *Metrics) Cgroup(operation string, took time.Duration) {
	m.groups.WithLabelValues(operation).Observe(took.Seconds())
}
