package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/pod"
)

// server is a fake API server that works in a synctest bubble. It keeps pods and
// events, and gives false answers on demand.
type server struct {
	t *testing.T

	mu     sync.Mutex
	rv     int
	pods   map[string]*v1.Pod // by name
	events map[string]*v1.Event
	sent   []call
	now    int                                       // requests in flight
	most   int                                       // at the same time
	each   map[string]int                            // in flight, by name
	takes  time.Duration                             // an answer
	answer func(call) (code int, header http.Header) // 0: normal, -1: none, -2: none, but it took effect
	lags   time.Duration                             // until the answer
	shows  func(p *v1.Pod, gone bool)                // the watch; nil: there is none
	drops  func(p *v1.Pod)                           // removes the fields that this server drops
}

type call struct {
	method, kind, name string
	body               string
	at                 time.Duration // since the start
	code               int
}

func newTestServer(t *testing.T) *server {
	return &server{t: t, rv: 100, pods: map[string]*v1.Pod{}, events: map[string]*v1.Event{}, each: map[string]int{}, takes: 5 * time.Millisecond}
}

var errCut = errors.New("connection refused")

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	c := s.begin(r)
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.now--; s.each[c.name]-- }()
	var code int
	header := http.Header{}
	if s.answer != nil {
		if n, h := s.answer(c); n != 0 {
			code, header = n, h
		}
	}
	var body any
	switch code {
	case -2:
		s.serve(c)
		s.sent = append(s.sent, c)
		return nil, errCut
	case -1:
		s.sent = append(s.sent, c)
		return nil, errCut
	case 0:
		code, body = s.serve(c)
	}
	c.code = code
	s.sent = append(s.sent, c)
	if lags := s.lags; lags > 0 {
		s.mu.Unlock()
		time.Sleep(lags)
		s.mu.Lock()
	}
	if body == nil {
		body = &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasonOf(code), Message: header.Get("Message"),
			Details: &metav1.StatusDetails{Kind: header.Get("Kind")},
		}
	}
	data, err := json.Marshal(body)
	if err != nil {
		s.t.Error(err)
	}
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(bytes.NewReader(data)), Request: r}, nil
}

func (s *server) begin(r *http.Request) call {
	c := call{method: r.Method, at: since(s.t)}
	if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		c.body = string(data)
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api v1 namespaces NS pods NAME status
	c.kind = parts[4]
	if len(parts) > 5 {
		c.name = parts[5]
	} else if selector := r.URL.Query().Get("fieldSelector"); selector != "" {
		c.name, _, _ = strings.Cut(strings.TrimPrefix(selector, "metadata.name="), ",")
	} else {
		var p v1.Pod
		if c.kind == "pods" && s.decodes(c.body, &p) {
			c.name = p.Name
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now++
	s.each[c.name]++
	s.most = max(s.most, s.now)
	if s.each[c.name] > 1 && c.kind == "pods" {
		s.t.Errorf("two requests for %s at the same time", c.name)
	}
	return c
}

// serve executes c.
func (s *server) serve(c call) (int, any) {
	if c.kind == "events" {
		return s.serveEvent(c)
	}
	p := s.pods[c.name]
	if p == nil && c.method != http.MethodGet && c.method != http.MethodPost {
		return http.StatusNotFound, nil
	}
	switch c.method {
	case http.MethodGet:
		list := &v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		list.ResourceVersion = strconv.Itoa(s.rv)
		if p != nil {
			list.Items = append(list.Items, *p)
		}
		return http.StatusOK, list
	case http.MethodDelete:
		var options metav1.DeleteOptions
		if !s.decodes(c.body, &options) || options.Preconditions == nil || *options.GracePeriodSeconds != 0 {
			s.t.Errorf("deletion %s", c.body)
		}
		if *options.Preconditions.UID != p.UID {
			return http.StatusConflict, nil
		}
		delete(s.pods, c.name)
		s.show(p, true)
		return http.StatusOK, p
	case http.MethodPatch:
		return s.patch(c, p)
	case http.MethodPost:
		var made v1.Pod
		if !s.decodes(c.body, &made) {
			s.t.Errorf("creation %q", c.body)
		}
		if s.pods[made.Name] != nil {
			return http.StatusConflict, nil
		}
		made.UID = types.UID(fmt.Sprintf("mirror-%d", s.rv))
		made.Generation = 1
		return http.StatusCreated, s.store(&made)
	}
	return http.StatusMethodNotAllowed, nil
}

func (s *server) patch(c call, p *v1.Pod) (int, any) {
	var sent struct{ Metadata struct{ UID types.UID } }
	if json.Unmarshal([]byte(c.body), &sent) != nil || sent.Metadata.UID == "" {
		s.t.Errorf("patch %s", c.body)
	}
	if sent.Metadata.UID != p.UID {
		return http.StatusConflict, nil
	}
	was, err := json.Marshal(p)
	if err != nil {
		s.t.Error(err)
	}
	is, err := strategicpatch.StrategicMergePatch(was, []byte(c.body), v1.Pod{})
	var now v1.Pod
	if err != nil || json.Unmarshal(is, &now) != nil {
		s.t.Errorf("patch %s: %v", c.body, err)
	}
	if pod.IsPhaseTerminal(p.Status.Phase) && now.Status.Phase != p.Status.Phase {
		s.t.Errorf("%s: phase %s became %s", c.name, p.Status.Phase, now.Status.Phase)
	}
	// A real server does not let a patch clear observed generations.
	if now.Status.ObservedGeneration == 0 {
		now.Status.ObservedGeneration = p.Status.ObservedGeneration
	}
	for i := range now.Status.Conditions {
		if c := &now.Status.Conditions[i]; c.ObservedGeneration == 0 {
			c.ObservedGeneration = generationOf(p.Status.Conditions, c.Type)
		}
	}
	if s.drops != nil {
		s.drops(&now)
	}
	return http.StatusOK, s.store(&now)
}

func (s *server) serveEvent(c call) (int, any) {
	var e v1.Event
	if c.method == http.MethodPatch {
		is := s.events[c.name]
		if is == nil {
			return http.StatusNotFound, nil
		}
		if err := json.Unmarshal([]byte(c.body), is); err != nil {
			s.t.Error(err)
		}
		return http.StatusOK, is
	}
	if !s.decodes(c.body, &e) {
		s.t.Errorf("event %q", c.body)
	}
	e.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}
	s.events[e.Name] = &e
	return http.StatusCreated, &e
}

// store keeps p and shows it; the caller holds mu.
func (s *server) store(p *v1.Pod) *v1.Pod {
	s.rv++
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	p.ResourceVersion = strconv.Itoa(s.rv)
	s.pods[p.Name] = p
	s.show(p, false)
	return p
}

func (s *server) show(p *v1.Pod, gone bool) {
	if s.shows != nil {
		s.shows(p.DeepCopy(), gone)
	}
}

// decodes reads a body, of whichever type it is.
func (s *server) decodes(body string, into interface{ Unmarshal([]byte) error }) bool {
	if envelope, ok := strings.CutPrefix(body, "k8s\x00"); ok {
		var u runtime.Unknown
		return u.Unmarshal([]byte(envelope)) == nil && into.Unmarshal(u.Raw) == nil
	}
	return json.Unmarshal([]byte(body), into) == nil
}

// change lets the test be the server's other clients.
func (s *server) change(name string, f func(p *v1.Pod)) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.pods[name].DeepCopy()
	f(now)
	return s.store(now)
}

// calls returns the requests for a pod; "" is all of them.
func (s *server) calls(method, name string) []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []call
	for _, c := range s.sent {
		if (method == "" || c.method == method) && (name == "" || c.name == name) {
			list = append(list, c)
		}
	}
	return list
}

// lose removes a pod, and shows that it is gone.
func (s *server) lose(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[name]
	delete(s.pods, name)
	s.show(p, true)
}

func (s *server) pod(name string) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

func (s *server) says(answer func(call) (int, http.Header)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func reasonOf(code int) metav1.StatusReason {
	for reason, of := range map[metav1.StatusReason]int{
		metav1.StatusReasonConflict: 409, metav1.StatusReasonNotFound: 404, metav1.StatusReasonForbidden: 403, metav1.StatusReasonInvalid: 422,
		metav1.StatusReasonTooManyRequests: 429, metav1.StatusReasonServiceUnavailable: 503, metav1.StatusReasonInternalError: 500, metav1.StatusReasonRequestEntityTooLarge: 413,
	} {
		if of == code {
			return reason
		}
	}
	return metav1.StatusReasonUnknown
}

// node is a running sink and its log.
type node struct {
	*Sink
	*server
	loop *loop
	log  *bytes.Buffer // read it only when all goroutines wait
}

// inBubble runs f in a synctest bubble, with a running sink.
func inBubble(t *testing.T, f func(t *testing.T, n *node), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		n := &node{server: s, log: &bytes.Buffer{}}
		cfg := Config{
			REST: &rest.Config{Host: "http://api.invalid", Transport: s}, Node: "N1", NodeUID: func() types.UID { return "node-uid" },
			Log: slog.New(slog.NewTextHandler(n.log, nil)),
		}
		for _, g := range change {
			g(&cfg)
		}
		sink, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n.Sink, s.shows = sink, sink.ObservePod
		n.loop = newLoop(sink)
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		parts.Go(func() { n.loop.run(ctx) })
		parts.Go(func() { sink.runEvents(ctx, newCorrelator()) })
		defer parts.Wait()
		defer cancel()
		f(t, n)
	})
}

// withOne is inBubble in a parallel test, with a pod "one" whose status the server has.
func withOne(t *testing.T, f func(t *testing.T, n *node, p *v1.Pod)) {
	t.Helper()
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p := n.bound("one")
		n.tell(p, runningStatus())
		pass(time.Second)
		f(t, n, p)
	})
}

// wants fails the test unless so many requests were sent about a pod, and returns them.
func (n *node) wants(t *testing.T, requests int, name string) []call {
	t.Helper()
	sent := n.calls("", name)
	if len(sent) != requests {
		t.Fatalf("%d requests about %q, want %d: %+v", len(sent), name, requests, sent)
	}
	return sent
}

// keeps fails the test unless the sink has that many entries.
func (n *node) keeps(t *testing.T, pods int) {
	t.Helper()
	if got := len(n.loop.entries); got != pods {
		t.Errorf("%d pods are remembered, want %d", got, pods)
	}
}

// since returns the time since the bubble began: its clock starts at midnight.
func since(*testing.T) time.Duration {
	return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
}

// pass lets time pass, and waits until all goroutines of the bubble wait.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// bound creates a pod of the node that the server holds and shows.
func (n *node) bound(name string) *v1.Pod {
	n.server.mu.Lock()
	defer n.server.mu.Unlock()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "c", Image: "image"}}},
		Status:     v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBestEffort},
	}
	n.store(p)
	return p
}

// tell reports a status of p.
func (n *node) tell(p *v1.Pod, st v1.PodStatus, change ...func(*pod.StatusReport)) {
	out := *p
	out.Status = st
	r := pod.StatusReport{Pod: &out, Origin: pod.Origin{Source: "api"}, At: time.Now()}
	for _, f := range change {
		f(&r)
	}
	if err := n.Report(r); err != nil {
		n.t.Error(err)
	}
}

func cond(t v1.PodConditionType, is v1.ConditionStatus) v1.PodCondition {
	return v1.PodCondition{Type: t, Status: is, LastTransitionTime: metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))}
}

func statusOf(phase v1.PodPhase, ready v1.ConditionStatus, state v1.ContainerState) v1.PodStatus {
	return v1.PodStatus{
		Phase: phase, StartTime: &metav1.Time{Time: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}, ObservedGeneration: 1, QOSClass: v1.PodQOSBestEffort,
		Conditions:        []v1.PodCondition{cond(v1.PodReady, ready), cond(v1.ContainersReady, ready), cond(v1.PodScheduled, "True")},
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: state, Ready: ready == "True"}},
	}
}

func waitingFor(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

func runningState() v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))}}
}

func endedState(code int32, message string) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Message: message}}
}

func runningStatus() v1.PodStatus { return statusOf(v1.PodRunning, "True", runningState()) }

func restarted(n int32) v1.PodStatus {
	st := runningStatus()
	st.ContainerStatuses[0].RestartCount = n
	return st
}

func over(r *pod.StatusReport)    { r.Finished = true }
func forGood(r *pod.StatusReport) { r.Finished, r.Gone = true, true }
func ofFile(r *pod.StatusReport)  { r.Origin = pod.Origin{Source: "file", Location: "/m"} }
