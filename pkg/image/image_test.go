package image_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// registries fakes all registries behind a runtime's image service; the adapter in front of
// it is the real one.
type registries struct {
	runtimeapi.ImageServiceClient

	// lets maps an image to the login that its registry accepts; other images need none.
	lets map[string]string // image → "user:password"
	// hang names registries that never answer, took is how long a pull takes.
	hang map[string]bool
	took time.Duration
	// ends maps an image to what its pull returns, once it is stored, if the caller may
	// have left; nil waits for the end of the context. late is the delay from that end
	// until it is stored.
	ends map[string]func() error
	late time.Duration
	// away makes the runtime answer no queries; broken makes some fail; looks counts them.
	away   bool
	broken map[string]bool
	looks  int
	// repeats makes a registry repeat the credentials in its errors.
	repeats bool

	mu      sync.Mutex
	present map[string]string // name → ID
	pulls   []string          // "image user:password", in order
	now     map[string]int    // pulls under way, by registry
	most    map[string]int
	ended   int // by the end of their context
	last    *runtimeapi.PullImageRequest
}

func newRegistries() *registries {
	return &registries{lets: map[string]string{}, hang: map[string]bool{}, took: time.Second, present: map[string]string{}, now: map[string]int{}, most: map[string]int{}}
}

func (r *registries) ImageStatus(_ context.Context, q *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	switch name := q.GetImage().GetImage(); {
	case r.away:
		return nil, status.Error(codes.Unavailable, "away")
	case r.broken[name]:
		return nil, status.Error(codes.Unknown, "broken")
	}
	id, ok := r.present[q.GetImage().GetImage()]
	if !ok {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: id}}, nil
}

func (r *registries) PullImage(ctx context.Context, q *runtimeapi.PullImageRequest, _ ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	name := q.GetImage().GetImage()
	host, _, _ := strings.Cut(name, "/")
	who := ""
	if q.GetAuth() != nil {
		who = q.GetAuth().GetUsername() + ":" + q.GetAuth().GetPassword()
	}
	r.mu.Lock()
	r.last = q
	r.pulls = append(r.pulls, strings.TrimSpace(name+" "+who))
	r.now[host]++
	r.most[host] = max(r.most[host], r.now[host])
	took := time.After(r.took)
	if r.hang[host] {
		took = nil
	}
	r.mu.Unlock()
	select {
	case <-took:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now[host]--
	if ctx.Err() != nil {
		r.ended++
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if lets, ok := r.lets[name]; ok && lets != who {
		text := fmt.Sprintf("failed to pull and unpack image %q: failed to authorize: 401 Unauthorized", name)
		if r.repeats {
			user, password, _ := strings.Cut(who, ":")
			text += fmt.Sprintf(" for https://%s@%s/v2/?token=%s&x=1 (user %s, %s) Bearer eyJhbGciOi.%s", who, host, password, user, password, password)
		}
		return nil, status.Error(codes.Unknown, text)
	}
	if end, ok := r.ends[name]; ok {
		delete(r.ends, name)
		store := func() { r.present[name] = "sha256:" + name }
		if r.late == 0 {
			store()
		}
		if end != nil {
			return nil, end()
		}
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		if r.late > 0 {
			time.AfterFunc(r.late, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				store()
			})
		}
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if strings.Contains(name, "missing") {
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", name, name, name)
	}
	r.present[name] = "sha256:" + name
	// Some runtimes answer with a digest, which differs from the ID that ImageStatus
	// returns.
	return &runtimeapi.PullImageResponse{ImageRef: name + "@sha256:0123"}, nil
}

func (r *registries) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pulls)
}

// machine is a node with a Puller.
type machine struct {
	*image.Puller
	registries *registries
	dir        string
	log        *bytes.Buffer
	stop       func()
}

// on starts a Puller on the registries r; change adjusts its configuration.
func on(t *testing.T, r *registries, dir string, change ...func(*image.Config)) *machine {
	t.Helper()
	m := &machine{registries: r, dir: dir, log: &bytes.Buffer{}}
	log := slog.New(slog.NewTextHandler(&synced{w: m.log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg := image.Config{Runtime: cri.New(cri.Config{Node: "n1", NodeMemory: 1 << 30}, nil, r), Dir: filepath.Join(dir, "image_manager"), Log: log}
	for _, f := range change {
		f(&cfg)
	}
	m.Puller = image.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	m.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(m.stop)
	return m
}

// PullImage calls the Puller without a callback for news.
func (m *machine) PullImage(ctx context.Context, want *pod.Spec, container string) error {
	return m.Puller.PullImage(ctx, want, container, nil)
}

type synced struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (s *synced) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// wanted returns a pod whose containers c0, c1, … have these images.
func wanted(name string, images ...string) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{"a": "b"}}}
	for i, image := range images {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprintf("c%d", i), Image: image, ImagePullPolicy: v1.PullIfNotPresent})
	}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

// with adds pull secrets to the pod, each a login for one registry.
func with(want *pod.Spec, secrets ...*v1.Secret) *pod.Spec {
	var objects []*pod.Object
	for _, s := range secrets {
		want.Pod.Spec.ImagePullSecrets = append(want.Pod.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: s.Name})
		objects = append(objects, &pod.Object{Key: pod.Key{Namespace: "default", Name: s.Name}, Kind: pod.KindSecret, Origin: pod.Origin{Source: "api"}, Object: s})
	}
	want.Data = podspec.NewData(objects)
	return want
}

func secret(name, uid, registry, user, password string) *v1.Secret {
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, registry, user, password)},
	}
}

// Shows: C-1.39.2
func TestC_1_39_2_PullPolicies(t *testing.T) {
	for _, c := range []struct {
		image  string
		policy v1.PullPolicy
		want   string // the prefix of the error; "" is success
		final  bool
		pulls  int
	}{
		{"r.io/here:1", v1.PullIfNotPresent, "", false, 0},
		{"r.io/here:1", v1.PullNever, "", false, 0},
		{"r.io/here:1", v1.PullAlways, "", false, 1},
		{"r.io/here:1", "", "", false, 0},
		{"r.io/here", "", "", false, 1}, // latest: always
		{"r.io/here", v1.PullIfNotPresent, "", false, 0},
		{"r.io/remote:1", v1.PullIfNotPresent, "", false, 1},
		{"r.io/here@sha256:" + strings.Repeat("a", 64), "", "", false, 1},
		{"r.io/remote:1", v1.PullNever, `ErrImageNeverPull: Container image "r.io/remote:1" is not present with pull policy of Never`, true, 0},
		{"r.io/missing:1", v1.PullIfNotPresent, "ErrImagePull: pull image r.io/missing:1: not found", false, 1},
		{"r.io/missing", v1.PullAlways, "ErrImagePull: pull image r.io/missing:latest: not found", false, 1},
		{"UPPER:::", v1.PullAlways, `InvalidImageName: image "UPPER:::": invalid reference format`, true, 0},
		{"", v1.PullAlways, `InvalidImageName: image ""`, true, 0},
		{"nodectl.dev/pause:1", v1.PullAlways, `ErrImagePull: image "nodectl.dev/pause:1": the name is reserved for the bundled runtime`, true, 0},
		{"nodectl.dev/pause@sha256:" + strings.Repeat("a", 64), "", `ErrImagePull: image "nodectl.dev/pause@`, true, 0},
	} {
		for _, volume := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s %t", c.image, c.policy, volume), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRegistries()
					r.present["r.io/here:1"], r.present["r.io/here:latest"], r.present["r.io/main:1"] = "sha256:1", "sha256:2", "sha256:3"
					m := on(t, r, t.TempDir())
					defer m.stop()
					want := wanted("web", c.image)
					want.Pod.Spec.Containers[0].ImagePullPolicy = c.policy
					if volume {
						want = wanted("web", "r.io/main:1")
						want.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data"}}
						want.Pod.Spec.Volumes = []v1.Volume{
							{Name: "other", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "r.io/missing:unmounted"}}},
							{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: c.image, PullPolicy: c.policy}}},
						}
					}
					err := m.PullImage(t.Context(), want, "c0")
					wanted := c.want
					if volume {
						wanted = strings.Replace(wanted, ": ", ": volume data: ", 1)
					}
					var start *pod.StartError
					switch {
					case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), wanted)):
						t.Errorf("%v, want %s", err, wanted)
					case c.want != "" && (!errors.As(err, &start) || start.Final != c.final):
						t.Errorf("%#v", err)
					}
					if n := len(r.said()); n != c.pulls {
						t.Errorf("%d pulls, want %d: %q", n, c.pulls, r.said())
					}
				})
			})
		}
	}
}

func TestPullNamesItsImageAndPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir())
		defer m.stop()
		if err := m.PullImage(t.Context(), wanted("web", "r.io/app:1"), "c0"); err != nil {
			t.Fatal(err)
		}
		meta := r.last.GetSandboxConfig().GetMetadata()
		if meta.GetName() != "web" || meta.GetNamespace() != "default" || meta.GetUid() != "uid-web" || r.last.GetAuth() != nil ||
			r.last.GetImage().GetAnnotations()["a"] != "b" || r.last.GetSandboxConfig().GetAnnotations()["a"] != "b" {
			t.Errorf("%v", r.last)
		}
		if err := m.PullImage(t.Context(), wanted("web", "r.io/app:1"), "missing"); err == nil || !strings.HasPrefix(err.Error(), "CreateContainerConfigError: ") {
			t.Errorf("%v", err)
		}
	})
}

// Pods that want the same image share its pull, whichever of them leaves. It ends when the
// last one leaves.
//
// Shows: F30
func TestF30_OneFlightPerImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir())
		defer m.stop()
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := m.PullImage(first, wanted("first", "r.io/app:1"), "c0"); !errors.Is(err, context.Canceled) {
				t.Errorf("the first: %v", err)
			}
		})
		for i := range 20 {
			wg.Go(func() {
				if err := m.PullImage(t.Context(), wanted(fmt.Sprintf("p%d", i), "r.io/app:1"), "c0"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if got := m.Pulls(); len(got) != 1 || got[0].Image != "r.io/app:1" || got[0].Waiting {
			t.Errorf("%+v", got)
		}
		leave()
		wg.Wait()
		if got := r.said(); len(got) != 1 || r.ended != 0 || len(m.Pulls()) != 0 {
			t.Errorf("%q, %d ended, %v", got, r.ended, m.Pulls())
		}

		r.hang["slow.io"] = true
		alone, leave := context.WithCancel(t.Context())
		wg.Go(func() { _ = m.PullImage(alone, wanted("a", "slow.io/app:1"), "c0") })
		wg.Go(func() { _ = m.PullImage(alone, wanted("b", "slow.io/app:1"), "c0") })
		synctest.Wait()
		leave()
		wg.Wait()
		synctest.Wait()
		if r.ended != 1 || len(m.Pulls()) != 0 {
			t.Errorf("%d pulls ended, %v", r.ended, m.Pulls())
		}
		r.hang["slow.io"] = false
		if err := m.PullImage(t.Context(), wanted("c", "slow.io/app:1"), "c0"); err != nil {
			t.Errorf("after the pull that was given up: %v", err)
		}
	})
}

// When a Puller ends, every waiting pull returns an error and no goroutine is left.
func TestPullEndsWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["slow.io"] = true
		m := on(t, r, t.TempDir())
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if err := m.PullImage(t.Context(), wanted("a", fmt.Sprintf("slow.io/app:%d", i)), "c0"); err == nil {
					t.Error("pulled")
				}
			})
		}
		synctest.Wait()
		m.stop()
		wg.Wait()
		if err := m.PullImage(t.Context(), wanted("b", "slow.io/app:9"), "c0"); err == nil || r.now["slow.io"] != 0 {
			t.Errorf("%v, %d under way", err, r.now["slow.io"])
		}
	})
}

// One registry hangs: its own pods wait, the others run within seconds.
//
// Shows: M21, F30
func TestM21_AHangingRegistryDelaysOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["hung.io"] = true
		m := on(t, r, t.TempDir())
		defer m.stop()
		began := time.Now()
		ctx, leave := context.WithCancel(t.Context())
		var others, hung sync.WaitGroup
		for i := range 20 {
			registry, wg := "r.io", &others
			if i%4 == 0 {
				registry, wg = "hung.io", &hung
			}
			wg.Go(func() {
				err := m.PullImage(ctx, wanted(fmt.Sprintf("p%d", i), fmt.Sprintf("%s/app:%d", registry, i)), "c0")
				if (err == nil) != (registry == "r.io") {
					t.Errorf("%s: %v", registry, err)
				}
			})
		}
		others.Wait()
		if took := time.Since(began); took != 5*time.Second { // 15 images, 3 at a time, 1 s each
			t.Errorf("the others took %s", took)
		}
		waiting := 0
		for _, p := range m.Pulls() {
			if p.Waiting {
				waiting++
			}
		}
		if r.most["r.io"] != 3 || r.most["hung.io"] != 3 || len(m.Pulls()) != 5 || waiting != 2 || len(r.said()) != 18 {
			t.Errorf("at once: %v; %v, %d pulls", r.most, m.Pulls(), len(r.said()))
		}
		leave() // one after the other: the first to leave makes room for the next
		hung.Wait()
		synctest.Wait()
		if len(m.Pulls()) != 0 || r.now["hung.io"] != 0 {
			t.Errorf("%v, under way %v", m.Pulls(), r.now)
		}
	})
}

// observer collects events.
type observer struct {
	mu   sync.Mutex
	text []string
}

func (o *observer) observe(e image.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, fmt.Sprintf("%s %t %v", e.Image, e.Over, e.Err))
}

func TestEventsOfPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o observer
		m := on(t, newRegistries(), t.TempDir(), func(c *image.Config) { c.Observe = o.observe })
		defer m.stop()
		_ = m.PullImage(t.Context(), wanted("a", "r.io/app:1"), "c0")
		_ = m.PullImage(t.Context(), wanted("a", "r.io/missing:1"), "c0")
		synctest.Wait()
		if want := []string{
			"r.io/app:1 false <nil>", "r.io/app:1 true <nil>",
			"r.io/missing:1 false <nil>", "r.io/missing:1 true ErrImagePull: pull image r.io/missing:1: not found",
		}; !slices.Equal(o.text, want) {
			t.Errorf("%q", o.text)
		}
	})
}

// A pod without the secret cannot use an image that was pulled with it; every pod may use
// an image that was there before.
//
// Shows: C-1.39.6
func TestC_1_39_6_SecretPulledImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		r.present["r.io/preloaded:1"] = "sha256:pre"
		dir := t.TempDir()
		m := on(t, r, dir)
		s := secret("pull", "", "r.io", "u", "p")
		pulls := 0
		step := func(what string, want *pod.Spec, pulled int, failure string) {
			t.Helper()
			err := m.PullImage(t.Context(), want, "c0")
			if (err == nil) != (failure == "") || err != nil && !strings.HasPrefix(err.Error(), failure) {
				t.Errorf("%s: %v", what, err)
			}
			if n := len(r.said()); n != pulls+pulled {
				t.Errorf("%s: %d pulls, want %d: %q", what, n-pulls, pulled, r.said())
			}
			pulls = len(r.said())
		}
		step("the first", with(wanted("a", "r.io/app:1"), s), 1, "")
		step("again", with(wanted("a", "r.io/app:1"), s), 0, "")
		step("the same login in another secret", with(wanted("b", "r.io/app:1"), secret("other", "", "r.io", "u", "p")), 0, "")
		step("without", wanted("c", "r.io/app:1"), 1, "ErrImagePull: ")
		step("never, without", never(wanted("c", "r.io/app:1")), 0, `ErrImageNeverPull: Container image "r.io/app:1" is not present with pull policy of Never`)
		step("never, with", never(with(wanted("c", "r.io/app:1"), s)), 0, "")
		step("with another login", with(wanted("d", "r.io/app:1"), secret("pull", "", "r.io", "u", "wrong")), 1, "ErrImagePull: ")
		r.present["r.io/alias:1"] = "sha256:r.io/app:1"
		step("under another name", wanted("e", "r.io/alias:1"), 1, "")
		step("preloaded", wanted("f", "r.io/preloaded:1"), 0, "")
		step("preloaded, never", never(wanted("f", "r.io/preloaded:1")), 0, "")
		step("pulled without", wanted("g", "r.io/free:1"), 1, "")
		step("pulled without, again", with(wanted("h", "r.io/free:1"), s), 0, "")

		m.stop()
		m = on(t, r, dir) // restart the agent
		defer m.stop()
		step("after a restart", with(wanted("a", "r.io/app:1"), s), 0, "")
		step("without, after a restart", wanted("c", "r.io/app:1"), 1, "ErrImagePull: ")

		// A Secret from an API server is identified by its UID, whatever it contains.
		api := secret("api", "uid-1", "r.io", "u", "p")
		step("from an API server", with(wanted("i", "r.io/app:1"), api), 0, "")
		step("with a new password", with(wanted("i", "r.io/app:1"), secret("api", "uid-1", "r.io", "u", "new")), 0, "")
		step("another of its name", with(wanted("i", "r.io/app:1"), secret("api", "uid-2", "r.io", "u", "newer")), 1, "ErrImagePull: ")
	})
}

// The author of a static source chooses the UID of its Secret. With the UID of an API
// server's Secret and another password, the registry decides.
func TestSecretPulledImages_StaticSecretWithACopiedUID_TheRegistryIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		m := on(t, r, t.TempDir())
		defer m.stop()
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), secret("pull", "uid-1", "r.io", "u", "p")), "c0"); err != nil {
			t.Fatal(err)
		}
		static := with(wanted("b", "r.io/app:1"), secret("pull", "uid-1", "r.io", "u", "guessed"))
		static.Data.Object(pod.KindSecret, "pull").Origin.Source = "file"
		err := m.PullImage(t.Context(), static, "c0")
		if err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") || len(r.said()) != 2 {
			t.Errorf("%v after %q", err, r.said())
		}
	})
}

// If the agent is killed during a pull with a secret, pods without the secret cannot use the image.
//
// Shows: C-1.39.6
func TestC_1_39_6_PullWithUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		dir := t.TempDir()
		m := on(t, r, dir)
		r.hang["r.io"] = true
		ctx, die := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = m.PullImage(ctx, with(wanted("a", "r.io/app:1"), secret("pull", "", "r.io", "u", "p")), "c0")
		})
		synctest.Wait()
		kept := filepath.Join(t.TempDir(), "kept")
		if err := os.CopyFS(kept, os.DirFS(dir)); err != nil { // as kill -9 leaves it
			t.Fatal(err)
		}
		die()
		wg.Wait()
		m.stop()
		r.hang["r.io"] = false
		r.present["r.io/app:1"], r.present["r.io/alias:1"] = "sha256:app", "sha256:app" // pulled
		r.lets["r.io/alias:1"] = "u:p"
		m = on(t, r, kept)
		defer m.stop()
		for _, name := range []string{"r.io/alias:1", "r.io/app:1"} {
			if err := m.PullImage(t.Context(), wanted("b", name), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(kept, "image_manager", "pulling", "*")); len(left) != 0 {
			t.Errorf("intents left: %v", left)
		}
	})
}

// intents returns the files with intents of pulls.
func (m *machine) intents(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(m.dir, "image_manager", "pulling", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// never sets the pod's pull policy to Never.
func never(want *pod.Spec) *pod.Spec {
	want.Pod.Spec.Containers[0].ImagePullPolicy = v1.PullNever
	return want
}

// always sets the pod's pull policy to Always.
func always(want *pod.Spec) *pod.Spec {
	want.Pod.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
	return want
}

// If a pull with a secret has an unknown outcome, pods without the secret cannot use the image, at
// once or later.
//
// Shows: C-1.39.6
func TestC_1_39_6_EndOfAPullThatThisAgentDidNotSee(t *testing.T) {
	for name, c := range map[string]struct {
		end   func() error
		leave bool
		late  time.Duration
		away  time.Duration // how long the runtime does not answer
	}{
		"the runtime dies": {end: func() error { return status.Error(codes.Unavailable, "error reading from server: EOF") }},
		"the runtime is away for long": {
			end:  func() error { return status.Error(codes.Unavailable, "error reading from server: EOF") },
			away: time.Minute,
		},
		"the runtime is on its way down":     {end: func() error { return status.Error(codes.Canceled, "context canceled") }},
		"the runtime's deadline":             {end: func() error { return status.Error(codes.DeadlineExceeded, "late") }},
		"our deadline":                       {},
		"the last one leaves":                {leave: true},
		"the last one leaves too late":       {leave: true, late: time.Second},
		"the last one leaves, and then away": {leave: true, away: time.Minute},
	} {
		for _, wait := range []time.Duration{0, 10 * time.Second, 2 * time.Minute} {
			if wait < c.late || wait < c.away {
				continue
			}
			for _, policy := range []string{"always", "if not present"} {
				t.Run(fmt.Sprintf("%s, %s, after %s", name, policy, wait), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := newRegistries()
						r.lets["r.io/app:1"], r.ends, r.late = "u:p", map[string]func() error{"r.io/app:1": c.end}, c.late
						m := on(t, r, t.TempDir())
						defer m.stop()
						s := secret("pull", "", "r.io", "u", "p")
						first := with(wanted("a", "r.io/app:1"), s)
						if policy == "always" {
							first = always(first)
						}
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						if c.leave {
							time.AfterFunc(time.Minute, leave)
						}
						if err := m.PullImage(ctx, first, "c0"); err == nil {
							t.Fatal("the pull did not fail")
						}
						r.mu.Lock()
						r.away = c.away > 0
						r.mu.Unlock()
						time.Sleep(c.away)
						synctest.Wait()
						r.mu.Lock()
						r.away = false
						r.mu.Unlock()
						time.Sleep(wait - c.away)
						pulls := len(r.said())
						if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImageNeverPull: ") {
							t.Errorf("never, without: %v", err)
						}
						if err := m.PullImage(t.Context(), wanted("b", "r.io/app:1"), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") {
							t.Errorf("without: %v", err)
						}
						if err := m.PullImage(t.Context(), with(wanted("b", "r.io/app:1"), s), "c0"); err != nil {
							t.Errorf("with: %v", err)
						}
						if got := r.said()[pulls:]; !slices.Equal(got, []string{"r.io/app:1", "r.io/app:1 u:p"}) {
							t.Errorf("pulls: %q", got)
						}
						if err := m.PullImage(t.Context(), never(with(wanted("b", "r.io/app:1"), s)), "c0"); err != nil {
							t.Errorf("never, with: %v", err)
						}
						time.Sleep(10 * time.Second)
						synctest.Wait()
						if err := m.PullImage(t.Context(), wanted("c", "r.io/free:1"), "c0"); err != nil {
							t.Error(err)
						}
						if left := m.intents(t); len(left) != 0 {
							t.Errorf("intents left: %v", left)
						}
						if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
							t.Error("a pod without the secret may use the image")
						}
					})
				})
			}
		}
	}
}

// After a cancelled pull that left no image, every pod may use an image that is imported later. Every
// pod may also use an image that was present before a pull that failed or had no secret.
//
// Shows: C-1.39.6
func TestC_1_39_6_PullThatLeftNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir())
		defer m.stop()
		s := secret("pull", "", "r.io", "u", "p")
		look := func(what string, failed error, intents int) {
			t.Helper()
			if failed == nil {
				t.Errorf("%s: no error", what)
			}
			if left := m.intents(t); len(left) != intents {
				t.Errorf("%s: intents left: %v", what, left)
			}
		}
		look("not found", m.PullImage(t.Context(), with(wanted("a", "r.io/missing:1"), s), "c0"), 0)
		looks := r.looks
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/ok:1"), s), "c0"); err != nil || r.looks-looks != 3 {
			t.Errorf("%v, %d questions to the runtime", err, r.looks-looks)
		}

		r.hang["r.io"] = true
		given := func(want *pod.Spec) error {
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			err := m.PullImage(ctx, want, "c0")
			synctest.Wait()
			return err
		}
		look("given up", given(with(wanted("a", "r.io/app:1"), s)), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		look("given up, later", errors.New(""), 0)
		r.mu.Lock()
		r.present["r.io/app:1"], r.present["r.io/pre:1"], r.present["r.io/pre:2"] = "sha256:app", "sha256:pre", "sha256:pre2"
		r.mu.Unlock()
		look("there before, without a secret", given(always(wanted("a", "r.io/pre:1"))), 0)
		r.hang["r.io"] = false
		r.lets["r.io/pre:2"] = "other:login"
		look("there before, refused", m.PullImage(t.Context(), always(with(wanted("a", "r.io/pre:2"), s)), "c0"), 0)
		for _, name := range []string{"r.io/app:1", "r.io/pre:1", "r.io/pre:2"} {
			if err := m.PullImage(t.Context(), never(wanted("b", name)), "c0"); err != nil {
				t.Error(err)
			}
		}
	})
}

// A cancelled pull does not change an existing pulled record, and the intent stays while another
// pull of the image runs.
//
// Shows: C-1.39.6
func TestC_1_39_6_GivenUpBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		m := on(t, r, t.TempDir())
		defer m.stop()
		s := secret("pull", "", "r.io", "u", "p")
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), s), "c0"); err != nil {
			t.Fatal(err)
		}
		r.hang["r.io"] = true
		short, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		long, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.PullImage(short, always(with(wanted("b", "r.io/app:1"), s)), "c0") })
		wg.Go(func() {
			_ = m.PullImage(long, always(with(wanted("c", "r.io/app:1"), secret("other", "", "r.io", "u", "q"))), "c0")
		})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if left := m.intents(t); len(left) != 1 {
			t.Errorf("while one goes on: %v", left)
		}
		wg.Wait()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if left := m.intents(t); len(left) != 0 {
			t.Errorf("intents left: %v", left)
		}
		if err := m.PullImage(t.Context(), never(with(wanted("d", "r.io/app:1"), s)), "c0"); err != nil {
			t.Error(err)
		}
		if err := m.PullImage(t.Context(), never(wanted("d", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image")
		}
	})
}

// If the runtime cannot inspect the image of a pull with an unknown outcome, pods without the secret
// cannot use that image, and other images are not delayed.
//
// Shows: C-1.39.6
func TestC_1_39_6_ImageThatCannotBeLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.ends = map[string]func() error{"r.io/app:1": func() error { return status.Error(codes.Unavailable, "EOF") }}
		m := on(t, r, t.TempDir())
		defer m.stop()
		_ = m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), secret("pull", "", "r.io", "u", "p")), "c0")
		r.mu.Lock()
		r.broken = map[string]bool{"r.io/app:1": true}
		r.mu.Unlock()
		time.Sleep(10 * time.Second)
		if err := m.PullImage(t.Context(), wanted("b", "other.io/app:1"), "c0"); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.broken = nil
		r.mu.Unlock()
		if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image")
		}
	})
}

// A pull whose outcome cannot be recorded does not delay other images.
//
// Shows: C-1.39.6
func TestC_1_39_6_OneLeftoverBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["r.io"] = true
		dir := t.TempDir()
		m := on(t, r, dir)
		ctx, die := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.PullImage(ctx, wanted("a", "r.io/app:1"), "c0") })
		synctest.Wait()
		kept := filepath.Join(t.TempDir(), "kept")
		if err := os.CopyFS(kept, os.DirFS(dir)); err != nil { // as kill -9 leaves it
			t.Fatal(err)
		}
		die()
		wg.Wait()
		m.stop()
		if left, _ := filepath.Glob(filepath.Join(kept, "image_manager", "pulling", "*")); len(left) != 1 {
			t.Fatalf("intents left: %v", left)
		}
		if err := os.WriteFile(filepath.Join(kept, "image_manager", "pulled"), nil, 0o600); err != nil { // no record fits in there
			t.Fatal(err)
		}
		r.present["r.io/app:1"] = "sha256:app"
		m = on(t, r, kept)
		defer m.stop()
		if err := m.PullImage(t.Context(), wanted("b", "other.io/app:1"), "c0"); err != nil {
			t.Error(err)
		}
	})
}

// With a damaged pulled record, each pod must ask the registry.
//
// Shows: C-1.39.6
func TestC_1_39_6_DamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		m := on(t, r, t.TempDir())
		defer m.stop()
		want := with(wanted("a", "r.io/app:1"), secret("pull", "", "r.io", "u", "p"))
		if err := m.PullImage(t.Context(), want, "c0"); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(m.dir, "image_manager", "pulled", "*"))
		if len(files) != 1 {
			t.Fatalf("%v", files)
		}
		for _, content := range []string{"", "{", `{"image":"sha256:another","repos":{"r.io/app":{"node":true}}}`} {
			if err := os.WriteFile(files[0], []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := m.PullImage(t.Context(), wanted("b", "r.io/app:1"), "c0"); err == nil {
				t.Errorf("%q: a pod without the secret may use the image", content)
			}
		}
		if err := m.PullImage(t.Context(), want, "c0"); err != nil || len(r.said()) != 5 {
			t.Errorf("%v, %q", err, r.said())
		}
		if err := m.PullImage(t.Context(), want, "c0"); err != nil || len(r.said()) != 5 {
			t.Errorf("written again: %v, %q", err, r.said())
		}
	})
}

// A password is in no log, no error and no file, whatever a registry repeats; and only root
// can read the files.
//
// Shows: I8
func TestPullImage_Password_IsInNoLogErrorOrFile(t *testing.T) {
	const canary = "c4nary/+pass word"
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.repeats = true
		r.lets["r.io/app:1"], r.lets["r.io/good:1"] = "other:login", "u:"+canary
		dir := t.TempDir()
		config := filepath.Join(dir, "config.json")
		if err := os.WriteFile(config, fmt.Appendf(nil, `{"auths":{"r.io":{"username":"node","password":%q}}}`, canary+"2"), 0o600); err != nil {
			t.Fatal(err)
		}
		broken := secret("broken", "", "r.io", "u", canary)
		broken.Data[v1.DockerConfigJsonKey] = fmt.Appendf(nil, `{"auths":{"r.io":{"password":%q,}}`, canary)
		m := on(t, r, dir, func(c *image.Config) { c.DockerConfigs = []string{config} })
		defer m.stop()
		secrets := []*v1.Secret{broken, secret("pull", "", "r.io", "u", canary)}
		err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), secrets...), "c0")
		if err == nil || len(r.said()) != 2 {
			t.Fatalf("%v, %q", err, r.said())
		}
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/good:1"), secrets...), "c0"); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		all.WriteString(err.Error())
		all.WriteString(m.log.String())
		if err := filepath.WalkDir(filepath.Join(dir, "image_manager"), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s is %s", path, info.Mode())
			}
			if d.Type().IsRegular() {
				b, err := os.ReadFile(path)
				all.Write(b)
				return err
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(all.String(), "c4nary") || strings.Contains(all.String(), "YzRuYXJ5") {
			t.Errorf("%s", all.String())
		}
		if !strings.Contains(all.String(), "Ignoring pull secret") || !strings.Contains(all.String(), "sha256:r.io/good:1") {
			t.Errorf("nothing was looked at: %s", all.String())
		}
		var rec map[string]any
		files, _ := filepath.Glob(filepath.Join(dir, "image_manager", "pulled", "*"))
		if len(files) != 1 {
			t.Fatalf("%v", files)
		}
		if js, err := os.ReadFile(files[0]); err != nil || json.Unmarshal(js, &rec) != nil {
			t.Errorf("%s, %v", js, err)
		}
	})
}

// TestC_D_PullsHaveEvents: every waiting pod gets its own news of the pull: how long it took
// and how long that pod waited.
//
// Shows: Appendix D
func TestC_D_PullsHaveEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := on(t, newRegistries(), t.TempDir(), func(c *image.Config) { c.PerRegistry = 1 })
		defer m.stop()
		pull := func(want *pod.Spec) string {
			var b strings.Builder
			progress := func(n pod.PullProgress) {
				fmt.Fprintf(&b, "%s %t %t %s %s; ", n.Image, n.Present, n.Pulled, n.Took, n.Waited)
			}
			if err := m.Puller.PullImage(t.Context(), want, "c0", progress); err != nil {
				fmt.Fprintf(&b, "failed; ")
			}
			return b.String()
		}
		var wg sync.WaitGroup
		got := make([]string, 2)
		for i := range got {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				got[i] = pull(wanted(fmt.Sprint("p", i), fmt.Sprintf("r.io/app:%d", i)))
			})
		}
		wg.Wait()
		for i, want := range []string{
			"r.io/app:0 false false 0s 0s; r.io/app:0 false true 1s 1s; ",
			"r.io/app:1 false false 0s 0s; r.io/app:1 false true 1s 1.999s; ",
		} {
			if got[i] != want {
				t.Errorf("%q, want %q", got[i], want)
			}
		}
		if got, want := pull(wanted("p2", "r.io/app:0")), "r.io/app:0 true false 0s 0s; "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := pull(wanted("p3", "r.io/missing:1")), "r.io/missing:1 false false 0s 0s; failed; "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
