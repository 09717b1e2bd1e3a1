package docs_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// watched are series that kube-prometheus (its dashboards, rules and alerts) and Kubernetes'
// own tests (test/e2e, test/e2e_node of 1.36) read of a kubelet. Those that a kubelet shows
// without load are in the recording of the parity test.
var watched = strings.Fields(`
	kubelet_node_name kubelet_node_config_error kubelet_running_pods kubelet_running_containers kubelet_evictions
	kubelet_runtime_operations_total kubelet_runtime_operations_errors_total kubelet_runtime_operations_duration_seconds
	kubelet_pod_start_duration_seconds kubelet_pod_worker_duration_seconds kubelet_pod_worker_start_duration_seconds kubelet_pod_start_sli_duration_seconds
	kubelet_cgroup_manager_duration_seconds kubelet_pleg_relist_duration_seconds kubelet_pleg_relist_interval_seconds
	kubelet_certificate_manager_client_ttl_seconds kubelet_certificate_manager_server_ttl_seconds
	kubelet_certificate_manager_client_expiration_renew_errors kubelet_server_expiration_renew_errors
	kubelet_volume_stats_available_bytes kubelet_volume_stats_capacity_bytes kubelet_volume_stats_used_bytes
	kubelet_volume_stats_inodes kubelet_volume_stats_inodes_free kubelet_volume_stats_inodes_used kubelet_volume_stats_health_status_abnormal
	volume_manager_total_volumes storage_operation_duration_seconds volume_operation_total_seconds volume_manager_selinux_volumes_admitted_total
	rest_client_requests_total rest_client_request_duration_seconds
	kubelet_working_pods kubelet_desired_pods kubelet_active_pods kubelet_mirror_pods
	kubelet_started_user_namespaced_pods_total kubelet_started_user_namespaced_pods_errors_total
	kubelet_eviction_stats_age_seconds kubelet_cri_losing_support kubelet_pod_pending_resizes kubelet_pod_in_progress_resizes
	kubelet_container_aligned_compute_resources_count kubelet_container_aligned_compute_resources_failure_count
	kubelet_cpu_manager_allocation_per_numa kubelet_pod_resources_endpoint_requests_total kubelet_pod_resources_endpoint_requests_list
	kubelet_pod_resources_endpoint_requests_get kubelet_pod_resources_endpoint_requests_get_allocatable
	dra_resource_claims_in_use dra_operations_duration_seconds dra_grpc_operations_duration_seconds
`)

// TestServerPage_MetricsOfTheKubelet_AreAccountedFor holds server.md to the kubelet's metrics:
// each that a kubelet shows, or that dashboards and tests read, is in the table of series or
// in the table of those that are absent, with a reason; and the tables tell the truth.
func TestServerPage_MetricsOfTheKubelet_AreAccountedFor(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("server.md")
	section := func(from, to, cells string) []string {
		_, text, found := strings.Cut(page, from)
		text, _, ended := strings.Cut(text, to)
		if !found || !ended {
			t.Fatalf("server.md has nothing between %q and %q", from, to)
		}
		var names []string
		for _, cell := range regexp.MustCompile(cells).FindAllString(text, -1) {
			for _, m := range regexp.MustCompile("`([a-z_]+\\*?)`").FindAllStringSubmatch(cell, -1) {
				names = append(names, m[1])
			}
		}
		return names
	}
	there, absent := section("\n`/metrics`:\n", "\n**Absent.**", `.+`), section("\n**Absent.**", "\n`/metrics/cadvisor`:", `(?m)^\| [^|]*`)
	in := func(names []string, name string) bool {
		return slices.ContainsFunc(names, func(pattern string) bool {
			begin, wild := strings.CutSuffix(pattern, "*")
			return pattern == name || wild && strings.HasPrefix(name, begin)
		})
	}
	var counted []string // by ours
	for line := range strings.Lines(read("../pkg/metrics/testdata/names.txt")) {
		counted = append(counted, line[:strings.IndexByte(line, '{')])
	}
	known := slices.Clone(watched)
	shown := regexp.MustCompile(`"((?:kubelet|volume|storage|dra|reconstruct|force_cleaned|prober)_[a-z_]+) [a-z]+\{`)
	for _, m := range shown.FindAllStringSubmatch(read("../test/paritycluster/testdata/kubelet.json"), -1) {
		known = append(known, m[1])
	}
	if len(counted) < 40 || len(known) < 100 || len(there) < 40 {
		t.Fatalf("%d series are counted, %d known and %d documented: they were not read", len(counted), len(known), len(there))
	}
	slices.Sort(known)
	for _, name := range slices.Compact(known) {
		if in(there, name) == in(absent, name) && !strings.HasPrefix(name, "prober_") {
			t.Errorf("%s: in the table of series: %t, among those that are absent: %t", name, in(there, name), in(absent, name))
		}
	}
	for _, name := range counted {
		if !in(there, name) && !strings.HasPrefix(name, "prober_") || in(absent, name) {
			t.Errorf("%s is counted: in the table of series: %t, among those that are absent: %t", name, in(there, name), in(absent, name))
		}
	}
}
