// Package registry gives a test its own registry: a real one on loopback, with or without TLS
// and credentials. A test can make it fail, hang, answer wrongly or slowly.
//
// Images are put into it directly, without these faults; they apply to requests of containerd
// and other clients.
//
// A request that hangs ends when its client leaves or its test ends.
package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

// Fault is a fault of a Registry.
type Fault string

// The faults. Faults of layers do not affect manifests and configurations.
const (
	NotFound  Fault = "404"        // has no repository
	Broken    Fault = "500"        // answers with a server error
	Hang      Fault = "hang"       // accepts every request and never answers
	SlowLoris Fault = "slow loris" // sends a layer a byte at a time, and never all of it
	Corrupt   Fault = "corrupt"    // sends a layer with other bytes in it
	Truncated Fault = "truncated"  // breaks off in the middle of a layer
)

// Options configure a Registry.
type Options struct {
	User, Password string // "" needs no login
	Private        string // the repositories that need it begin with this
	Token          bool   // by a token that a server of its own gives for them
	TLS            bool
	BytesPerSecond int // of all layers together; 0 is as fast as it goes
}

// Registry is a registry on loopback.
type Registry struct {
	// Host is its address as image names begin.
	Host string
	// Server has its certificate.
	Server *httptest.Server

	options Options
	store   http.Handler
	token   string
	gone    chan struct{}

	mu     sync.Mutex
	fault  Fault
	asked  []string // "GET /v2/…", of those who were let in
	layers map[string]bool
	next   time.Time // when the next byte of a layer may leave
}

// New starts a registry, which ends with the test.
func New(t testing.TB, o Options) *Registry {
	t.Helper()
	r := Start(o)
	t.Cleanup(r.Close)
	return r
}

// Start starts a registry. The caller closes it.
func Start(o Options) *Registry {
	r := &Registry{
		options: o, store: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		token: rand.Text(), gone: make(chan struct{}), layers: map[string]bool{},
	}
	r.Server = httptest.NewUnstartedServer(r)
	r.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if o.TLS {
		r.Server.StartTLS()
	} else {
		r.Server.Start()
	}
	r.Host = r.Server.Listener.Addr().String()
	return r
}

// Close ends the registry.
func (r *Registry) Close() {
	close(r.gone)
	r.Server.CloseClientConnections()
	r.Server.Close()
}

// Break makes the registry do something wrong from now on; "" mends it.
func (r *Registry) Break(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// Asked returns the requests that were not refused, as "GET /v2/…".
func (r *Registry) Asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.asked...)
}

// Push puts an image with layers of so many random bytes each into the registry and
// returns its name. repo may have a tag.
func (r *Registry) Push(t testing.TB, repo string, layers int, size int64) string {
	t.Helper()
	image, err := r.Store(repo, layers, size)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// Store is Push outside of a test.
func (r *Registry) Store(repo string, layers int, size int64) (image string, err error) {
	img, err := random.Image(size, int64(layers))
	if err != nil {
		return "", err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return "", err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, c); err != nil {
		return "", err
	}
	return r.storeImage(repo, img)
}

// PushImage puts an image into the registry and returns its name. repo may have a tag.
func (r *Registry) PushImage(t testing.TB, repo string, img v1.Image) string {
	t.Helper()
	image, err := r.storeImage(repo, img)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func (r *Registry) storeImage(repo string, img v1.Image) (image string, err error) {
	name, tag, ok := strings.Cut(repo, ":")
	if !ok {
		tag = "latest"
	}
	return r.Host + "/" + name + ":" + tag, r.put(name, tag, img)
}

func (r *Registry) put(name, tag string, img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		content, err := l.Compressed()
		if err != nil {
			return err
		}
		b, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		if err := r.store1(http.MethodPost, "/v2/"+name+"/blobs/uploads/?digest="+digest.String(), b, ""); err != nil {
			return err
		}
		r.mu.Lock()
		r.layers[digest.String()] = true
		r.mu.Unlock()
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := img.ConfigName()
	if err != nil {
		return err
	}
	if err := r.store1(http.MethodPost, "/v2/"+name+"/blobs/uploads/?digest="+digest.String(), config, ""); err != nil {
		return err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	kind, err := img.MediaType()
	if err != nil {
		return err
	}
	return r.store1(http.MethodPut, "/v2/"+name+"/manifests/"+tag, manifest, string(kind))
}

// store1 puts one thing into the store itself.
func (r *Registry) store1(method, path string, content []byte, kind string) error {
	q := httptest.NewRequestWithContext(context.Background(), method, path, bytes.NewReader(content))
	q.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	r.store.ServeHTTP(w, q)
	if w.Code >= 300 {
		return fmt.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	fault := r.fault
	r.mu.Unlock()
	switch {
	case fault == Hang:
		r.hang(q)
		return
	case fault == Broken:
		http.Error(w, `{"errors":[{"code":"UNKNOWN","message":"out of order"}]}`, http.StatusInternalServerError)
		return
	case q.URL.Path == "/token":
		r.giveToken(w, q)
		return
	case !r.lets(q):
		scheme := "http"
		if r.options.TLS {
			scheme = "https"
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		if r.options.Token {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s://%s/token",service="test",scope="repository:app:pull"`, scheme, r.Host))
		}
		// Some registries repeat the credentials that they got.
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"no entry for `+q.Header.Get("Authorization")+`"}]}`, http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	r.asked = append(r.asked, q.Method+" "+q.URL.Path)
	_, digest, _ := strings.Cut(q.URL.Path, "/blobs/")
	layer := q.Method == http.MethodGet && r.layers[digest]
	r.mu.Unlock()
	switch {
	case fault == NotFound:
		http.Error(w, `{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known"}]}`, http.StatusNotFound)
	case layer:
		r.giveLayer(w, q, fault)
	default:
		r.store.ServeHTTP(w, q)
	}
}

// lets reports whether a request has the credentials.
func (r *Registry) lets(q *http.Request) bool {
	if r.options.User == "" || q.URL.Path != "/v2/" && !strings.HasPrefix(q.URL.Path, "/v2/"+r.options.Private) {
		return true
	}
	if r.options.Token {
		return q.Header.Get("Authorization") == "Bearer "+r.token
	}
	return r.knows(q)
}

func (r *Registry) knows(q *http.Request) bool {
	return q.Header.Get("Authorization") == "Basic "+base64.StdEncoding.EncodeToString([]byte(r.options.User+":"+r.options.Password))
}

func (r *Registry) giveToken(w http.ResponseWriter, q *http.Request) {
	user, password := q.FormValue("username"), q.FormValue("password")
	if !r.knows(q) && (user != r.options.User || password != r.options.Password) {
		http.Error(w, `{"details":"no entry for `+q.Header.Get("Authorization")+" "+user+":"+password+`"}`, http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"token":%q,"access_token":%q,"expires_in":300}`, r.token, r.token)
}

// giveLayer sends a layer with its fault, at the registry's speed.
func (r *Registry) giveLayer(w http.ResponseWriter, q *http.Request, fault Fault) {
	answer := httptest.NewRecorder()
	whole := q.Clone(q.Context())
	whole.Header.Del("Range") // the store rejects ranges without an end
	r.store.ServeHTTP(answer, whole)
	b := answer.Body.Bytes()
	if fault == Corrupt {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 0xff
	}
	from := 0
	if n, _ := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-", &from); n == 1 && from > 0 && from < len(b) { // the bytes that a client has not received yet
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(b)-1, len(b)))
		answer.Code, b = http.StatusPartialContent, b[from:]
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.WriteHeader(answer.Code)
	flush := http.NewResponseController(w)
	switch fault {
	case Truncated:
		_, _ = w.Write(b[:len(b)/2])
		_ = flush.Flush()
		panic(http.ErrAbortHandler)
	case SlowLoris:
		for _, c := range b[:len(b)-1] {
			if _, err := w.Write([]byte{c}); err != nil || flush.Flush() != nil || !r.wait(q, 100*time.Millisecond) {
				return
			}
		}
		r.hang(q)
		return
	}
	const chunk = 16 << 10
	for len(b) > 0 {
		n := min(chunk, len(b))
		if r.options.BytesPerSecond > 0 && !r.wait(q, r.turn(n)) {
			return
		}
		if _, err := w.Write(b[:n]); err != nil {
			return
		}
		_ = flush.Flush()
		b = b[n:]
	}
}

// turn returns how long n bytes have to wait, at the registry's speed.
func (r *Registry) turn(n int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.next.Before(now) {
		r.next = now
	}
	r.next = r.next.Add(time.Duration(n) * time.Second / time.Duration(r.options.BytesPerSecond))
	return r.next.Sub(now)
}

// wait returns false when the client has gone or the test is over.
func (r *Registry) wait(q *http.Request, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-q.Context().Done():
	case <-r.gone:
	}
	return false
}

func (r *Registry) hang(q *http.Request) {
	select {
	case <-q.Context().Done():
	case <-r.gone:
	}
}
