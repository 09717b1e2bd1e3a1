package access

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodectl/nodectl/pkg/server"
)

// One account with many tokens sends forbidden requests from many addresses. It gets a place for a
// review only while it has fewer than are free, whether it has another right or none. So each request
// of the API server is reviewed, also the first one after a start of the agent.
//
// Shows: D2
func TestReview_OneUserWithManyTokens_OthersAreReviewed(t *testing.T) {
	t.Parallel()
	for name, trusted := range map[string]bool{"without a right": false, "with a right": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &api{may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
					if q.User == "mallory" && q.ResourceAttributes.Subresource == "proxy" {
						time.Sleep(time.Second)
						return authorizationv1.SubjectAccessReviewStatus{}
					}
					return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
				}}
				a := s.access(t, func(c *Config) { c.AllowedFor = -1 })
				allowed := func(name string) {
					t.Helper()
					if ok, _, err := a.Authorize(t.Context(), server.Caller{Name: name, Peer: server.Peer("192.0.2.1:1")}, "get", "metrics"); !ok || err != nil {
						t.Errorf("%s: %t, %v", name, ok, err)
					}
				}
				if trusted {
					allowed("mallory")
					allowed("apiserver")
				}
				var away atomic.Int64
				var wg sync.WaitGroup
				for i := range 500 {
					c := server.Caller{Name: "mallory", Peer: server.Peer(fmt.Sprintf("198.51.100.%d:1", i%10)), Extra: map[string][]string{credentialID: {fmt.Sprint(i)}}}
					wg.Go(func() {
						if _, _, err := a.Authorize(t.Context(), c, "get", "proxy"); tooMany(err) {
							away.Add(1)
						}
					})
				}
				synctest.Wait()
				allowed("apiserver")
				wg.Wait()
				if n := away.Load(); n != 500-maxWaiting/2 {
					t.Errorf("%d are turned away", n)
				}
				if n := len(a.reviews.peers.byName); n > 0 {
					t.Errorf("%d places are not given back", n)
				}
			})
		})
	}
}

// A caller whose right was taken away does not wait among those that have one. A caller that has
// one of the rights that suffice stays among them.
func TestReview_RightRemoved_CallerIsNotTrusted(t *testing.T) {
	t.Parallel()
	right := "proxy"
	s := &api{may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: q.ResourceAttributes.Subresource == right}
	}}
	a := s.access(t, func(c *Config) { c.AllowedFor, c.DeniedFor = -1, -1 })
	for _, want := range []bool{true, true, false} {
		if !want {
			right = "none"
		}
		if ok, _, err := a.Authorize(t.Context(), server.Caller{Name: "anna"}, "create", "exec", "proxy"); ok != want || err != nil {
			t.Errorf("allowed %t, %v; want %t", ok, err, want)
		}
		if _, is := a.reviews.trusted.Get("anna"); is != want {
			t.Errorf("trusted %t, want %t", is, want)
		}
	}
}
