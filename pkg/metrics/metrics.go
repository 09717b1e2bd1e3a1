// Package metrics counts the agent's operations, under the kubelet's names: /metrics and
// /metrics/probes.
//
// It gets statuses and events as a sink of the engine, probes by wrapping the prober, and
// calls to the runtime, relists, pulls and requests from their hooks. Values that exist at
// any moment are counted at a scrape.
//
// No method blocks. No label has text from outside the agent, with three exceptions. The
// first is names of pods, whose series are removed with the pod. The second is resources of
// device plugins: package device accepts a limited number of them. The third is DRA
// drivers: a limited number of them get a label.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is the configuration of Metrics.
type Config struct {
	Node string // its name
	Build
	// CgroupVersion is 1 or 2; 0 means none.
	CgroupVersion int
}

// Serving provides the values of a serving agent; it is called at each scrape.
type Serving struct {
	// Mirrors returns how many mirror pods there should be; nil means none.
	Mirrors func() int
	// ClientExpires and ServerExpires return when the certificates in use expire; nil, and
	// the zero time, mean that there is none.
	ClientExpires, ServerExpires func() time.Time
	// ClientFailures and ServerFailures return how often a renewal failed; nil means never.
	ClientFailures, ServerFailures func() int64
}

// Build is the version of this program.
type Build struct {
	Version   string // like v1.2.3
	Commit    string
	TreeState string // clean or dirty
	Date      string
}

// Metrics are the agent's own metrics. Make them with New; all methods may be called from
// many goroutines.
type Metrics struct {
	all    *prometheus.Registry
	probes *prometheus.Registry

	pods    *pods
	calls   calls
	lists   lists
	images  *prometheus.HistogramVec
	removed *prometheus.CounterVec
	web     web
	clients *prometheus.CounterVec
	waits   *prometheus.HistogramVec // for answers to clients' requests
	groups  *prometheus.HistogramVec
	workers workers
	plugins plugins
	claims  *claims
	prober  prober
}

// New returns Metrics; all counters are at zero.
func New(c Config) *Metrics {
	m := &Metrics{all: prometheus.NewRegistry(), probes: prometheus.NewRegistry()}
	began := time.Now()
	m.all.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n := newNamespaced(m.all)
	m.calls = newCalls(m.all, n)
	m.lists = newLists(m.all)
	m.workers = newWorkers(m.all)
	m.plugins = newPlugins(m.all)
	m.claims = newClaims(m.all)
	m.images = histograms(m.all, "kubelet_image_pull_duration_seconds", "Duration in seconds to pull an image.",
		[]float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}, "image_size_in_bytes")
	m.removed = counters(m.all, "kubelet_image_garbage_collected_total",
		"Total number of images garbage collected by the kubelet, whether through disk usage or image age.", "reason")
	m.web = newWeb(m.all)
	m.clients = counters(m.all, "rest_client_requests_total", "Number of HTTP requests, partitioned by status code, method, and host.",
		"code", "method", "host")
	m.waits = histograms(m.all, "rest_client_request_duration_seconds", "Request latency in seconds. Broken down by verb, and host.",
		[]float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}, "verb", "host")
	m.groups = histograms(m.all, "kubelet_cgroup_manager_duration_seconds", "Duration in seconds for cgroup manager operations. Broken down by method.",
		prometheus.DefBuckets, "operation_type")
	m.prober = newProber(m.probes, began)
	m.pods = newPods(m.all, began, n, m.prober.forget)
	m.constants(c)
	return m
}

// Serve adds the metrics of a serving agent. It is called once, before the first scrape.
func (m *Metrics) Serve(s Serving) {
	function(m.all, "kubelet_mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)", func() float64 {
		if s.Mirrors == nil {
			return 0
		}
		return float64(s.Mirrors())
	})
	certificates(m.all, s)
}

// constants are metrics that do not change.
func (m *Metrics) constants(c Config) {
	gauges(m.all, "kubelet_node_name", "The node's name. The count is always 1.", "node").WithLabelValues(c.Node).Set(1)
	gauges(m.all, "kubelet_metrics_provider", "Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
		"provider").WithLabelValues("cri").Set(1)
	gauges(m.all, "kubernetes_build_info",
		"A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which this program was built, and platform on which it is running.",
		"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform").
		WithLabelValues(c.major(), c.minor(), c.Version, c.Commit, c.TreeState, c.Date, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
	if c.CgroupVersion > 0 {
		gauge(m.all, "kubelet_cgroup_version", "cgroup version on the hosts.").Set(float64(c.CgroupVersion))
	}
}

// Handler serves /metrics (C-1.40.7).
func (m *Metrics) Handler() http.Handler { return handler(m.all) }

// Probes serves /metrics/probes (C-1.40.7).
func (m *Metrics) Probes() http.Handler { return handler(m.probes) }

func handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Register adds the collector of another package, such as stats.Volumes, to /metrics.
func (m *Metrics) Register(c prometheus.Collector) { m.all.MustRegister(c) }
