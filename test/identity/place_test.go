// Package identity tests, with a real kube-apiserver, how a node authenticates to it and how
// the node authenticates and authorizes its own clients: bootstrap and rotation of
// certificates, token and access reviews.
//
// No controller runs: the tests approve and sign certificate requests themselves, with the
// cluster's authority, so that they decide how old a certificate is.
//
// The tests share the server, each with its own node.
//
// The API server decides whether a certificate is valid.
package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// api is an API server with RBAC, and a client of its administrator.
type api struct {
	*cluster.Cluster
	admin kubernetes.Interface
}

// shared is the server of all tests. It knows some tokens, and a node with the bootstrap
// token may request a certificate.
var shared = suite.Once(func(t testing.TB) api {
	file := filepath.Join(t.TempDir(), "tokens.csv")
	tokens := []string{"reader-token,reader,1", "worker-token,worker,2", "outsider-token,outsider,3", bootstrapToken + `,system:bootstrap:abcdef,4,"system:bootstrappers"`}
	if err := os.WriteFile(file, []byte(strings.Join(tokens, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := cluster.Start(t, cluster.RBAC(), cluster.APIServerArgs("--token-auth-file="+file))
	a := api{c, must(kubernetes.NewForConfig(c.Config(t, c.AdminKubeconfig(t))))}
	bind(t, a.admin, "bootstrap", "system:node-bootstrapper", nil, group("system:bootstrappers"))
	permitted(t, a.admin, "the bootstrap token may ask for certificates", authorizationv1.SubjectAccessReviewSpec{
		User: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests", Verb: "create"},
	})
	return a
})

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// start returns the server and a node name that no other test uses.
func start(t testing.TB) (c api, node string) {
	t.Helper()
	return shared(t), strings.ToLower(strings.ReplaceAll(t.Name(), "_", "-"))
}

// requested returns the certificate requests for a node.
func (c api) requested(t testing.TB, node string) (all []certificatesv1.CertificateSigningRequest) {
	t.Helper()
	for _, csr := range must(c.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})).Items {
		if asksFor(&csr) == "system:node:"+node {
			all = append(all, csr)
		}
	}
	return all
}

// asksFor returns the common name of a certificate request.
func asksFor(csr *certificatesv1.CertificateSigningRequest) string {
	block, _ := pem.Decode(csr.Spec.Request)
	return must(x509.ParseCertificateRequest(block.Bytes)).Subject.CommonName
}

// bind gives users the permissions of a cluster role.
func bind(t testing.TB, admin kubernetes.Interface, name, role string, rules []rbacv1.PolicyRule, subjects ...rbacv1.Subject) {
	t.Helper()
	if rules != nil {
		must(admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: rules}, metav1.CreateOptions{}))
	}
	must(admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}, metav1.CreateOptions{}))
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: name}
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}
}

// tokenKubeconfig writes a kubeconfig with a bearer token.
func tokenKubeconfig(t testing.TB, c api, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bootstrap-kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
`, c.URL, c.Authority.File, token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// signer approves and signs the certificate requests of one node, in place of a
// controller manager.
type signer struct {
	admin kubernetes.Interface
	node  string
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey

	mu     sync.Mutex // guards the fields below
	more   chan struct{}
	lives  []life // of the certificates to come; the last one is reused
	asked  []*certificatesv1.CertificateSigningRequest
	issued []*x509.Certificate
}

// life is the validity of a certificate: its age and its remaining time.
type life struct{ since, left time.Duration }

// sign starts a signer, until the test ends.
func sign(t *testing.T, c api, node string, lives ...life) *signer {
	t.Helper()
	decode := func(file string) []byte { block, _ := pem.Decode(must(os.ReadFile(file))); return block.Bytes }
	s := &signer{
		admin: c.admin, node: node, lives: lives, more: make(chan struct{}),
		ca:  must(x509.ParseCertificate(decode(c.Authority.File))),
		key: must(x509.ParseECPrivateKey(decode(c.Authority.KeyFile))),
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.run(ctx, t) })
	t.Cleanup(func() { stop(); wg.Wait() })
	return s
}

func (s *signer) run(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		var w watch.Interface
		err := wait.Try(func() (err error) { // the API server may restart
			if w, err = s.admin.CertificatesV1().CertificateSigningRequests().Watch(ctx, metav1.ListOptions{}); ctx.Err() != nil {
				err = nil
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if w == nil {
			return
		}
		for e := range w.ResultChan() {
			if csr, ok := e.Object.(*certificatesv1.CertificateSigningRequest); ok && e.Type == watch.Added && len(csr.Status.Certificate) == 0 && asksFor(csr) == "system:node:"+s.node {
				if err := s.issue(ctx, csr); err != nil && ctx.Err() == nil {
					t.Errorf("sign %s: %v", csr.Name, err)
				}
			}
		}
	}
}

func (s *signer) issue(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	block, _ := pem.Decode(csr.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	long := life{left: time.Hour}
	if len(s.lives) > 0 {
		long = s.lives[0]
	}
	if len(s.lives) > 1 {
		s.lives = s.lives[1:]
	}
	s.mu.Unlock()
	usage := x509.ExtKeyUsageClientAuth
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		usage = x509.ExtKeyUsageServerAuth
	}
	template := &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, big.NewInt(1<<62))), Subject: request.Subject,
		NotBefore: time.Now().Add(-long.since), NotAfter: time.Now().Add(long.left),
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.ca, request.PublicKey, s.key)
	if err != nil {
		return err
	}
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue, Reason: "Test", Message: "approved by the test",
	})
	if csr, err = s.admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return err
	}
	csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if _, err := s.admin.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.issued = append(s.asked, csr), append(s.issued, must(x509.ParseCertificate(der)))
	close(s.more)
	s.more = make(chan struct{})
	return nil
}

// waits returns the last certificate and its request once n were issued.
func (s *signer) waits(t testing.TB, n int) (*certificatesv1.CertificateSigningRequest, *x509.Certificate) {
	t.Helper()
	deadline := time.After(wait.Limit)
	for {
		s.mu.Lock()
		more, asked, issued := s.more, slices.Clone(s.asked), slices.Clone(s.issued)
		s.mu.Unlock()
		if len(issued) >= n {
			return asked[n-1], issued[n-1]
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%d certificates were issued, want %d", len(issued), n)
		}
	}
}

// whoami asks the API server who we are.
func whoami(t testing.TB, c *apiclient.Client) (authenticationv1.UserInfo, error) {
	t.Helper()
	said, err := must(kubernetes.NewForConfig(c.REST())).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return said.Status.UserInfo, nil
}

// until polls until so returns true.
func until(t testing.TB, what string, so func() (bool, error)) {
	t.Helper()
	wait.NoError(t, func() error {
		ok, err := so()
		if ok {
			return nil
		}
		return fmt.Errorf("never: %s (%w)", what, cmp.Or(err, errors.New("it is not so")))
	})
}

// logger writes to the test's output, and keeps the log.
type logger struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *logger) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(line)
}

func (l *logger) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

func (l *logger) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// runs calls run until the test ends, or stop is called.
func runs(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}
