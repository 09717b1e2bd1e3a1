package server

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// notImplemented is the answer to a request for which the Config has no part.
func notImplemented(q *request) error {
	return &StatusError{Code: http.StatusNotImplemented, Message: "this agent does not serve " + q.route.path}
}

// send answers with a document, as encoding/json writes it.
func send(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return sendBytes(w, data)
}

func sendBytes(w http.ResponseWriter, data []byte) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // an error means that the caller has closed its connection
	return nil
}

// sendSuccess answers that the request succeeded.
func sendSuccess(w http.ResponseWriter) error {
	return send(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
}

// pod returns the pod of a path, or the kubelet's error if there is none.
func (s *Server) pod(q *request) (*v1.Pod, error) {
	if s.cfg.Pods == nil {
		return nil, notImplemented(q)
	}
	p := s.cfg.Pods.Pod(q.values["namespace"], q.values["pod"])
	if p == nil && !s.waitForPods(q.Context(), 0) {
		return nil, errPodsNotRead
	}
	if p == nil {
		return nil, &StatusError{Code: http.StatusNotFound, Message: "pod does not exist"}
	}
	if uid, ok := q.values["uid"]; ok && uid != string(p.UID) {
		return nil, &StatusError{Code: http.StatusNotFound, Message: "pod not found"}
	}
	return p, nil
}

// podsReadTimeout is how long a request for all pods waits for an agent that has just started.
const podsReadTimeout = 5 * time.Second

var errPodsNotRead = &StatusError{Code: http.StatusServiceUnavailable, Message: "the agent has not read its pods yet; it may be waiting for the container runtime"}

// waitForPods waits up to limit until the agent has read its pods, and reports whether it has.
func (s *Server) waitForPods(ctx context.Context, limit time.Duration) bool {
	if s.cfg.PodsRead == nil {
		return true
	}
	select {
	case <-s.cfg.PodsRead:
		return true
	default:
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-s.cfg.PodsRead:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// pods answers /pods: a PodList whose items have no kind (C-1.40.6).
func (s *Server) pods(w http.ResponseWriter, q *request) error {
	if s.cfg.Pods == nil {
		return notImplemented(q)
	}
	return sendPods(w, s.cfg.Pods.Pods())
}

func sendPods(w http.ResponseWriter, pods []v1.Pod) error {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: make([]v1.Pod, len(pods))}
	for i := range pods {
		list.Items[i] = pods[i]
		list.Items[i].TypeMeta = metav1.TypeMeta{}
	}
	return send(w, list)
}

func (s *Server) runningPods(w http.ResponseWriter, q *request) error {
	if s.cfg.Node == nil {
		return notImplemented(q)
	}
	pods, err := s.cfg.Node.RunningPods(q.Context())
	if err != nil {
		return statusError(http.StatusInternalServerError, err)
	}
	all := make([]v1.Pod, len(pods))
	for i, p := range pods {
		all[i] = *p
	}
	return sendPods(w, all)
}

func (s *Server) configz(w http.ResponseWriter, q *request) error {
	return sendDocument(w, q, s.cfg.Configz)
}

func (s *Server) sources(w http.ResponseWriter, q *request) error {
	if s.cfg.Pods == nil {
		return notImplemented(q)
	}
	return sendDocument(w, q, s.cfg.Pods.Sources)
}

// why answers /v1/why.
func (s *Server) why(w http.ResponseWriter, q *request) error {
	if s.cfg.Explainer == nil {
		return notImplemented(q)
	}
	report, ok := s.cfg.Explainer.Why(q.Context(), q.values["namespace"], q.values["pod"])
	switch {
	case ok:
		return send(w, report)
	case !s.waitForPods(q.Context(), 0):
		return errPodsNotRead
	}
	return &StatusError{Code: http.StatusNotFound, Message: "pod does not exist"}
}

func sendDocument(w http.ResponseWriter, q *request, f func() ([]byte, error)) error {
	if f == nil {
		return notImplemented(q)
	}
	data, err := f()
	if err != nil {
		return err
	}
	return sendBytes(w, data)
}

func (s *Server) summary(w http.ResponseWriter, q *request) error {
	if s.cfg.Stats == nil {
		return notImplemented(q)
	}
	only := false
	if text := q.params.Get("only_cpu_and_memory"); text != "" {
		var err error
		if only, err = strconv.ParseBool(text); err != nil {
			return statusError(http.StatusInternalServerError, err) // as the kubelet
		}
	}
	sum, err := s.cfg.Stats.Summary(q.Context(), only)
	if err != nil {
		return statusError(http.StatusInternalServerError, err)
	}
	return send(w, sum)
}

func (s *Server) metrics(w http.ResponseWriter, q *request) error {
	return serveHandler(s.cfg.Metrics, w, q)
}

func (s *Server) resourceMetrics(w http.ResponseWriter, q *request) error {
	return serveHandler(s.cfg.ResourceMetrics, w, q)
}

func (s *Server) cadvisorMetrics(w http.ResponseWriter, q *request) error {
	return serveHandler(s.cfg.CadvisorMetrics, w, q)
}

func (s *Server) probeMetrics(w http.ResponseWriter, q *request) error {
	return serveHandler(s.cfg.ProbeMetrics, w, q)
}

func serveHandler(h http.Handler, w http.ResponseWriter, q *request) error {
	if h == nil {
		return notImplemented(q)
	}
	h.ServeHTTP(w, q.Request)
	return nil
}

// statusError returns a StatusError with the text of err, for errors that callers may see.
func statusError(code int, err error) error { return &StatusError{Code: code, Message: err.Error()} }

// localPods answers /v1/pods: a List whose items have a kind, or with watch=true a stream of
// the pods and their changes.
func (s *Server) localPods(w http.ResponseWriter, q *request) error {
	namespace, name := q.params.Get("namespace"), q.params.Get("name")
	matches := func(p *v1.Pod) bool {
		return (namespace == "" || p.Namespace == namespace) && (name == "" || p.Name == name)
	}
	kind := metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if isTrue(q.params.Get("watch")) {
		if s.cfg.Pods == nil {
			return notImplemented(q)
		}
		bookmarks := isTrue(q.params.Get("allowWatchBookmarks"))
		selected := func(eventType string, p *v1.Pod) bool {
			if eventType == "BOOKMARK" {
				return bookmarks
			}
			return matches(p)
		}
		return s.lines(w, q, watchLines(s.cfg.Pods.WatchPods(q.Context()), selected, func(p *v1.Pod) any {
			shown := *p
			shown.TypeMeta = kind
			return &shown
		}))
	}
	if s.cfg.Pods == nil {
		return notImplemented(q)
	}
	if !s.waitForPods(q.Context(), podsReadTimeout) {
		return errPodsNotRead
	}
	items := []v1.Pod{}
	for _, p := range s.cfg.Pods.Pods() {
		if matches(&p) {
			p.TypeMeta = kind
			items = append(items, p)
		}
	}
	return send(w, struct {
		metav1.TypeMeta `json:",inline"`
		Items           []v1.Pod `json:"items"`
	}{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, items})
}

// events answers /v1/events: an EventList, or with watch=true a stream of the existing events
// and the later ones.
func (s *Server) events(w http.ResponseWriter, q *request) error {
	if s.cfg.Node == nil {
		return notImplemented(q)
	}
	namespace, name := q.params.Get("namespace"), q.params.Get("pod")
	matches := func(e *v1.Event) bool {
		o := e.InvolvedObject
		return (namespace == "" || o.Namespace == namespace) && (name == "" || o.Kind == "Pod" && o.Name == name)
	}
	if isTrue(q.params.Get("watch")) {
		selected := func(_ string, e *v1.Event) bool { return matches(e) }
		return s.lines(w, q, watchLines(s.cfg.Node.Events(q.Context(), true), selected, func(e *v1.Event) any {
			shown := *e
			shown.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
			return &shown
		}))
	}
	list := v1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}, Items: []v1.Event{}}
	for _, e := range s.cfg.Node.Events(q.Context(), false) {
		if matches(e) {
			list.Items = append(list.Items, *e)
		}
	}
	return send(w, list)
}

// watchLines turns changes into the lines of a watch.
func watchLines[T any](changes iter.Seq2[string, *T], selected func(string, *T) bool, shown func(*T) any) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for eventType, object := range changes {
			if !selected(eventType, object) {
				continue
			}
			line, err := json.Marshal(struct {
				Type   string `json:"type"`
				Object any    `json:"object"`
			}{eventType, shown(object)})
			if !yield(append(line, '\n'), err) || err != nil {
				return
			}
		}
	}
}

func (s *Server) node(w http.ResponseWriter, q *request) error {
	if s.cfg.Node == nil {
		return notImplemented(q)
	}
	n, err := s.cfg.Node.Node(q.Context())
	if err != nil {
		return err
	}
	shown := *n
	shown.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return send(w, &shown)
}

func (s *Server) reclaim(w http.ResponseWriter, q *request) error {
	if s.cfg.Node == nil {
		return notImplemented(q)
	}
	found, err := s.cfg.Node.Reclaim(q.Context(), q.params["assume"])
	if err != nil {
		return err
	}
	return send(w, found)
}

func (s *Server) services(w http.ResponseWriter, q *request) error {
	if s.cfg.Services == nil {
		return notImplemented(q)
	}
	items := s.cfg.Services()
	if items == nil {
		items = []Service{}
	}
	return send(w, struct {
		Kind  string    `json:"kind"`
		Items []Service `json:"items"`
	}{"ServiceStateList", items})
}

func (s *Server) devices(w http.ResponseWriter, q *request) error {
	if s.cfg.Devices == nil {
		return notImplemented(q)
	}
	return send(w, struct {
		Kind  string           `json:"kind"`
		Items []DeviceResource `json:"items"`
	}{"DeviceResourceList", s.cfg.Devices()})
}

func (s *Server) allocations(w http.ResponseWriter, q *request) error {
	if s.cfg.Allocations == nil {
		return notImplemented(q)
	}
	list, err := s.cfg.Allocations(q.Context())
	if err != nil {
		return err
	}
	return send(w, struct {
		Kind  string       `json:"kind"`
		Items []Allocation `json:"items"`
	}{"AllocationList", list})
}

func (s *Server) restart(w http.ResponseWriter, q *request) error {
	if s.cfg.Control == nil {
		return notImplemented(q)
	}
	grace, err := graceOf(q)
	if err != nil {
		return err
	}
	// A restart goes on if the caller closes its connection.
	err = s.cfg.Control.Restart(context.WithoutCancel(q.Context()), q.values["namespace"], q.values["pod"], q.params["container"], grace)
	if err != nil {
		return err
	}
	return sendSuccess(w)
}

func (s *Server) delete(w http.ResponseWriter, q *request) error {
	if s.cfg.Control == nil {
		return notImplemented(q)
	}
	grace, err := graceOf(q)
	if err != nil {
		return err
	}
	err = s.cfg.Control.Delete(context.WithoutCancel(q.Context()), q.values["namespace"], q.values["pod"], q.params.Get("uid"), grace)
	if err != nil {
		return err
	}
	return sendSuccess(w)
}

// drainNode answers /v1/drain.
func (s *Server) drainNode(w http.ResponseWriter, q *request) error {
	if s.cfg.Control == nil {
		return notImplemented(q)
	}
	grace, err := graceOf(q)
	if err != nil {
		return err
	}
	ctx := context.WithoutCancel(q.Context())
	if isTrue(q.params.Get("undo")) {
		err = s.cfg.Control.Undrain(ctx)
	} else {
		err = s.cfg.Control.Drain(ctx, grace)
	}
	if err != nil {
		return err
	}
	return sendSuccess(w)
}

// graceOf returns the grace period in a query, or nil if it has none.
func graceOf(q *request) (*int64, error) {
	text := q.params.Get("gracePeriodSeconds")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return nil, &StatusError{Code: http.StatusBadRequest, Message: "gracePeriodSeconds is not a number of seconds"}
	}
	return &n, nil
}

// updates answers /v1/updates.
func (s *Server) updates(w http.ResponseWriter, q *request) error {
	if s.cfg.Pods == nil {
		return notImplemented(q)
	}
	lines, err := s.cfg.Pods.Updates(q.Context(), q.params)
	if err != nil {
		return err
	}
	return s.lines(w, q, lines)
}
