package metrics

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxClaimDrivers limits the label driver_name. A driver chooses its name, and may register again under
// others.
const maxClaimDrivers = 256

// claims are the metrics of DRA drivers, and of the ResourceClaims that they prepare.
type claims struct {
	operations *prometheus.HistogramVec
	calls      *prometheus.HistogramVec

	mu      sync.Mutex
	drivers map[string]bool // that have a label of their own
}

func newClaims(r *prometheus.Registry) *claims {
	buckets := prometheus.ExponentialBucketsRange(.1, 40, 15)
	return &claims{
		operations: histograms(r, "dra_operations_duration_seconds",
			"Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.",
			buckets, "operation_name", "is_error"),
		calls: histograms(r, "dra_grpc_operations_duration_seconds", "Duration in seconds of the DRA gRPC operations",
			buckets, "driver_name", "method_name", "grpc_status_code"),
		drivers: make(map[string]bool),
	}
}

// driver returns the label of a driver: its name, or "other" for one of too many.
func (c *claims) driver(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.drivers[name] && len(c.drivers) >= maxClaimDrivers {
		return "other"
	}
	c.drivers[name] = true
	return name
}

// ClaimsHandled records how long it took to prepare or unprepare all claims of a pod.
func (m *Metrics) ClaimsHandled(operation string, took time.Duration, err error) {
	m.claims.operations.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

// ClaimDriverCalled records how long a call to a DRA driver took. code is the name of a gRPC code.
func (m *Metrics) ClaimDriverCalled(driver, method, code string, took time.Duration) {
	m.claims.calls.WithLabelValues(m.claims.driver(driver), method, code).Observe(took.Seconds())
}

// ClaimsInUse returns how many ResourceClaims are prepared: all of them, and those of each driver. ok is
// false while the node has no DRA driver.
type ClaimsInUse func() (all int, drivers map[string]int, ok bool)

// Claims adds the numbers of claims that are in use. It is called once, before the first scrape.
func (m *Metrics) Claims(inUse ClaimsInUse) {
	m.all.MustRegister(claimCollector{inUse, prometheus.NewDesc("dra_resource_claims_in_use",
		"The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use the count for the <any> driver_name.",
		[]string{"driver_name"}, nil)})
}

// claimCollector collects the numbers of claims at each scrape.
type claimCollector struct {
	inUse ClaimsInUse
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c claimCollector) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c claimCollector) Collect(to chan<- prometheus.Metric) {
	all, drivers, ok := c.inUse()
	if !ok {
		return
	}
	to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(all), "<any>")
	for driver, n := range drivers {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), driver)
	}
}
