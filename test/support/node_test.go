//go:build linux

package support

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/probe"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/userns"
	"github.com/nodectl/nodectl/pkg/volume"
)

// node is one machine with one pod on it, in a bubble of fake time: the real way from
// a manifest to the runtime, which is critest's. Its disk is real.
type node struct {
	*testing.T
	*outside
	rt        *critest.Runtime
	src       *wish
	container string // under test
	key       pod.Key
	doc       map[string]any // the manifest's pod
	parse     func(map[string]any) (source.File, error)

	mu    sync.Mutex
	last  *v1.Pod
	pulls []*runtimeapi.PullImageRequest
}

// gone is long enough for a pod to stop.
const gone = 2 * time.Minute

// run has f look at the pod of doc, once nothing moves any more, and takes the pod away
// again.
func run(t *testing.T, o *outside, container string, doc map[string]any, parse func(map[string]any) (source.File, error), f func(*node) error) (err error) {
	t.Helper()
	file, err := parse(doc)
	if err != nil {
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		n := &node{T: t, outside: o, rt: critest.New(), container: container, key: file.Pods[0].Key, doc: doc, parse: parse}
		n.src = &wish{name: file.Pods[0].Origin.Layer(), tell: make(chan struct{}, 1), file: file}
		leave := n.serve()
		synctest.Wait()
		err = f(n)
		n.src.set(source.File{File: file.File})
		n.pass(gone)
		leave()
		if left := n.rt.State(); left != "" {
			t.Errorf("left on the runtime: %s", left)
		}
	})
	return err
}

// serve starts an agent, and returns the function that ends it.
func (n *node) serve() (leave func()) {
	rt, img := n.rt.Connect().Clients()
	resolv := filepath.Join(n.dir, "resolv.conf")
	runtime := cri.New(cri.Config{
		Endpoint: "critest", Node: "n1", PodLogsDir: filepath.Join(n.dir, "logs"), RootDir: n.root, NodeMemory: 8 << 30,
		SeccompDir: filepath.Join(n.dir, "seccomp"), ClusterDomain: "cluster.test", ClusterDNS: []string{"10.96.0.10"}, ResolvConf: &resolv,
		RuntimeClasses: map[string]string{"strong": "kata"},
	}, rt, &imageClient{img, n})
	n.rt.SetHandlers(critest.Handler{RecursiveReadOnly: true, UserNamespaces: true}, critest.Handler{Name: "kata"})
	n.rt.SetGroupsPolicy(true)
	puller := image.New(image.Config{Runtime: runtime, Dir: filepath.Join(n.root, "image_manager")})
	allocatable := v1.ResourceList{v1.ResourceCPU: resource.MustParse("16"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourceEphemeralStorage: resource.MustParse("100Gi")}
	e := engine.New(engine.Config{
		PodConfig: podconfig.New(podconfig.Config{Sources: []source.Source{n.src}}),
		Runtime:   pulling{runtime, puller},
		Hints:     pleg.New(pleg.Config{Runtime: runtime}),
		Volumes: volume.New(volume.Config{
			RootDir: n.root, PodLogsDir: filepath.Join(n.dir, "logs"), ClusterDomain: "cluster.test", Allocatable: allocatable,
			RecursiveReadOnly: func(class *string) bool {
				handler, _, err := runtime.Handler(context.Background(), class)
				return err == nil && runtime.RecursiveReadOnly(handler)
			},
			Token: token, TrustBundle: bundle, Claim: n.claim, Drivers: drivers{n.dir}, Mounter: exports{n.dir},
		}),
		Users:   userns.New(userns.Config{Root: n.root, MaxPods: 10}),
		Devices: gpus{},
		Claims:  shelf{},
		Records: record.New(n.root),
		Prober:  probe.New(probe.Config{Exec: runtime, Version: "test"}),
		Sinks:   []engine.Sink{n},
		Log:     slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		HostIPs: []string{"192.0.2.7"},
		Node: plan.Node{
			Name: "n1", OS: "linux", Kernel: "6.1.0", Labels: map[string]string{"disk": "hdd"}, Allocatable: allocatable,
			Taints: []v1.Taint{{Key: "hot", Value: "very", Effect: v1.TaintEffectNoExecute}},
		},
		Services:           services,
		ServicesForAll:     true,
		RequireSourceReady: map[string]bool{"api": true},
		Starts:             2,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { puller.Run(ctx) })
	wg.Go(func() {
		if err := e.Run(ctx); err != nil {
			n.Errorf("Run: %v", err)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// pulling is a runtime whose images a puller brings, as cmd has it.
type pulling struct {
	*cri.Runtime
	*image.Puller
}

// imageClient notes the images that are pulled.
type imageClient struct {
	runtimeapi.ImageServiceClient
	n *node
}

func (c *imageClient) PullImage(ctx context.Context, q *runtimeapi.PullImageRequest, o ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	c.n.mu.Lock()
	c.n.pulls = append(c.n.pulls, q)
	c.n.mu.Unlock()
	return c.ImageServiceClient.PullImage(ctx, q, o...)
}

// Report implements engine.Sink.
func (n *node) Report(r pod.StatusReport) error {
	p := r.Pod
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = p
	return nil
}

// pass advances fake time.
func (n *node) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// edit changes the manifest's spec.
func (n *node) edit(spec string) error {
	return n.become(merged(n.doc, map[string]any{"spec": yamlOf(n.fill(spec))}))
}

// become has another manifest.
func (n *node) become(doc map[string]any) error {
	file, err := n.parse(doc)
	if err != nil {
		return err
	}
	n.doc = doc
	n.src.set(file)
	synctest.Wait()
	return nil
}

// status is the pod's newest status.
func (n *node) status() v1.PodStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == nil {
		return v1.PodStatus{}
	}
	return n.last.Status
}

// state is the newest status of the container under test.
func (n *node) state() v1.ContainerStatus { return n.stateOf(n.container) }

func (n *node) stateOf(name string) v1.ContainerStatus {
	s := n.status()
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for _, c := range list {
			if c.Name == name {
				return c
			}
		}
	}
	return v1.ContainerStatus{}
}

// ctr is the configuration with which the container under test was created.
func (n *node) ctr() *runtimeapi.ContainerConfig { return n.rt.ContainerConfig(n.key, n.container) }

func (n *node) security() *runtimeapi.LinuxContainerSecurityContext {
	return n.ctr().GetLinux().GetSecurityContext()
}

// box is the configuration with which the sandbox was created.
func (n *node) box() *runtimeapi.PodSandboxConfig {
	b, _ := n.rt.SandboxConfig(n.key)
	return b
}

// env is the environment of the container under test; nil where there is none.
func (n *node) env() map[string]string {
	if n.ctr() == nil {
		return nil
	}
	m := map[string]string{}
	for _, e := range n.ctr().GetEnvs() {
		m[e.GetKey()] = string(e.GetValue())
	}
	return m
}

// mount is the mount of the container under test at a path; nil for none.
func (n *node) mount(at string) *runtimeapi.Mount {
	for _, m := range n.ctr().GetMounts() {
		if m.GetContainerPath() == at {
			return m
		}
	}
	return nil
}

// file returns the mode and the text of a file below a mount: "0644 text". It follows links.
func (n *node) file(mount, name string) string {
	m := n.mount(mount)
	if m == nil {
		return "no mount " + mount
	}
	path := filepath.Join(m.GetHostPath(), name)
	info, err := os.Stat(path)
	if err != nil {
		return "no file"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%04o %s", info.Mode().Perm(), text)
}

// calls are the lines of the runtime's transcript that hold text.
func (n *node) calls(text string) (found []string) {
	for _, line := range n.rt.Transcript() {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// wish is a source with one file.
type wish struct {
	name string
	tell chan struct{}
	mu   sync.Mutex
	file source.File
}

func (w *wish) Name() string { return w.name }

func (w *wish) set(f source.File) {
	w.mu.Lock()
	w.file = f
	w.mu.Unlock()
	w.tell <- struct{}{}
}

func (w *wish) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		known := map[pod.Key]bool{}
		for rev := uint64(1); ; rev++ {
			w.mu.Lock()
			file := w.file
			w.mu.Unlock()
			for _, p := range file.Pods {
				known[p.Key] = true
			}
			changed := slices.SortedFunc(maps.Keys(known), pod.Key.Compare)
			if !yield(source.Snapshot{Revision: rev, Changed: changed, Files: source.FilesOf(file)}, nil) {
				return
			}
			select {
			case <-w.tell:
			case <-ctx.Done():
				return
			}
		}
	}
}

// token returns the account, the audience and the lifetime of a requested token, instead of a token.
func token(_ context.Context, want *pod.Spec, s *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	return fmt.Sprintf("of %s for %q, %d s", want.Pod.Spec.ServiceAccountName, s.Audience, *s.ExpirationSeconds), time.Now().Add(time.Hour), nil
}

// claim is a directory that a claim of an API server is bound to; the claim raw is a block volume.
func (n *node) claim(_ context.Context, want *pod.Spec, name string) (pod.BoundVolume, error) {
	if name == "raw" {
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pv.Spec.VolumeMode, pv.Spec.CSI = ptr.To(v1.PersistentVolumeBlock), &v1.CSIPersistentVolumeSource{Driver: "x.test", VolumeHandle: name}
		return pod.BoundVolume{CSI: pv, Claim: &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}}, nil
	}
	dir := filepath.Join(n.dir, "bound-"+name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pod.BoundVolume{}, err
	}
	is := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: want.Name, UID: want.Pod.UID, Controller: ptr.To(true)},
	}}}
	return pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: dir}, Claim: is}, os.WriteFile(filepath.Join(dir, "note"), []byte("kept"), 0o600)
}

// drivers is a CSI driver that shows which volume it was asked for.
type drivers struct{ dir string }

func (d drivers) Publish(_ context.Context, q pod.CSIRequest) (pod.CSIMount, error) {
	dir := filepath.Join(d.dir, "driver-"+q.Volume)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pod.CSIMount{}, err
	}
	if p := q.Persistent; p != nil {
		c := p.Spec.CSI
		secret := "none"
		if c.NodeStageSecretRef != nil {
			secret = c.NodeStageSecretRef.Name
		}
		text := fmt.Sprintf("%s of %s: fs %s, %v, %v, secret %s", c.VolumeHandle, c.Driver, c.FSType, c.VolumeAttributes, p.Spec.AccessModes, secret)
		return pod.CSIMount{Path: dir}, os.WriteFile(filepath.Join(dir, "note"), []byte(text), 0o600)
	}
	i, fsType, secret := q.Inline, "none", "none"
	if i.FSType != nil {
		fsType = *i.FSType
	}
	if i.NodePublishSecretRef != nil {
		secret = i.NodePublishSecretRef.Name
	}
	text := fmt.Sprintf("%s of %s: %s, read-only %t, %v, secret %s", q.Volume, i.Driver, fsType, q.ReadOnly, i.VolumeAttributes, secret)
	return pod.CSIMount{Path: dir}, os.WriteFile(filepath.Join(dir, "note"), []byte(text), 0o600)
}

func (drivers) Mounted(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (drivers) Uses(string) bool { return false }

func (d drivers) Unpublish(context.Context, string) error {
	return os.RemoveAll(filepath.Join(d.dir, "driver-v"))
}

func (drivers) Sweep(context.Context, func(uid string) bool) error { return nil }

// exports is an NFS server that shows how it was mounted.
type exports struct{ dir string }

func (e exports) Mount(source, target string, options []string) error {
	dir := filepath.Join(e.dir, "export")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text := fmt.Sprint(source, " ", options)
	return errors.Join(os.WriteFile(filepath.Join(dir, "note"), []byte(text), 0o600), unix.Mount(dir, target, "", unix.MS_BIND, ""))
}

func (exports) Unmount(target string) error { return unix.Unmount(target, unix.UMOUNT_NOFOLLOW) }

// bundle tells which certificates were asked for.
func bundle(_ context.Context, s *v1.ClusterTrustBundleProjection) (string, error) {
	if s.Name != nil && *s.Name == "absent" {
		if s.Optional != nil && *s.Optional {
			return "", nil
		}
		return "", errors.New("no such bundle")
	}
	text := ""
	if s.Name != nil {
		text = "named " + *s.Name
	}
	if s.SignerName != nil {
		text += "signed by " + *s.SignerName
	}
	if s.LabelSelector != nil {
		text += " with " + v1LabelSelector(s.LabelSelector)
	}
	return text, nil
}

func services(namespace string) ([]*v1.Service, error) {
	s := &v1.Service{}
	s.Namespace, s.Name = namespace, "db"
	s.Spec.ClusterIP, s.Spec.Ports = "10.96.0.99", []v1.ServicePort{{Port: 5432, Protocol: v1.ProtocolTCP}}
	return []*v1.Service{s}, nil
}

// unmount unmounts the file systems that a failed case has left below dir.
func unmount(t *testing.T, dir string) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			t.Errorf("left mounted: %s", f[4])
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// lines is the agent's log.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var _ io.Writer = (*lines)(nil)
