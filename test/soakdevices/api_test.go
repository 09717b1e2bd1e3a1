package soakdevices

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/test/plugins"
)

// apiServer is an API server with the objects of one node. Its controller attaches each volume that
// the node reports as in use.
type apiServer struct {
	w      *world
	change chan struct{} // cap 1: the pods have changed

	mu      sync.Mutex
	pods    []*v1.Pod
	gone    map[types.UID]bool // pods of which the node has reported that nothing is left
	csiNode *storagev1.CSINode
	wipes   []string // deletions of the ResourceSlices of single drivers
}

func newAPIServer(w *world) *apiServer {
	return &apiServer{w: w, change: make(chan struct{}, 1), gone: make(map[types.UID]bool)}
}

// apply creates a pod, or changes it.
func (s *apiServer) apply(p *v1.Pod) {
	s.mu.Lock()
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(o *v1.Pod) bool { return o.Name == p.Name })
	s.pods = append(s.pods, p)
	s.mu.Unlock()
	s.changed()
}

// remove begins to delete a pod.
func (s *apiServer) remove(name string) {
	s.mu.Lock()
	for i, p := range s.pods {
		if p.Name == name {
			p = p.DeepCopy()
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, p.Spec.TerminationGracePeriodSeconds
			s.pods = slices.Clone(s.pods)
			s.pods[i] = p
		}
	}
	s.mu.Unlock()
	s.changed()
}

// replace deletes all pods by force, and creates pods of the same names.
func (s *apiServer) replace() {
	s.mu.Lock()
	s.pods = slices.Clone(s.pods)
	for i, p := range s.pods {
		s.pods[i] = p.DeepCopy()
		s.pods[i].UID += "-new"
	}
	s.mu.Unlock()
	s.changed()
}

// force deletes a pod by force.
func (s *apiServer) force(name string) {
	s.mu.Lock()
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(p *v1.Pod) bool { return p.Name == name })
	s.mu.Unlock()
	s.changed()
}

func (s *apiServer) changed() {
	select {
	case s.change <- struct{}{}:
	default:
	}
}

// reported takes a status of a pod.
func (s *apiServer) reported(r pod.StatusReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Finished {
		s.gone[r.Pod.UID] = true
	}
}

// finish removes the pods that are being deleted and of which nothing is left on the node.
func (s *apiServer) finish() {
	s.mu.Lock()
	before := len(s.pods)
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(p *v1.Pod) bool { return p.DeletionTimestamp != nil && s.gone[p.UID] })
	after := len(s.pods)
	s.mu.Unlock()
	if after != before {
		s.changed()
	}
}

// desired returns the pods.
func (s *apiServer) desired() []*v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pods)
}

// source returns the pods as a source for one agent.
func (s *apiServer) source() source.Source { return podSource{s} }

type podSource struct{ *apiServer }

// Name implements source.Source.
func (podSource) Name() string { return pod.SourceAPI + ":/k" }

// Sets implements source.Source.
func (s podSource) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		for revision := uint64(1); ; revision++ {
			snapshot := source.Snapshot{Revision: revision}
			var files []source.File
			for _, p := range s.desired() {
				file := "/k/" + p.Name
				spec, problems := manifest.FromAPI(p, manifest.Options{Node: nodeName, Source: pod.SourceAPI, Location: "/k", File: file})
				if len(problems) > 0 {
					s.w.problem(other, "pod %s: %v", p.Name, problems)
					continue
				}
				snapshot.Changed = append(snapshot.Changed, spec.Key)
				files = append(files, source.File{File: file, Pods: []*pod.Spec{spec}})
			}
			snapshot.Files = source.FilesOf(files...)
			if !yield(snapshot, nil) {
				return
			}
			select {
			case <-s.change:
			case <-ctx.Done():
				return
			}
		}
	}
}

// boundVolume returns the volume of a claim: that of its name.
func (s *apiServer) boundVolume(_ context.Context, want *pod.Spec, name string) (pod.BoundVolume, error) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: plugins.DiskDriver, VolumeHandle: "vol-" + name, FSType: "ext4"}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: want.Namespace, Name: name, UID: types.UID("uid-" + name)}}
	claim.Spec.VolumeName = pv.Name
	claim.Status.Phase, claim.Status.Capacity = v1.ClaimBound, pv.Spec.Capacity
	return pod.BoundVolume{CSI: pv, Claim: claim}, nil
}

// node returns the Node object, whose volumes in use are attached.
func (a *agent) node() *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}}
	n.Status.VolumesInUse = a.csi.InUse()
	for _, name := range n.Status.VolumesInUse {
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, v1.AttachedVolume{Name: name})
	}
	return n
}

// calls are the calls of one agent to the API server. Those that change something are steps.
type calls struct {
	*apiServer
	a *agent
}

// ResourceClaim returns the claim of a name, which is allocated and reserved for all pods that use it.
func (c calls) ResourceClaim(_ context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}}
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	claim.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{{Request: "card", Driver: plugins.CardDriver, Pool: "rack", Device: "of-" + name}}
	for _, p := range c.desired() {
		for _, of := range p.Spec.ResourceClaims {
			if of.ResourceClaimName != nil && *of.ResourceClaimName == name {
				claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
			}
		}
	}
	return claim, nil
}

func (c calls) DeleteResourceSlices(_ context.Context, _, driver string, _ []string) error {
	if c.a.dead.Load() {
		return errKilled
	}
	c.mu.Lock()
	if driver != "" {
		c.wipes = append(c.wipes, driver)
	}
	c.mu.Unlock()
	return c.a.point("API")("DeleteResourceSlices")
}

// wiped returns the drivers whose ResourceSlices were deleted.
func (s *apiServer) wiped() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.wipes)
}

func (calls) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}, nil
}

func (calls) VolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	a.Spec.NodeName, a.Spec.Attacher, a.Status.Attached = nodeName, plugins.DiskDriver, true
	return a, nil
}

var errUnexpected = errors.New("no volume of the soak needs this call")

func (calls) SecretData(context.Context, string, string) (map[string]string, error) {
	return nil, errUnexpected
}

func (calls) TokenStatus(context.Context, *pod.Spec, *v1.ServiceAccountTokenProjection) (s authenticationv1.TokenRequestStatus, t time.Time, err error) {
	return s, t, errUnexpected
}

func (calls) MarkClaimResize(context.Context, *v1.PersistentVolumeClaim, v1.ClaimResourceStatus, string) (*v1.PersistentVolumeClaim, error) {
	return nil, errUnexpected
}

func (calls) SetClaimSize(context.Context, *v1.PersistentVolumeClaim, resource.Quantity) error {
	return errUnexpected
}

func (c calls) CSINode(context.Context, string) (*storagev1.CSINode, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.csiNode.DeepCopy(), nil
}

func (c calls) PutCSINode(_ context.Context, n *storagev1.CSINode) error {
	if c.a.dead.Load() {
		return errKilled
	}
	c.mu.Lock()
	c.csiNode = n.DeepCopy()
	c.csiNode.ResourceVersion += "1"
	c.mu.Unlock()
	return c.a.point("API")("PutCSINode")
}

// shape says which resources a pod of the soak uses.
type shape struct {
	name     string
	uid      string // "" follows the name
	gpus     string
	cpus     string // exclusive; "" is none
	card     string // a ResourceClaim; "" is none
	volume   string // a claim of a volume; "" is none
	revision string // of the image
}

// pod returns the pod as the API server has it.
func (s shape) pod() *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.name, UID: types.UID(cmp.Or(s.uid, "uid-"+s.name))}}
	p.Spec = v1.PodSpec{NodeName: nodeName, RestartPolicy: v1.RestartPolicyAlways, DNSPolicy: v1.DNSDefault, TerminationGracePeriodSeconds: new(int64(30))}
	c := v1.Container{Name: "app", Image: "slow-term-2s:" + strings.TrimSpace("1"+s.revision), ImagePullPolicy: v1.PullIfNotPresent, TerminationMessagePath: v1.TerminationMessagePathDefault}
	c.TerminationMessagePolicy = v1.TerminationMessageReadFile
	list := v1.ResourceList{}
	if s.gpus != "" {
		list[plugins.Resource] = resource.MustParse(s.gpus)
	}
	if s.cpus != "" {
		list[v1.ResourceCPU], list[v1.ResourceMemory] = resource.MustParse(s.cpus), resource.MustParse("1Gi")
	}
	c.Resources.Requests, c.Resources.Limits = list, list
	p.Status.Phase, p.Status.QOSClass = v1.PodPending, v1.PodQOSBestEffort
	if s.cpus != "" {
		p.Status.QOSClass = v1.PodQOSGuaranteed
	}
	if s.card != "" {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "card", ResourceClaimName: new(s.card)}}
		c.Resources.Claims = []v1.ResourceClaim{{Name: "card"}}
	}
	if s.volume != "" {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: s.volume}}}}
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}
