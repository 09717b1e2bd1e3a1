package agent

import (
	"time"

	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
)

// newMetrics returns the agent's own metrics.
func newMetrics(cfg Config) *metrics.Metrics {
	b := cfg.Build
	return metrics.New(metrics.Config{
		Node:          cfg.NodeName,
		Build:         metrics.Build{Version: node.KubernetesVersion(), Commit: b.Commit, TreeState: b.treeState(), Date: b.Date},
		CgroupVersion: cgroupVersion(),
	})
}

// addServingMetrics adds the metrics of a serving agent: its mirror pods and certificates. m and
// serving may be nil.
func (a *Agent) addServingMetrics(live *feed.Live, m *member, serving *certificate.Serving) {
	s := metrics.Serving{}
	if m != nil {
		s.Mirrors = func() int { return mirrors(live) }
		s.ClientExpires = func() time.Time { return m.certs.Facts().Expires }
		s.ClientFailures = func() int64 { return m.certs.Facts().Failures }
	}
	if serving != nil {
		s.ServerExpires = func() time.Time { return serving.Facts().Expires }
		s.ServerFailures = func() int64 { return serving.Facts().Failures }
	}
	a.metrics.Serve(s)
}

// mirrors returns the desired number of mirror pods.
func mirrors(live *feed.Live) (count int) {
	for _, p := range live.Pods() {
		if pod.SourceOf(&p) != pod.SourceAPI {
			count++
		}
	}
	return count
}
