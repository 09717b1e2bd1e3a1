package apiclient

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	// After a server has bound a pod to this node, it permits the node to read the pod's objects
	// only a moment later. It is asked again after firstReview, then more rarely, and for
	// Tuning.Permission in all.
	firstReview = 10 * time.Millisecond
	lastReview  = 500 * time.Millisecond
	// deniedFor is how long a denial after all that time is kept: a request that is repeated
	// does not wait for permission each time.
	deniedFor = time.Minute
	// minPrune is how many denials are kept before old ones are looked for.
	minPrune = 64
)

// permissions stores the requests that a server has denied for long.
type permissions struct {
	mu     sync.Mutex                                       // guards the fields below
	denied map[authorizationv1.ResourceAttributes]time.Time // until when the server is not asked again
	prune  int                                              // the size of denied at which the old ones are removed
}

// AwaitPermission returns when the server permits this node to list c.
func (r *Reader) AwaitPermission(ctx context.Context, c Collection) {
	r.awaitPermission(ctx, c.permission())
}

// awaitPermission returns when the server permits this node the request a. It asks for a review, so
// that the server's audit log has no refusal for a pod that is a moment old. If the server cannot
// be asked, or denies all the time, the request itself shows it.
func (r *Reader) awaitPermission(ctx context.Context, a authorizationv1.ResourceAttributes) {
	body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
	})
	if err != nil {
		return
	}
	if r.permissions.isDenied(a) {
		return
	}
	wait := firstReview
	for start := time.Now(); time.Since(start) < r.Tuning.Permission; wait = backoff.Next(wait, firstReview, lastReview) {
		var review authorizationv1.SelfSubjectAccessReview
		done, err := r.limit.acquire(ctx, a.Namespace)
		if err != nil {
			return
		}
		err = r.fetch(ctx, request{
			method: http.MethodPost, path: []string{"apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"}, json: body,
			purpose: "ask what this node may do",
		}, &review)
		done()
		if err != nil || review.Status.Allowed || !backoff.Sleep(ctx, wait) {
			return
		}
	}
	r.permissions.deny(a)
}

// deny remembers that the server has denied a for long.
func (p *permissions) deny(a authorizationv1.ResourceAttributes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.denied == nil {
		p.denied = map[authorizationv1.ResourceAttributes]time.Time{}
	}
	if len(p.denied) >= p.prune {
		maps.DeleteFunc(p.denied, func(_ authorizationv1.ResourceAttributes, until time.Time) bool { return !time.Now().Before(until) })
		p.prune = max(minPrune, 2*len(p.denied))
	}
	p.denied[a] = time.Now().Add(deniedFor)
}

// isDenied reports whether the server has denied a for long, a while ago.
func (p *permissions) isDenied(a authorizationv1.ResourceAttributes) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, denied := p.denied[a]
	if denied && !time.Now().Before(until) {
		delete(p.denied, a)
		return false
	}
	return denied
}
