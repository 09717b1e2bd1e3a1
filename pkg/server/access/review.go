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

// reviews has the API server review access to this node, and caches the results.
type reviews struct {
	node                  string
	allowedFor, deniedFor time.Duration
	allowed, denied       *cache.LRUExpireCache // of decisions; many denied ones displace no allowed one
	peers                 *peers
	// trusted holds the names of callers that were allowed something, and were not refused
	// anything since. Their reviews do not wait for those of others, which may be many callers
	// without rights.
	trusted *cache.LRUExpireCache
	lanes   map[waitKind]lane

	together singleflight.Group
}

// A lane sends reviews at its own rate.
type lane struct {
	ask  *apiclient.SubjectAccessReviews
	gate gate
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
		allowed: cache.NewLRUExpireCache(reviewsKept), denied: cache.NewLRUExpireCache(reviewsKept), trusted: cache.NewLRUExpireCache(trustedKept),
	}
	for _, kind := range []waitKind{trustedNames, otherNames} {
		ask, err := apiclient.NewSubjectAccessReviews(limited(cfg.API))
		if err != nil {
			return nil, err
		}
		s.lanes[kind] = lane{ask, newGate()}
	}
	return s, nil
}

// may decides whether c may do verb on nodes/<node>/<subresource> (C-1.40.3), from the
// cache or by a review. It caches no error. The error is a *server.StatusError if too many
// callers wait for reviews.
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
		if said, ok := of.Get(key); ok {
			return said.(decision), nil
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
	said, err, _ := s.together.Do(string(kind)+key, func() (any, error) {
		said, err := s.lanes[kind].review(ctx, spec)
		switch {
		case err != nil:
		case said.allowed:
			s.allowed.Add(key, said, s.allowedFor)
			s.trusted.Add(c.Name, nil, trustedFor)
		default:
			s.denied.Add(key, said, s.deniedFor)
		}
		return said, err
	})
	if err != nil {
		return decision{}, err
	}
	return said.(decision), nil
}

// review sends a SubjectAccessReview.
func (l lane) review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (decision, error) {
	var said *authorizationv1.SubjectAccessReview
	err := l.gate.ask(ctx, func(ctx context.Context) (err error) {
		said, err = l.ask.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return decision{}, err
	}
	return decision{allowed: said.Status.Allowed && !said.Status.Denied, reason: said.Status.Reason}, nil
}

// gate limits the concurrent reviews of tokens, or of one lane.
type gate struct{ *semaphore.Weighted }

func newGate() gate { return gate{semaphore.NewWeighted(asking)} }

// errBusy is the error of a review that found no place within askFor.
var errBusy = errors.New("too many reviews wait for the API server")

// ask sends a review within askFor, and once more after a transient error. Other requests
// may wait for the result, so it ignores the cancellation of ctx.
func (g gate) ask(ctx context.Context, question func(context.Context) error) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), askFor)
	defer stop()
	if g.Acquire(ctx, 1) != nil {
		return errBusy
	}
	defer g.Release(1)
	err := question(ctx)
	if err != nil && transient(err) && ctx.Err() == nil {
		err = question(ctx)
	}
	return err
}

// transient reports whether an immediate retry may succeed.
func transient(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		apierrors.IsInternalError(err)
}
