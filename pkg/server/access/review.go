package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/server"
)

// reviews sends reviews of the access to this node to the API server, and caches their results.
type reviews struct {
	node                  string
	allowedFor, deniedFor time.Duration
	allowed, denied       *cache.LRUExpireCache // of decisions; denied ones displace no allowed one
	peers                 *peers
	// trusted holds the names of callers that were allowed something, and were denied nothing since
	// then. Their reviews have a lane of their own, so that they do not wait behind many reviews of
	// callers without rights.
	trusted *cache.LRUExpireCache
	lanes   map[waitKind]lane

	inFlight singleflight.Group
}

// lane sends reviews at its own rate.
type lane struct {
	client  *apiclient.SubjectAccessReviews
	limiter reviewLimiter
}

// trustedFor is how long a name stays trusted after it was allowed something.
const trustedFor = 24 * time.Hour

// decision is the result of an access review.
type decision struct {
	allowed bool
	reason  string
}

func newReviews(cfg Config, peers *peers) (*reviews, error) {
	s := &reviews{
		node: cfg.Node, allowedFor: cfg.AllowedFor, deniedFor: cfg.DeniedFor, peers: peers, lanes: map[waitKind]lane{},
		allowed: cache.NewLRUExpireCache(maxDecisions), denied: cache.NewLRUExpireCache(maxDecisions), trusted: cache.NewLRUExpireCache(maxTrusted),
	}
	for _, kind := range []waitKind{trustedNames, otherNames} {
		client, err := apiclient.NewSubjectAccessReviews(limited(cfg.API))
		if err != nil {
			return nil, err
		}
		s.lanes[kind] = lane{client, newReviewLimiter()}
	}
	return s, nil
}

// may decides whether c may do verb on nodes/<node>/<subresource> (C-1.40.3), from the
// cache or by a review. It caches no error. If too many callers wait for reviews, the error is a
// *server.StatusError.
func (s *reviews) may(ctx context.Context, c server.Caller, verb, subresource string) (decision, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: c.Name, UID: c.UID, Groups: slices.Sorted(slices.Values(c.Groups)),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: s.node,
		},
	}
	if len(c.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(c.Extra))
		for k, v := range c.Extra {
			spec.Extra[k] = v
		}
	}
	text, err := json.Marshal(&spec)
	if err != nil {
		return decision{}, errors.New("cannot encode the access review")
	}
	sum := sha256.Sum256(text)
	key := string(sum[:])
	for _, of := range []*cache.LRUExpireCache{s.allowed, s.denied} {
		if result, ok := of.Get(key); ok {
			return result.(decision), nil
		}
	}
	kind := otherNames
	if _, ok := s.trusted.Get(c.Name); ok {
		kind = trustedNames
	}
	leave, err := s.peers.enter(c.Peer, kind, c.Name)
	if err != nil {
		return decision{}, err
	}
	defer leave(false)
	result, err, _ := s.inFlight.Do(string(kind)+key, func() (any, error) {
		result, err := s.lanes[kind].review(ctx, spec)
		switch {
		case err != nil:
		case result.allowed:
			s.allowed.Add(key, result, s.allowedFor)
			s.trusted.Add(c.Name, nil, trustedFor)
		default:
			s.denied.Add(key, result, s.deniedFor)
		}
		return result, err
	})
	if err != nil {
		return decision{}, err
	}
	return result.(decision), nil
}

// review sends a SubjectAccessReview.
func (l lane) review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (decision, error) {
	var result *authorizationv1.SubjectAccessReview
	err := l.limiter.do(ctx, func(ctx context.Context) (err error) {
		result, err = l.client.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return decision{}, err
	}
	return decision{allowed: result.Status.Allowed && !result.Status.Denied, reason: result.Status.Reason}, nil
}

// reviewLimiter limits the concurrent reviews of tokens, or of one lane.
type reviewLimiter struct{ *semaphore.Weighted }

func newReviewLimiter() reviewLimiter { return reviewLimiter{semaphore.NewWeighted(maxReviews)} }

// errBusy is the error of a review that found no place within reviewTimeout.
var errBusy = errors.New("too many reviews wait for the API server")

// do calls review, which sends a review, and calls it once more after a transient error. It takes at
// most reviewTimeout. It ignores the cancellation of ctx, because other requests may wait for the
// result.
func (g reviewLimiter) do(ctx context.Context, review func(context.Context) error) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer stop()
	if g.Acquire(ctx, 1) != nil {
		return errBusy
	}
	defer g.Release(1)
	err := review(ctx)
	if err != nil && transient(err) && ctx.Err() == nil {
		err = review(ctx)
	}
	return err
}

// transient reports whether an immediate retry may succeed.
func transient(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		apierrors.IsInternalError(err)
}
