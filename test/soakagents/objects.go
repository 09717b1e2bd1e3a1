package main

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/plugins"
)

// The paths of the objects at the API server.
const (
	podsPath   = "/api/v1/namespaces/default/pods"
	claimsPath = "/api/v1/namespaces/default/persistentvolumeclaims"
	pvPath     = "/api/v1/persistentvolumes"
	cardsPath  = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
	driverPath = "/apis/storage.k8s.io/v1/csidrivers"
)

// create creates an object, and decodes the answer into it.
func (s *soak) create(ctx context.Context, path string, object any) error {
	return s.send(ctx, "POST", path, object)
}

func (s *soak) send(ctx context.Context, verb, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	answer, err := s.Admin.Verb(verb).AbsPath(path).Body(body).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, path, err)
	}
	return json.Unmarshal(answer, object)
}

// remove deletes an object.
func (s *soak) remove(ctx context.Context, path string) error {
	return s.Admin.Delete().AbsPath(path).Do(ctx).Error()
}

// createDriver creates the object of the CSI driver, whose volumes no controller attaches.
func (s *soak) createDriver(ctx context.Context) error {
	no := false
	d := &storagev1.CSIDriver{TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"}, ObjectMeta: metav1.ObjectMeta{Name: plugins.DiskDriver}}
	d.Spec.AttachRequired = &no
	return s.create(ctx, driverPath, d)
}

// names are the names of one round's objects.
type names struct{ all, shares, pinned, card, disk string }

func namesOf(round int) names {
	name := func(of string) string { return fmt.Sprintf("%s-%d", of, round) }
	return names{name("all"), name("shares"), name("pinned"), name("card"), name("disk")}
}

func (n names) pods() []string { return []string{n.all, n.shares, n.pinned} }

// createVolume creates a volume of the CSI driver, and a claim that is bound to it.
func (s *soak) createVolume(ctx context.Context, name string) error {
	none, size := "", v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv := &v1.PersistentVolume{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.Capacity, pv.Spec.AccessModes, pv.Spec.PersistentVolumeReclaimPolicy = size, modes, v1.PersistentVolumeReclaimRetain
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: plugins.DiskDriver, VolumeHandle: name, FSType: "ext4"}
	if err := s.create(ctx, pvPath, pv); err != nil {
		return err
	}
	claim := &v1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	claim.Spec.AccessModes, claim.Spec.StorageClassName, claim.Spec.VolumeName = modes, &none, name
	claim.Spec.Resources.Requests = size
	return s.create(ctx, claimsPath, claim)
}

// createCard creates a ResourceClaim.
func (s *soak) createCard(ctx context.Context, name string) (*resourcev1.ResourceClaim, error) {
	c := &resourcev1.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "card", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: plugins.CardDriver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
	}}}
	return c, s.create(ctx, cardsPath, c)
}

// allocate allocates a ResourceClaim to pods, as the scheduler does.
func (s *soak) allocate(ctx context.Context, c *resourcev1.ResourceClaim, users ...*v1.Pod) error {
	c.Status.Allocation = &resourcev1.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{{Request: "card", Driver: plugins.CardDriver, Pool: "rack", Device: "of-" + c.Name}}
	for _, p := range users {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	return s.send(ctx, "PUT", cardsPath+"/"+c.Name+"/status", c)
}

// podOf returns a pod on the node. cpus is the number of its exclusive CPUs, "" for none.
func podOf(name, card, volume, cpus string) *v1.Pod {
	grace, one := int64(5), resource.MustParse("1")
	p := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = nodeName, &grace
	p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	c := v1.Container{Name: "main", Image: node.Stamp, Args: []string{"forever"}, ImagePullPolicy: v1.PullIfNotPresent}
	c.Resources.Limits = v1.ResourceList{plugins.Resource: one}
	if cpus != "" {
		c.Resources.Limits[v1.ResourceCPU], c.Resources.Limits[v1.ResourceMemory] = resource.MustParse(cpus), resource.MustParse("64Mi")
	}
	c.Resources.Requests = c.Resources.Limits
	if card != "" {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "card", ResourceClaimName: &card}}
		c.Resources.Claims = []v1.ResourceClaim{{Name: "card"}}
	}
	if volume != "" {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: volume}}}}
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

// createAll creates the objects of a round.
func (s *soak) createAll(ctx context.Context, n names) error {
	if err := s.createVolume(ctx, n.disk); err != nil {
		return err
	}
	card, err := s.createCard(ctx, n.card)
	if err != nil {
		return err
	}
	pods := []*v1.Pod{podOf(n.all, n.card, n.disk, ""), podOf(n.shares, n.card, n.disk, ""), podOf(n.pinned, "", "", "1")}
	for _, p := range pods {
		if err := s.create(ctx, podsPath, p); err != nil {
			return err
		}
	}
	return s.allocate(ctx, card, pods[:2]...)
}

// removeAll removes the objects of a round that are no pods.
func (s *soak) removeAll(ctx context.Context, n names) error {
	for _, path := range []string{claimsPath + "/" + n.disk, pvPath + "/" + n.disk, cardsPath + "/" + n.card} {
		if err := s.remove(ctx, path); err != nil {
			return err
		}
	}
	return nil
}
