package registry_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/registry"
	"github.com/nodectl/nodectl/test/wait"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m)) }

// canary is a password that must not appear anywhere.
const canary = "c4nary-p4ssw0rd"

// agent is the part of an agent that pulls, on a real containerd.
type agent struct {
	*image.Puller
	node *node.Node
	dir  string

	mu  sync.Mutex
	log bytes.Buffer
}

func (a *agent) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.Write(b)
}

func newAgent(t *testing.T) *agent {
	t.Helper()
	a := &agent{node: node.Shared(t), dir: t.TempDir()}
	rt, err := cri.Dial(cri.Config{Endpoint: a.node.Endpoint, Node: "registry"})
	if err != nil {
		t.Fatal(err)
	}
	a.Puller = image.New(image.Config{
		Runtime: rt, Dir: filepath.Join(a.dir, "image_manager"), DockerConfigs: image.DockerConfigs(a.dir, ""),
		Log: slog.New(slog.NewTextHandler(a, nil)),
	})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { a.Run(ctx) })
	t.Cleanup(func() {
		stop()
		wg.Wait()
		rt.Close()
		if strings.Contains(a.log.String(), canary) {
			t.Errorf("the log tells the password: %s", &a.log)
		}
	})
	return a
}

// pull pulls an image for a pod that has these logins, "user:password" each.
func (a *agent) pull(ctx context.Context, name string, logins ...string) error {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID("uid-web")}}
	p.Spec.Containers = []v1.Container{{Name: "c", Image: name, ImagePullPolicy: v1.PullIfNotPresent}}
	host, _, _ := strings.Cut(name, "/")
	var objects []*pod.Object
	for i, login := range logins {
		user, password, _ := strings.Cut(login, ":")
		s := &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pull-%d", i)}, Type: v1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{v1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, host, user, password)},
		}
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: s.Name})
		objects = append(objects, &pod.Object{Key: pod.Key{Namespace: "default", Name: s.Name}, Kind: pod.KindSecret, Object: s})
	}
	return a.PullImage(ctx, &pod.Spec{Key: pod.KeyOf(p), Pod: p, Data: podspec.NewData(objects)}, "c", nil)
}

// trust has containerd trust a registry's certificate.
func (a *agent) trust(t *testing.T, r *registry.Registry) {
	t.Helper()
	dir := filepath.Join(a.node.RootDir, "runtime", "certs.d", r.Host)
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(dir, "ca.crt")
	text := fmt.Sprintf("server = \"https://%s\"\n[host.\"https://%s\"]\n  ca = %q\n", r.Host, r.Host, ca)
	if err := errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Server.Certificate().Raw}), 0o600),
		os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
}

// Shows: C-1.39.5, F30
func TestC_1_39_5_PullsWithCredentials(t *testing.T) {
	for _, tls := range []bool{false, true} {
		for _, token := range []bool{false, true} {
			t.Run(fmt.Sprintf("tls %t token %t", tls, token), func(t *testing.T) {
				a := newAgent(t)
				r := registry.New(t, registry.Options{User: "u", Password: canary, Token: token, TLS: tls})
				if tls {
					a.trust(t, r)
				}
				name := r.Push(t, "app:1", 2, 10_000)
				for what, logins := range map[string][]string{"no login": nil, "a wrong password": {"u:" + canary + "x"}, "two wrong ones": {"u:" + canary + "x", "v:" + canary}} {
					err := a.pull(t.Context(), name, logins...)
					var start *pod.StartError
					if !errors.As(err, &start) || start.Reason != "ErrImagePull" || start.Final || strings.Contains(err.Error(), canary) {
						t.Errorf("%s: %v", what, err)
					}
					t.Logf("%s: %v", what, err)
				}
				if err := a.pull(t.Context(), name, "u:wrong", "u:"+canary); err != nil {
					t.Fatalf("a good one behind a wrong one: %v", err)
				}
				asked := len(r.Asked())
				if err := a.pull(t.Context(), name, "u:"+canary); err != nil || len(r.Asked()) != asked {
					t.Errorf("what is there: %v, the registry was asked %d times", err, len(r.Asked())-asked)
				}
				if err := a.pull(t.Context(), name); err == nil {
					t.Error("another pod got what only the secret may have")
				}
				if err := os.WriteFile(filepath.Join(a.dir, "config.json"), fmt.Appendf(nil, `{"auths":{"https://%s/v2/":{"username":"u","password":%q}}}`, r.Host, canary), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := a.pull(t.Context(), name); err != nil {
					t.Errorf("with the node's login: %v", err)
				}
			})
		}
	}
}

// A registry's fault is reported in one line, and after it is mended the pull succeeds.
//
// Shows: F30
func TestF30_RegistryFaults(t *testing.T) {
	a := newAgent(t)
	for fault, want := range map[registry.Fault]string{
		registry.NotFound:  "not found",
		registry.Broken:    "500",
		registry.Corrupt:   "",
		registry.Truncated: "",
	} {
		t.Run(string(fault), func(t *testing.T) {
			r := registry.New(t, registry.Options{})
			name := r.Push(t, "app:1", 1, 100_000)
			r.Break(fault)
			err := a.pull(t.Context(), name)
			var start *pod.StartError
			if !errors.As(err, &start) || start.Reason != "ErrImagePull" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
			t.Log(err)
			r.Break("")
			// containerd may resume the bad part of a layer, once.
			wait.NoError(t, func() error { return a.pull(t.Context(), name) })
		})
	}
	t.Run("no server listens", func(t *testing.T) {
		r := registry.New(t, registry.Options{})
		name := r.Push(t, "app:1", 1, 100)
		r.Server.Close()
		if err := a.pull(t.Context(), name); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%v", err)
		}
	})
}

// Twenty pods, and two registries that hang: all others get their images meanwhile, and a
// waiting pull can be cancelled.
//
// Shows: M21, F30
func TestM21_HangingRegistriesDelayOnlyTheirOwn(t *testing.T) {
	a := newAgent(t)
	good := registry.New(t, registry.Options{BytesPerSecond: 50_000_000 / 8})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var hung, others sync.WaitGroup
	for _, fault := range []registry.Fault{registry.Hang, registry.SlowLoris} {
		r := registry.New(t, registry.Options{})
		for i := range 5 {
			name := r.Push(t, fmt.Sprintf("app:%d", i), 1, 10_000)
			r.Break(fault)
			hung.Go(func() {
				if err := a.pull(ctx, name); !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", fault, err)
				}
			})
		}
	}
	for i := range 5 {
		name := good.Push(t, fmt.Sprintf("app:%d", i), 2, 100_000)
		for range 2 {
			others.Go(func() {
				if err := a.pull(t.Context(), name); err != nil {
					t.Error(err)
				}
			})
		}
	}
	others.Wait()
	if pulls := a.Pulls(); len(pulls) != 10 { // those that hang still do
		t.Errorf("under way: %v", pulls)
	}
	manifests := 0
	for _, asked := range good.Asked() {
		if strings.HasPrefix(asked, "GET /v2/app/manifests/") {
			manifests++
		}
	}
	if manifests != 5 {
		t.Errorf("%d manifests were asked for, want one for each image: %q", manifests, good.Asked())
	}
	leave()
	hung.Wait()
	wait.NoError(t, func() error {
		if left := a.Pulls(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// The progress of a pull comes from containerd itself.
func TestBytesOfPulls(t *testing.T) {
	a := newAgent(t)
	r := registry.New(t, registry.Options{BytesPerSecond: 2_000_000})
	names := []string{r.Push(t, "team/app:1", 3, 4_000_000), r.Push(t, "team/other:1", 1, 4_000_000)}
	downloads := bundle.NewDownloads(a.node.Endpoint)
	defer downloads.Close()
	look := func() map[string]bundle.Download {
		t.Helper()
		var far map[string]bundle.Download
		wait.NoError(t, func() (err error) { // a call may take too long, but not each
			if far, err = downloads.Progress(t.Context(), names); err != nil && status.Code(err) != codes.DeadlineExceeded {
				t.Fatal(err)
			}
			return err
		})
		return far
	}
	if far := look(); len(far) != 0 {
		t.Errorf("before: %v", far)
	}
	done := make(chan error, len(names)) // each pull sends its end
	for _, name := range names {
		go func() { done <- a.pull(t.Context(), name) }()
	}
	seen := map[string][]bundle.Download{}
	for left := len(names); left > 0; {
		for name, d := range look() {
			seen[name] = append(seen[name], d)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			left--
		case <-time.After(5 * time.Millisecond):
		}
	}
	for i, name := range names {
		total := []int64{12_000_000, 4_000_000}[i]
		all := seen[name]
		distinct := map[int64]bool{}
		for _, d := range all {
			distinct[d.Bytes] = true
			if d.Total < total || d.Total > total+100_000 || d.Bytes > d.Total {
				t.Errorf("%s: %v", name, d)
			}
		}
		// A layer that is being put away may be in neither list for a moment.
		if len(distinct) < 3 || slices.MaxFunc(all, func(a, b bundle.Download) int { return cmp.Compare(a.Bytes, b.Bytes) }).Bytes < total/2 {
			t.Errorf("%s: seen %v", name, all)
		}
	}
}
