package apiserver

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// A server that has just bound a pod to this node lets the node read what the pod
	// names a moment later. It is asked about that again after firstLeave, then more
	// rarely, and for leavePatience in all.
	firstLeave    = 10 * time.Millisecond
	lastLeave     = 500 * time.Millisecond
	leavePatience = 5 * time.Second
	// deniedFor is how long a no after all that time stands: who tries the thing
	// itself again and again does not wait for leave each time.
	deniedFor = time.Minute
)

// awaitLeave returns when the server lets this node do what a describes. It asks, so
// that no refusal stands in anybody's audit log for a pod that came a moment ago. A
// server that cannot be asked, and one that goes on saying no, has its say when the
// thing itself is asked for.
func (s *Source) awaitLeave(ctx context.Context, a authorizationv1.ResourceAttributes) {
	body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
	})
	if err != nil {
		return
	}
	if s.isDenied(a) {
		return
	}
	wait := firstLeave
	for begun := time.Now(); time.Since(begun) < s.patience; wait = min(2*wait, lastLeave) {
		var said authorizationv1.SelfSubjectAccessReview
		err := s.fetch(ctx, request{
			method: http.MethodPost, path: []string{"apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"}, json: body,
			what: "ask what this node may do",
		}, &said)
		if err != nil || said.Status.Allowed || !sleep(ctx, wait) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied == nil {
		s.denied = map[authorizationv1.ResourceAttributes]time.Time{}
	}
	s.denied[a] = time.Now().Add(deniedFor)
}

// isDenied reports whether the server has said no to a for long, a while ago.
func (s *Source) isDenied(a authorizationv1.ResourceAttributes) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.denied, func(_ authorizationv1.ResourceAttributes, until time.Time) bool { return !time.Now().Before(until) })
	_, denied := s.denied[a]
	return denied
}
