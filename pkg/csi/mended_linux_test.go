package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/wait"
)

// An unreadable vol_data.json gives no information: the removal of the pod fails, and the Node
// object names the volume until it is unmounted.
func TestUnpublish_FileCannotBeRead_VolumeStaysInUse(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	mount := publish(t, v, request("u1", "pv-1", "vol-1"))
	for _, dir := range []string{v.stageDir(volumeID{driver: driverName, handle: "vol-1"}), filepath.Dir(mount.Path)} {
		file, away := filepath.Join(dir, dataFile), filepath.Join(m.dir, "away")
		if err := errors.Join(os.Rename(file, away), os.Symlink(away, file)); err != nil {
			t.Fatal(err)
		}
		for _, agent := range []*Volumes{v, m.agent()} {
			if err := agent.Unpublish(t.Context(), "u1"); !errors.Is(err, unix.ELOOP) || !v.Mounted(mount.Path) || len(v.InUse()) != 1 {
				t.Errorf("%s: %v, in use %v", dir, err, v.InUse())
			}
		}
		if err := os.Rename(away, file); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(v.InUse()) > 0 || len(m.left()) > 0 {
		t.Errorf("%v, in use %v, left %v", err, v.InUse(), m.left())
	}
}

// An agent that knows a volume does not forget it when its vol_data.json is damaged. When the
// directory is removed, the agent counts no user of the volume any more.
func TestUnpublish_FileOfAKnownVolumeIsDamaged_IsForgottenWithTheMount(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	mount := publish(t, v, request("u1", "pv-1", "vol-1"))
	if err := os.WriteFile(filepath.Join(filepath.Dir(mount.Path), dataFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.Unpublish(t.Context(), "u1"); err == nil || !strings.Contains(err.Error(), "unmount it") || len(v.InUse()) != 1 {
		t.Errorf("%v, in use %v", err, v.InUse())
	}
	if err := unbind(mount.Path); err != nil {
		t.Fatal(err)
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(v.InUse()) != 1 {
		t.Errorf("%v, in use %v", err, v.InUse())
	}
	v.swept = true
	v.unstageUnused(t.Context())
	if len(v.InUse()) > 0 || len(m.left()) > 0 {
		t.Errorf("in use %v, left %v", v.InUse(), m.left())
	}
}

// A pod that has come back keeps its volume, also if the agent was about to unmount it.
func TestSweep_PodIsBack_VolumeStays(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, first := newFake(t), m.agent()
	stop := m.plug(first, f)
	q := request("u1", "pv-1", "vol-1")
	mount := publish(t, first, q)
	stop()
	v := m.agent()
	if err := v.Sweep(t.Context(), func(string) bool { return false }); err == nil || v.Mounted(mount.Path) {
		t.Errorf("without the driver: %v; mounted %t, although it is about to be unmounted", err, v.Mounted(mount.Path))
	}
	m.plug(v, f)
	f.called()
	publish(t, v, q)
	if !v.Uses("u1") || v.Uses("u2") {
		t.Error("only the pod u1 uses a volume")
	}
	if err := v.unpublishAll(t.Context(), "u1", v.ownUsersOf("u1"), v.isLeft); err != nil || !v.Mounted(mount.Path) || len(v.InUse()) != 1 {
		t.Errorf("after a retry: %v, in use %v", err, v.InUse())
	}
	asked := 0
	back := func(string) bool { asked++; return asked > 1 }
	if err := v.Sweep(t.Context(), back); err != nil || !v.Mounted(mount.Path) || asked != 2 {
		t.Errorf("after a sweep: %v, asked %d times", err, asked)
	}
	if calls := f.called(); len(calls) > 0 {
		t.Errorf("the driver got %v", calls)
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
}

// A volume is not unstaged as long as a part of it is mounted, anywhere.
func TestUnpublish_SubPathIsMounted_VolumeStaysStaged(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	mount := publish(t, v, request("u1", "pv-1", "vol-1"))
	part, shown := filepath.Join(mount.Path, "part"), filepath.Join(m.dir, "elsewhere")
	if err := errors.Join(os.Mkdir(part, 0o755), bind(part, shown)); err != nil {
		t.Fatal(err)
	}
	f.called()
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(v.InUse()) != 1 {
		t.Errorf("%v, in use %v", err, v.InUse())
	}
	if calls := f.called(); !slices.Equal(calls, []string{"NodeUnpublishVolume"}) {
		t.Errorf("the driver got %v", calls)
	}
	if err := unbind(shown); err != nil {
		t.Fatal(err)
	}
	v.swept = true
	id := volumeID{driver: driverName, handle: "vol-1"}
	v.volumes[id].retry = v.volumes[id].retry.Add(-retryLast)
	v.unstageUnused(t.Context())
	if len(v.InUse()) > 0 || len(m.left()) > 0 {
		t.Errorf("in use %v, left %v", v.InUse(), m.left())
	}
}

// A pod's directory belongs to one volume: another volume of the same name is rejected.
func TestPublish_DirectoryOfAnotherVolume_IsRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	publish(t, v, request("u1", "pv-1", "vol-1"))
	f.called()
	if _, err := v.Publish(t.Context(), request("u1", "pv-1", "vol-2")); err == nil || !strings.Contains(err.Error(), "is of another volume: vol-1 of driver disk.test") {
		t.Errorf("%v", err)
	}
	if calls := f.called(); len(calls) > 0 {
		t.Errorf("the driver got %v", calls)
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(v.InUse()) > 0 || len(m.left()) > 0 {
		t.Errorf("%v, in use %v, left %v", err, v.InUse(), m.left())
	}
}

// A pod that uses a volume through two PersistentVolumes uses it until both are unmounted.
func TestUnpublish_PodUsesAVolumeTwice_IsUnstagedWithTheSecond(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	publish(t, v, request("u1", "pv-1", "vol-1"))
	publish(t, v, request("u1", "pv-2", "vol-1"))
	f.called()
	id := volumeID{driver: driverName, handle: "vol-1"}
	if err := v.unpublish(t.Context(), id, user{uid: "u1", name: "pv-1"}, nil); err != nil || v.volumes[id].failures > 0 {
		t.Errorf("%v, unstaging failed %d times", err, v.volumes[id].failures)
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
	if calls := f.called(); !slices.Equal(calls, []string{"NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}) {
		t.Errorf("the driver got %v", calls)
	}
}

// A driver that hangs while a volume of a removed pod is unmounted does not keep another driver out
// of the CSINode object.
func TestRun_DriverHangs_CSINodeFollows(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, first := newFake(t), m.agent()
	stop := m.plug(first, f)
	publish(t, first, request("lost", "pv-1", "vol-1"))
	stop()
	v := m.agent()
	if err := v.Sweep(t.Context(), func(string) bool { return false }); err == nil {
		t.Fatal("swept without the driver")
	}
	hangs, release := make(chan struct{}), make(chan struct{})
	f.before = func(call string) error {
		if call == "NodeUnpublishVolume" {
			close(hangs)
			<-release
		}
		return nil
	}
	m.plug(v, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-hangs
	m.plug(v, &fake{name: "other.test", info: csipb.NodeGetInfoResponse{NodeId: "x"}})
	wait.True(t, "the other driver is shown", func() bool { return strings.Contains(m.shown(), "other.test x [];") })
	close(release)
	wait.True(t, "the volume is unmounted", func() bool { return len(mountsIn(t, m.dir)) < 2 })
}

// A plugin that registers and unregisters under ever new names does not fill the memory.
func TestUnregister_ManyNames_TheNewestIsKnown(t *testing.T) {
	t.Parallel()
	v := newMachine(t).agent()
	last := ""
	for i := range 2 * maxDrivers {
		last = fmt.Sprint("d", i)
		v.drivers[last] = &driver{name: last, socket: "s", calls: 1}
		v.Unregister(last, "s")
	}
	if len(v.gone) != maxDrivers || !v.gone[last] {
		t.Errorf("%d names, the newest %t", len(v.gone), v.gone[last])
	}
}
