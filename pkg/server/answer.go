package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusError is an error with which the server answers a request: with its code (4xx or 5xx)
// and its message. The server sends no other error's text to callers.
type StatusError struct {
	Code    int
	Message string
	allow   []string // for code 405: the allowed methods
}

func (r *StatusError) Error() string { return r.Message }

// status returns the error as a Kubernetes Status.
func (r *StatusError) status() metav1.Status {
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest:            metav1.StatusReasonBadRequest,
		http.StatusUnauthorized:          metav1.StatusReasonUnauthorized,
		http.StatusForbidden:             metav1.StatusReasonForbidden,
		http.StatusNotFound:              metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
		http.StatusConflict:              metav1.StatusReasonConflict,
		http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
		http.StatusUnprocessableEntity:   metav1.StatusReasonInvalid,
		http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
		http.StatusInternalServerError:   metav1.StatusReasonInternalError,
		http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
		http.StatusGatewayTimeout:        metav1.StatusReasonTimeout,
	}
	reason, ok := reasons[r.Code]
	if !ok {
		reason = metav1.StatusReason(strings.ReplaceAll(http.StatusText(r.Code), " ", ""))
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Message: r.Message, Reason: reason, Code: int32(r.Code),
	}
}

// requestLimiter limits the concurrent requests and streams of one listener. A listener at
// its limit does not affect the others.
type requestLimiter struct {
	requests, streams places
	files             places // requests of routes that answer with files of the machine
	forwards          places // connections that are forwarded to pods
}

// maxFiles limits the requests for files of the machine that a listener answers at a time. They
// have a limit of their own, because a caller may read such an answer slowly.
const maxFiles = 8

// newRequestLimiter returns the limiter of a listener with these limits of requests and streams.
func newRequestLimiter(requests, streams int) *requestLimiter {
	return &requestLimiter{
		requests: places{limit: requests, shares: callerShare}, streams: places{limit: streams, shares: podShares},
		files: places{limit: maxFiles, shares: callerShare}, forwards: places{limit: maxForwardsListener, shares: podShares},
	}
}

// enter takes a place for a request of its kind; release frees the place. ok is false at the limit.
func (g *requestLimiter) enter(q *request) (release func(), ok bool) {
	switch {
	case q.route.streams(q.params):
		return g.streams.enter(q)
	case q.route.files:
		return g.files.enter(q)
	}
	return g.requests.enter(q)
}

// callerShare lets a remote caller have a place only while it has fewer than are free. So one caller
// alone gets half of the places, and a caller that reads no answers cannot block the API server. It
// does not limit local callers and callers of the health port, which have no name.
func callerShare(q *request, _, free int) map[holder]int {
	if q.caller.Name == "" || q.caller.Local {
		return nil
	}
	return map[holder]int{{"caller", q.caller.Name}: free}
}

// podShares lets one pod have a quarter of the places, and one remote caller three quarters. One
// namespace may have three quarters of its caller's. The API server is one caller for all its
// users, so a user that takes all places of one namespace leaves places for other namespaces.
func podShares(q *request, limit, _ int) map[holder]int {
	threeQuarters := func(of int) int { return max(1, of-of/4) }
	most, own := map[holder]int{}, limit
	if q.caller.Name != "" && !q.caller.Local {
		own = threeQuarters(limit)
		most[holder{"caller", q.caller.Name}] = own
	}
	if pod, namespace := q.values["pod"], q.values["namespace"]; pod != "" {
		most[holder{"pod", namespace + "/" + pod}] = max(1, limit/4)
		most[holder{"namespace", namespace}] = threeQuarters(own)
	}
	return most
}

// places limits the concurrent requests, streams or forwarded connections of one listener.
type places struct {
	limit int
	// shares returns how many places each holder of a request may have. free is the number of free
	// places.
	shares func(q *request, limit, free int) map[holder]int

	mu  sync.Mutex
	all int
	of  map[holder]int
}

// holder names a pod, a namespace or a caller, whose places are counted and limited.
type holder struct{ kind, name string }

// enter takes a place for a request; release frees it.
func (p *places) enter(q *request) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= p.limit {
		return nil, false
	}
	most := p.shares(q, p.limit, p.limit-p.all)
	for of, n := range most {
		if p.of[of] >= n {
			return nil, false
		}
	}
	if p.of == nil {
		p.of = map[holder]int{}
	}
	p.all++
	for of := range most {
		p.of[of]++
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		for of := range most {
			if p.of[of]--; p.of[of] == 0 {
				delete(p.of, of)
			}
		}
	}, true
}

// listenerHandler is the HTTP handler of one listener. It authenticates the caller, finds the route,
// authorizes the caller, applies the limits and answers.
type listenerHandler struct {
	*Server
	limiter *requestLimiter
	// authenticate returns the caller, or the error to answer with.
	authenticate func(*http.Request) (Caller, *StatusError)
	// serves reports whether the listener serves a route.
	serves func(*route) bool
	// open serves unauthenticated callers: the answers of its routes hold no secrets.
	open bool
}

// ServeHTTP implements http.Handler.
func (f *listenerHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.busy.RLock()
	defer f.busy.RUnlock()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if f.closed {
		f.sendError(w, nil, &StatusError{Code: http.StatusServiceUnavailable, Message: "the agent is shutting down"})
		return
	}
	c, refusal := f.authenticate(r)
	if refusal != nil { // unauthenticated callers cannot discover routes
		f.sendError(w, nil, refusal)
		return
	}
	if !c.Local {
		c.Peer = Peer(r.RemoteAddr)
	}
	q, refusal := f.admit(r, c)
	if refusal != nil {
		f.sendError(w, q, refusal)
		return
	}
	countConnForCaller(r.Context(), c.Name)
	release, ok := f.limiter.enter(q) // after admit: callers without a right to the route take no place
	if !ok {
		if q.route.privileged {
			f.auditRefusal(q, fmt.Sprint(http.StatusTooManyRequests))
		}
		f.refuseBusy(w)
		return
	}
	defer release()
	if f.cfg.Counted != nil {
		path, _, _ := strings.Cut(strings.Trim(q.route.path, "/"), "/{")
		defer f.cfg.Counted(r.Method, path, q.route.streams(q.params))()
	}
	f.answer(w, q)
}

func (s *Server) refuseBusy(w http.ResponseWriter) {
	s.sendError(w, nil, &StatusError{Code: http.StatusTooManyRequests, Message: "too many requests at a time"})
}

// admit finds the route of a request and decides whether the caller may use it.
func (f *listenerHandler) admit(r *http.Request, c Caller) (*request, *StatusError) {
	q, refusal := f.find(r, f.serves)
	if q != nil {
		q.caller, q.limiter = c, f.limiter
	}
	if refusal != nil {
		return q, refusal
	}
	if (r.Method != http.MethodGet || q.route.streams(q.params)) && crossOrigin(r) {
		if q.route.privileged {
			f.auditRefusal(q, fmt.Sprint(http.StatusForbidden))
		}
		return q, &StatusError{Code: http.StatusForbidden, Message: "requests from pages of another origin are not allowed"}
	}
	if f.open || c.Local {
		return q, nil
	}
	if refusal = f.authorize(q); refusal == nil && f.cfg.NoDebugging && q.route.debugging {
		refusal = &StatusError{Code: http.StatusMethodNotAllowed, Message: "Debug endpoints are disabled."}
	}
	if refusal == nil && q.route.disabled != nil {
		if message := q.route.disabled(&f.cfg); message != "" {
			refusal = &StatusError{Code: http.StatusMethodNotAllowed, Message: message}
		}
	}
	if refusal != nil && q.route.privileged {
		f.auditRefusal(q, fmt.Sprint(refusal.Code))
	}
	return q, refusal
}

// authorize returns an error if the caller may not make the request (C-1.40.3, C-1.40.4).
func (f *listenerHandler) authorize(q *request) *StatusError {
	c, verb, subresources := q.caller, q.route.verbFor(q.Method), q.route.subresources
	if f.cfg.Access == nil || len(subresources) == 0 {
		return &StatusError{Code: http.StatusForbidden, Message: "Forbidden"}
	}
	ctx, cancel := context.WithTimeout(q.Context(), quickTimeout)
	defer cancel()
	ok, reason, err := f.cfg.Access.Authorize(ctx, c, verb, subresources...)
	if refusal, is := errors.AsType[*StatusError](err); is {
		return refusal
	}
	if err != nil {
		f.log.Debug("Failed to authorize caller", "user", c.Name, "apiVerb", verb, "subresources", subresources, "error", err)
		return &StatusError{Code: http.StatusInternalServerError, Message: fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)", c.Name, verb, subresources[0])}
	}
	if !ok {
		f.log.Debug("Caller is not allowed to make the request", "user", c.Name, "apiVerb", verb, "subresources", subresources, "reason", reason)
		return &StatusError{Code: http.StatusForbidden, Message: fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n", c.Name, verb, subresources)}
	}
	return nil
}

// answer calls the route's function, and writes the audit line of a privileged call.
func (s *Server) answer(w http.ResponseWriter, q *request) {
	begin := time.Now()
	if q.route.privileged {
		q.result = "ok"
		defer func() {
			// Limit the audit lines of a caller that names pods that do not exist, or opens no
			// streams.
			code, err := strconv.Atoi(q.result)
			if err == nil && code >= 400 && code < 500 || q.route.kind == upgrade && !q.began {
				s.auditRefusal(q, q.result)
				return
			}
			s.audit(q, begin, q.result)
		}()
	}
	if !q.route.streams(q.params) {
		ctx, cancel := context.WithTimeout(q.Context(), q.route.timeout)
		defer cancel()
		out := http.NewResponseController(w)
		_ = out.SetReadDeadline(begin.Add(q.route.timeout)) // for the rest of the body
		_ = out.SetWriteDeadline(begin.Add(q.route.timeout))
		q.Request = q.Request.WithContext(ctx)
		q.Body = http.MaxBytesReader(w, q.Body, q.route.body)
	}
	err := q.route.serve(s, w, q)
	if err == nil {
		return
	}
	q.result = "error"
	if refusal := (*StatusError)(nil); errors.As(err, &refusal) {
		q.result = fmt.Sprint(refusal.Code)
	}
	s.fail(w, q, err)
}

// fail answers with an error. It sends the text of a StatusError only; it logs any other error.
func (s *Server) fail(w http.ResponseWriter, q *request, err error) {
	var refusal *StatusError
	if !errors.As(err, &refusal) {
		s.log.Error("Failed to answer request", "path", q.route.path, "error", err)
		refusal = &StatusError{Code: http.StatusInternalServerError, Message: "the agent could not answer; see its log"}
	}
	s.sendError(w, q, refusal)
}

// errorTime is how long a caller has to read an error and to send the rest of its body,
// which the server discards (D2). After that the server closes the connection.
const errorTime = 5 * time.Second

// sendError answers with an error: in plain text where the kubelet does, otherwise as a Status.
func (s *Server) sendError(w http.ResponseWriter, q *request, refusal *StatusError) {
	out, until := http.NewResponseController(w), time.Now().Add(errorTime)
	_, _ = out.SetReadDeadline(until), out.SetWriteDeadline(until)
	h := w.Header()
	if len(refusal.allow) > 0 {
		h.Set("Allow", strings.Join(refusal.allow, ", "))
	}
	if refusal.Code == http.StatusTooManyRequests {
		h.Set("Retry-After", "1")
	}
	h.Set("Connection", "close")
	if q != nil && q.route.kubelet || refusal.Code == http.StatusUnauthorized {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(refusal.Code)
		_, _ = w.Write([]byte(refusal.Message))
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(refusal.Code)
	_ = json.NewEncoder(w).Encode(refusal.status())
}
