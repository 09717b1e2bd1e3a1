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
	maxTokenBytes = 16 << 10 // bytes; longer tokens are ignored
	maxTokens     = 1024
	maxDecisions  = 4096
	maxTrusted    = 1024 // names
)

// tokens sends reviews of tokens to the API server, and caches their results.
type tokens struct {
	client      *apiclient.TokenReviews
	acceptedFor time.Duration // how long an accepted token is cached
	refusedFor  time.Duration // how long a refused token is cached
	secret      []byte        // HMAC key of the cache keys: memory dumps reveal no token
	// accepted and refused hold identities: refused tokens displace no accepted one.
	accepted, refused *cache.LRUExpireCache
	limiter           reviewLimiter

	inFlight singleflight.Group
}

// identity is the result of a token review.
type identity struct {
	caller server.Caller
	ok     bool
}

func newTokens(client *apiclient.TokenReviews, cfg Config) (*tokens, error) {
	t := &tokens{client: client, acceptedFor: cfg.TokensFor, refusedFor: min(cfg.TokensFor, cfg.DeniedFor), secret: make([]byte, 32), accepted: cache.NewLRUExpireCache(maxTokens), refused: cache.NewLRUExpireCache(maxTokens), limiter: newReviewLimiter()}
	_, err := rand.Read(t.secret)
	return t, err
}

// bearer returns the token of a request, "" if it has none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxTokenBytes || strings.ContainsAny(token, " \t") {
		return ""
	}
	return token
}

// cached returns the identity of a token from the cache. key is its cache key.
func (t *tokens) cached(token string) (key string, result identity, found bool) {
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

// identify reviews a token and caches the result under key. It caches no error.
func (t *tokens) identify(ctx context.Context, key, token string) (identity, error) {
	result, err, _ := t.inFlight.Do(key, func() (any, error) {
		result, err := t.review(ctx, token)
		switch {
		case err != nil:
		case result.ok:
			t.accepted.Add(key, result, t.acceptedFor)
		default:
			t.refused.Add(key, result, t.refusedFor)
		}
		return result, err
	})
	if err != nil {
		return identity{}, err
	}
	return result.(identity), nil
}

// review sends a TokenReview. It drops the reason of a refusal, which may contain parts of
// the token.
func (t *tokens) review(ctx context.Context, token string) (identity, error) {
	var result *authenticationv1.TokenReview
	err := t.limiter.do(ctx, func(ctx context.Context) (err error) {
		result, err = t.client.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		return err
	})
	if err != nil || !result.Status.Authenticated {
		return identity{}, err
	}
	user := result.Status.User
	c := server.Caller{Name: user.Username, UID: user.UID, Groups: user.Groups}
	if len(user.Extra) > 0 {
		c.Extra = make(map[string][]string, len(user.Extra))
		for k, v := range user.Extra {
			c.Extra[k] = v
		}
	}
	return identity{c, true}, nil
}
