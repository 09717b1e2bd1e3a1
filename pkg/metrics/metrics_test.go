package metrics_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite testdata")

// series reads a handler as a scraper does: every series by name and labels, with its
// value; histograms with their counts.
func series(t *testing.T, h http.Handler) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	read(t, h, func(name, labels, _ string, value float64) { all[name+labels] = value })
	return all
}

func read(t *testing.T, h http.Handler, f func(name, labels, kind string, value float64)) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(w.Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d: %v", w.Code, err)
	}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue() + float64(m.GetHistogram().GetSampleCount())
			f(name, "{"+strings.Join(labels, ",")+"}", strings.ToLower(family.GetType().String()), value)
		}
	}
}

// want compares some series.
func want(t *testing.T, got map[string]float64, wanted map[string]float64) {
	t.Helper()
	for name, value := range wanted {
		if has, ok := got[name]; !ok || has != value {
			t.Errorf("%s is %v (there: %v), want %v", name, has, ok, value)
		}
	}
}

func build() metrics.Build {
	return metrics.Build{Version: "v1.36.3", Commit: "abc", TreeState: "clean", Date: "2026-01-01"}
}

// life is a pod and its reports.
type life struct {
	*metrics.Metrics
	pod    *v1.Pod
	origin pod.Origin
	at     time.Time
}

func newLife(m *metrics.Metrics, name, uid, source string) *life {
	now := time.Now()
	return &life{m, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(now)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", LivenessProbe: &v1.Probe{}, ReadinessProbe: &v1.Probe{}}}},
		Status:     v1.PodStatus{Phase: v1.PodPending},
	}, pod.Origin{Source: source}, now}
}

// report reports the pod's status after edit.
func (l *life) report(edit func(s *v1.PodStatus), flags ...func(*pod.StatusReport)) {
	l.at = l.at.Add(time.Second)
	p := l.pod.DeepCopy()
	if edit != nil {
		edit(&p.Status)
	}
	l.pod = p
	r := pod.StatusReport{Pod: p, Origin: l.origin, At: l.at}
	for _, f := range flags {
		f(&r)
	}
	_ = l.Report(r)
}

func gone(r *pod.StatusReport) { r.Gone, r.Finished = true, true }

func (l *life) runs(id string) func(*v1.PodStatus) {
	return func(s *v1.PodStatus) {
		s.Phase = v1.PodRunning
		s.Conditions = []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue}}
		s.ContainerStatuses = []v1.ContainerStatus{{
			Name: "main", ContainerID: "containerd://" + id, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		}}
	}
}

// TestAppendixG_PodsAndContainers: the counters from a pod's start to its end.
//
// Shows: Appendix G
func TestAppendixG_PodsAndContainers(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1", Build: build()})
	m.Serve(metrics.Serving{})
	static, bound := newLife(m, "static", "u1", "file"), newLife(m, "bound", "u2", "api")
	static.report(nil)
	bound.report(nil)
	bound.Event(pod.Event{Key: pod.KeyOf(bound.pod), UID: "u2", Reason: "Pulling", At: bound.at})
	bound.Event(pod.Event{Key: pod.KeyOf(bound.pod), UID: "u2", Reason: "Pulled", Message: "Successfully pulled image", At: bound.at.Add(time.Second)})
	for _, path := range []string{"spec.containers{main}", "spec.initContainers{a}", "spec.ephemeralContainers{b}"} {
		bound.Event(pod.Event{Key: pod.KeyOf(bound.pod), UID: "u2", Container: path, Reason: "Started"})
	}
	bound.report(bound.runs("c1"))
	static.report(func(s *v1.PodStatus) {
		s.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
	})
	static.report(func(s *v1.PodStatus) { s.Message = "still" })
	want(t, series(t, m.Handler()), map[string]float64{
		"kubelet_running_pods{}":                                                              1,
		"kubelet_running_containers{container_state=running}":                                 1,
		"kubelet_running_containers{container_state=exited}":                                  0,
		"kubelet_desired_pods{static=true}":                                                   1,
		"kubelet_desired_pods{static=}":                                                       1,
		"kubelet_active_pods{static=}":                                                        1,
		"kubelet_working_pods{config=desired,lifecycle=sync,static=true}":                     1,
		"kubelet_working_pods{config=desired,lifecycle=terminating,static=}":                  0,
		"kubelet_started_containers_total{container_type=container}":                          1,
		"kubelet_started_containers_total{container_type=init_container}":                     1,
		"kubelet_started_containers_total{container_type=ephemeral_container}":                1,
		"kubelet_started_containers_errors_total{code=ErrImagePull,container_type=container}": 1,
		"kubelet_pod_start_duration_seconds{}":                                                1,
		"kubelet_pod_start_sli_duration_seconds{}":                                            1,
		"kubelet_pod_start_total_duration_seconds{}":                                          1,
		"kubelet_containers_per_pod_count{}":                                                  2,
		"kubelet_node_name{node=n1}":                                                          1,
		"kubelet_mirror_pods{}":                                                               0,
	})
	bound.report(func(s *v1.PodStatus) {
		end := &v1.ContainerStateTerminated{ContainerID: "containerd://c1", ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(bound.at)}
		s.ContainerStatuses[0].State, s.ContainerStatuses[0].LastTerminationState = v1.ContainerState{Running: &v1.ContainerStateRunning{}}, v1.ContainerState{Terminated: end}
		s.ContainerStatuses[0].ContainerID = "containerd://c2"
	})
	bound.report(func(s *v1.PodStatus) { s.Message = "again" })
	static.report(nil, gone)
	got := series(t, m.Handler())
	want(t, got, map[string]float64{
		"kubelet_terminated_containers_total{container_type=container,exit_code=137,reason=OOMKilled}": 1,
		"kubelet_desired_pods{static=true}": 0,
		"kubelet_desired_pods{static=}":     1,
	})
}

// TestAppendixG_Rejections: each is counted once, with a known reason; those that an
// earlier agent counted are not counted again.
//
// Shows: Appendix G
func TestAppendixG_Rejections(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	for i, c := range []struct{ reason, message string }{
		{"OutOfpods", ""}, {"OutOfpods", ""}, {"OutOfexample.com/gpu", ""}, {"MadeUp-4711", ""}, {"Evicted", `Usage of EmptyDir volume "a" exceeds`},
	} {
		l := newLife(m, fmt.Sprint("p", i), fmt.Sprint("u", i), "api")
		for range 2 {
			l.report(func(s *v1.PodStatus) { s.Phase, s.Reason, s.Message = v1.PodFailed, c.reason, c.message })
		}
	}
	old := newLife(m, "old", "old", "api")
	old.report(func(s *v1.PodStatus) {
		before := metav1.NewTime(time.Now().Add(-time.Hour))
		s.Phase, s.Reason, s.StartTime = v1.PodFailed, "OutOfpods", &before
	})
	want(t, series(t, m.Handler()), map[string]float64{
		"kubelet_admission_rejections_total{reason=OutOfpods}":              2,
		"kubelet_admission_rejections_total{reason=OutOfExtendedResources}": 1,
		"kubelet_admission_rejections_total{reason=Other}":                  1,
		"kubelet_evictions{eviction_signal=emptydirfs.limit}":               1,
	})
}

// prober returns a fixed result.
type prober struct{ err error }

func (p prober) Probe(context.Context, pod.ProbeRequest) error { return p.err }
func (p prober) Hook(context.Context, pod.HookRequest) error   { return p.err }

// TestProbesAreCountedAndForgotten: a pod that was removed, or replaced by one of its name,
// leaves no series, and a probe that ends late makes none.
func TestProbesAreCountedAndForgotten(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	first, second := newLife(m, "a", "u1", "api"), newLife(m, "a", "u2", "api")
	first.report(first.runs("c1"))
	probe := func(l *life, id string, of *v1.Probe, err error) {
		t.Helper()
		c := &l.pod.Spec.Containers[0]
		if got := m.Prober(prober{err}).Probe(t.Context(), pod.ProbeRequest{Probe: of, Container: c, ContainerID: id}); !errors.Is(got, err) {
			t.Errorf("%v, want %v", got, err)
		}
	}
	c := func(l *life) *v1.Container { return &l.pod.Spec.Containers[0] }
	probe(first, "c1", c(first).LivenessProbe, nil)
	probe(first, "c1", c(first).LivenessProbe, &pod.ProbeWarning{Message: "elsewhere"})
	probe(first, "c1", c(first).ReadinessProbe, &pod.ProbeFailure{Message: "no"})
	probe(first, "c1", c(first).ReadinessProbe, errors.New("trouble"))
	want(t, series(t, m.Probes()), map[string]float64{
		"prober_probe_total{container=main,namespace=default,pod=a,pod_uid=u1,probe_type=Liveness,result=successful}": 2,
		"prober_probe_total{container=main,namespace=default,pod=a,pod_uid=u1,probe_type=Readiness,result=failed}":    1,
		"prober_probe_total{container=main,namespace=default,pod=a,pod_uid=u1,probe_type=Readiness,result=unknown}":   1,
		"prober_probe_duration_seconds{container=main,namespace=default,pod=a,probe_type=Liveness}":                   2,
		"prober_probe_duration_seconds{container=main,namespace=default,pod=a,probe_type=Readiness}":                  1,
	})
	second.report(second.runs("c2"))
	first.report(nil, gone) // its last report comes late
	probe(first, "c1", c(first).LivenessProbe, nil)
	probe(second, "c2", c(second).LivenessProbe, nil)
	for name := range series(t, m.Probes()) {
		if strings.Contains(name, "u1") || strings.Contains(name, "Readiness") {
			t.Errorf("%s is there", name)
		}
	}
	second.report(nil, gone)
	probe(second, "c2", c(second).LivenessProbe, nil)
	if got := series(t, m.Probes()); len(got) != 1 { // process_start_time_seconds
		t.Errorf("%v", got)
	}
}

// TestCardinality: after a thousand removed pods there are no more series than before.
//
// Shows: I5, Appendix G
func TestCardinality(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	come := func(i int) {
		l := newLife(m, fmt.Sprint("p", i), fmt.Sprint("u", i), "api")
		l.report(nil)
		l.report(l.runs(fmt.Sprint("c", i)))
		_ = m.Prober(prober{}).Probe(t.Context(), pod.ProbeRequest{Probe: l.pod.Spec.Containers[0].LivenessProbe, Container: &l.pod.Spec.Containers[0], ContainerID: fmt.Sprint("c", i)})
		l.report(func(s *v1.PodStatus) {
			s.Phase = v1.PodFailed
			s.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: fmt.Sprint("containerd://c", i), Reason: "Error", ExitCode: 1, FinishedAt: metav1.Now()}}
		})
		l.report(nil, gone)
	}
	come(0)
	all, probes := len(series(t, m.Handler())), len(series(t, m.Probes()))
	for i := range 1000 {
		come(i)
	}
	if a, p := len(series(t, m.Handler())), len(series(t, m.Probes())); a != all || p != probes {
		t.Errorf("%d and %d series, before %d and %d", a, p, all, probes)
	}
}

// TestMetrics_ConcurrentReportsAndScrapes: reports and scrapes from many goroutines.
func TestMetrics_ConcurrentReportsAndScrapes(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				id := fmt.Sprint("c", i, "-", j)
				l := newLife(m, fmt.Sprint("p", i), fmt.Sprint("u", i, "-", j), "api")
				l.report(l.runs(id))
				m.Event(pod.Event{Key: pod.KeyOf(l.pod), UID: string(l.pod.UID), Container: "spec.containers{main}", Reason: "Started"})
				_ = m.Prober(prober{}).Probe(t.Context(), pod.ProbeRequest{ContainerID: id})
				m.Call("ListContainers", "", false, time.Millisecond, nil)
				l.report(nil, gone)
			}
		})
		all.Go(func() {
			for range 5 {
				_ = series(t, m.Handler())
				_ = series(t, m.Probes())
			}
		})
	}
	all.Wait()
	want(t, series(t, m.Handler()), map[string]float64{
		"kubelet_started_containers_total{container_type=container}": 400, "kubelet_desired_pods{static=}": 0,
		"kubelet_runtime_operations_total{operation_type=list_containers}": 400,
	})
}

// TestAppendixG_Runtime: calls have the kubelet's names; a RunPodSandbox counts as a pod
// start.
//
// Shows: Appendix G
func TestAppendixG_Runtime(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	m.Call("ListContainers", "", false, time.Millisecond, nil)
	m.Call("RunPodSandbox", "kata", false, time.Second, nil)
	m.Call("RunPodSandbox", "", false, time.Second, errors.New("no"))
	m.Call("SomethingNew", "", false, time.Second, nil)
	m.Relist(time.Millisecond, 0, nil)
	m.Relist(time.Millisecond, time.Minute, errors.New("no"))
	m.Pulled(3*time.Second, 50<<20)
	m.PodWorkerDuration("sync", time.Second)
	m.StatusSynced(time.Second)
	m.WorkerStarted(time.Second)
	m.PluginRegistered("x.com/gpu")
	m.DevicesAllocated("x.com/gpu", time.Second)
	m.PodResourcesRequested("v1", "list", false)
	m.PodResourcesRequested("v1", "get", true)
	m.PodResourcesRequested("v1alpha1", "list", true)
	want(t, series(t, m.Handler()), map[string]float64{
		"kubelet_runtime_operations_total{operation_type=list_containers}":           1,
		"kubelet_runtime_operations_total{operation_type=run_podsandbox}":            2,
		"kubelet_runtime_operations_errors_total{operation_type=run_podsandbox}":     1,
		"kubelet_runtime_operations_total{operation_type=other}":                     1,
		"kubelet_runtime_operations_duration_seconds{operation_type=run_podsandbox}": 2,
		"kubelet_run_podsandbox_duration_seconds{runtime_handler=kata}":              1,
		"kubelet_run_podsandbox_errors_total{runtime_handler=}":                      1,
		"kubelet_started_pods_total{}":                                               2,
		"kubelet_started_pods_errors_total{}":                                        1,
		"kubelet_pleg_relist_duration_seconds{}":                                     2,
		"kubelet_pleg_relist_interval_seconds{}":                                     1,
		"kubelet_image_pull_duration_seconds{image_size_in_bytes=10MB-100MB}":        1,
		"kubelet_pod_worker_duration_seconds{operation_type=sync}":                   1,
		"kubelet_pod_status_sync_duration_seconds{}":                                 1,
		"kubelet_pod_worker_start_duration_seconds{}":                                1,
		"kubelet_device_plugin_registration_total{resource_name=x.com/gpu}":          1,
		"kubelet_device_plugin_alloc_duration_seconds{resource_name=x.com/gpu}":      1,
		"kubelet_pod_resources_endpoint_requests_total{server_api_version=v1}":       2,
		"kubelet_pod_resources_endpoint_requests_total{server_api_version=v1alpha1}": 1,
		"kubelet_pod_resources_endpoint_requests_list{server_api_version=v1}":        1,
		"kubelet_pod_resources_endpoint_requests_get{server_api_version=v1}":         1,
		"kubelet_pod_resources_endpoint_errors_get{server_api_version=v1}":           1,
	})
}

// The series of claims have the kubelet's names and labels. They are absent without a driver. Drivers
// that register under ever new names do not make ever new series.
func TestMetrics_ClaimsOfDRADrivers_AreCounted(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	used := map[string]int(nil)
	m.Claims(func() (int, map[string]int, bool) { return 2, used, used != nil })
	for name := range series(t, m.Handler()) {
		if strings.HasPrefix(name, "dra_") {
			t.Errorf("without a driver: %s", name)
		}
	}
	used = map[string]int{"gpu.test": 2, "nic.test": 1}
	m.ClaimsHandled("PrepareResources", time.Second, nil)
	m.ClaimsHandled("UnprepareResources", time.Second, errors.New("no"))
	m.ClaimDriverCalled("gpu.test", "/v1.DRAPlugin/NodePrepareResources", "DeadlineExceeded", time.Second)
	want(t, series(t, m.Handler()), map[string]float64{
		"dra_resource_claims_in_use{driver_name=<any>}":                                                                                               2,
		"dra_resource_claims_in_use{driver_name=gpu.test}":                                                                                            2,
		"dra_resource_claims_in_use{driver_name=nic.test}":                                                                                            1,
		"dra_operations_duration_seconds{is_error=false,operation_name=PrepareResources}":                                                             1,
		"dra_operations_duration_seconds{is_error=true,operation_name=UnprepareResources}":                                                            1,
		"dra_grpc_operations_duration_seconds{driver_name=gpu.test,grpc_status_code=DeadlineExceeded,method_name=/v1.DRAPlugin/NodePrepareResources}": 1,
	})
	for i := range 1000 {
		m.ClaimDriverCalled(fmt.Sprintf("driver-%d.test", i), "/v1.DRAPlugin/NodePrepareResources", "OK", time.Second)
	}
	calls := 0
	for name := range series(t, m.Handler()) {
		if strings.HasPrefix(name, "dra_grpc_operations_duration_seconds{") {
			calls++
		}
	}
	if calls < 256 || calls > 258 {
		t.Errorf("%d series of calls", calls)
	}
}

// A pod with a user namespace of its own counts with its sandbox; that it could not be started
// counts once, be it the sandbox or a container that fails.
//
// Shows: Appendix G
func TestMetrics_UserNamespacedPod_IsCounted(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	started, failed := "kubelet_started_user_namespaced_pods_total{}", "kubelet_started_user_namespaced_pods_errors_total{}"
	want(t, series(t, m.Handler()), map[string]float64{started: 0, failed: 0})
	m.Call("RunPodSandbox", "", false, time.Second, errors.New("no"))
	m.Call("CreateContainer", "", false, time.Second, errors.New("no"))
	want(t, series(t, m.Handler()), map[string]float64{started: 0, failed: 0})
	m.Call("RunPodSandbox", "", true, time.Second, nil)
	m.Call("RunPodSandbox", "", true, time.Second, errors.New("no"))
	want(t, series(t, m.Handler()), map[string]float64{started: 2, failed: 1})
	waits := func(reason string) func(*v1.PodStatus) {
		return func(s *v1.PodStatus) {
			s.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}}
		}
	}
	own, host := newLife(m, "own", "u1", "api"), newLife(m, "host", "u2", "api")
	own.pod.Spec.HostUsers = new(bool)
	for _, l := range []*life{own, host} {
		l.report(nil)
		l.report(waits("CreateContainerError"))
		l.report(waits("RunContainerError"))
	}
	want(t, series(t, m.Handler()), map[string]float64{started: 2, failed: 2})
	other := newLife(m, "other", "u3", "api")
	other.pod.Spec.HostUsers = new(bool)
	other.report(nil)
	other.report(other.runs("c1"))
	other.report(waits("ErrImagePull")) // it was started before
	want(t, series(t, m.Handler()), map[string]float64{failed: 2})
}

// unwanted marks the pod as no longer desired by any source.
func notDesired(r *pod.StatusReport) { r.NotDesired = true }

// A pod whose manifest was taken away is an orphan until nothing of it is left, and no longer
// desired or active, as e2e_node's mirror pod tests have it.
//
// Shows: Appendix G
func TestMetrics_ManifestTakenAway_IsAnOrphan(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	l := newLife(m, "static", "u1", "file")
	const working = "kubelet_working_pods{config=%s,lifecycle=%s,static=true}"
	is := func(config, lifecycle string, desired, active float64) {
		t.Helper()
		all := map[string]float64{"kubelet_desired_pods{static=true}": desired, "kubelet_active_pods{static=true}": active}
		for _, c := range []string{"desired", "orphan"} {
			for _, l := range []string{"sync", "terminating", "terminated"} {
				all[fmt.Sprintf(working, c, l)] = 0
			}
		}
		if config != "" {
			all[fmt.Sprintf(working, config, lifecycle)] = 1
		}
		got := series(t, m.Handler())
		want(t, got, all)
		n := 0
		for name := range got {
			if strings.HasPrefix(name, "kubelet_working_pods{") {
				n++
			}
		}
		if n != 15 { // e2e_node expects exactly these
			t.Errorf("%d series of kubelet_working_pods", n)
		}
	}
	l.report(l.runs("c1"))
	is("desired", "sync", 1, 1)
	l.report(nil, notDesired)
	is("orphan", "terminating", 0, 0)
	l.report(nil, notDesired, func(r *pod.StatusReport) { r.Finished = true })
	is("orphan", "terminated", 0, 0)
	l.report(nil, notDesired, gone)
	is("", "", 0, 0)
}

// Resizes that wait and that are under way, by the pods' conditions.
//
// Shows: Appendix G
func TestMetrics_Resizes_AreCounted(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	const under, pending = "kubelet_pod_in_progress_resizes{}", "kubelet_pod_pending_resizes{reason=%s}"
	is := func(now, deferred, infeasible float64) {
		t.Helper()
		got := series(t, m.Handler())
		for reason, n := range map[string]float64{"deferred": deferred, "infeasible": infeasible} { // as the kubelet's, absent until there is one
			if got[fmt.Sprintf(pending, reason)] != n {
				t.Errorf("%s: %v, want %v", reason, got[fmt.Sprintf(pending, reason)], n)
			}
		}
		want(t, got, map[string]float64{under: now})
	}
	condition := func(kind v1.PodConditionType, reason string) func(*v1.PodStatus) {
		return func(s *v1.PodStatus) {
			s.Conditions = []v1.PodCondition{{Type: kind, Status: v1.ConditionTrue, Reason: reason}}
		}
	}
	is(0, 0, 0)
	a, b := newLife(m, "a", "u1", "api"), newLife(m, "b", "u2", "api")
	a.report(condition(v1.PodResizePending, v1.PodReasonDeferred))
	b.report(condition(v1.PodResizePending, v1.PodReasonInfeasible))
	is(0, 1, 1)
	a.report(condition(v1.PodResizeInProgress, ""))
	is(1, 0, 1)
	a.report(nil, gone)
	b.report(nil, gone)
	is(0, 0, 0)
}

// The volumes that containers mount count as desired while the pod is, and as actual while its
// sandbox runs.
//
// Shows: Appendix G
func TestMetrics_Volumes_AreCountedByPluginAndState(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	l := newLife(m, "a", "u1", "api")
	l.pod.Spec.Volumes = []v1.Volume{
		{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, {Name: "f", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "c", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}}, {Name: "not-mounted", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}},
	}
	l.pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "e"}, {Name: "f"}, {Name: "e"}}
	l.pod.Spec.InitContainers = []v1.Container{{Name: "i", VolumeMounts: []v1.VolumeMount{{Name: "c"}}}}
	volumes := func() map[string]float64 {
		all := map[string]float64{}
		for name, value := range series(t, m.Handler()) {
			if strings.HasPrefix(name, "volume_manager_total_volumes{") {
				all[strings.NewReplacer("volume_manager_total_volumes{plugin_name=kubernetes.io/", "", "state=", "", "_state_of_world}", "").Replace(name)] = value
			}
		}
		return all
	}
	l.report(nil)
	if got := volumes(); !maps.Equal(got, map[string]float64{"empty-dir,desired": 2, "configmap,desired": 1}) {
		t.Errorf("before it runs: %v", got)
	}
	l.report(l.runs("c1"))
	if got := volumes(); !maps.Equal(got, map[string]float64{"empty-dir,desired": 2, "configmap,desired": 1, "empty-dir,actual": 2, "configmap,actual": 1}) {
		t.Errorf("while it runs: %v", got)
	}
	l.report(nil, notDesired)
	if got := volumes(); !maps.Equal(got, map[string]float64{"empty-dir,actual": 2, "configmap,actual": 1}) {
		t.Errorf("while it ends: %v", got)
	}
	l.report(nil, gone)
	if got := volumes(); len(got) != 0 {
		t.Errorf("afterwards: %v", got)
	}
}

// The first pod with a network of its own has a gauge, once; operations on cgroups have a
// histogram.
//
// Shows: Appendix G
func TestMetrics_FirstPodAndCgroups_AreMeasured(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	const first = "kubelet_first_network_pod_start_sli_duration_seconds{}"
	start := func(name string, host bool, took time.Duration) {
		l := newLife(m, name, name, "api")
		l.pod.Spec.HostNetwork = host
		l.report(nil)
		l.pod.CreationTimestamp = metav1.NewTime(l.at.Add(time.Second - took)) // it runs a second later
		l.report(l.runs(name))
	}
	start("host", true, 7*time.Second)
	want(t, series(t, m.Handler()), map[string]float64{first: 0})
	start("own", false, 3*time.Second)
	want(t, series(t, m.Handler()), map[string]float64{first: 3})
	start("later", false, 9*time.Second)
	want(t, series(t, m.Handler()), map[string]float64{first: 3})
	m.Cgroup("create", time.Second)
	m.Cgroup("create", time.Second)
	m.Cgroup("destroy", time.Second)
	want(t, series(t, m.Handler()), map[string]float64{
		"kubelet_cgroup_manager_duration_seconds{operation_type=create}": 2, "kubelet_cgroup_manager_duration_seconds{operation_type=destroy}": 1,
	})
}

// TestAppendixG_Requests: requests to the server count by route, those to API servers by
// status; an unknown method is not a label.
//
// Shows: Appendix G
func TestAppendixG_Requests(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1"})
	end := m.Request("GET", "pods", false)
	other := m.Request("EVIL\n", "exec", true)
	end()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Transport(http.DefaultTransport).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close()
	want(t, series(t, m.Handler()), map[string]float64{
		"kubelet_http_requests_total{long_running=false,method=GET,path=pods,server_type=readwrite}":            1,
		"kubelet_http_inflight_requests{long_running=false,method=GET,path=pods,server_type=readwrite}":         0,
		"kubelet_http_inflight_requests{long_running=true,method=other,path=exec,server_type=readwrite}":        1,
		"kubelet_http_requests_duration_seconds{long_running=false,method=GET,path=pods,server_type=readwrite}": 1,
		"rest_client_requests_total{code=403,host=" + r.URL.Host + ",method=GET}":                               1,
		"rest_client_request_duration_seconds{host=" + r.URL.Host + ",verb=GET}":                                1,
	})
	other()
}

// TestAppendixG_Certificates: the seconds left, infinity without a certificate, and the
// number of failed renewals.
//
// Shows: Appendix G
func TestAppendixG_Certificates(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(time.Hour)
	m := metrics.New(metrics.Config{Node: "n1"})
	m.Serve(metrics.Serving{ClientExpires: func() time.Time { return at }, ServerFailures: func() int64 { return 1 }})
	got := series(t, m.Handler())
	want(t, got, map[string]float64{
		"kubelet_server_expiration_renew_errors{}": 1, "kubelet_certificate_manager_client_expiration_renew_errors{}": 0,
	})
	if left := got["kubelet_certificate_manager_client_ttl_seconds{}"]; left < 3590 || left > 3600 {
		t.Errorf("%v seconds are left", left)
	}
	if left := got["kubelet_certificate_manager_server_ttl_seconds{}"]; left < 1e300 {
		t.Errorf("%v seconds are left of none", left)
	}
}

// TestAppendixG_NamesAndLabels: of all series before any event, and after one of each.
//
// Shows: Appendix G
func TestAppendixG_NamesAndLabels(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Node: "n1", Build: build(), CgroupVersion: 2})
	m.Serve(metrics.Serving{ClientExpires: time.Now})
	l := newLife(m, "a", "u", "api")
	l.report(nil)
	l.report(l.runs("c1"))
	m.Event(pod.Event{Key: pod.KeyOf(l.pod), UID: "u", Container: "spec.containers{main}", Reason: "Started"})
	_ = m.Prober(prober{}).Probe(t.Context(), pod.ProbeRequest{Probe: l.pod.Spec.Containers[0].LivenessProbe, Container: &l.pod.Spec.Containers[0], ContainerID: "c1"})
	l.report(func(s *v1.PodStatus) {
		s.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://c1", FinishedAt: metav1.Now()}}
	})
	failed := newLife(m, "b", "v", "api")
	failed.report(func(s *v1.PodStatus) {
		s.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
	})
	for i, reason := range []string{"OutOfpods", "Evicted"} {
		newLife(m, fmt.Sprint("r", i), fmt.Sprint("r", i), "api").report(func(s *v1.PodStatus) { s.Phase, s.Reason = v1.PodFailed, reason })
	}
	m.Call("RunPodSandbox", "", false, time.Second, errors.New("no"))
	m.Pulled(time.Second, 1)
	m.PodWorkerDuration("sync", time.Second)
	m.Cgroup("create", time.Second)
	m.PluginRegistered("x.com/gpu")
	m.DevicesAllocated("x.com/gpu", time.Second)
	m.ClaimsHandled("PrepareResources", time.Second, nil)
	m.ClaimDriverCalled("gpu.test", "/v1.DRAPlugin/NodePrepareResources", "OK", time.Second)
	m.Claims(func() (int, map[string]int, bool) { return 1, map[string]int{"gpu.test": 1}, true })
	for _, method := range []string{"list", "get", "get_allocatable"} {
		m.PodResourcesRequested("v1", method, true)
	}
	m.Request("GET", "pods", false)()
	all := map[string]bool{}
	for _, h := range []http.Handler{m.Handler(), m.Probes()} {
		read(t, h, func(name, labels, kind string, _ float64) {
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				return
			}
			var names []string
			for _, l := range strings.Split(strings.Trim(labels, "{}"), ",") {
				l, _, _ = strings.Cut(l, "=")
				names = append(names, l)
			}
			all[name+"{"+strings.Join(names, ",")+"} "+kind] = true
		})
	}
	file, text := filepath.Join("testdata", "names.txt"), strings.Join(slices.Sorted(maps.Keys(all)), "\n")+"\n"
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(wanted) {
		t.Errorf("%s differs (-update rewrites it):\n%s", file, text)
	}
}
