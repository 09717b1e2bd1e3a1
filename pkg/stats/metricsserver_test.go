package stats_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	v1 "k8s.io/api/core/v1"
)

// collect returns the series of a collector as text.
func collect(t *testing.T, c prometheus.Collector) (all []string) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			all = append(all, f.GetName()+"{"+strings.Join(labels, ",")+"}")
		}
	}
	return all
}

// TestC_1_40_7_WhatMetricsServerReads: the scraper of metrics-server (v0.9) reads five
// series by name and three labels, in any order. It drops a node without CPU time, memory
// and their timestamp. It drops a pod if any container has no CPU time or no memory. It
// detects a restart by the container's start time.
//
// Shows: C-1.40.7
func TestC_1_40_7_WhatMetricsServerReads(t *testing.T) {
	s := newStage(t)
	two := one("alloc", "4", "forever")
	two.Spec.Containers = append(two.Spec.Containers, v1.Container{Name: "side", Args: []string{"forever"}})
	s.run(two)
	s.run(one("forever"))
	all := parse(t, get(t, s.Resource()))
	value := func(m *dto.Metric) float64 { return m.GetGauge().GetValue() + m.GetCounter().GetValue() }
	for _, name := range []string{"node_cpu_usage_seconds_total", "node_memory_working_set_bytes"} {
		m := all[name].GetMetric()
		if len(m) != 1 || value(m[0]) == 0 || m[0].GetTimestampMs() == 0 || len(m[0].GetLabel()) != 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
	type container struct{ namespace, pod, name string }
	seen := map[string]map[container]*dto.Metric{}
	for _, name := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds"} {
		seen[name] = map[container]*dto.Metric{}
		for _, m := range all[name].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if len(labels) != 3 || value(m) == 0 {
				t.Errorf("%s: %v", name, m)
			}
			seen[name][container{labels["namespace"], labels["pod"], labels["container"]}] = m
		}
		if len(seen[name]) != 3 {
			t.Errorf("%s of %d containers, want 3", name, len(seen[name]))
		}
	}
	for c, m := range seen["container_cpu_usage_seconds_total"] {
		if m.GetTimestampMs() == 0 || seen["container_memory_working_set_bytes"][c].GetTimestampMs() == 0 || seen["container_start_time_seconds"][c] == nil {
			t.Errorf("%+v is not whole", c)
		}
	}
	for _, name := range []string{"resource_scrape_error", "scrape_error"} {
		if m := all[name].GetMetric(); len(m) != 1 || value(m[0]) != 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
}
