package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	driverName = "disk.test"
	nodeName   = "n1"
)

// fake is a CSI driver on a socket. It keeps each volume in a directory, and mounts it.
type fake struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	name   string
	info   csipb.NodeGetInfoResponse
	able   []csipb.NodeServiceCapability_RPC_Type
	disks  string
	before func(call string) error // of each call; may be nil
	plant  func(call, target string) error
	usage  []*csipb.VolumeUsage
	health *csipb.VolumeCondition
	lies   bool // it says that it has unmounted, and has not

	mu        sync.Mutex
	calls     []string
	stages    []*csipb.NodeStageVolumeRequest
	publishes []*csipb.NodePublishVolumeRequest
	expands   []*csipb.NodeExpandVolumeRequest
}

func newFake(t *testing.T) *fake {
	t.Helper()
	return &fake{
		name: driverName, info: csipb.NodeGetInfoResponse{NodeId: "node-1"}, disks: t.TempDir(),
		able: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
}

// serve serves the driver below the directory of the kubelet until stop is called.
func (f *fake) serve(t *testing.T, dir string) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(dir, "plugins", f.name, "csi.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, q any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		call := i.FullMethod[strings.LastIndex(i.FullMethod, "/")+1:]
		if !strings.HasPrefix(call, "Get") && !strings.HasPrefix(call, "NodeGet") {
			f.mu.Lock()
			f.calls = append(f.calls, call)
			f.mu.Unlock()
		}
		if f.before != nil {
			if err := f.before(call); err != nil {
				return nil, err
			}
		}
		return next(ctx, q)
	}))
	csipb.RegisterIdentityServer(server, f)
	csipb.RegisterNodeServer(server, f)
	go func() { _ = server.Serve(listener) }()
	stop = sync.OnceFunc(server.Stop)
	t.Cleanup(stop)
	return socket, stop
}

func (f *fake) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: f.name}, nil
}

func (f *fake) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return proto.CloneOf(&f.info), nil
}

func (f *fake) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, a := range f.able {
		answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: a}},
		})
	}
	return answer, nil
}

// disk is the directory of a volume.
func (f *fake) disk(handle string) string {
	return filepath.Join(f.disks, fmt.Sprintf("%x", handle))
}

// bind mounts a directory once, as a driver does.
func bind(from, to string) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	if at, err := mountAt(to); err != nil || at != nil {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

func unbind(path string) error {
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (f *fake) NodeStageVolume(_ context.Context, q *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	f.mu.Lock()
	f.stages = append(f.stages, q)
	f.mu.Unlock()
	if f.plant != nil {
		return &csipb.NodeStageVolumeResponse{}, f.plant("NodeStageVolume", q.GetStagingTargetPath())
	}
	if err := os.MkdirAll(f.disk(q.GetVolumeId()), 0o755); err != nil {
		return nil, err
	}
	return &csipb.NodeStageVolumeResponse{}, bind(f.disk(q.GetVolumeId()), q.GetStagingTargetPath())
}

func (f *fake) NodeUnstageVolume(_ context.Context, q *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, unbind(q.GetStagingTargetPath())
}

func (f *fake) NodePublishVolume(_ context.Context, q *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	f.mu.Lock()
	f.publishes = append(f.publishes, q)
	f.mu.Unlock()
	if f.plant != nil {
		return &csipb.NodePublishVolumeResponse{}, f.plant("NodePublishVolume", q.GetTargetPath())
	}
	from := q.GetStagingTargetPath()
	if from == "" {
		from = f.disk(q.GetVolumeId())
		if err := os.MkdirAll(from, 0o755); err != nil {
			return nil, err
		}
	}
	return &csipb.NodePublishVolumeResponse{}, bind(from, q.GetTargetPath())
}

func (f *fake) NodeUnpublishVolume(_ context.Context, q *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	if f.lies {
		return &csipb.NodeUnpublishVolumeResponse{}, nil
	}
	return &csipb.NodeUnpublishVolumeResponse{}, unbind(q.GetTargetPath())
}

func (f *fake) NodeExpandVolume(_ context.Context, q *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expands = append(f.expands, q)
	return &csipb.NodeExpandVolumeResponse{}, nil
}

func (f *fake) NodeGetVolumeStats(_ context.Context, _ *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	return &csipb.NodeGetVolumeStatsResponse{Usage: f.usage, VolumeCondition: f.health}, nil
}

// called returns the calls that change something, since the last time.
func (f *fake) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// cluster is the API server of a test. It attaches each volume that the node reports as in use.
type cluster struct {
	mu       sync.Mutex
	drivers  map[string]*storagev1.CSIDriver
	secrets  map[string]map[string]string
	csiNode  *storagev1.CSINode
	puts     int
	node     *v1.Node
	detached bool  // the controller does not attach
	attach   error // the attacher's
	gets     []string
	of       *Volumes
}

func newCluster() *cluster {
	return &cluster{
		drivers: map[string]*storagev1.CSIDriver{}, secrets: map[string]map[string]string{},
		node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid", Labels: map[string]string{"zone": "a"}}},
	}
}

func (c *cluster) noted(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets = append(c.gets, what)
}

func (c *cluster) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drivers[name], nil
}

func (c *cluster) VolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	c.noted("attachment " + name)
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	a.Spec.NodeName, a.Spec.Attacher = nodeName, driverName
	if a.Status.Attached = c.attach == nil; !a.Status.Attached {
		a.Status.AttachError = &storagev1.VolumeError{Message: status.Convert(c.attach).Message()}
		if code := status.Code(c.attach); code != codes.Unknown {
			a.Status.AttachError.ErrorCode = ptr.To(int32(code))
		}
	}
	a.Status.AttachmentMetadata = map[string]string{"device": "/dev/vdb"}
	return a, nil
}

func (c *cluster) SecretData(_ context.Context, namespace, name string) (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secrets[namespace+"/"+name], nil
}

func (c *cluster) TokenStatus(_ context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection) (authenticationv1.TokenRequestStatus, time.Time, error) {
	return authenticationv1.TokenRequestStatus{Token: "token of " + want.Pod.Spec.ServiceAccountName + " for " + of.Audience}, time.Now().Add(time.Hour), nil
}

func (c *cluster) MarkClaimResize(_ context.Context, claim *v1.PersistentVolumeClaim, state v1.ClaimResourceStatus, failure string) (*v1.PersistentVolumeClaim, error) {
	c.noted(strings.TrimSpace("resize " + claim.Name + " " + string(state) + " " + failure))
	is := claim.DeepCopy()
	is.ResourceVersion += "1"
	return is, nil
}

func (c *cluster) SetClaimSize(_ context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) error {
	c.noted("size " + claim.Name + " " + size.String())
	return nil
}

func (c *cluster) CSINode(context.Context, string) (*storagev1.CSINode, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.csiNode.DeepCopy(), nil
}

// PutCSINode rejects the same objects as an API server.
func (c *cluster) PutCSINode(_ context.Context, n *storagev1.CSINode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.csiNode != nil {
		if n.ResourceVersion != c.csiNode.ResourceVersion {
			return errors.New("conflict")
		}
		for _, was := range c.csiNode.Spec.Drivers {
			for _, is := range n.Spec.Drivers {
				if was.Name == is.Name && (was.NodeID != is.NodeID || !slices.Equal(was.TopologyKeys, is.TopologyKeys)) {
					return errors.New("spec.drivers: field is immutable")
				}
			}
		}
	}
	c.puts++
	c.csiNode = n.DeepCopy()
	c.csiNode.ResourceVersion = fmt.Sprint(c.puts)
	return nil
}

// shown returns the drivers of the CSINode object, as text.
func (c *cluster) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.csiNode == nil {
		return "none"
	}
	text := ""
	for _, d := range c.csiNode.Spec.Drivers {
		text += fmt.Sprintf("%s %s %v", d.Name, d.NodeID, d.TopologyKeys)
		if d.Allocatable != nil {
			text += fmt.Sprintf(" %d", *d.Allocatable.Count)
		}
		text += ";"
	}
	return text
}

// Node returns the Node object: all in-use volumes are attached.
func (c *cluster) Node() *v1.Node {
	c.mu.Lock()
	n, detached, of := c.node.DeepCopy(), c.detached, c.of
	c.mu.Unlock()
	if of == nil {
		return n
	}
	n.Status.VolumesInUse = of.InUse()
	if !detached {
		for _, name := range n.Status.VolumesInUse {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, v1.AttachedVolume{Name: name})
		}
	}
	return n
}

// machine is a node with an API server and the kubelet's directory.
type machine struct {
	*testing.T
	*cluster
	dir string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, path := range mountsIn(t, dir) {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
		_ = os.RemoveAll(dir)
	})
	return &machine{t, newCluster(), dir}
}

// agent starts an agent in the directory; the one before was killed.
func (m *machine) agent() *Volumes {
	m.Helper()
	v := New(Config{Node: nodeName, Dir: m.dir, Log: slog.New(slog.DiscardHandler)})
	m.mu.Lock()
	m.of = nil
	m.mu.Unlock()
	v.Join(Cluster{API: m.cluster, Node: m.Node, Report: func() {}})
	m.mu.Lock()
	m.of = v
	m.mu.Unlock()
	return v
}

// plug serves a driver and registers it.
func (m *machine) plug(v *Volumes, f *fake) (stop func()) {
	m.Helper()
	socket, stop := f.serve(m.T, m.dir)
	if err := v.Register(m.Context(), f.name, socket); err != nil {
		m.Fatal(err)
	}
	return stop
}

// object makes the CSIDriver object of the driver.
func (m *machine) object(change func(*storagev1.CSIDriverSpec)) {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}
	d.Spec.AttachRequired = ptr.To(true)
	d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	d.Spec.FSGroupPolicy = ptr.To(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	change(&d.Spec)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drivers[driverName] = d
}

// podOf returns a pod of an API server.
func podOf(uid string) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + uid, UID: types.UID(uid)}}
	p.Spec.ServiceAccountName = "clerk"
	return &pod.Spec{Key: pod.Key{Namespace: "shop", Name: p.Name}, Pod: p}
}

// request asks for the volume of a claim.
func request(uid, name, handle string) pod.CSIRequest {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: handle, FSType: "ext4", VolumeAttributes: map[string]string{"size": "1"}}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	return pod.CSIRequest{Want: podOf(uid), Volume: "data", Persistent: pv}
}

// mountsBelow returns the mounts on a path and below it, whose parents may be links.
func mountsBelow(path string) ([]*mountinfo.Info, error) {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(real, filepath.Base(path))))
}

// mountsIn returns the mounts below a directory, the deepest first.
func mountsIn(t *testing.T, dir string) []string {
	t.Helper()
	all, err := mountsBelow(dir)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, m := range all {
		paths = append(paths, m.Mountpoint)
	}
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(b, a) })
	return paths
}

// left returns the paths of volumes that remain below the kubelet's directory.
func (m *machine) left() []string {
	m.Helper()
	var all []string
	for _, top := range []string{podsDir, filepath.Join("plugins", pluginName)} {
		err := filepath.WalkDir(filepath.Join(m.dir, top), func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		if err != nil {
			m.Fatal(err)
		}
	}
	return append(all, mountsIn(m.T, m.dir)...)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the test needs root, to mount")
	}
}
