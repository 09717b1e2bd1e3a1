package migration_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/migration"
)

// shown is one line of a translated volume.
func shown(pv *v1.PersistentVolume, err error) string {
	if err != nil || pv == nil {
		return fmt.Sprint(err)
	}
	c := pv.Spec.CSI
	var attributes []string
	for _, key := range slices.Sorted(maps.Keys(c.VolumeAttributes)) {
		attributes = append(attributes, key+"="+c.VolumeAttributes[key])
	}
	secret := ""
	if r := c.NodeStageSecretRef; r != nil {
		secret = r.Namespace + "/" + r.Name
	}
	return fmt.Sprintf("%s: %s %s fs=%q %v %v secret=%q", pv.Name, c.Driver, c.VolumeHandle, c.FSType, attributes, pv.Spec.AccessModes, secret)
}

// TestInline_VolumesOfClouds_AreVolumesOfTheirDrivers: each kind of volume that the kubelet translates.
// A storage policy does not stop the agent.
//
// Shows: C-1.37
func TestInline_VolumesOfClouds_AreVolumesOfTheirDrivers(t *testing.T) {
	for _, is := range []struct {
		source v1.VolumeSource
		want   string
	}{
		{v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-1a/vol-12345678", FSType: "xfs", Partition: 2}},
			`ebs.csi.aws.com-vol-12345678: ebs.csi.aws.com vol-12345678 fs="xfs" [partition=2] [ReadWriteOnce] secret=""`},
		{v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-1a/../x"}},
			`failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://us-1a/../x)`},
		{v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d", ReadOnly: true}},
			`pd.csi.storage.gke.io-d: pd.csi.storage.gke.io projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d fs="" [partition=] [ReadOnlyMany] secret=""`},
		{v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: "/subscriptions/s/disks/d", Kind: ptr.To(v1.AzureManagedDisk), CachingMode: ptr.To(v1.AzureDataDiskCachingReadOnly), FSType: ptr.To("ext4")}},
			`/subscriptions/s/disks/d: disk.csi.azure.com /subscriptions/s/disks/d fs="ext4" [cachingmode=ReadOnly fstype=ext4 kind=Managed] [ReadWriteOnce] secret=""`},
		{v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: "d", Kind: ptr.To(v1.AzureSharedBlobDisk)}},
			`failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi migration`},
		{v1.VolumeSource{AzureFile: &v1.AzureFileVolumeSource{SecretName: "s", ShareName: "share"}},
			`#s#share#v#shop: file.csi.azure.com #s#share#v#shop fs="" [sharename=share] [ReadWriteMany] secret="shop/s"`},
		{v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: "c", FSType: "ext4"}},
			`cinder.csi.openstack.org-c: cinder.csi.openstack.org c fs="ext4" [] [ReadWriteOnce] secret=""`},
		{v1.VolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v.vmdk", FSType: "ext4", StoragePolicyName: "gold"}},
			`csi.vsphere.vmware.com-[ds] v.vmdk: csi.vsphere.vmware.com [ds] v.vmdk fs="ext4" [storagepolicyname=gold] [ReadWriteOnce] secret=""`},
		{v1.VolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p", ReadOnly: true}},
			`pxd.portworx.com-p: pxd.portworx.com p fs="" [] [ReadOnlyMany] secret=""`},
	} {
		if !migration.IsInline(&is.source) {
			t.Errorf("%s: is no volume of a cloud", is.want)
		}
		if got := shown(migration.Inline(&v1.Volume{Name: "v", VolumeSource: is.source}, "shop")); got != is.want {
			t.Errorf("got  %s\nwant %s", got, is.want)
		}
	}
	if other := (v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}); migration.IsInline(&other) {
		t.Error("an emptyDir is taken for a volume of a cloud")
	}
}

// TestPersistent_VolumesOfClouds_KeepTheirNameAndMode: a PersistentVolume is translated as a copy, and
// one of another kind is not.
//
// Shows: C-1.37
func TestPersistent_VolumesOfClouds_KeepTheirNameAndMode(t *testing.T) {
	volume := func(source v1.PersistentVolumeSource) *v1.PersistentVolume {
		return &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: map[string]string{v1.LabelTopologyZone: "us-1a"}},
			Spec:       v1.PersistentVolumeSpec{PersistentVolumeSource: source, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: ptr.To(v1.PersistentVolumeBlock)},
		}
	}
	is := volume(v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d"}})
	got, err := migration.Persistent(is)
	want := `pv: pd.csi.storage.gke.io projects/UNSPECIFIED/zones/us-1a/disks/d fs="" [partition=] [ReadWriteOnce] secret=""`
	if shown(got, err) != want || got.Spec.GCEPersistentDisk != nil || *got.Spec.VolumeMode != v1.PersistentVolumeBlock {
		t.Errorf("got  %s\nwant %s", shown(got, err), want)
	}
	if is.Spec.GCEPersistentDisk == nil || is.Spec.CSI != nil {
		t.Error("the volume itself has changed")
	}
	if got, err := migration.Persistent(volume(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s"}})); got != nil || err != nil {
		t.Errorf("a directory of an NFS server: %s", shown(got, err))
	}
	_, err = migration.Persistent(volume(v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{SecretName: "s"}}))
	if err == nil || !strings.HasPrefix(err.Error(), "failed to translate in-tree pv to CSI: could not find a secret namespace") {
		t.Errorf("a share without the namespace of its secret: %v", err)
	}
}

// TestPlugins_AllKinds_AreSorted: the names are those that controllers look for.
func TestPlugins_AllKinds_AreSorted(t *testing.T) {
	want := "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
	if got := strings.Join(migration.Plugins(), ","); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
