package metrics

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Report implements engine.Sink: it counts a pod's changes since its last status.
func (m *Metrics) Report(r pod.StatusReport) error {
	m.pods.report(r)
	return nil
}

// Event implements engine.Events.
func (m *Metrics) Event(e pod.Event) { m.pods.event(e) }

// pods is the state of pods from their statuses and events.
type pods struct {
	began  time.Time
	forget func(podName)

	mu    sync.Mutex // guards all fields below, for the length of one report
	known map[pod.Key]*podState
	ids   map[string]containerName // by container ID, as the runtime has it

	started, failed, terminated *prometheus.CounterVec
	rejected, evicted           *prometheus.CounterVec
	restarted                   *prometheus.CounterVec
	start                       prometheus.Histogram
	startSLI, startTotal        *prometheus.HistogramVec
	first                       prometheus.Gauge
	firstUp                     bool // first is set
	size                        prometheus.Histogram
	namespaced                  namespaced
}

// podName identifies a pod in labels.
type podName struct{ namespace, name, uid string }

type containerName struct {
	pod       podName
	container string
}

// podState is one pod as last reported.
type podState struct {
	podName
	static     bool
	finished   bool
	notDesired bool // no source desires it any more
	pod        *v1.Pod
	seen       time.Time // first report
	waiting    map[string]string
	ended      map[string]string // each container's last ID that was counted as terminated
	ids        []string
	// pull is the time from the start of the first pull to the end of the last one.
	pullBegan, pullEnded time.Time
	ran, up              bool // its start is counted, or was before this agent
	failed               bool // a container start failure is counted in namespaced
}

func newPods(r *prometheus.Registry, began time.Time, n namespaced, forget func(podName)) *pods {
	startup := []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	p := &pods{
		began: began, forget: forget, namespaced: n, known: map[pod.Key]*podState{}, ids: map[string]containerName{},
		started:    counters(r, "kubelet_started_containers_total", "Cumulative number of containers started", "container_type"),
		failed:     counters(r, "kubelet_started_containers_errors_total", "Cumulative number of errors when starting containers", "container_type", "code"),
		terminated: counters(r, "kubelet_terminated_containers_total", "Cumulative number of container terminations.", "container_type", "exit_code", "reason"),
		rejected:   counters(r, "kubelet_admission_rejections_total", "Cumulative number pod admission rejections by the Kubelet.", "reason"),
		evicted:    counters(r, "kubelet_evictions", "Cumulative number of pod evictions by eviction signal", "eviction_signal"),
		restarted: counters(r, "kubelet_restarted_pods_total",
			"Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)", "static"),
		start: histogram(r, "kubelet_pod_start_duration_seconds",
			"Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startup),
		startSLI: histograms(r, "kubelet_pod_start_sli_duration_seconds",
			"Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startup),
		startTotal: histograms(r, "kubelet_pod_start_total_duration_seconds",
			"Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startup),
		first: gauge(r, "kubelet_first_network_pod_start_sli_duration_seconds",
			"Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch"),
		size: histogram(r, "kubelet_containers_per_pod_count", "The number of containers per pod.", prometheus.ExponentialBuckets(1, 2, 5)),
	}
	p.restarted.WithLabelValues("")
	p.restarted.WithLabelValues("true")
	r.MustRegister(p)
	return p
}

// report counts one status.
func (p *pods) report(r pod.StatusReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pod.KeyOf(r.Pod)
	uid := string(r.Pod.UID)
	s := p.known[key]
	if s != nil && s.uid != uid && r.Gone {
		return // the last report of a replaced pod
	}
	if s != nil && (s.uid != uid || r.Gone) {
		p.drop(key, s)
		s = nil
	}
	if r.Gone {
		return
	}
	if s == nil {
		s = &podState{
			podName: podName{key.Namespace, key.Name, uid}, static: !r.Origin.FromAPI(),
			seen: r.At, waiting: map[string]string{}, ended: map[string]string{},
		}
		s.ran = r.Pod.Status.Phase != v1.PodPending && r.Pod.Status.Phase != "" && r.Pod.Status.Phase != v1.PodFailed
		s.up = s.ran
		p.known[key] = s
		p.size.Observe(float64(len(r.Pod.Spec.Containers)))
	}
	before := s.pod
	s.pod, s.finished, s.notDesired = r.Pod, r.Finished, r.NotDesired
	p.containers(s)
	p.phase(s, before, r.At)
}

// drop forgets a pod with all its series; the caller holds mu.
func (p *pods) drop(key pod.Key, s *podState) {
	delete(p.known, key)
	for _, id := range s.ids {
		delete(p.ids, id)
	}
	p.forget(s.podName)
}

// containers counts the changes of a pod's containers; the caller holds mu.
func (p *pods) containers(s *podState) {
	for _, id := range s.ids {
		delete(p.ids, id)
	}
	s.ids = s.ids[:0]
	each(&s.pod.Status, func(kind string, c *v1.ContainerStatus) {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok {
			p.ids[id] = containerName{s.podName, c.Name}
			s.ids = append(s.ids, id)
		}
		reason := ""
		if w := c.State.Waiting; w != nil && startErrors[w.Reason] {
			reason = w.Reason
		}
		if reason != "" && s.waiting[c.Name] != reason {
			p.failed.WithLabelValues(kind, reason).Inc()
			if users := s.pod.Spec.HostUsers; users != nil && !*users && !s.up && !s.failed {
				s.failed = true // the kubelet counts the first attempt of a pod, with all its containers
				p.namespaced.failed.Inc()
			}
		}
		s.waiting[c.Name] = reason
		for _, t := range []*v1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if t == nil || t.ContainerID == "" || s.ended[c.Name] == t.ContainerID {
				continue
			}
			s.ended[c.Name] = t.ContainerID
			if !t.FinishedAt.Time.Before(p.began.Truncate(time.Second)) {
				p.terminated.WithLabelValues(kind, strconv.Itoa(int(t.ExitCode)), ending(t.Reason)).Inc()
			}
		}
	})
}

// phase counts starts and ends of a pod; the caller holds mu.
func (p *pods) phase(s *podState, before *v1.Pod, at time.Time) {
	status := &s.pod.Status
	if !s.ran && status.Phase == v1.PodRunning {
		s.ran = true
		p.start.Observe(max(0, at.Sub(s.seen).Seconds()))
	}
	if !s.up && status.Phase == v1.PodRunning && allStarted(status) {
		s.up = true
		if created := s.pod.CreationTimestamp.Time; !created.IsZero() {
			took := at.Sub(created)
			p.startTotal.WithLabelValues().Observe(max(0, took.Seconds()))
			if !s.pullBegan.IsZero() && s.pullEnded.After(s.pullBegan) {
				took -= s.pullEnded.Sub(s.pullBegan)
			}
			p.startSLI.WithLabelValues().Observe(max(0, took.Seconds()))
			if !p.firstUp && !s.pod.Spec.HostNetwork {
				p.firstUp = true
				p.first.Set(max(0, took.Seconds()))
			}
		}
	}
	if status.Phase != v1.PodFailed || status.Reason == "" || before != nil && before.Status.Phase == v1.PodFailed {
		return
	}
	if status.StartTime != nil && status.StartTime.Time.Before(p.began.Truncate(time.Second)) {
		return // an earlier agent counted it
	}
	switch {
	case status.Reason == "Evicted":
		p.evicted.WithLabelValues(signal(status.Message)).Inc()
	case !anyMade(status) && status.Reason != "DeadlineExceeded":
		p.rejected.WithLabelValues(rejection(status.Reason)).Inc()
	}
}

// event counts one event.
func (p *pods) event(e pod.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Reason == "Started" && e.Container != "" {
		p.started.WithLabelValues(kindOfPath(e.Container)).Inc()
	}
	s := p.known[e.Key]
	if s == nil || s.uid != e.UID {
		return
	}
	switch {
	case e.Reason == "Pulling" && s.pullBegan.IsZero():
		s.pullBegan = e.At
	case e.Reason == "Pulled" && !s.pullBegan.IsZero() && strings.HasPrefix(e.Message, "Successfully pulled"):
		s.pullEnded = e.At
	}
}

// probed calls f for the container of that ID, unless its pod was removed.
func (p *pods) probed(id string, f func(podName, string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.ids[id]; ok {
		f(c.pod, c.container)
	}
}
