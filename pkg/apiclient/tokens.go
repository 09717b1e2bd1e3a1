package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	maxTokenAge = 24 * time.Hour   // a token is never used for longer
	tokenAgain  = 30 * time.Second // a failed renewal is tried again after that
)

// tokens caches the tokens that a server gave out.
type tokens struct {
	mu  sync.Mutex // guards the field below
	all map[tokenKey]*token
}

// tokenKey names a token: one for each pod, account, audience and lifetime. A UID is never
// used again, but a server could give one to two pods.
type tokenKey struct {
	uid      types.UID
	pod      pod.Key
	account  string
	audience string
	seconds  int64
}

func keyOf(want *pod.Spec, of *v1.ServiceAccountTokenProjection) tokenKey {
	key := tokenKey{uid: want.Pod.UID, pod: want.Key, account: want.Pod.Spec.ServiceAccountName, audience: of.Audience}
	if of.ExpirationSeconds != nil {
		key.seconds = *of.ExpirationSeconds
	}
	return key
}

// token is one that a server gave out.
type token struct {
	text       string
	renew, end time.Time
}

// Token returns a token of the pod's service account that is bound to the pod, and
// when to ask for it again. It renews a token at 80 % of its life or after a day, and a
// little earlier, so that not all are renewed at once (C-1.38.11). A token that cannot be
// renewed is returned for as long as it is valid.
func (r *Reader) Token(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	t, renew, err := r.tokenOf(ctx, want, of)
	if err != nil {
		return "", time.Time{}, err
	}
	return t.text, renew, nil
}

// TokenStatus is Token with the time at which the token expires, as CSI drivers get it.
func (r *Reader) TokenStatus(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection) (authenticationv1.TokenRequestStatus, time.Time, error) {
	t, renew, err := r.tokenOf(ctx, want, of)
	if err != nil {
		return authenticationv1.TokenRequestStatus{}, time.Time{}, err
	}
	return authenticationv1.TokenRequestStatus{Token: t.text, ExpirationTimestamp: metav1.NewTime(t.end)}, renew, nil
}

// tokenOf returns a token and when to ask for it again.
func (r *Reader) tokenOf(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection) (*token, time.Time, error) {
	key := keyOf(want, of)
	had := r.tokens.get(key)
	now := time.Now()
	if had != nil && now.Before(had.renew) {
		return had, had.renew, nil
	}
	fresh, err := r.askToken(ctx, want, of, had)
	switch {
	case err == nil:
		r.tokens.put(key, fresh)
		return fresh, fresh.renew, nil
	case had != nil && now.Before(had.end):
		r.cfg.Log.Debug("Failed to renew token", "pod", want.Key.String(), "error", err)
		if next := now.Add(tokenAgain); next.Before(had.end) {
			return had, next, nil
		}
		return had, had.end, nil
	}
	return nil, time.Time{}, err
}

// askToken asks the server for a token; had is the one before, nil for the first.
func (r *Reader) askToken(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection, had *token) (*token, error) {
	account := want.Pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	if len(validation.IsDNS1123Subdomain(account)) > 0 || len(validation.IsDNS1123Label(want.Namespace)) > 0 {
		return nil, fmt.Errorf("%q in namespace %q is not a valid service account name", account, want.Namespace)
	}
	ask := authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: of.ExpirationSeconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: want.Name, UID: want.Pod.UID},
		},
	}
	if of.Audience != "" {
		ask.Spec.Audiences = []string{of.Audience}
	}
	body, err := json.Marshal(&ask)
	if err != nil {
		return nil, errors.New("cannot encode the token request")
	}
	if had == nil { // it may have been bound to this node a moment ago
		r.awaitPermission(ctx, authorizationv1.ResourceAttributes{Namespace: want.Namespace, Verb: "create", Version: "v1", Resource: "serviceaccounts", Subresource: "token", Name: account})
	}
	asked := time.Now()
	var given authenticationv1.TokenRequest
	err = r.fetch(ctx, request{
		method: http.MethodPost, path: []string{"api", "v1", "namespaces", want.Namespace, "serviceaccounts", account, "token"}, json: body,
		purpose: fmt.Sprintf("get a token of service account %s/%s for pod %s", want.Namespace, account, want.Name),
	}, &given)
	switch {
	case err != nil:
		return nil, err
	case given.Status.Token == "" || given.Spec.ExpirationSeconds == nil || *given.Spec.ExpirationSeconds <= 0:
		return nil, errors.New("the server's answer has no token")
	}
	life := min(time.Duration(*given.Spec.ExpirationSeconds), 1<<32) * time.Second
	use := min(life/5*4, maxTokenAge)
	use -= rand.N(min(10*time.Second, use/10))
	return &token{text: given.Status.Token, renew: asked.Add(use), end: asked.Add(life)}, nil
}

// get returns a token; nil where there is none.
func (t *tokens) get(key tokenKey) *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[key]
}

// put stores a token, and removes those that have expired.
func (t *tokens) put(key tokenKey, fresh *token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[tokenKey]*token{}
	}
	for k, old := range t.all {
		if time.Now().After(old.end) {
			delete(t.all, k)
		}
	}
	t.all[key] = fresh
}

// ForgetTokens removes the tokens of a pod that is gone.
func (r *Reader) ForgetTokens(uid types.UID) {
	t := &r.tokens
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.all {
		if k.uid == uid {
			delete(t.all, k)
		}
	}
}
