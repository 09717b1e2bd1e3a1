package access

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an API server that answers reviews only. It is an http.RoundTripper without a
// socket, so that it works with synctest's fake time.
type api struct {
	tokens map[string]authenticationv1.UserInfo // users by token
	may    func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus
	meet   func() // called by each review; may be nil

	mu      sync.Mutex // guards the fields below
	fails   error
	tokened int
	asked   []authorizationv1.SubjectAccessReviewSpec
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	fails := a.fails
	a.mu.Unlock()
	if a.meet != nil {
		a.meet()
	}
	if fails != nil {
		return nil, fails
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var q authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, err
		}
		a.mu.Lock()
		a.tokened++
		user, ok := a.tokens[q.Spec.Token]
		a.mu.Unlock()
		q.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: user}
		if !ok {
			q.Status.Error = "no such token: " + q.Spec.Token
		}
		answer = &q
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var q authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, err
		}
		a.mu.Lock()
		a.asked = append(a.asked, q.Spec)
		a.mu.Unlock()
		q.Status = a.may(q.Spec)
		answer = &q
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

func (a *api) set(fails error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = fails
}

func (a *api) counts() (tokens, reviews int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tokened, len(a.asked)
}

func (a *api) access(t testing.TB, change ...func(*Config)) *Access {
	t.Helper()
	cfg := Config{Node: "n1", API: &rest.Config{Host: "https://kubernetes.invalid", Transport: a}}
	cfg.API.ContentType = "application/json"
	for _, f := range change {
		f(&cfg)
	}
	got, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// with returns a request with a token.
func with(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://node:10250/pods", nil)
	r.TLS = &tls.ConnectionState{}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func anna() map[string]authenticationv1.UserInfo {
	return map[string]authenticationv1.UserInfo{"hunter2": {
		Username: "anna", UID: "7", Groups: []string{"dev"}, Extra: map[string]authenticationv1.ExtraValue{"scope": {"a", "b"}},
	}}
}

var errDown = errors.New("connection refused")

// Shows: C-1.40.2
func TestToken_SameToken_IsReviewedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{tokens: anna()}
		a := s.access(t)
		who := func(token string, want bool, asked int) server.Caller {
			t.Helper()
			c, ok, err := a.Authenticate(with(token))
			if n, _ := s.counts(); ok != want || err != nil || n != asked {
				t.Errorf("%q is %+v, %t, %v after %d reviews, want %t after %d", token, c, ok, err, n, want, asked)
			}
			return c
		}
		c := who("hunter2", true, 1)
		if c.Name != "anna" || c.UID != "7" || !slices.Equal(c.Groups, []string{"dev", "system:authenticated"}) || !slices.Equal(c.Extra["scope"], []string{"a", "b"}) || c.Local {
			t.Errorf("caller %+v", c)
		}
		time.Sleep(2*time.Minute - time.Second)
		who("hunter2", true, 1)
		time.Sleep(2 * time.Second)
		who("hunter2", true, 2)
		who("hunter3", false, 3) // refusals are cached too
		who("hunter3", false, 3)
		time.Sleep(2*time.Minute + time.Second)
		who("hunter3", false, 4)
	})
}

// The configuration sets each time; a negative time caches nothing.
//
// Shows: C-1.40.2
func TestNew_CacheTimes_AreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, it := range []struct{ tokens, allowed, denied time.Duration }{
			{10 * time.Second, 40 * time.Second, 20 * time.Second}, {time.Hour, 10 * time.Second, time.Minute}, {-time.Second, -time.Second, -time.Second},
		} {
			s := &api{tokens: anna(), may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
				return authorizationv1.SubjectAccessReviewStatus{Allowed: q.ResourceAttributes.Verb == "get"}
			}}
			a := s.access(t, func(c *Config) { c.TokensFor, c.AllowedFor, c.DeniedFor = it.tokens, it.allowed, it.denied })
			asked := func() (n int) {
				tokens, reviews := s.counts()
				return tokens + reviews
			}
			for name, of := range map[string]struct {
				kept time.Duration
				ask  func() error
			}{
				"token": {it.tokens, func() error { _, _, err := a.Authenticate(with("hunter2")); return err }},
				"yes": {it.allowed, func() error {
					_, _, err := a.Authorize(t.Context(), server.Caller{Name: "anna"}, "get", "proxy")
					return err
				}},
				"no": {it.denied, func() error {
					_, _, err := a.Authorize(t.Context(), server.Caller{Name: "anna"}, "create", "proxy")
					return err
				}},
			} {
				begun := time.Now()
				for n := asked(); time.Since(begun) < 2*time.Hour && asked() < n+2; time.Sleep(time.Second) {
					if err := of.ask(); err != nil {
						t.Fatal(err)
					}
				}
				// One second to ask first, then as long as it is kept, and one to see that.
				if got, want := time.Since(begun), max(of.kept, 0)+2*time.Second; got < want-time.Second || got > want {
					t.Errorf("%+v: a %s is asked about again after %v", it, name, got)
				}
			}
		}
	})
}

// A refused token is cached for less time than an accepted one: the API server may not know
// a new token yet.
//
// Shows: C-1.40.2
func TestToken_Refused_IsCachedForLessTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{tokens: anna()}
		a := s.access(t, func(c *Config) { c.TokensFor = time.Hour })
		if _, ok, _ := a.Authenticate(with("late")); ok {
			t.Fatal("let in")
		}
		s.mu.Lock()
		s.tokens["late"] = s.tokens["hunter2"]
		s.mu.Unlock()
		time.Sleep(29 * time.Second)
		if _, ok, _ := a.Authenticate(with("late")); ok {
			t.Error("a denial is not cached")
		}
		time.Sleep(2 * time.Second)
		if _, ok, err := a.Authenticate(with("late")); !ok || err != nil {
			t.Errorf("half a minute later: %t, %v", ok, err)
		}
	})
}

// A revoked token is accepted no longer than the cache keeps it; errors are not cached.
//
// Shows: F72
func TestToken_Revoked_IsAcceptedOnlyWhileCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{tokens: anna()}
		a := s.access(t)
		if _, ok, _ := a.Authenticate(with("hunter2")); !ok {
			t.Fatal("a good token is refused")
		}
		s.set(errDown)
		if _, ok, err := a.Authenticate(with("hunter2")); !ok || err != nil {
			t.Errorf("what is known is not answered without the server: %v", err)
		}
		if _, ok, err := a.Authenticate(with("hunter3")); ok || err == nil {
			t.Errorf("an unknown token is %t, %v", ok, err)
		}
		time.Sleep(2*time.Minute + time.Second)
		if _, ok, err := a.Authenticate(with("hunter2")); ok || err == nil {
			t.Errorf("what cannot be asked is %t, %v", ok, err)
		}
		s.set(nil)
		if _, ok, err := a.Authenticate(with("hunter2")); !ok || err != nil {
			t.Errorf("an error is kept: %v", err)
		}
		s.mu.Lock()
		clear(s.tokens)
		s.mu.Unlock()
		time.Sleep(2*time.Minute + time.Second)
		if _, ok, _ := a.Authenticate(with("hunter2")); ok {
			t.Error("a revoked token is let in")
		}
	})
}

// Neither the caches nor the log contain a token.
//
// Shows: D1
func TestToken_AnyResult_IsNeitherStoredNorLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := &api{tokens: anna()}
	a := s.access(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for _, token := range []string{"hunter2", "hunter2-unknown"} {
		if _, _, err := a.Authenticate(with(token)); err != nil {
			t.Error(err)
		}
	}
	s.set(errDown)
	_, _, err := a.Authenticate(with("hunter2-late"))
	if err == nil {
		t.Error("no error")
	}
	if all := fmt.Sprintf("%+v %+v %v %s", a.tokens.accepted.Keys(), a.tokens.refused.Keys(), err, log.String()); strings.Contains(all, "hunter2") || !strings.Contains(all, "Failed to review token") {
		t.Errorf("a secret is cached or shown: %s", all)
	}
	if n := len(a.tokens.accepted.Keys()) + len(a.tokens.refused.Keys()); n != 2 {
		t.Errorf("%d tokens are kept", n)
	}
}

// Anonymous callers are not authenticated, even if the API server returns such a user;
// neither are callers without TLS.
//
// Shows: D1
func TestAuthenticate_AnonymousUser_IsRefused(t *testing.T) {
	t.Parallel()
	s := &api{
		tokens: map[string]authenticationv1.UserInfo{
			"a": {Username: "system:anonymous"}, "b": {Username: "x", Groups: []string{"system:unauthenticated"}}, "c": {}, "good": {Username: "x"},
		},
		may: func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
		},
	}
	a := s.access(t)
	for _, token := range []string{"", "a", "b", "c", "d", strings.Repeat("x", maxTokenBytes+1), "good extra"} {
		if c, ok, err := a.Authenticate(with(token)); ok || err != nil {
			t.Errorf("%.20q is %+v, %v", token, c, err)
		}
	}
	plain := with("good")
	plain.TLS = nil
	if _, ok, _ := a.Authenticate(plain); ok {
		t.Error("a token that came in the clear is let in")
	}
	basic := with("")
	basic.Header.Set("Authorization", "Basic good")
	if _, ok, _ := a.Authenticate(basic); ok {
		t.Error("another scheme is let in")
	}
	proxied := with("")
	proxied.Header.Set("X-Remote-User", "admin")
	if _, ok, _ := a.Authenticate(proxied); ok {
		t.Error("a header authenticates the caller")
	}
	if _, ok, _ := a.Authenticate(with("good")); !ok {
		t.Error("a good token is refused")
	}
	for _, c := range []server.Caller{{}, {Name: "system:anonymous"}, {Name: "x", Groups: []string{"system:unauthenticated"}}} {
		if ok, _, err := a.Authorize(t.Context(), c, "get", "proxy"); ok || err != nil {
			t.Errorf("%+v may, %v", c, err)
		}
	}
	if _, n := s.counts(); n != 0 {
		t.Errorf("%d reviews of requests without a caller", n)
	}
}

// Shows: C-1.40.3
func TestAuthorize_OneSubresourceAllowed_IsEnough(t *testing.T) {
	t.Parallel()
	yes := ""
	s := &api{may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: q.ResourceAttributes.Subresource == yes, Reason: "because"}
	}}
	c := server.Caller{Name: "anna", UID: "7", Groups: []string{"b", "a"}, Extra: map[string][]string{"scope": {"x"}}}
	for _, it := range []struct {
		yes   string
		want  bool
		asked []string
	}{
		{"pods", true, []string{"pods"}},
		{"proxy", true, []string{"pods", "proxy"}},
		{"other", false, []string{"pods", "proxy"}},
	} {
		yes = it.yes
		s.asked = nil
		ok, why, err := s.access(t).Authorize(t.Context(), c, "get", "pods", "proxy")
		var asked []string
		for _, q := range s.asked {
			asked = append(asked, q.ResourceAttributes.Subresource)
		}
		if ok != it.want || err != nil || why != "because" || !slices.Equal(asked, it.asked) {
			t.Errorf("%s: %t, %q, %v after %q", it.yes, ok, why, err, asked)
		}
	}
	q := s.asked[0]
	if got := fmt.Sprintf("%s %s %v %v %+v", q.User, q.UID, q.Groups, q.Extra, *q.ResourceAttributes); q.NonResourceAttributes != nil ||
		got != "anna 7 [a b] map[scope:[x]] "+fmt.Sprintf("%+v", authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "pods", Name: "n1"}) {
		t.Errorf("asked %s", got)
	}
	if ok, _, err := s.access(t).Authorize(t.Context(), c, "get"); ok || err != nil {
		t.Errorf("nothing asked is %t, %v", ok, err)
	}
}

// Shows: C-1.40.2
func TestAuthorize_SameAttributes_AreReviewedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{may: func(q authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: q.ResourceAttributes.Verb == "get"}
		}}
		a := s.access(t)
		c := server.Caller{Name: "anna", Groups: []string{"a", "b"}}
		may := func(c server.Caller, verb string, want bool, asked int) {
			t.Helper()
			ok, _, err := a.Authorize(t.Context(), c, verb, "proxy")
			if _, n := s.counts(); ok != want || err != nil || n != asked {
				t.Errorf("%s is %t, %v after %d reviews, want %t after %d", verb, ok, err, n, want, asked)
			}
		}
		may(c, "get", true, 1)
		may(c, "create", false, 2) // the result for one verb is not used for another
		may(server.Caller{Name: "anna", Groups: []string{"b", "a"}}, "get", true, 2)
		may(server.Caller{Name: "anna", Groups: []string{"a,b"}}, "get", true, 3)
		may(server.Caller{Name: "anna", UID: "2", Groups: []string{"a", "b"}}, "get", true, 4)
		may(server.Caller{Name: "anna", Groups: []string{"a", "b"}, Extra: map[string][]string{"x": {"y"}}}, "get", true, 5)
		time.Sleep(29 * time.Second)
		may(c, "create", false, 5)
		time.Sleep(2 * time.Second)
		may(c, "create", false, 6)
		may(c, "get", true, 6)
		s.set(errDown)
		may(c, "get", true, 6)
		time.Sleep(5 * time.Minute)
		ok, _, err := a.Authorize(t.Context(), c, "get", "proxy")
		if ok || err == nil {
			t.Errorf("what cannot be asked is %t, %v", ok, err)
		}
		s.set(nil)
		may(c, "get", true, 7)
	})
}

// Denied wins over Allowed. After a failed review Authorize sends no further one.
//
// Shows: D1
func TestAuthorize_ReviewFails_IsDenied(t *testing.T) {
	t.Parallel()
	s := &api{may: func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true, EvaluationError: "both"}
	}}
	c := server.Caller{Name: "anna"}
	if ok, _, err := s.access(t).Authorize(t.Context(), c, "get", "proxy"); ok || err != nil {
		t.Errorf("denied is %t, %v", ok, err)
	}
	s.set(errDown)
	if ok, _, err := s.access(t).Authorize(t.Context(), c, "get", "pods", "proxy"); ok || err == nil {
		t.Errorf("no answer is %t, %v", ok, err)
	}
	stuck := &api{meet: func() {}}
	stuck.may = func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		panic("asked")
	}
	for _, it := range []Config{{Node: "n1"}, {API: &rest.Config{}, ClientCAFile: "x"}, {Node: "n1", API: &rest.Config{}, NoTokens: true}, {Node: "n1", ClientCAFile: "/nowhere"}} {
		if _, err := New(it); err == nil {
			t.Errorf("%+v is accepted", it)
		}
	}
	if ok, _, err := stuck.access(t).Authorize(t.Context(), server.Caller{Name: "root", Local: true}, "create", "proxy"); !ok || err != nil {
		t.Errorf("the local caller is %t, %v", ok, err)
	}
}
