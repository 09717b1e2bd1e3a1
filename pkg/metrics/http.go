package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// web holds the metrics of requests to the agent's own server.
type web struct {
	total   *prometheus.CounterVec
	took    *prometheus.HistogramVec
	current *prometheus.GaugeVec
}

func newWeb(r *prometheus.Registry) web {
	labels := []string{"method", "path", "server_type", "long_running"}
	return web{
		total:   counters(r, "kubelet_http_requests_total", "Number of the http requests received since the server started", labels...),
		took:    histograms(r, "kubelet_http_requests_duration_seconds", "Duration in seconds to serve http requests", prometheus.DefBuckets, labels...),
		current: gauges(r, "kubelet_http_inflight_requests", "Number of the inflight http requests", labels...),
	}
}

// Request starts to count a request to the server, and returns the function that ends it.
// The path is that of its route's group, as in the kubelet: "pods", "exec",
// "metrics/probes"; never the caller's text.
func (m *Metrics) Request(method, path string, longRunning bool) (end func()) {
	labels := []string{known(method), path, "readwrite", strconv.FormatBool(longRunning)}
	began, current := time.Now(), m.web.current.WithLabelValues(labels...)
	m.web.total.WithLabelValues(labels...).Inc()
	current.Inc()
	return func() {
		current.Dec()
		m.web.took.WithLabelValues(labels...).Observe(time.Since(began).Seconds())
	}
}

// known returns a standard HTTP method, or a fixed label for others.
func known(method string) string {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions, http.MethodPatch:
		return method
	}
	return "other"
}

// Transport counts requests to API servers through next, with rest_client_requests_total
// and rest_client_request_duration_seconds.
func (m *Metrics) Transport(next http.RoundTripper) http.RoundTripper {
	return transport{next, m.clients, m.waits}
}

type transport struct {
	next  http.RoundTripper
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	a, err := t.next.RoundTrip(r)
	t.took.WithLabelValues(known(r.Method), r.URL.Host).Observe(time.Since(began).Seconds())
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(a.StatusCode)
	}
	t.total.WithLabelValues(code, known(r.Method), r.URL.Host).Inc()
	return a, err
}
