//go:build linux

package support

import (
	"errors"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// serverProofs are those of pods from an API server.
func serverProofs() []proof {
	const (
		sources = "spec.volumes[].projected.sources[]"
		trust   = sources + ".clusterTrustBundle"
		labels  = trust + ".labelSelector"
	)
	in := func(source string) string { return "volumes: [{name: v, projected: {sources: [{" + source + "}]}}]" }
	all := []proof{
		{
			name: "token", rows: sources + ".serviceAccountToken " + sources + ".serviceAccountToken.audience " + sources + ".serviceAccountToken.expirationSeconds " + sources + ".serviceAccountToken.path spec.serviceAccountName",
			spec: in("serviceAccountToken: {audience: shop, expirationSeconds: 700, path: token}") + ", serviceAccountName: me", container: mounted,
			look: func(n *node) error { return is("file", n.file("/v", "token"), `0644 of me for "shop", 700 s`) },
		},
		{
			name: "claim of a server", rows: "spec.volumes[].persistentVolumeClaim", spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: shared}}]", container: mounted,
			look: func(n *node) error { return is("file", n.file("/v", "note"), "0600 kept") },
		},
		{
			name: "generic ephemeral volume", rows: "spec.volumes[].ephemeral", container: mounted,
			spec: "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]",
			look: func(n *node) error { return is("file", n.file("/v", "note"), "0600 kept") },
		},
		{
			name: "inline volume of a CSI driver", container: mounted,
			rows: "spec.volumes[].csi spec.volumes[].csi.driver spec.volumes[].csi.fsType spec.volumes[].csi.nodePublishSecretRef spec.volumes[].csi.nodePublishSecretRef.name spec.volumes[].csi.readOnly spec.volumes[].csi.volumeAttributes",
			spec: "volumes: [{name: v, csi: {driver: x.test, fsType: ext4, readOnly: true, nodePublishSecretRef: {name: s}, volumeAttributes: {a: b}}}]",
			look: func(n *node) error {
				return is("file", n.file("/v", "note"), "0600 v of x.test: ext4, read-only true, map[a:b], secret s")
			},
		},
		cloud("awsElasticBlockStore", "volumeID: vol-1, fsType: xfs, partition: 2", "vol-1 of ebs.csi.aws.com: fs xfs, map[partition:2], [ReadWriteOnce], secret none"),
		cloud("gcePersistentDisk", "pdName: d, fsType: ext4, partition: 2, readOnly: true", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d of pd.csi.storage.gke.io: fs ext4, map[partition:2], [ReadOnlyMany], secret none"),
		cloud("azureDisk", "diskName: d, diskURI: /subscriptions/s/disks/d, cachingMode: ReadOnly, fsType: xfs, kind: Managed", "/subscriptions/s/disks/d of disk.csi.azure.com: fs xfs, map[cachingmode:ReadOnly fstype:xfs kind:Managed], [ReadWriteOnce], secret none"),
		cloud("azureFile", "secretName: s, shareName: x", "#s#x#v#default of file.csi.azure.com: fs , map[sharename:x], [ReadWriteMany], secret s"),
		cloud("cinder", "volumeID: c, fsType: ext4", "c of cinder.csi.openstack.org: fs ext4, map[], [ReadWriteOnce], secret none"),
		cloud("vsphereVolume", "volumePath: '[ds] v', fsType: ext4, storagePolicyName: gold", "[ds] v of csi.vsphere.vmware.com: fs ext4, map[storagepolicyname:gold], [ReadWriteOnce], secret none"),
		cloud("portworxVolume", "volumeID: p, fsType: ext4, readOnly: true", "p of pxd.portworx.com: fs ext4, map[], [ReadOnlyMany], secret none"),
		{
			name: "directory of an NFS server", rows: "spec.volumes[].nfs spec.volumes[].nfs.server spec.volumes[].nfs.path spec.volumes[].nfs.readOnly", container: mounted,
			spec: "volumes: [{name: v, nfs: {server: files.test, path: /shop, readOnly: true}}]",
			look: func(n *node) error {
				return errors.Join(is("file", n.file("/v", "note"), "0600 files.test:/shop [ro]"), is("read-only", n.mount("/v").GetReadonly(), true))
			},
		},
		{
			name: "block volume of a claim", rows: "c.volumeDevices c.volumeDevices[].name c.volumeDevices[].devicePath",
			spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: raw, readOnly: true}}]", container: "volumeDevices: [{name: v, devicePath: /dev/raw}]",
			look: func(n *node) error {
				d := n.ctr().GetDevices()
				return holds(len(d) == 1 && d[0].GetContainerPath() == "/dev/raw" && d[0].GetPermissions() == "r" && strings.HasSuffix(d[0].GetHostPath(), "/driver-v"), "devices %v", d)
			},
		},
		{
			name: "trust bundle by name", rows: trust + " " + trust + ".name " + trust + ".path", spec: in("clusterTrustBundle: {name: ca, path: ca.crt}"), container: mounted,
			look: func(n *node) error { return is("file", n.file("/v", "ca.crt"), "0644 named ca") },
		},
		{
			name: "trust bundle that may be missing", rows: trust + ".optional", spec: in("clusterTrustBundle: {name: absent, path: ca.crt, optional: true}"), container: mounted,
			look: func(n *node) error { return n.made() },
		},
		{
			name: "trust bundle by signer", container: mounted,
			rows: strings.Join([]string{trust + ".signerName", labels, labels + ".matchLabels", labels + ".matchExpressions", labels + ".matchExpressions[].key", labels + ".matchExpressions[].operator", labels + ".matchExpressions[].values"}, " "),
			spec: in("clusterTrustBundle: {signerName: s.test/a, path: ca.crt, labelSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: In, values: [d]}]}}"),
			look: func(n *node) error {
				return is("file", n.file("/v", "ca.crt"), "0644 signed by s.test/a with a=b,c in (d)")
			},
		},
		{
			name: "no service links", rows: "spec.enableServiceLinks", spec: "enableServiceLinks: false",
			look: func(n *node) error {
				_, hasHost := n.env()["DB_SERVICE_HOST"]
				return holds(n.ctr() != nil && !hasHost, "environment %v", n.env())
			},
		},
		{
			name: "ephemeral containers", rows: "spec.ephemeralContainers spec.ephemeralContainers[].targetContainerName",
			spec: "ephemeralContainers: [{name: look, image: 'app:1', targetContainerName: main}]",
			look: func(n *node) error {
				n.container = "look"
				n.pass(time.Minute)
				return is("processes", n.security().GetNamespaceOptions().GetPid(), runtimeapi.NamespaceMode_TARGET)
			},
		},
		{
			name: "readiness gates of a server", rows: "spec.readinessGates", status: "conditions: [{type: example.test/gate, status: 'False'}]",
			spec: "readinessGates: [{conditionType: example.test/gate}]",
			look: func(n *node) error {
				if err := is("ready", n.condition(v1.PodReady).Status, v1.ConditionFalse); err != nil {
					return err
				}
				open := yamlOf("status: {conditions: [{status: 'True'}]}")
				return errors.Join(n.become(merged(n.doc, open)), is("ready then", n.condition(v1.PodReady).Status, v1.ConditionTrue))
			},
		},
		{
			name: "deletion", rows: "metadata.deletionTimestamp metadata.deletionGracePeriodSeconds", later: "metadata.deletionTimestamp metadata.deletionGracePeriodSeconds",
			meta: "deletionTimestamp: '2026-01-02T03:04:05Z', deletionGracePeriodSeconds: 9", container: "command: [ignore, term]",
			look: func(n *node) error {
				n.pass(time.Minute)
				return errors.Join(holds(len(n.calls("grace=9")) > 0, "calls: %v", n.calls("")))
			},
		},
	}
	all = append(all, claimProofs()...)
	for i := range all {
		all[i].api = true
	}
	return all
}

// cloud proves that a volume of a cloud is a volume of a CSI driver. Each of its fields changes the
// driver's request, except a name that the API server requires.
func cloud(kind, fields, want string) proof {
	rows := "spec.volumes[]." + kind
	for name := range yamlOf("{" + fields + "}") {
		if name != "diskName" {
			rows += " spec.volumes[]." + kind + "." + name
		}
	}
	return proof{
		name: "volume of a cloud, " + kind, rows: rows, spec: "volumes: [{name: v, " + kind + ": {" + fields + "}}]", container: mounted,
		look: func(n *node) error { return is("file", n.file("/v", "note"), "0600 "+want) },
	}
}
