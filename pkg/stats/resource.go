package stats

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Resource returns the handler of /metrics/resource (C-1.40.7). As in the kubelet, it serves CPU and memory of
// the node, of pods and of containers, for metrics-server. If the runtime does not report usage, values may be
// missing, and resource_scrape_error is 1.
func (s *Stats) Resource() http.Handler {
	return s.serve(func(ctx context.Context, out *series) {
		r, err := s.read(ctx, false)
		failed := 0.0
		if err != nil || r.failed != nil {
			failed = 1
		}
		if err == nil {
			out.resources((&answer{Stats: s, reading: r}).summary())
		}
		out.gauge("scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, failed)
		out.gauge("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, failed)
	})
}

// serve returns a handler that answers each request with new series from fill. So removed pods have none.
func (s *Stats) serve(fill func(context.Context, *series)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(collector(func(out chan<- prometheus.Metric) { fill(r.Context(), &series{out}) }))
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
	})
}

// collector is a prometheus.Collector without descriptions.
type collector func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }

// series receives the metrics of one answer.
type series struct{ out chan<- prometheus.Metric }

// labels has a name, its value, the next name, and so on.
type labels []string

func (l labels) names() (all []string) {
	for i := 0; i < len(l); i += 2 {
		all = append(all, l[i])
	}
	return all
}

func (l labels) values() (all []string) {
	for i := 1; i < len(l); i += 2 {
		all = append(all, l[i])
	}
	return all
}

func (l labels) with(more ...string) labels { return append(l[:len(l):len(l)], more...) }

func (s *series) gauge(name, help string, l labels, v float64) {
	s.put(name, help, prometheus.GaugeValue, l, v, time.Time{})
}

// put sends one value, with the timestamp at unless that is zero.
func (s *series) put(name, help string, kind prometheus.ValueType, l labels, v float64, at time.Time) {
	m, err := prometheus.NewConstMetric(prometheus.NewDesc(name, help, l.names(), nil), kind, v, l.values()...)
	if err != nil {
		m = prometheus.NewInvalidMetric(prometheus.NewDesc(name, help, l.names(), nil), err)
	} else if !at.IsZero() {
		m = prometheus.NewMetricWithTimestamp(at, m)
	}
	s.out <- m
}

// resources sends all series of a summary.
func (s *series) resources(sum *api.Summary) {
	s.resource("node", "node", nil, sum.Node.CPU, sum.Node.Memory, sum.Node.Swap)
	for i := range sum.Pods {
		p := &sum.Pods[i]
		of := labels{"namespace", p.PodRef.Namespace, "pod", p.PodRef.Name}
		s.resource("pod", "pod", of, p.CPU, p.Memory, p.Swap)
		for j := range p.Containers {
			c := &p.Containers[j]
			of := labels{"container", c.Name, "namespace", p.PodRef.Namespace, "pod", p.PodRef.Name}
			if c.StartTime.Unix() > 0 {
				s.gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds", of,
					float64(c.StartTime.UnixNano())/float64(time.Second))
			}
			s.resource("container", "container", of, c.CPU, c.Memory, c.Swap)
			if w := c.Swap; w != nil && w.SwapAvailableBytes != nil {
				total := *w.SwapAvailableBytes
				if w.SwapUsageBytes != nil {
					total += *w.SwapUsageBytes
				}
				s.put("container_swap_limit_bytes", "Current amount of the container swap limit in bytes. Reported only on non-windows systems",
					prometheus.GaugeValue, of, float64(total), w.Time.Time)
			}
		}
	}
}

// resource sends the usage of the node, a pod or a container. It leaves out unknown numbers.
func (s *series) resource(prefix, thing string, of labels, cpu *api.CPUStats, memory *api.MemoryStats, swap *api.SwapStats) {
	put := func(name, help string, kind prometheus.ValueType, n *uint64, unit float64, at metav1.Time) {
		if n != nil {
			s.put(prefix+name, help, kind, of, float64(*n)/unit, at.Time)
		}
	}
	if cpu != nil {
		put("_cpu_usage_seconds_total", "Cumulative cpu time consumed by the "+thing+" in core-seconds",
			prometheus.CounterValue, cpu.UsageCoreNanoSeconds, float64(time.Second), cpu.Time)
	}
	if memory != nil {
		put("_memory_working_set_bytes", "Current working set of the "+thing+" in bytes",
			prometheus.GaugeValue, memory.WorkingSetBytes, 1, memory.Time)
	}
	if swap != nil {
		what := "Current amount of the " + thing + " swap usage in bytes. Reported only on non-windows systems"
		if thing == "node" {
			what = "Current swap usage of the node in bytes. Reported only on non-windows systems"
		}
		put("_swap_usage_bytes", what, prometheus.GaugeValue, swap.SwapUsageBytes, 1, swap.Time)
	}
}
