package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// plugins are the metrics of device plugins, by resource, and of requests for pod resources.
type plugins struct {
	registered *prometheus.CounterVec
	allocated  *prometheus.HistogramVec
	requests   *prometheus.CounterVec
	asked      map[string]*prometheus.CounterVec // by method
	failed     map[string]*prometheus.CounterVec // by method
}

func newPlugins(r *prometheus.Registry) plugins {
	const resource, version = "resource_name", "server_api_version"
	p := plugins{
		registered: counters(r, "kubelet_device_plugin_registration_total", "Cumulative number of device plugin registrations. Broken down by resource name.", resource),
		allocated: histograms(r, "kubelet_device_plugin_alloc_duration_seconds", "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
			prometheus.DefBuckets, resource),
		requests: counters(r, "kubelet_pod_resources_endpoint_requests_total", "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.", version),
		asked:    make(map[string]*prometheus.CounterVec), failed: make(map[string]*prometheus.CounterVec),
	}
	for method, name := range map[string]string{"list": "List", "get": "Get", "get_allocatable": "GetAllocatableResources"} {
		p.asked[method] = counters(r, "kubelet_pod_resources_endpoint_requests_"+method, "Number of requests to the PodResource "+name+" endpoint. Broken down by server api version.", version)
		p.failed[method] = counters(r, "kubelet_pod_resources_endpoint_errors_"+method, "Number of requests to the PodResource "+name+" endpoint which returned error. Broken down by server api version.", version)
	}
	return p
}

// PodResourcesRequested counts a request for pod resources. Like the kubelet, it counts those of
// version v1alpha1 without their method.
func (m *Metrics) PodResourcesRequested(version, method string, failed bool) {
	m.plugins.requests.WithLabelValues(version).Inc()
	if version != "v1" {
		return
	}
	m.plugins.asked[method].WithLabelValues(version).Inc()
	if failed {
		m.plugins.failed[method].WithLabelValues(version).Inc()
	}
}

// PluginRegistered counts the registration of a device plugin.
func (m *Metrics) PluginRegistered(resource string) {
	m.plugins.registered.WithLabelValues(resource).Inc()
}

// DevicesAllocated records how long a device plugin took to allocate devices.
func (m *Metrics) DevicesAllocated(resource string, took time.Duration) {
	m.plugins.allocated.WithLabelValues(resource).Observe(took.Seconds())
}
