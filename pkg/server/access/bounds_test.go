package access

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodectl/nodectl/pkg/server"
)

// Concurrent reviews and the caches are bounded.
//
// Shows: D1
func TestReviews_Concurrent_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		s := &api{tokens: anna(), meet: func() {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(100 * time.Millisecond)
			now.Add(-1)
		}}
		a := s.access(t)
		var wg sync.WaitGroup
		for i := range 200 {
			r := with(fmt.Sprintf("unknown-%d", i))
			r.RemoteAddr = fmt.Sprintf("198.51.100.%d:1", i)
			wg.Go(func() { _, _, _ = a.Authenticate(r) })
		}
		wg.Wait()
		if n := most.Load(); n > maxReviews || n < maxReviews/2 {
			t.Errorf("%d reviews at a time", n)
		}
		for i := range 3 * maxTokens {
			a.tokens.accepted.Add(fmt.Sprint(i), identity{}, time.Minute)
			a.tokens.refused.Add(fmt.Sprint(i), identity{}, time.Minute)
			a.reviews.allowed.Add(fmt.Sprint(i), decision{}, time.Minute)
		}
		for i := range 2 * maxDecisions {
			a.reviews.allowed.Add(fmt.Sprint(i), decision{}, time.Minute)
		}
		if n, no, m := len(a.tokens.accepted.Keys()), len(a.tokens.refused.Keys()), len(a.reviews.allowed.Keys()); n != maxTokens || no != maxTokens || m != maxDecisions {
			t.Errorf("%d accepted and %d refused tokens and %d reviews are kept", n, no, m)
		}
	})
}

// TestToken_ManyUnknown_FewRequestsWait: a crowd with unknown tokens, alike or not, holds a
// few goroutines; the other requests are refused at once.
//
// Shows: D2
func TestToken_ManyUnknown_FewRequestsWait(t *testing.T) {
	t.Parallel()
	for _, alike := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &api{tokens: anna(), meet: func() { time.Sleep(time.Second) }}
			a := s.access(t)
			var wg sync.WaitGroup
			var away atomic.Int64
			begin := time.Now()
			for i := range 500 {
				token := "unknown"
				if !alike {
					token = fmt.Sprint(token, i)
				}
				r := with(token)
				r.RemoteAddr = fmt.Sprintf("198.51.%d.%d:1", i/250, i%250)
				wg.Go(func() {
					_, ok, err := a.Authenticate(r)
					if ok {
						t.Error("an invalid token is accepted")
					}
					if err != nil && time.Since(begin) == 0 {
						away.Add(1)
					}
				})
			}
			wg.Wait()
			if n := away.Load(); n != 500-maxWaiting {
				t.Errorf("alike %t: %d are sent away", alike, n)
			}
			if _, ok, err := a.Authenticate(with("hunter2")); !ok || err != nil {
				t.Errorf("afterwards: %t, %v", ok, err)
			}
		})
	}
}

// Equal reviews are sent once, and all callers get the result, even when the first one
// has gone.
//
// Shows: D2
func TestReviews_EqualAtTheSameTime_AreSentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{tokens: anna(), meet: func() { time.Sleep(time.Second) }}
		s.may = func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
		}
		a := s.access(t)
		var wg sync.WaitGroup
		gone, leave := context.WithCancel(t.Context())
		for i := range 20 {
			ctx := t.Context()
			if i == 0 {
				ctx = gone
			}
			wg.Go(func() {
				if _, ok, err := a.Authenticate(with("hunter2").WithContext(ctx)); !ok || err != nil {
					t.Errorf("%d: %t, %v", i, ok, err)
				}
				if ok, _, err := a.Authorize(ctx, server.Caller{Name: "anna"}, "get", "proxy"); !ok || err != nil {
					t.Errorf("%d: %t, %v", i, ok, err)
				}
			})
			if i == 0 {
				synctest.Wait() // until the review is sent
			}
		}
		synctest.Wait()
		leave()
		wg.Wait()
		if n, m := s.counts(); n != 1 || m != 1 {
			t.Errorf("%d and %d reviews", n, m)
		}
	})
}

// Denied callers displace no cached decision of an allowed one.
func TestReview_ManyDeniedCallers_AllowedOneStaysCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: q.User == "anna"}
		}}
		a := s.access(t, func(c *Config) { c.AllowedFor, c.DeniedFor = time.Hour, time.Hour })
		for i := range 2 + maxDecisions {
			name := fmt.Sprint("guest-", i)
			if i == 0 {
				name = "anna"
			}
			if ok, _, err := a.Authorize(t.Context(), server.Caller{Name: name}, "get", "pods"); err != nil || ok != (i == 0) {
				t.Fatalf("%s: %t, %v", name, ok, err)
			}
		}
		_, before := s.counts()
		if ok, _, err := a.Authorize(t.Context(), server.Caller{Name: "anna"}, "get", "pods"); !ok || err != nil {
			t.Errorf("%t, %v", ok, err)
		}
		if _, n := s.counts(); n != before {
			t.Error("the allowed decision was displaced")
		}
	})
}

// An unreadable file of authorities is logged seldom, and the last ones stay in use.
func TestAuthorities_FileIsGone_IsLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		file := caFile(t, newAuthority("ours", nil).pem())
		a, err := newAuthorities(file, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		for range 60 {
			time.Sleep(rereadAfter)
			if pool, _ := a.current(time.Now()); pool == nil {
				t.Fatal("the authorities are gone")
			}
		}
		if n := strings.Count(log.String(), "Failed to reload client CA file"); n != 6 {
			t.Errorf("logged %d times in a minute", n)
		}
	})
}

// TestReview_ManyCallersWithoutRights_TrustedCallerIsReviewedAtOnce: a crowd of authenticated
// callers without rights waits for reviews, in bounded number. The review of a caller that was
// allowed something before is sent at once, and the crowd's are not lost.
//
// Shows: D2
func TestReview_ManyCallersWithoutRights_TrustedCallerIsReviewedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			if q.User == "anna" {
				return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
			}
			time.Sleep(time.Second)
			return authorizationv1.SubjectAccessReviewStatus{}
		}}
		a := s.access(t, func(c *Config) { c.AllowedFor = time.Second })
		anna := server.Caller{Name: "anna", Peer: server.Peer("192.0.2.1:1")}
		allowed := func() {
			t.Helper()
			begun := time.Now()
			if ok, _, err := a.Authorize(t.Context(), anna, "get", "pods"); !ok || err != nil || time.Since(begun) > 0 {
				t.Errorf("anna: %t, %v after %s", ok, err, time.Since(begun))
			}
		}
		allowed()
		time.Sleep(2 * time.Second) // the decision is no longer cached
		var wg sync.WaitGroup
		var away, denied atomic.Int64
		for i := range 500 {
			guest := server.Caller{Name: fmt.Sprint("guest-", i), Peer: server.Peer(fmt.Sprintf("198.51.100.%d:1", i/10))}
			wg.Go(func() {
				switch ok, _, err := a.Authorize(t.Context(), guest, "get", "pods"); {
				case ok:
					t.Errorf("%s is allowed", guest.Name)
				case tooMany(err):
					away.Add(1)
				case err == nil:
					denied.Add(1)
				}
			})
		}
		synctest.Wait()
		allowed()
		wg.Wait()
		if away.Load() != 500-maxWaiting || denied.Load() != maxWaiting {
			t.Errorf("%d are turned away, %d denied", away.Load(), denied.Load())
		}
	})
}
