package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refusal is an error that is the asker's: its code and words are the answer.
type Refusal struct {
	Code    int
	Message string
	allow   []string // methods, of 405
}

func (r *Refusal) Error() string { return r.Message }

// status returns the refusal as Kubernetes' APIs give one.
func (r *Refusal) status() metav1.Status {
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest:            metav1.StatusReasonBadRequest,
		http.StatusForbidden:             metav1.StatusReasonForbidden,
		http.StatusNotFound:              metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
		http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
		http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
		http.StatusInternalServerError:   metav1.StatusReasonInternalError,
		http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Message: r.Message, Reason: reasons[r.Code], Code: int32(r.Code),
	}
}

// ServeHTTP implements http.Handler: who asks, what is asked, how many ask; then
// the answer.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.busy.RLock()
	defer s.busy.RUnlock()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if s.closed {
		s.refuse(w, &Refusal{Code: http.StatusServiceUnavailable, Message: "the agent is leaving"})
		return
	}
	if !admitted(r.Context()) {
		s.refuse(w, &Refusal{Code: http.StatusForbidden, Message: "this socket is for root and the agent's own user"})
		return
	}
	it, refusal := s.find(r)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	count, limit := &s.requests, s.cfg.Requests
	if it.streams() {
		count, limit = &s.streams, s.cfg.Streams
	}
	defer count.Add(-1)
	if count.Add(1) > int64(limit) {
		h.Set("Retry-After", "1")
		s.refuse(w, &Refusal{Code: http.StatusTooManyRequests, Message: "too many requests at a time"})
		return
	}
	if it.streams() {
		s.follow(w, r, it)
		return
	}
	s.document(w, it)
}

// document answers with one document.
func (s *Server) document(w http.ResponseWriter, it route) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(it.timeout))
	body, err := it.document()
	if err != nil {
		s.fail(w, it, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// follow answers with lines, each sent at once. A reader that does not take one
// in time is cut off; so is one whose stream breaks here, so that it can tell
// that from the end.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, it route) {
	out := http.NewResponseController(w)
	lines, err := it.stream(r.Context(), r.URL.Query())
	if err != nil {
		s.fail(w, it, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	send := func(line []byte) error {
		if err := out.SetWriteDeadline(time.Now().Add(s.cfg.Patience)); err != nil {
			return err
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		return out.Flush()
	}
	err = send(nil) // the reader knows that it follows
	if err == nil {
		for line, broken := range lines {
			if err = broken; err == nil {
				err = send(line)
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		s.log.Debug("Reader cut off", "path", it.path, "error", err)
		panic(http.ErrAbortHandler)
	}
	_ = out.SetWriteDeadline(time.Now().Add(s.cfg.Patience)) // for the end itself
}

// fail answers with an error: the asker's in its own words, ours without.
func (s *Server) fail(w http.ResponseWriter, it route, err error) {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		s.log.Error("Request not answered", "path", it.path, "error", err)
		refusal = &Refusal{Code: http.StatusInternalServerError, Message: "the agent could not answer; its log says why"}
	}
	s.refuse(w, refusal)
}

func (s *Server) refuse(w http.ResponseWriter, refusal *Refusal) {
	if len(refusal.allow) > 0 {
		w.Header().Set("Allow", strings.Join(refusal.allow, ", "))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(refusal.Code)
	_ = json.NewEncoder(w).Encode(refusal.status())
}
