package access

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/server"
)

const (
	tokenLimit  = 16 << 10 // bytes; longer tokens are ignored
	tokensKept  = 1024
	reviewsKept = 4096
	trustedKept = 1024 // names
)

// tokens has the API server review tokens, and caches the results.
type tokens struct {
	ask    *apiclient.TokenReviews
	yes    time.Duration // how long an accepted token is cached
	no     time.Duration // how long a refused token is cached
	secret []byte        // HMAC key of the cache keys: memory dumps reveal no token
	// accepted and refused hold identities: a crowd of refused tokens displaces no
	// accepted one.
	accepted, refused *cache.LRUExpireCache
	gate              gate

	together singleflight.Group
}

// identity is the result of a token review.
type identity struct {
	caller server.Caller
	ok     bool
}

func newTokens(ask *apiclient.TokenReviews, cfg Config) (*tokens, error) {
	t := &tokens{ask: ask, yes: cfg.TokensFor, no: min(cfg.TokensFor, cfg.DeniedFor), secret: make([]byte, 32), accepted: cache.NewLRUExpireCache(tokensKept), refused: cache.NewLRUExpireCache(tokensKept), gate: newGate()}
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

// kept returns the identity of a token from the cache. key is its cache key.
func (t *tokens) kept(token string) (key string, said identity, found bool) {
	mac := hmac.New(sha256.New, t.secret)
	mac.Write([]byte(token))
	key = string(mac.Sum(nil))
	for _, of := range []*cache.LRUExpireCache{t.accepted, t.refused} {
		if v, ok := of.Get(key); ok {
			return key, v.(identity), true
		}
	}
	return key, identity{}, false
}

// judge has a token reviewed and caches the result under key. It caches no error.
func (t *tokens) judge(ctx context.Context, key, token string) (identity, error) {
	said, err, _ := t.together.Do(key, func() (any, error) {
		said, err := t.review(ctx, token)
		switch {
		case err != nil:
		case said.ok:
			t.accepted.Add(key, said, t.yes)
		default:
			t.refused.Add(key, said, t.no)
		}
		return said, err
	})
	if err != nil {
		return identity{}, err
	}
	return said.(identity), nil
}

// review sends a TokenReview. It drops the reason of a refusal, which may contain parts of
// the token.
func (t *tokens) review(ctx context.Context, token string) (identity, error) {
	var said *authenticationv1.TokenReview
	err := t.gate.ask(ctx, func(ctx context.Context) (err error) {
		said, err = t.ask.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
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
