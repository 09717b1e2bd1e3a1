package csi

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

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
	if migrated := m.csiNode.Annotations["storage.alpha.kubernetes.io/migrated-plugins"]; !strings.HasPrefix(migrated, "kubernetes.io/aws-ebs,") || !strings.HasSuffix(migrated, ",kubernetes.io/vsphere-volume") {
		t.Errorf("plugins that are migrated: %s", migrated)
	}
	m.mu.Unlock()
	if ids, labels := v.NodeIDs(`{"late.test":"x"}`), v.Topology(); ids != `{"disk.test":"node-1","late.test":"x"}` || labels["rack"] != "7" {
		t.Errorf("annotation %s, labels %v", ids, labels)
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

// The driver is asked again for its limit after the period of its CSIDriver object, and when a volume
// could not be attached for lack of room. Its entry in the CSINode object stays, with the new limit.
func TestRun_LimitChanges_CSINodeFollows(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	limit := func(n int64) { f.mu.Lock(); defer f.mu.Unlock(); f.info.MaxVolumesPerNode = n }
	limit(12)
	m.object(func(s *storagev1.CSIDriverSpec) {
		s.AttachRequired, s.NodeAllocatableUpdatePeriodSeconds = ptr.To(true), ptr.To(int64(1))
	})
	m.plug(v, f)
	wait.True(t, "the limit of the registration", func() bool { return m.shown() == "disk.test node-1 [] 12;" })
	puts := func() int { m.mu.Lock(); defer m.mu.Unlock(); return m.puts }
	before := puts()
	limit(10)
	wait.True(t, "the limit after the period", func() bool { return m.shown() == "disk.test node-1 [] 10;" })
	if n := puts() - before; n != 1 {
		t.Errorf("the object was written %d times", n)
	}
}

// A plan follows the CSIDriver object: a driver without a period is not asked.
func TestLimitPlan_ObjectChanges_PeriodFollows(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	object := func(seconds int64) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &seconds}}
	}
	p := &limitPlan{}
	for _, c := range []struct {
		object *storagev1.CSIDriver
		period time.Duration
		next   time.Duration
	}{
		{nil, 0, objectEvery},
		{&storagev1.CSIDriver{}, 0, objectEvery},
		{object(30), 30 * time.Second, 30 * time.Second},
		{object(600), 10 * time.Minute, objectEvery},
		{object(-5), 0, objectEvery},
	} {
		p.follow(c.object, at)
		if got := p.next().Sub(at); p.period != c.period || got != c.next {
			t.Errorf("%+v: period %s, next after %s, want %s, %s", c.object, p.period, got, c.period, c.next)
		}
	}
	p.follow(object(30), at)
	p.follow(object(30), at.Add(20*time.Second))
	if got := p.ask.Sub(at); got != 30*time.Second {
		t.Errorf("the same period moves the next call to %s", got)
	}
}

// Only an attachment that failed for lack of room makes the node ask the driver.
func TestNoteFull_AttachmentFailed_DriverIsAsked(t *testing.T) {
	t.Parallel()
	v := newMachine(t).agent()
	failed := func(code codes.Code) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{ErrorCode: ptr.To(int32(code))}}}
	}
	attached := failed(codes.ResourceExhausted)
	attached.Status.Attached = true
	for _, a := range []*storagev1.VolumeAttachment{{}, attached, failed(codes.Internal), {Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{}}}} {
		if v.noteFull(driverName, a); v.full[driverName] || len(v.refresh) > 0 {
			t.Errorf("%+v makes the node ask", a.Status)
		}
	}
	if v.noteFull(driverName, failed(codes.ResourceExhausted)); !v.full[driverName] || len(v.refresh) != 1 {
		t.Error("an attachment that failed for lack of room makes the node ask for nothing")
	}
}
