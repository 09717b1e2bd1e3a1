package metrics

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func counter(r *prometheus.Registry, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.MustRegister(c)
	return c
}

func counters(r *prometheus.Registry, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func gauge(r *prometheus.Registry, name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	r.MustRegister(g)
	return g
}

func gauges(r *prometheus.Registry, name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.MustRegister(g)
	return g
}

func function(r *prometheus.Registry, name, help string, f func() float64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

func histogram(r *prometheus.Registry, name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	r.MustRegister(h)
	return h
}

func histograms(r *prometheus.Registry, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(h)
	return h
}

// certificates reports for how long certificates are valid, infinitely if there is none, as
// in the kubelet; and how often a renewal failed.
func certificates(r *prometheus.Registry, s Serving) {
	left := func(of func() time.Time) func() float64 {
		return func() float64 {
			if of == nil || of().IsZero() {
				return math.Inf(1)
			}
			return time.Until(of()).Seconds()
		}
	}
	function(r, "kubelet_certificate_manager_client_ttl_seconds",
		"Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
		left(s.ClientExpires))
	function(r, "kubelet_certificate_manager_server_ttl_seconds",
		"Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
		left(s.ServerExpires))
	failures := func(name string, of func() int64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: "Counter of certificate renewal errors."}, func() float64 {
			if of == nil {
				return 0
			}
			return float64(of())
		}))
	}
	failures("kubelet_certificate_manager_client_expiration_renew_errors", s.ClientFailures)
	failures("kubelet_server_expiration_renew_errors", s.ServerFailures)
}

// major and minor are the parts of v1.36.3; "" for a version of another form.
func (b Build) major() string { return b.part(0) }
func (b Build) minor() string { return b.part(1) }

func (b Build) part(i int) string {
	parts := strings.Split(strings.TrimPrefix(b.Version, "v"), ".")
	if len(parts) < 3 {
		return ""
	}
	return parts[i]
}
