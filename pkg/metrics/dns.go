package metrics

import "github.com/prometheus/client_golang/prometheus"

// DNS adds the counters of the node's DNS server, by the kind of the answer. counts is called at
// each scrape, and returns the same keys each time.
func (m *Metrics) DNS(counts func() map[string]uint64) {
	for by := range counts() {
		m.all.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "nodectl_dns_queries_total", Help: "Number of queries of pods to the DNS server of this node, by what answered them.",
			ConstLabels: prometheus.Labels{"by": by},
		}, func() float64 { return float64(counts()[by]) }))
	}
}
