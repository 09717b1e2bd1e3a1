package apiserver

import (
	"context"
	"encoding/json"
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
	wait := firstLeave
	for begun := time.Now(); time.Since(begun) < leavePatience; wait = min(2*wait, lastLeave) {
		var said authorizationv1.SelfSubjectAccessReview
		err := s.fetch(ctx, request{
			method: http.MethodPost, path: []string{"apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"}, json: body,
			what: "ask what this node may do",
		}, &said)
		if err != nil || said.Status.Allowed || !sleep(ctx, wait) {
			return
		}
	}
}
