package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

const driverName = "gpu.test"

// fake is a DRA driver on a socket. It counts its calls, and knows which claims it has prepared.
type fake struct {
	drapb.UnimplementedDRAPluginServer
	drahealth.UnimplementedDRAResourceHealthServer
	name string
	// reports go to the stream of the health of devices. nil: the driver does not have the service.
	reports chan report

	mu       sync.Mutex
	before   func(call, uid string) error // of each call; may be nil
	answer   func(q *drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse
	undone   func(q *drapb.NodeUnprepareResourcesRequest) *drapb.NodeUnprepareResourcesResponse
	calls    []string
	prepared map[string]bool // by UID of the claim
}

func newFake() *fake { return &fake{name: driverName, prepared: make(map[string]bool)} }

// serve serves the driver on a socket until stop is called.
func (f *fake) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	drapb.RegisterDRAPluginServer(server, f)
	drabeta.RegisterDRAPluginServer(server, drabeta.V1ServerWrapper{DRAPluginServer: f})
	if f.reports != nil {
		drahealth.RegisterDRAResourceHealthServer(server, f)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(stop)
	return stop
}

// asked notes a call, and returns the hook of the test.
func (f *fake) asked(call, uid string) error {
	f.mu.Lock()
	f.calls = append(f.calls, call+" "+uid)
	before := f.before
	f.mu.Unlock()
	if before != nil {
		return before(call, uid)
	}
	return nil
}

func (f *fake) NodePrepareResources(_ context.Context, q *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	r := &drapb.NodePrepareResourcesResponse{Claims: make(map[string]*drapb.NodePrepareResourceResponse)}
	for _, c := range q.GetClaims() {
		if err := f.asked("prepare", c.GetUid()); err != nil {
			return nil, err
		}
		f.mu.Lock()
		f.prepared[c.GetUid()] = true
		f.mu.Unlock()
		r.Claims[c.GetUid()] = &drapb.NodePrepareResourceResponse{Devices: []*drapb.Device{
			{RequestNames: []string{"big"}, PoolName: "n1", DeviceName: "gpu-0", CdiDeviceIds: []string{f.name + "/gpu=big-" + c.GetUid()}, ShareId: ptr.To("share")},
			{RequestNames: []string{"small"}, PoolName: "n1", DeviceName: "gpu-1", CdiDeviceIds: []string{f.name + "/gpu=small-" + c.GetUid()}},
		}}
	}
	f.mu.Lock()
	answer := f.answer
	f.mu.Unlock()
	if answer != nil {
		return answer(q), nil
	}
	return r, nil
}

func (f *fake) NodeUnprepareResources(_ context.Context, q *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	r := &drapb.NodeUnprepareResourcesResponse{Claims: make(map[string]*drapb.NodeUnprepareResourceResponse)}
	for _, c := range q.GetClaims() {
		if err := f.asked("unprepare", c.GetUid()); err != nil {
			return nil, err
		}
		f.mu.Lock()
		delete(f.prepared, c.GetUid())
		f.mu.Unlock()
		r.Claims[c.GetUid()] = &drapb.NodeUnprepareResourceResponse{}
	}
	f.mu.Lock()
	undone := f.undone
	f.mu.Unlock()
	if undone != nil {
		return undone(q), nil
	}
	return r, nil
}

// report is one message of the stream, or its end.
type report struct {
	list []*drahealth.DeviceHealth
	end  error
}

// NodeWatchResources sends the reports of the test.
func (f *fake) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest, stream drahealth.DRAResourceHealth_NodeWatchResourcesServer) error {
	for {
		select {
		case r := <-f.reports:
			if r.end != nil {
				return r.end
			}
			if err := stream.Send(&drahealth.NodeWatchResourcesResponse{Devices: r.list}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// set changes the behaviour of the driver.
func (f *fake) set(change func(f *fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// called returns the calls since the last time.
func (f *fake) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// has returns how many claims the driver has prepared.
func (f *fake) has() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.prepared)
}

// cluster is the API server of a test.
type cluster struct {
	mu      sync.Mutex
	claims  map[string]*resourcev1.ResourceClaim // by name
	fails   error
	reads   int
	wiped   []string
	wiping  error
	hangs   bool // deletions of slices end with their context
	unknown bool // the Node object is not known
}

func (c *cluster) ResourceClaim(_ context.Context, _, name string) (*resourcev1.ResourceClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	return c.claims[name].DeepCopy(), c.fails
}

func (c *cluster) DeleteResourceSlices(ctx context.Context, node, driver string, but []string) error {
	c.mu.Lock()
	what := node + " " + driver
	for _, other := range but {
		what += "!" + other
	}
	c.wiped = append(c.wiped, what)
	hangs, err := c.hangs, c.wiping
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// wipes returns the deletions so far.
func (c *cluster) wipes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.wiped)
}

// set changes the API server.
func (c *cluster) set(change func(c *cluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// Node returns the Node object.
func (c *cluster) Node() *v1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown {
		return nil
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
}

// machine is a node with an API server and the directory of the agent.
type machine struct {
	*testing.T
	*cluster
	dir string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	memory := "/dev/shm" // where a write need not wait for a disk
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	dir, err := os.MkdirTemp(memory, "dra") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &machine{t, &cluster{claims: make(map[string]*resourcev1.ResourceClaim)}, dir}
}

// agent starts an agent in the directory; the one before was killed.
func (m *machine) agent() *Claims {
	m.Helper()
	c := New(Config{Dir: filepath.Join(m.dir, "claims"), Log: slog.New(slog.DiscardHandler)})
	c.Join(Cluster{API: m.cluster, Node: m.Node})
	m.Cleanup(func() { disconnect(c) })
	return c
}

// disconnect closes the connections of an agent, as a kill does.
func disconnect(c *Claims) {
	for name, all := range c.drivers {
		for _, d := range slices.Clone(all) {
			c.Unregister(name, d.socket)
		}
	}
	c.running.Wait()
}

func (m *machine) socket(name string) string { return filepath.Join(m.dir, name+".sock") }

// plug serves a driver and registers it.
func (m *machine) plug(c *Claims, f *fake) (stop func()) {
	m.Helper()
	stop = f.serve(m.T, m.socket(f.name))
	m.register(c, f.name)
	return stop
}

// register registers a driver that is served.
func (m *machine) register(c *Claims, name string) {
	m.Helper()
	if err := c.Register(m.Context(), name, m.socket(name), known); err != nil {
		m.Fatal(err)
	}
}

// claim makes a claim that is allocated, and reserved for pods.
func (m *machine) claim(name string, drivers []string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for i, driver := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: "big", Driver: driver, Pool: "n1", Device: fmt.Sprint("gpu-", i),
		})
	}
	for _, uid := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-" + uid, UID: types.UID(uid)})
	}
	m.set(func(of *cluster) { of.claims[name] = c })
	return c
}

// podOf returns a pod of an API server that uses claims by their own names. Its container app gets
// all devices of each.
func podOf(uid string, claims ...string) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + uid, UID: types.UID(uid)}}
	p.Spec.Containers = []v1.Container{{Name: "app"}}
	for _, name := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: &name})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, v1.ResourceClaim{Name: name})
	}
	return &pod.Spec{Key: pod.Key{Namespace: "shop", Name: p.Name}, Pod: p}
}

// prepare prepares the claims of a pod, or fails the test.
func prepare(t *testing.T, c *Claims, want *pod.Spec) {
	t.Helper()
	if err := c.Prepare(t.Context(), want); err != nil {
		t.Fatal(err)
	}
}

// release releases the claims of a pod, or fails the test.
func release(t *testing.T, c *Claims, uid string) {
	t.Helper()
	if err := c.Release(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
}

// reason returns the reason of an error, and its text.
func reason(err error) (string, string) {
	var of *pod.StartError
	if !errors.As(err, &of) {
		return "", fmt.Sprint(err)
	}
	return of.Reason, of.Err.Error()
}

// left returns the files of claims.
func (m *machine) left() []string {
	m.Helper()
	entries, err := os.ReadDir(filepath.Join(m.dir, "claims"))
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
