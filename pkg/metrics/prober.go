package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodectl/nodectl/pkg/pod"
)

// prober holds the metrics of probes; unlike all others they have the names of pods.
type prober struct {
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

func newProber(r *prometheus.Registry, began time.Time) prober {
	gauge(r, "process_start_time_seconds", "Start time of the process since unix epoch in seconds.").Set(float64(began.UnixMilli()) / 1000)
	return prober{
		total: counters(r, "prober_probe_total", "Cumulative number of a liveness, readiness or startup probe for a container by result.",
			"probe_type", "result", "container", "pod", "namespace", "pod_uid"),
		took: histograms(r, "prober_probe_duration_seconds", "Duration in seconds for a probe response.", prometheus.DefBuckets,
			"probe_type", "container", "pod", "namespace"),
	}
}

// Prober is the engine's prober.
type Prober interface {
	Probe(ctx context.Context, r pod.ProbeRequest) error
	Hook(ctx context.Context, r pod.HookRequest) error
}

// Prober returns next with its probes counted for /metrics/probes: those of containers in
// pods that have a reported status and were not removed.
func (m *Metrics) Prober(next Prober) Prober { return counted{next, m} }

type counted struct {
	Prober
	m *Metrics
}

// Probe runs a probe and counts its result.
func (c counted) Probe(ctx context.Context, r pod.ProbeRequest) error {
	began := time.Now()
	err := c.Prober.Probe(ctx, r)
	if ctx.Err() != nil {
		return err // the caller has left
	}
	var no *pod.ProbeFailure
	var but *pod.ProbeWarning
	result := "unknown"
	switch {
	case err == nil, errors.As(err, &but):
		result = "successful"
	case errors.As(err, &no):
		result = "failed"
	}
	c.m.pods.probed(r.ContainerID, func(p podName, container string) {
		kind := kindOf(r)
		c.m.prober.total.WithLabelValues(kind, result, container, p.name, p.namespace, p.uid).Inc()
		if result != "failed" { // as in the kubelet
			c.m.prober.took.WithLabelValues(kind, container, p.name, p.namespace).Observe(time.Since(began).Seconds())
		}
	})
	return err
}

// kindOf is the kind of probe of a request.
func kindOf(r pod.ProbeRequest) string {
	if c := r.Container; c != nil {
		switch r.Probe {
		case c.LivenessProbe:
			return "Liveness"
		case c.ReadinessProbe:
			return "Readiness"
		case c.StartupProbe:
			return "Startup"
		}
	}
	return "Unknown"
}

// forget removes the series of a removed pod.
func (p prober) forget(of podName) {
	p.total.DeletePartialMatch(prometheus.Labels{"pod": of.name, "namespace": of.namespace, "pod_uid": of.uid})
	p.took.DeletePartialMatch(prometheus.Labels{"pod": of.name, "namespace": of.namespace})
}
