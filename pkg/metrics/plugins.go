package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// plugins are the metrics of device plugins, by resource.
type plugins struct {
	registered *prometheus.CounterVec
	allocated  *prometheus.HistogramVec
}

func newPlugins(r *prometheus.Registry) plugins {
	const resource = "resource_name"
	return plugins{
		registered: counters(r, "kubelet_device_plugin_registration_total", "Cumulative number of device plugin registrations. Broken down by resource name.", resource),
		allocated: histograms(r, "kubelet_device_plugin_alloc_duration_seconds", "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
			prometheus.DefBuckets, resource),
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
