// Package migration translates volumes of clouds to volumes of CSI drivers. The kubelet had code of
// its own for these volumes once; today it mounts them with the driver of the same disks.
//
// A node and the controllers must get the same handle for a disk. So all of them use one library,
// csi-translation-lib. The package adds two promises: it does not panic, and its texts are the
// kubelet's.
package migration

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"
)

// Plugins returns the names of the plugins whose volumes are translated, sorted. The CSINode object
// lists them, so that controllers attach these volumes with the CSI drivers, too.
func Plugins() []string {
	all := []string{
		plugins.AWSEBSInTreePluginName, plugins.GCEPDInTreePluginName, plugins.CinderInTreePluginName, plugins.AzureDiskInTreePluginName,
		plugins.AzureFileInTreePluginName, plugins.VSphereInTreePluginName, plugins.PortworxVolumePluginName,
	}
	slices.Sort(all)
	return all
}

// Persistent returns the volume of a CSI driver for a volume of a cloud; nil for a volume of another
// kind. The text of the error is the kubelet's.
func Persistent(pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	t := translation.New()
	if !t.IsPVMigratable(pv) {
		return nil, nil
	}
	made, err := t.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, fmt.Errorf("failed to translate in-tree pv to CSI: %w", err)
	}
	return made, nil
}

// IsInline reports whether a volume of a pod is a volume of a cloud.
func IsInline(source *v1.VolumeSource) bool {
	return translation.New().IsInlineMigratable(&v1.Volume{VolumeSource: *source})
}

// Inline returns the volume of a CSI driver for a volume of a cloud in a pod. The text of the error is
// the kubelet's.
func Inline(vol *v1.Volume, namespace string) (*v1.PersistentVolume, error) {
	vol = vol.DeepCopy()
	policy := ""
	if vol.VsphereVolume != nil { // the library panics over the name of a policy
		policy, vol.VsphereVolume.StoragePolicyName = vol.VsphereVolume.StoragePolicyName, ""
	}
	made, err := translation.New().TranslateInTreeInlineVolumeToCSI(klog.Logger{}, vol, namespace)
	if err != nil {
		return nil, fmt.Errorf("failed to translate in-tree pv to CSI: %w", err)
	}
	if policy != "" {
		made.Spec.CSI.VolumeAttributes["storagepolicyname"] = policy
	}
	return made, nil
}
