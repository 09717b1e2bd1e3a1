package apiclient

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// write replaces a file in one step.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func kubeconfigText(url, cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: %q%s}}]
users: [{name: u, user: {%s}}]
`, url, cluster, user)
}

// kubeconfigOf writes a file that leads to url; user is the content of its user.
func kubeconfigOf(t testing.TB, url, cluster, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, kubeconfigText(url, cluster, user))
	return path
}

func opened(t testing.TB, path string, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{File: path, UserAgent: "nodectl/test"}
	for _, f := range change {
		f(&cfg)
	}
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// get asks for a path, and returns the answer's status and text.
func get(t testing.TB, c http.RoundTripper, path string) (int, string, error) {
	t.Helper()
	response, err := c.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://missing.invalid"+path, nil)))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	return response.StatusCode, string(must(io.ReadAll(response.Body))), nil
}

// echo answers with the request, over TLS: client-go sends no credentials without TLS. trust is the
// authority in the kubeconfig's cluster.
func echo(t testing.TB) (s *httptest.Server, trust string) {
	s = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %s", r.Host, r.RequestURI, r.Header.Get("Authorization"), r.UserAgent())
	}))
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return s, ", certificate-authority-data: " + encoded(string(ca))
}

// A kubeconfig that cannot be used is an error with its place, of one line, without secrets.
func TestOpen_BadKubeconfig_SaysWhereItIsWrong(t *testing.T) {
	const (
		head = "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
		ctx  = "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
		good = head + ctx + "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n"
	)
	for _, c := range []struct{ name, text, file, want string }{
		{"no file", "", "kubeconfig", "cannot be read: no such file or directory"},
		{"empty", " \n", "kubeconfig", "is empty"},
		{"no YAML", head + "users: [\n  hunter2: {\n", "kubeconfig:", "is not YAML"},
		{"another document", "hunter2", "kubeconfig", "is not a kubeconfig"},
		{"wrong kind", "apiVersion: v1\nkind: Pod\nmetadata: {name: hunter2}\n", "kubeconfig", "is not a kubeconfig"},
		{"wrong shape", head + "users: hunter2\n", "kubeconfig", "is not a kubeconfig"},
		{"broken base64", good + "users: [{name: u, user: {client-key-data: hunter2!}}]\n", "kubeconfig", "illegal base64 data at input byte"},
		{"no context", "apiVersion: v1\nkind: Config\n", "kubeconfig", "current-context: is missing"},
		{"a context that is not there", head, "kubeconfig", `context was not found for specified context: c`},
		{"a cluster that is not there", head + ctx, "kubeconfig", `no server is named for context "c"`},
		{"no CA file", head + ctx + "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca.crt}}]\n", "kubeconfig", "ca.crt"},
		{"no certificate", good + "users: [{name: u, user: {client-certificate: gone.crt, client-key: gone.key}}]\n", "kubeconfig", "gone.crt"},
		{"no token file", good + "users: [{name: u, user: {tokenFile: gone.token}}]\n", "gone.token", "cannot be read: no such file or directory"},
		{"no certificate's text", good + "users: [{name: u, user: {client-certificate-data: aHVudGVyMg==, client-key-data: aHVudGVyMg==}}]\n", "kubeconfig", "cannot be used"},
		{"no server's URL", head + ctx + "clusters: [{name: k, cluster: {server: 'https://[hunter2'}}]\n", "kubeconfig", "server: is not a URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if c.text != "" {
				write(t, path, c.text)
			}
			_, err := Open(Config{File: path})
			var p pod.Problem
			if !errors.As(err, &p) || !strings.HasPrefix(p.Place(), filepath.Join(filepath.Dir(path), c.file)) || !strings.Contains(p.Error(), c.want) {
				t.Errorf("error %q (%#v), want one of %s that says %q", err, p, c.file, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %q", err)
			}
		})
	}
}

// The server is the kubeconfig's, whatever the request says, and so is the path
// before the request's own; the request stays as it was.
func TestRequestsGoToTheServerOfTheFile(t *testing.T) {
	t.Parallel()
	s, trust := echo(t)
	host := strings.TrimPrefix(s.URL, "https://")
	for _, it := range []struct{ root, path, want string }{
		{"", "/api/v1/pods?watch=true&a=b%2Fc", "/api/v1/pods?watch=true&a=b%2Fc"},
		{"/k8s/c-1/", "/api/v1/pods", "/k8s/c-1/api/v1/pods"},
		{"/k8s%2Fx", "/api/v1/a%2Fb", "/k8s%2Fx/api/v1/a%2Fb"},
		{"/k8s", "/api/v1/a%2Fb", "/k8s/api/v1/a%2Fb"},
	} {
		c := opened(t, kubeconfigOf(t, s.URL+it.root, trust, "token: hunter2"))
		if _, got, err := get(t, c, it.path); got != host+" "+it.want+" Bearer hunter2 nodectl/test" {
			t.Errorf("below %q, %s came as %q, %v", it.root, it.path, got, err)
		}
		if c.Host() != s.URL {
			t.Errorf("host %q", c.Host())
		}
	}
	c := opened(t, kubeconfigOf(t, s.URL, trust, ""))
	r := must(http.NewRequest(http.MethodGet, "https://missing.invalid/x", nil))
	response := must(c.RoundTrip(r)) //nolint:bodyclose // the next line does
	_ = response.Body.Close()
	if r.URL.String() != "https://missing.invalid/x" || len(r.Header) != 0 {
		t.Errorf("the request has become %s %v", r.URL, r.Header)
	}
}

// The client returns a redirect as the answer, also to clients that follow redirects by
// themselves (CVE-2020-8559).
//
// Shows: D1
func TestD1_RedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, elsewhere.URL+"/api/v1/nodes", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(s.Close)
	c := opened(t, kubeconfigOf(t, s.URL, "", "token: hunter2"))
	typed := must(kubernetes.NewForConfig(c.REST()))
	if _, err := typed.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v", err)
	}
	h := must(rest.HTTPClientFor(c.REST()))
	response, err := h.Get("https://missing.invalid/x")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusTemporaryRedirect || asked.Load() != 2 {
		t.Errorf("status %d after %d requests", response.StatusCode, asked.Load())
	}
}

// A kubeconfig that is yet to be written is an error that passes when it is there.
//
// Shows: F72
func TestF72_AwaitedKubeconfig(t *testing.T) {
	t.Parallel()
	s, trust := echo(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if _, err := Open(Config{File: path}); err == nil {
		t.Error("a missing file that is not awaited is no error")
	}
	c := opened(t, path, func(c *Config) { c.Awaited = true })
	typed := must(kubernetes.NewForConfig(c.REST()))
	_, err := typed.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	var p pod.Problem
	if !errors.As(err, &p) || p.File != path || p.Msg != "cannot be read: no such file or directory" {
		t.Errorf("error %v", err)
	}
	body := &closer{Reader: strings.NewReader("x")}
	if _, err := c.RoundTrip(must(http.NewRequest(http.MethodPost, "https://missing.invalid/", body))); err == nil || !body.closed { //nolint:bodyclose // there is no answer
		t.Errorf("error %v; the body was closed: %t", err, body.closed)
	}
	synctest.Test(t, func(t *testing.T) { // looking at a file takes no time
		there := make(chan error, 1) // Await's end; there is room
		go func() { there <- c.Await(t.Context()) }()
		time.Sleep(100*lookAgain + lookAgain/2)
		if len(there) > 0 {
			t.Errorf("awaited until %v", <-there)
		}
		write(t, path, kubeconfigText(s.URL, trust, ""))
		if err := <-there; err != nil {
			t.Error(err)
		}
	})
	if status, _, err := get(t, c, "/"); status != http.StatusOK {
		t.Errorf("status %d, %v", status, err)
	}
	// So is the certificate that it names.
	write(t, path, kubeconfigText(s.URL, trust, "client-certificate: gone.pem, client-key: gone.pem"))
	ended, end := context.WithCancel(t.Context())
	end()
	if err := opened(t, path, func(c *Config) { c.Awaited = true }).Await(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("awaited until %v", err)
	}
	if _, err := Open(Config{File: path}); err == nil {
		t.Error("a missing certificate that is not awaited is no error")
	}
	// One that is there and wrong is an error of Open, awaited or not.
	write(t, path, "{")
	if _, err := Open(Config{File: path, Awaited: true}); err == nil {
		t.Error("a broken file is accepted")
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

// The client reads the kubeconfig and each file that it names again, and keeps its
// connections where nothing changed.
//
// Shows: F72
func TestF72_EveryFileIsReadAgain(t *testing.T) {
	t.Parallel()
	s, trust := echo(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	write(t, token, "hunter2\n")
	c := opened(t, kubeconfigOf(t, s.URL, trust, "tokenFile: "+token))
	first := must(c.Transport())
	if must(c.Transport()) != first {
		t.Error("the transport changes by itself")
	}
	write(t, token, "hunter3\n")
	if _, got, err := get(t, c, "/"); !strings.Contains(got, "Bearer hunter3 ") {
		t.Errorf("%q, %v", got, err)
	}
	if must(c.Transport()) == first {
		t.Error("another token uses the same transport")
	}
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	var p pod.Problem
	if _, _, err := get(t, c, "/"); !errors.As(err, &p) || p.File != token {
		t.Errorf("error %v", err)
	}
	write(t, token, "hunter3\n")
	if _, _, err := get(t, c, "/"); err != nil {
		t.Error(err)
	}
	// A token of the kubeconfig's own wins over a file, as clientcmd has it.
	write(t, c.File(), kubeconfigText(s.URL, trust, "token: own, tokenFile: "+token))
	if _, got, err := get(t, c, "/"); !strings.Contains(got, "Bearer own ") {
		t.Errorf("%q, %v", got, err)
	}
}

// Errors have a text for people, and wrap the errors that client-go looks for.
//
// Shows: F72
func TestF72_ErrorsSayTheServerAndNoMore(t *testing.T) {
	t.Parallel()
	c := opened(t, kubeconfigOf(t, "http://127.0.0.1:1", "", "token: hunter2"))
	_, _, err := get(t, c, "/api/v1/secrets/x")
	if err == nil || err.Error() != "http://127.0.0.1:1: connection refused" || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v", err)
	}
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	cfg := opened(t, kubeconfigOf(t, silent.URL, "", "")).REST()
	cfg.Timeout = 50 * time.Millisecond
	_, err = must(kubernetes.NewForConfig(cfg)).CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	var timeout interface{ Timeout() bool }
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("error %v (%T) is no timeout", err, err)
	}
}

// Many goroutines send requests while the file changes.
func TestClient_FileChangesDuringConcurrentRequests_AllSucceed(t *testing.T) {
	t.Parallel()
	one, trust := echo(t)
	two, _ := echo(t)
	c := opened(t, kubeconfigOf(t, one.URL, trust, ""))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if status, _, err := get(t, c, "/"); status != http.StatusOK {
					t.Errorf("status %d, %v", status, err)
				}
			}
		})
	}
	for i := range 10 {
		write(t, c.File(), kubeconfigText([]*httptest.Server{one, two}[i%2].URL, trust, ""))
		_ = c.Host()
	}
	wg.Wait()
}

func TestIdentityOf(t *testing.T) {
	t.Parallel()
	if _, err := IdentityOf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	token := kubeconfigOf(t, "https://127.0.0.1:1", "", "token: hunter2")
	if id, err := IdentityOf(token); err != nil || id != (Identity{}) {
		t.Errorf("%+v, %v", id, err)
	}
	a := authority.New()
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	cert, key := a.Issue("system:node:n1", authority.Until(end))
	path := kubeconfigOf(t, "https://127.0.0.1:1", "", "client-certificate: pair.pem, client-key: pair.pem")
	if id, err := IdentityOf(path); !errors.Is(err, fs.ErrNotExist) || id.File != filepath.Join(filepath.Dir(path), "pair.pem") {
		t.Errorf("%+v, %v", id, err)
	}
	write(t, filepath.Join(filepath.Dir(path), "pair.pem"), key+cert)
	if id, err := IdentityOf(path); err != nil || !id.Expires.Equal(end) || id.Name != "system:node:n1" || filepath.Base(id.File) != "pair.pem" {
		t.Errorf("%+v, %v", id, err)
	}
	inline := kubeconfigOf(t, "https://127.0.0.1:1", "", "client-certificate-data: "+encoded(cert)+", client-key-data: "+encoded(key))
	if id, err := IdentityOf(inline); err != nil || !id.Expires.Equal(end) || id.File != "" {
		t.Errorf("%+v, %v", id, err)
	}
}

// A bootstrap writes a kubeconfig of the same cluster without the bootstrap's
// credentials.
func TestWriteJoined(t *testing.T) {
	t.Parallel()
	a := authority.New()
	from := kubeconfigOf(t, "https://127.0.0.1:1", ", tls-server-name: x, certificate-authority: ca.crt", "token: hunter2")
	write(t, filepath.Join(filepath.Dir(from), "ca.crt"), a.PEM())
	pair := filepath.Join(t.TempDir(), "pair.pem")
	cert, key := a.Issue("system:node:n1")
	write(t, pair, cert+key)
	path := filepath.Join(t.TempDir(), "made", "kubeconfig")
	if err := WriteJoined(path, from, pair); err != nil {
		t.Fatal(err)
	}
	text := string(must(os.ReadFile(path)))
	info := must(os.Stat(path))
	if strings.Contains(text, "hunter2") || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v:\n%s", info.Mode(), text)
	}
	cluster, user, err := current(path)
	if err != nil || cluster.Server != "https://127.0.0.1:1" || cluster.TLSServerName != "x" ||
		cluster.CertificateAuthority != filepath.Join(filepath.Dir(from), "ca.crt") || user.ClientCertificate != pair || user.ClientKey != pair {
		t.Errorf("%+v %+v, %v", cluster, user, err)
	}
	opened(t, path)
	if left := must(os.ReadDir(filepath.Dir(path))); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// A file with certificate and key is replaced while it is read: the client uses one of the two
// pairs, never a mix of both.
//
// Shows: F72
func TestF72_PairReplacedWhileItIsRead(t *testing.T) {
	pair := filepath.Join(t.TempDir(), "pair")
	of := authority.New()
	replace := func(name string) { cert, key := of.Issue(name); write(t, pair, cert+key) }
	replace("first")
	var m material
	rc := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CertFile: pair, KeyFile: pair}}
	err := m.fill(rc, nil, func(file string) ([]byte, error) {
		data, err := os.ReadFile(file)
		replace("second")
		return data, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(rc.CertData, rc.KeyData); err != nil {
		t.Error(err)
	}
}
