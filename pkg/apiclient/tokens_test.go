package apiclient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// issuer gives out tokens "hunter2-1", "hunter2-2" and so on.
type issuer struct {
	mu     sync.Mutex // guards the fields below
	asked  []string   // "path body"
	status int
	life   int64
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	body := must(io.ReadAll(r.Body))
	i.asked = append(i.asked, r.Method+" "+r.URL.Path+" "+string(body))
	if i.status != 0 {
		http.Error(w, "hunter2", i.status)
		return
	}
	var ask authenticationv1.TokenRequest
	if err := json.Unmarshal(body, &ask); err != nil {
		panic(err)
	}
	ask.Spec.ExpirationSeconds = &i.life
	ask.Status.Token = fmt.Sprintf("hunter2-%d", len(i.asked))
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(must(json.Marshal(&ask)))
}

func (i *issuer) set(status int, life int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status, i.life = status, life
}

func (i *issuer) requests() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

func issues(s *fakeServer) *issuer {
	i := &issuer{life: 3600}
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "token" {
			i.ServeHTTP(w, r)
		}
		return plural(r) == "token"
	})
	return i
}

func owner(account, uid string) *pod.Spec {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", UID: types.UID("uid-" + uid)},
		Spec:       v1.PodSpec{ServiceAccountName: account},
	}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

// Shows: C-1.38.11
func TestC_1_38_11_TokensAreBoundKeptAndRenewed(t *testing.T) {
	s := newFakeServer(t)
	i := issues(s)
	src := s.reader(t)
	hour := int64(3600)
	of := &v1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: &hour}
	start := time.Now()
	text, renew, err := src.Token(t.Context(), owner("builder", "1"), of)
	if err != nil || text != "hunter2-1" {
		t.Fatalf("token %q, %v", text, err)
	}
	if after := renew.Sub(start); after > 48*time.Minute+wait.Limit || after < 48*time.Minute-10*time.Second {
		t.Errorf("a token of an hour is renewed after %v", after)
	}
	want := `POST /api/v1/namespaces/default/serviceaccounts/builder/token {"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{},` +
		`"spec":{"audiences":["vault"],"expirationSeconds":3600,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"one","uid":"uid-1"}},"status":{"token":"","expirationTimestamp":null}}`
	if got := i.requests(); len(got) != 1 || got[0] != want {
		t.Errorf("asked %q, want %q", got, want)
	}
	again := func(want string, spec *pod.Spec, of *v1.ServiceAccountTokenProjection) {
		t.Helper()
		if text, _, err := src.Token(t.Context(), spec, of); err != nil || text != want {
			t.Errorf("token %q, %v, want %q", text, err, want)
		}
	}
	again("hunter2-1", owner("builder", "1"), of)
	again("hunter2-2", owner("builder", "2"), of) // another instance of the pod
	again("hunter2-3", owner("builder", "1"), &v1.ServiceAccountTokenProjection{Audience: "vault"})
	again("hunter2-4", owner("", "1"), &v1.ServiceAccountTokenProjection{})
	if got := i.requests(); !strings.HasPrefix(got[3], "POST /api/v1/namespaces/default/serviceaccounts/default/token") || !strings.Contains(got[3], `"audiences":null`) {
		t.Errorf("asked %q", got[3])
	}
	src.tokens.all[keyOf(owner("builder", "1"), of)].renew = time.Now()
	again("hunter2-5", owner("builder", "1"), of)
	src.ForgetTokens("uid-1")
	again("hunter2-2", owner("builder", "2"), of)
	again("hunter2-6", owner("builder", "1"), of)

	i.set(0, 30*24*3600)
	start = time.Now()
	if _, renew, err = src.Token(t.Context(), owner("builder", "3"), of); err != nil || renew.Sub(start) > 24*time.Hour+wait.Limit || renew.Sub(start) < 24*time.Hour-10*time.Second {
		t.Errorf("a token of a month is renewed after %v, %v", renew.Sub(start), err)
	}
}

// A pod with the UID of another pod, and one with another account, get no token of the other.
func TestToken_UIDOfAnotherPod_GetsItsOwn(t *testing.T) {
	src := newFakeServer(t)
	issues(src)
	reader := src.reader(t)
	of := &v1.ServiceAccountTokenProjection{}
	elsewhere, renamed := owner("builder", "1"), owner("builder", "1")
	elsewhere.Namespace, renamed.Name = "other", "two"
	seen := map[string]bool{}
	for _, want := range []*pod.Spec{owner("builder", "1"), owner("admin", "1"), elsewhere, renamed} {
		text, _, err := reader.Token(t.Context(), want, of)
		if err != nil || seen[text] {
			t.Errorf("%s as %q: token %q, %v", want.Key, want.Pod.Spec.ServiceAccountName, text, err)
		}
		seen[text] = true
	}
	reader.ForgetTokens("uid-1")
	if n := len(reader.tokens.all); n != 0 {
		t.Errorf("%d tokens are kept", n)
	}
}

// A token that cannot be renewed is used until it expires; errors and logs contain
// nothing of it.
//
// Shows: C-1.38.11
func TestC_1_38_11_TokenThatCannotBeRenewed(t *testing.T) {
	var log bytes.Buffer
	s := newFakeServer(t)
	i := issues(s)
	src := s.reader(t, func(c *ReaderConfig) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	of := &v1.ServiceAccountTokenProjection{}
	if _, _, err := src.Token(t.Context(), owner("builder", "1"), of); err != nil {
		t.Fatal(err)
	}
	for status, says := range map[int]string{
		403: "HTTP 403: the server denies permission to get a token of service account default/builder for pod one",
		404: "HTTP 404: cannot get a token of service account default/builder for pod one: not found",
		500: "HTTP 500: server error",
	} {
		i.set(status, 0)
		had := src.tokens.all[keyOf(owner("builder", "1"), of)]
		had.renew, had.end = time.Now(), time.Now().Add(time.Minute)
		text, renew, err := src.Token(t.Context(), owner("builder", "1"), of)
		if in := time.Until(renew); err != nil || text != "hunter2-1" || in <= 0 || in > tokenAgain {
			t.Errorf("token %q, again in %v, %v", text, in, err)
		}
		had.renew, had.end = time.Now(), time.Now().Add(tokenAgain/2)
		if _, renew, _ := src.Token(t.Context(), owner("builder", "1"), of); !renew.Equal(had.end) {
			t.Errorf("a token that ends soon is asked for again in %v", time.Until(renew))
		}
		had.end = time.Now()
		if text, _, err = src.Token(t.Context(), owner("builder", "1"), of); err == nil || text != "" || !strings.HasSuffix(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("token %q, %v, want %q", text, err, says)
		}
	}
	if strings.Contains(log.String(), "hunter2") || !strings.Contains(log.String(), "Failed to renew token") {
		t.Errorf("log %q", log.String())
	}
}

// Shows: C-1.38.11
func TestC_1_38_11_AnswersThatHoldNoToken(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	answer := func(mediaType, body string) {
		s.says(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write([]byte(body))
			return true
		})
	}
	for _, c := range []struct{ mediaType, body, want string }{
		{"text/html", "hunter2", "not from a Kubernetes API"},
		{jsonType, `{"hunter2`, "damaged or incomplete"},
		{jsonType, `{}`, "has no token"},
		{jsonType, `{"spec": {"expirationSeconds": 3600}}`, "has no token"},
		{jsonType, `{"status": {"token": "hunter2"}}`, "has no token"},
		{jsonType, `{"spec": {"expirationSeconds": -1}, "status": {"token": "hunter2"}}`, "has no token"},
		{jsonType, `{"status": {"token": "` + strings.Repeat("hunter2", 1<<18) + `"}}`, "larger than 1 MiB"},
	} {
		answer(c.mediaType, c.body)
		text, _, err := src.Token(t.Context(), owner("builder", "1"), &v1.ServiceAccountTokenProjection{})
		if text != "" || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.40s: token %.20q, %v", c.body, text, err)
		}
	}
	if _, _, err := src.Token(t.Context(), owner("../pods/x", "1"), &v1.ServiceAccountTokenProjection{}); err == nil || !strings.Contains(err.Error(), "is not a valid service account name") {
		t.Errorf("a path as an account: %v", err)
	}
	answer(jsonType, `{"spec": {"expirationSeconds": 9223372036854775807}, "status": {"token": "t"}}`)
	if _, renew, err := src.Token(t.Context(), owner("builder", "1"), &v1.ServiceAccountTokenProjection{}); err != nil || time.Until(renew) < 23*time.Hour {
		t.Errorf("a token without an end: renewed in %v, %v", time.Until(renew), err)
	}
}
