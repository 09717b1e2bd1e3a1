package csi

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodectl/nodectl/test/wait"
)

// The CSINode object follows the drivers: a driver that registers is added, one that has changed is
// replaced, and one that unregisters is removed. Entries of drivers that have not registered yet
// stay.
func TestRun_DriversComeAndGo_CSINodeFollows(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.csiNode = &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "late.test", NodeID: "x"}}}}
	m.csiNode.Name = nodeName
	v, f := m.agent(), newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	f.info.MaxVolumesPerNode = 12
	f.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"rack": "7"}}
	stop := m.plug(v, f)
	wait.True(t, "the driver is shown", func() bool { return m.shown() == "late.test x [];disk.test node-1 [rack] 12;" })
	m.mu.Lock()
	if o := m.csiNode.OwnerReferences; len(o) != 1 || o[0].UID != "node-uid" || o[0].Kind != "Node" {
		t.Errorf("owners %+v", o)
	}
	m.mu.Unlock()
	if ids, labels := v.NodeIDs(`{"late.test":"x"}`), v.Topology(); ids != `{"disk.test":"node-1","late.test":"x"}` || labels["rack"] != "7" {
		t.Errorf("annotation %s, labels %v", ids, labels)
	}
	if migrated := m.csiNode.Annotations["storage.alpha.kubernetes.io/migrated-plugins"]; !strings.HasPrefix(migrated, "kubernetes.io/aws-ebs,") || !strings.HasSuffix(migrated, ",kubernetes.io/vsphere-volume") {
		t.Errorf("plugins that are migrated: %s", migrated)
	}
	stop()
	changed := newFake(t)
	changed.info.NodeId = "node-2"
	m.plug(v, changed)
	wait.True(t, "the driver is shown with its new ID", func() bool { return m.shown() == "late.test x [];disk.test node-2 [];" })
	v.Unregister(driverName, filepath.Join(m.dir, "plugins", driverName, "csi.sock"))
	wait.True(t, "the driver is removed", func() bool { return m.shown() == "late.test x [];" })
	if ids := v.NodeIDs(`{"disk.test":"node-2"}`); ids != "" {
		t.Errorf("annotation %s", ids)
	}
	if ids := v.NodeIDs("not JSON"); ids != "" {
		t.Errorf("annotation %s", ids)
	}
}

// The name of an attachment is the controller's.
func TestAttachment_Name_IsTheKubelets(t *testing.T) {
	t.Parallel()
	got := volumeID{driver: "disk.test", handle: "vol-1"}.attachment("n1")
	if got != "csi-ee0ed5118189848fba34496e38008be34318cc1b618fb365d2360eb5162fbf79" {
		t.Errorf("%s", got)
	}
	if got := v1.UniqueVolumeName(volumeID{driver: "disk.test", handle: "vol-1"}.unique()); got != "kubernetes.io/csi/disk.test^vol-1" {
		t.Errorf("%s", got)
	}
	if got := inlineHandle("u1", "scratch"); got != "csi-c8c135b044e4505c2e1d97317834afdda287006a636d3f503243e6d708883cb4" {
		t.Errorf("%s", got)
	}
}
