package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
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
	tokenLimit = 1 << 20          // bytes of an answer that holds a token
	tokenFor   = 10 * time.Second // a request for a token may take
	oldest     = 24 * time.Hour   // a token is never used for longer
	tokenAgain = 30 * time.Second // a failed renewal is tried again after that
)

// tokenKey says what a token is for.
type tokenKey struct {
	uid      types.UID // of the pod; no UID lives twice
	audience string
	seconds  int64
}

// token is one that a server gave out.
type token struct {
	text       string
	renew, end time.Time
}

// Token returns a token of the pod's service account that is bound to the pod, and
// when it is to be asked for again: at 80 % of its life or after a day, a little
// before that so that not all are asked for at once (C-1.38.11). A token that
// cannot be renewed is returned for as long as it lives.
func (s *Source) Token(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	key := tokenKey{uid: want.Pod.UID, audience: of.Audience}
	if of.ExpirationSeconds != nil {
		key.seconds = *of.ExpirationSeconds
	}
	s.mu.Lock()
	had := s.tokens[key]
	s.mu.Unlock()
	now := time.Now()
	if had != nil && now.Before(had.renew) {
		return had.text, had.renew, nil
	}
	fresh, err := s.askToken(ctx, want, of, had)
	switch {
	case err == nil:
		s.keepToken(key, fresh)
		return fresh.text, fresh.renew, nil
	case had != nil && now.Before(had.end):
		s.cfg.Log.Debug("Token not renewed", "pod", want.Key.String(), "error", err)
		if next := now.Add(tokenAgain); next.Before(had.end) {
			return had.text, next, nil
		}
		return had.text, had.end, nil
	}
	return "", time.Time{}, err
}

// askToken asks the server for a token; had is the one before, nil for the first.
func (s *Source) askToken(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection, had *token) (*token, error) {
	account := want.Pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	if len(validation.IsDNS1123Subdomain(account)) > 0 || len(validation.IsDNS1123Label(want.Namespace)) > 0 {
		return nil, fmt.Errorf("%q in namespace %q cannot be a service account", account, want.Namespace)
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
		return nil, errors.New("a token request cannot be written")
	}
	if had == nil { // it may have been bound to this node a moment ago
		s.awaitLeave(ctx, authorizationv1.ResourceAttributes{Namespace: want.Namespace, Verb: "create", Version: "v1", Resource: "serviceaccounts", Subresource: "token", Name: account})
	}
	asked := time.Now()
	var given authenticationv1.TokenRequest
	err = s.fetch(ctx, request{
		method: http.MethodPost, path: []string{"api", "v1", "namespaces", want.Namespace, "serviceaccounts", account, "token"}, json: body,
		what: fmt.Sprintf("get a token of service account %s/%s for pod %s", want.Namespace, account, want.Name),
	}, &given)
	switch {
	case err != nil:
		return nil, err
	case given.Status.Token == "" || given.Spec.ExpirationSeconds == nil || *given.Spec.ExpirationSeconds <= 0:
		return nil, errors.New("the server's answer holds no token")
	}
	life := min(time.Duration(*given.Spec.ExpirationSeconds), 1<<32) * time.Second
	use := min(life/5*4, oldest)
	use -= rand.N(min(10*time.Second, use/10))
	return &token{text: given.Status.Token, renew: asked.Add(use), end: asked.Add(life)}, nil
}

// fetch asks for one JSON document; ctx and tokenFor bound it.
func (s *Source) fetch(ctx context.Context, q request, into any) error {
	ctx, stop := context.WithTimeout(ctx, tokenFor)
	defer stop()
	way, err := s.enter()
	if err != nil {
		return err
	}
	q.accept = jsonType
	response, err := way.ask(ctx, q) //nolint:bodyclose // body closes it
	if err != nil {
		return err
	}
	body, err := way.body(response, tokenLimit)
	switch {
	case err != nil:
		return err
	case mediaType(response) != jsonType:
		return fmt.Errorf("%s: %w", way.host, errNotAPI)
	case json.Unmarshal(body, into) != nil: // whose text would repeat what was read
		return fmt.Errorf("%s: %w", way.host, errPartial)
	}
	return nil
}

// keepToken keeps a token, and none that has ended.
func (s *Source) keepToken(key tokenKey, t *token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokens == nil {
		s.tokens = map[tokenKey]*token{}
	}
	for k, old := range s.tokens {
		if time.Now().After(old.end) {
			delete(s.tokens, k)
		}
	}
	s.tokens[key] = t
}

// forgetTokens drops the tokens of a pod that has gone.
func (s *Source) forgetTokens(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.tokens {
		if k.uid == uid {
			delete(s.tokens, k)
		}
	}
}
