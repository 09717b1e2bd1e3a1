package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodectl/nodectl/pkg/pod"
)

// prober are the numbers of probes; unlike all others they carry the names of pods.
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

// Prober is what an engine probes through.
type Prober interface {
	Probe(ctx context.Context, r pod.ProbeRequest) error
	Hook(ctx context.Context, r pod.HookRequest) error
}

// Prober returns next with its probes counted, as /metrics/probes shows them: of
// containers in pods that a status was reported of and that are not gone.
func (m *Metrics) Prober(next Prober) Prober { return counted{next, m} }

type counted struct {
	Prober
	m *Metrics
}

// Probe runs a probe and counts what came of it.
func (c counted) Probe(ctx context.Context, r pod.ProbeRequest) error {
	began := time.Now()
	err := c.Prober.Probe(ctx, r)
	if ctx.Err() != nil {
		return err // nobody waited for it
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
		if result != "failed" { // as the kubelet has it
			c.m.prober.took.WithLabelValues(kind, container, p.name, p.namespace).Observe(time.Since(began).Seconds())
		}
	})
	return err
}

// kindOf is which of its container's probes a request is.
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

// forget drops the series of a pod that is gone.
func (p prober) forget(of podName) {
	p.total.DeletePartialMatch(prometheus.Labels{"pod": of.name, "namespace": of.namespace, "pod_uid": of.uid})
	p.took.DeletePartialMatch(prometheus.Labels{"pod": of.name, "namespace": of.namespace})
}
