package access

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/nodectl/nodectl/pkg/server"
)

const (
	tokenLimit  = 16 << 10 // bytes; a longer one is nobody's
	tokensKept  = 1024
	reviewsKept = 4096
	// waiting bounds those who wait for the word on a token: who is nobody yet holds
	// nothing else of the server, however many they are.
	waiting = 64
)

// tokens asks the API server who has a token.
type tokens struct {
	ask    authentication.AuthenticationV1Interface
	yes    time.Duration // how long the word on somebody's token is kept
	no     time.Duration // and on nobody's
	secret []byte        // of the keys below: they say nothing of a token to whoever reads memory
	kept   *cache.LRUExpireCache
	gate   gate
	crowd  *semaphore.Weighted // who waits

	together singleflight.Group
}

// identity is what was said of a token.
type identity struct {
	caller server.Caller
	ok     bool
}

func newTokens(ask authentication.AuthenticationV1Interface, cfg Config) (*tokens, error) {
	t := &tokens{ask: ask, yes: cfg.TokensFor, no: min(cfg.TokensFor, cfg.DeniedFor), secret: make([]byte, 32), kept: cache.NewLRUExpireCache(tokensKept), gate: newGate(), crowd: semaphore.NewWeighted(waiting)}
	_, err := rand.Read(t.secret)
	return t, err
}

// bearer returns the token of a request, "" where it has none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || len(token) > tokenLimit || strings.ContainsAny(token, " \t") {
		return ""
	}
	return token
}

// who says whose a token is, from what was said of it a while ago. An error is not
// kept.
func (t *tokens) who(ctx context.Context, token string) (server.Caller, bool, error) {
	mac := hmac.New(sha256.New, t.secret)
	mac.Write([]byte(token))
	key := string(mac.Sum(nil))
	if said, ok := t.kept.Get(key); ok {
		return said.(identity).caller, said.(identity).ok, nil
	}
	if !t.crowd.TryAcquire(1) {
		return server.Caller{}, false, errBusy
	}
	defer t.crowd.Release(1)
	said, err, _ := t.together.Do(key, func() (any, error) {
		said, err := t.review(ctx, token)
		switch {
		case err != nil:
		case said.ok:
			t.kept.Add(key, said, t.yes)
		default:
			t.kept.Add(key, said, t.no)
		}
		return said, err
	})
	if err != nil {
		return server.Caller{}, false, err
	}
	return said.(identity).caller, said.(identity).ok, nil
}

// review asks. What it is told of why a token is refused is not repeated: it may
// hold parts of it.
func (t *tokens) review(ctx context.Context, token string) (identity, error) {
	var said *authenticationv1.TokenReview
	err := t.gate.ask(ctx, func(ctx context.Context) (err error) {
		said, err = t.ask.TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		return err
	})
	if err != nil || !said.Status.Authenticated {
		return identity{}, err
	}
	user := said.Status.User
	c := server.Caller{Name: user.Username, UID: user.UID, Groups: user.Groups}
	if len(user.Extra) > 0 {
		c.Extra = make(map[string][]string, len(user.Extra))
		for k, v := range user.Extra {
			c.Extra[k] = v
		}
	}
	return identity{c, true}, nil
}
