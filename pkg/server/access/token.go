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
	tokenLimit  = 16 << 10 // bytes; a longer one is nobody's
	tokensKept  = 1024
	reviewsKept = 4096
)

// tokens asks the API server who has a token.
type tokens struct {
	ask    *apiclient.TokenReviews
	yes    time.Duration // how long the word on somebody's token is kept
	no     time.Duration // and on nobody's
	secret []byte        // of the keys below: they say nothing of a token to whoever reads memory
	// accepted and refused hold identities: a crowd of refused tokens displaces no
	// accepted one.
	accepted, refused *cache.LRUExpireCache
	gate              gate

	together singleflight.Group
}

// identity is what was said of a token.
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

// kept returns whose a token is from the cache. key names it there.
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

// judge asks whose a token is and keeps the answer under key. An error is not kept.
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

// review asks. What it is told of why a token is refused is not repeated: it may
// hold parts of it.
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
