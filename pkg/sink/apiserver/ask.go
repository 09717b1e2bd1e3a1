package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// answer is the result of a request.
type answer struct {
	request
	object *v1.Pod // as the server holds it now; nil: it has none
	err    error
	retry  time.Duration // the server's Retry-After
}

// do sends a request. The client does not retry, because the loop builds each request from the
// newest state.
func (s *Sink) do(ctx context.Context, q request) answer {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	a := answer{request: q}
	ctx = context.WithValue(ctx, retryKey{}, &a.retry)
	s.ask(ctx, &a)
	return a
}

// ask sends the request of a and fills in the result.
func (s *Sink) ask(ctx context.Context, a *answer) {
	q, p := a.request, &v1.Pod{}
	switch q.verb {
	case get:
		// A list with a selector: a node has no right to get a pod that is not its own.
		list := &v1.PodList{}
		one := fields.AndSelectors(fields.OneTermEqualSelector("metadata.name", q.key.Name), fields.OneTermEqualSelector("spec.nodeName", s.cfg.Node))
		a.err = s.pods.Get().Namespace(q.key.Namespace).Resource("pods").Param("fieldSelector", one.String()).MaxRetries(0).Do(ctx).Into(list)
		if p = nil; len(list.Items) > 0 {
			p = &list.Items[0]
		}
	case patch:
		a.err = s.pods.Patch(types.StrategicMergePatchType).Namespace(q.key.Namespace).Resource("pods").Name(q.key.Name).
			SubResource("status").Body(q.body).MaxRetries(0).Do(ctx).Into(p)
	case create:
		a.err = s.pods.Post().Namespace(q.key.Namespace).Resource("pods").Body(q.pod).MaxRetries(0).Do(ctx).Into(p)
	case remove:
		options := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &q.uid}}
		a.err = s.pods.Delete().Namespace(q.key.Namespace).Resource("pods").Name(q.key.Name).Body(options).MaxRetries(0).Do(ctx).Error()
		return
	}
	if a.err == nil && p != nil {
		p.ManagedFields = nil // not used here, and half of the memory
		a.object = p
	}
}

// retryKey is the context's key for the Retry-After of the answer, a *time.Duration: client-go does
// not return headers.
type retryKey struct{}

// retryAfterTransport stores the Retry-After of an answer in the request's context.
type retryAfterTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p retryAfterTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := p.next.RoundTrip(r)
	if into, ok := r.Context().Value(retryKey{}).(*time.Duration); ok && err == nil {
		if n, bad := strconv.Atoi(answer.Header.Get("Retry-After")); bad == nil && n > 0 {
			*into = time.Duration(min(n, 300)) * time.Second
		}
	}
	return answer, err
}

// errorKind is the kind of an error, by the loop's reaction.
type errorKind int

const (
	fine        errorKind = iota
	gone                  // the pod does not exist, or another one has its name
	stale                 // the known state is out of date
	tooLarge              // the status must be shortened
	refused               // the server refuses the request about this pod
	failed                // the server failed; it may have carried out the request
	unavailable           // for all pods: the server cannot be reached, or demands a pause
)

// classify returns the kind of an error.
func classify(q request, err error) errorKind {
	if err == nil {
		return fine
	}
	var answered apierrors.APIStatus
	if !errors.As(err, &answered) {
		return unavailable
	}
	status := answered.Status()
	switch code := status.Code; {
	case code == http.StatusRequestEntityTooLarge, strings.Contains(status.Message, "request is too large"):
		return tooLarge
	case code == http.StatusNotFound && q.verb != create:
		return gone
	case code == http.StatusConflict:
		return stale
	case code == http.StatusUnprocessableEntity && q.verb == patch && slices.ContainsFunc(causes(status), func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }):
		return stale
	case code == http.StatusUnauthorized, code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return unavailable
	case code >= 500:
		return failed
	}
	return refused
}

// isNodeUnknown reports whether the server refuses a mirror because its admission does
// not know the node yet, which was registered a moment ago.
func isNodeUnknown(err error) bool {
	var answered apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answered) {
		return false
	}
	of := answered.Status().Details
	return of != nil && (of.Kind == "node" || of.Kind == "nodes")
}

func causes(s metav1.Status) []metav1.StatusCause {
	if s.Details == nil {
		return nil
	}
	return s.Details.Causes
}

// explain returns an error for a log. A server's error about a field contains its value, which may
// be a secret: explain then names only the field.
func explain(err error) error {
	var answered apierrors.APIStatus
	if !errors.As(err, &answered) {
		return err
	}
	status := answered.Status()
	if status.Code == http.StatusUnprocessableEntity || status.Code == http.StatusBadRequest {
		var fields []string
		for _, c := range causes(status) {
			fields = append(fields, c.Field)
		}
		return fmt.Errorf("the server answers %d %s: %s", status.Code, status.Reason, strings.Join(fields, ", "))
	}
	message := status.Message
	if limit := 500; len(message) > limit {
		message = message[:limit] + "..."
	}
	return fmt.Errorf("the server answers %d %s: %s", status.Code, status.Reason, message)
}
