package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/server/access"
	"github.com/nodectl/nodectl/test/cluster"
)

// asks is a request with a token, or with a certificate of the cluster's authority.
func asks(token string, cert *x509.Certificate) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://n1:10250/pods", nil)
	r.TLS = &tls.ConnectionState{}
	if cert != nil {
		r.TLS.PeerCertificates = []*x509.Certificate{cert}
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

// permitted waits until the API server allows this; it learns of bindings a moment after it
// accepts them.
func permitted(t testing.TB, admin kubernetes.Interface, what string, spec authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	until(t, what, func() (bool, error) {
		answer, err := admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, err
	})
}

// allowed waits until the user may do this with the node n1.
func allowed(t testing.TB, admin kubernetes.Interface, who, verb, subresource string) {
	t.Helper()
	permitted(t, admin, who+" may "+verb+" nodes/"+subresource, authorizationv1.SubjectAccessReviewSpec{
		User:               who,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Version: "v1", Resource: "nodes", Subresource: subresource, Name: "n1", Verb: verb},
	})
}

// The answers of a real API server with RBAC to the node's own identity: which callers have a
// token, and their access to this node and no other. `get` on nodes/proxy does not imply `create`:
// it opens no exec (D1).
//
// The server is the one of all tests: this test runs before the parallel ones.
//
// Shows: D1
func TestD1_GetOnNodesProxyIsNotCreate(t *testing.T) {
	c := shared(t)
	admin := c.admin
	bind(t, admin, "read", "read-nodes", []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"get"}}}, user("reader"))
	bind(t, admin, "work", "work-nodes", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"create"}, ResourceNames: []string{"n1"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}},
	}, user("worker"))
	allowed(t, admin, "reader", "get", "proxy")
	allowed(t, admin, "worker", "create", "proxy")
	allowed(t, admin, "worker", "get", "metrics")
	// The node asks as itself: system:node has no bindings, and the node authorizer lets
	// nodes create access reviews.
	way := must(apiclient.Open(apiclient.Config{File: c.NodeKubeconfig(t, "n1"), UserAgent: "nodectl/test"}))
	t.Cleanup(way.Close)
	on := func(node string) *access.Access {
		return must(access.New(access.Config{Node: node, API: way.REST(), ClientCAFile: c.Authority.File}))
	}
	a := on("n1")
	caller := func(r *http.Request, want string) server.Caller {
		t.Helper()
		who, ok, err := a.Authenticate(r)
		if err != nil || ok != (want != "") || who.Name != want {
			t.Fatalf("%+v, %t, %v, want %q", who, ok, err, want)
		}
		return who
	}
	admins := c.Authority.Issue(t, "root", cluster.Identity{User: "root", Groups: []string{"system:masters"}})
	block, _ := pem.Decode(must(os.ReadFile(admins.CertFile)))
	masters := caller(asks("", must(x509.ParseCertificate(block.Bytes))), "root")
	reader, worker, outsider := caller(asks("reader-token", nil), "reader"), caller(asks("worker-token", nil), "worker"), caller(asks("outsider-token", nil), "outsider")
	caller(asks("", nil), "")
	caller(asks("hunter2", nil), "")
	if !slices.Contains(reader.Groups, "system:authenticated") {
		t.Errorf("groups %q", reader.Groups)
	}
	for _, it := range []struct {
		at   *access.Access
		who  server.Caller
		verb string
		sub  []string
		want bool
	}{
		{a, reader, "get", []string{"pods", "proxy"}, true},
		{a, reader, "create", []string{"exec", "proxy"}, false},
		{a, reader, "get", []string{"metrics"}, false},
		{a, worker, "create", []string{"exec", "proxy"}, true},
		{a, worker, "get", []string{"pods", "proxy"}, false},
		{a, worker, "get", []string{"metrics"}, true},
		{on("n2"), worker, "create", []string{"exec", "proxy"}, false},
		{on("n2"), worker, "get", []string{"metrics"}, true},
		{a, outsider, "get", []string{"healthz", "proxy"}, false},
		{a, masters, "create", []string{"exec", "proxy"}, true},
	} {
		if ok, why, err := it.at.Authorize(t.Context(), it.who, it.verb, it.sub...); ok != it.want || err != nil {
			t.Errorf("%s may %s %q: %t, %q, %v, want %t", it.who.Name, it.verb, it.sub, ok, why, err, it.want)
		}
	}

	// The API server goes down: its decisions stay cached for a while, nothing new is
	// allowed.
	c.APIServer.Kill(t)
	if ok, _, err := a.Authorize(t.Context(), reader, "get", "pods", "proxy"); !ok || err != nil {
		t.Errorf("what was said is forgotten: %t, %v", ok, err)
	}
	if _, ok, err := a.Authenticate(asks("reader-token", nil)); !ok || err != nil {
		t.Errorf("who was known is forgotten: %t, %v", ok, err)
	}
	if ok, _, err := a.Authorize(t.Context(), reader, "get", "stats"); ok || err == nil {
		t.Errorf("what cannot be asked is %t, %v", ok, err)
	}
	if _, ok, err := a.Authenticate(asks("other-token", nil)); ok || err == nil {
		t.Errorf("who cannot be asked for is %t, %v", ok, err)
	}
	c.APIServer.Start(t)
	if ok, _, err := a.Authorize(t.Context(), reader, "get", "stats", "proxy"); !ok || err != nil {
		t.Errorf("after a restart: %t, %v", ok, err)
	}
}

// A service account's token, as metrics-server presents one: bound to audience and account,
// and refused once the account is deleted and the cached review has expired.
//
// Shows: C-1.40.2
func TestC_1_40_2_ServiceAccountTokens(t *testing.T) {
	t.Parallel()
	c := shared(t)
	admin := c.admin
	must(admin.CoreV1().ServiceAccounts("default").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "metrics"}}, metav1.CreateOptions{}))
	bind(t, admin, "metrics", "read-metrics", []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}}},
		rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "metrics"})
	allowed(t, admin, "system:serviceaccount:default:metrics", "get", "metrics")
	ask := func(audiences ...string) string {
		return must(admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "metrics",
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})).Status.Token
	}
	way := must(apiclient.Open(apiclient.Config{File: c.NodeKubeconfig(t, "n1"), UserAgent: "nodectl/test"}))
	t.Cleanup(way.Close)
	a := must(access.New(access.Config{Node: "n1", API: way.REST(), TokensFor: time.Millisecond}))
	token := ask()
	who, ok, err := a.Authenticate(asks(token, nil))
	if err != nil || !ok || who.Name != "system:serviceaccount:default:metrics" || who.UID == "" || !slices.Contains(who.Groups, "system:serviceaccounts:default") {
		t.Fatalf("%+v, %t, %v", who, ok, err)
	}
	if ok, _, err := a.Authorize(t.Context(), who, "get", "metrics", "proxy"); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	if ok, _, err := a.Authorize(t.Context(), who, "get", "proxy"); ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	if _, ok, err := a.Authenticate(asks(ask("vault"), nil)); ok || err != nil {
		t.Errorf("a token for another user is %t, %v", ok, err)
	}
	if err := admin.CoreV1().ServiceAccounts("default").Delete(t.Context(), "metrics", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the token is refused", func() (bool, error) {
		_, ok, err := a.Authenticate(asks(token, nil))
		return !ok && err == nil, err
	})
}
