package podspec

import (
	"slices"
	"strings"
)

// APIFields returns the rows that differ for pods from an API server: fields that the
// server, its admission or the scheduler handled before the binding require nothing of
// this node, and fields that only a static pod cannot have are permitted. Every other
// field is as in Fields. The result is the caller's.
func APIFields() []Field { return apiRows() }

func apiRows() []Field {
	const scheduled = "the scheduler has used it to choose this node"
	rows := []Field{
		inert("metadata.generateName", "the server has generated the name from it"),
		honour("metadata.deletionTimestamp", RestartNone),
		honour("metadata.deletionGracePeriodSeconds", RestartNone),
		inert("metadata.finalizers", "the server keeps the object until they are removed; the pod on this node can stop"),
		inert("metadata.ownerReferences", "only controllers and the server use them"),
		{Path: "spec.volumes[].persistentVolumeClaim", Restart: RestartPod, Note: "a claim that is bound to a volume of a CSI driver, to a directory of an NFS server, or to a hostPath or local volume of this node"},
		{Path: "spec.volumes[].csi", Restart: RestartPod, Note: "an inline volume of a CSI driver that is registered"},
		honour("spec.volumes[].csi.driver", RestartPod),
		honour("spec.volumes[].csi.fsType", RestartPod),
		honour("spec.volumes[].csi.nodePublishSecretRef", RestartPod),
		honour("spec.volumes[].csi.nodePublishSecretRef.name", RestartPod),
		honour("spec.volumes[].csi.readOnly", RestartPod),
		honour("spec.volumes[].csi.volumeAttributes", RestartPod),
		{Path: "spec.volumes[].nfs", Restart: RestartPod, Note: "the node's mount.nfs mounts it"},
		honour("spec.volumes[].nfs.server", RestartPod),
		honour("spec.volumes[].nfs.path", RestartPod),
		honour("spec.volumes[].nfs.readOnly", RestartPod),
		{Path: "spec.volumes[].ephemeral", Restart: RestartPod, Note: "a claim that the cluster makes for the pod: <pod>-<volume>"},
		inert("spec.volumes[].ephemeral.volumeClaimTemplate", "a controller of the cluster has made the claim from it"),
		{Path: "spec.volumes[].projected.sources[].serviceAccountToken", Restart: RestartPod, Note: "a token of the pod's service account, renewed before it expires (C-1.38.11)"},
		honour("spec.volumes[].projected.sources[].serviceAccountToken.audience", RestartPod),
		honour("spec.volumes[].projected.sources[].serviceAccountToken.expirationSeconds", RestartPod),
		honour("spec.volumes[].projected.sources[].serviceAccountToken.path", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.name", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.signerName", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchLabels", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions[].key", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions[].operator", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions[].values", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.optional", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.path", RestartPod),
		{Path: "spec.enableServiceLinks", Note: "adds the addresses of services to the environment (C-1.38.1)"},
		{Path: "spec.ephemeralContainers", Note: "an added container starts once and never restarts (C-1.19.4)"},
		honour("spec.ephemeralContainers[].targetContainerName", RestartNone),
		{Path: "spec.resourceClaims", Restart: RestartPod, Unordered: true, Note: "claims whose drivers are registered; the pod waits for a claim that is not allocated"},
		honour("spec.resourceClaims[].name", RestartPod),
		honour("spec.resourceClaims[].resourceClaimName", RestartPod),
		inert("spec.resourceClaims[].resourceClaimTemplateName", "a controller of the cluster has made the claim from it"),
		inert("spec.topologySpreadConstraints", scheduled),
		inert("spec.schedulingGates", "a pod that is bound to a node has passed them"),
		inert("spec.schedulingGroup", scheduled),
		{Path: "spec.serviceAccountName", Note: "the pod's token volumes get its tokens"},
		inert("spec.serviceAccount", "nodectl only uses the token volume that admission may have added"),
		inert("spec.automountServiceAccountToken", "admission has turned it into a volume, which nodectl uses"),
		inert("spec.priorityClassName", "admission has turned it into spec.priority"),
		{Path: "spec.readinessGates", Note: "clients of the server set the conditions"},
	}
	rows = append(rows, cloudRows()...)
	rows = append(rows, blockRows("spec.initContainers[].", RestartPod)...)
	rows = append(rows, blockRows("spec.containers[].", RestartContainer)...)
	rows = append(rows, claimRows("spec.initContainers[].resources.claims", RestartPod)...)
	rows = append(rows, claimRows("spec.containers[].resources.claims", RestartContainer)...)
	return append(rows, ephemeralRows()...)
}

// cloudRows are the rows of volumes of clouds, which CSI drivers mount.
func cloudRows() (all []Field) {
	const (
		attached = "the driver's attacher gets it, not the node"
		unused   = "it is not translated to a volume of the CSI driver"
	)
	for _, of := range []struct {
		kind, driver  string
		used          []string
		attach, other []string
	}{
		{"awsElasticBlockStore", "ebs.csi.aws.com", []string{"volumeID", "fsType", "partition"}, []string{"readOnly"}, nil},
		{"gcePersistentDisk", "pd.csi.storage.gke.io", []string{"pdName", "fsType", "partition", "readOnly"}, nil, nil},
		{"azureDisk", "disk.csi.azure.com", []string{"diskURI", "cachingMode", "fsType", "kind"}, []string{"readOnly"}, []string{"diskName"}},
		{"azureFile", "file.csi.azure.com", []string{"secretName", "shareName"}, []string{"readOnly"}, nil},
		{"cinder", "cinder.csi.openstack.org", []string{"volumeID", "fsType"}, []string{"readOnly"}, []string{"secretRef", "secretRef.name"}},
		{"vsphereVolume", "csi.vsphere.vmware.com", []string{"volumePath", "fsType", "storagePolicyName"}, nil, []string{"storagePolicyID"}},
		{"portworxVolume", "pxd.portworx.com", []string{"volumeID", "fsType", "readOnly"}, nil, nil},
	} {
		at := "spec.volumes[]." + of.kind
		all = append(all, Field{Path: at, Restart: RestartPod, Note: "as a volume of the CSI driver " + of.driver})
		for _, f := range of.used {
			all = append(all, honour(at+"."+f, RestartPod))
		}
		for _, f := range of.attach {
			all = append(all, inert(at+"."+f, attached))
		}
		for _, f := range of.other {
			all = append(all, inert(at+"."+f, unused))
		}
	}
	return all
}

// blockRows are the rows of block volumes.
func blockRows(at string, restart RestartScope) []Field {
	return []Field{
		{Path: at + "volumeDevices", Restart: restart, Note: "a claim that is bound to a block volume of a CSI driver"},
		honour(at+"volumeDevices[].name", restart),
		honour(at+"volumeDevices[].devicePath", restart),
	}
}

// claimRows are the rows of the ResourceClaims of a container.
func claimRows(at string, restart RestartScope) []Field {
	return []Field{
		{Path: at, Restart: restart, Unordered: true, Note: "the container gets the devices of the claim, or of one request of it"},
		honour(at+"[].name", restart),
		honour(at+"[].request", restart),
	}
}

// notEphemeral are the fields that no API server lets an ephemeral container have.
var notEphemeral = []string{
	"ports", "resources", "resizePolicy", "restartPolicy", "restartPolicyRules", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle",
	"volumeMounts[].subPath", "volumeMounts[].subPathExpr",
}

// ephemeralRows are the rows of an ephemeral container: those of a container, except for the fields
// that it cannot have.
func ephemeralRows() []Field {
	const at = "spec.ephemeralContainers[]."
	rows := slices.DeleteFunc(containerRows(at, RestartNone), func(f Field) bool {
		path := strings.TrimPrefix(f.Path, at)
		return path == "volumeDevices" || slices.ContainsFunc(notEphemeral, func(not string) bool {
			return path == not || strings.HasPrefix(path, not+".") || strings.HasPrefix(path, not+"[]")
		})
	})
	for _, name := range notEphemeral {
		rows = append(rows, inert(at+name, "an API server allows no ephemeral container to have it"))
	}
	return append(rows, blockRows(at, RestartNone)...)
}
