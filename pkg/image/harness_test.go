package image_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
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
	// ends maps an image to the error of its next pull, which stores the image all the same.
	// With nil, that pull ends with its context. With late, it stores the image only that long
	// after the end of its context.
	ends map[string]func() error
	late time.Duration
	// looks counts the calls of ImageStatus. With away all of them fail, and with broken those
	// for an image.
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

// allPulls returns the pulls so far, in order.
func (r *registries) allPulls() []string {
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

// PullImage calls the Puller without a callback for progress.
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
