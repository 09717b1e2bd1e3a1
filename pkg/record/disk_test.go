package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/test/suite"
)

// smallDisk mounts a file system of a few pages and returns its directory.
func smallDisk(t *testing.T) string {
	t.Helper()
	suite.NeedsRoot(t, "the test mounts a file system that is full or read-only")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill uses all space that is left on root's disk.
func fill(t *testing.T, root string) (path string) {
	t.Helper()
	path = filepath.Join(root, "filler")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return path
}

// Shows: F12
func TestF12_FullDisk(t *testing.T) {
	root := smallDisk(t)
	r := record.New(root)
	rec := sample()
	mustSave(t, r, rec)
	filler := fill(t, root)
	next := rec
	next.Instance++
	if err := r.Save(next); !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), secret) {
		t.Errorf("save: %v, want that there is no room", err)
	}
	if left, _ := os.ReadDir(filepath.Join(root, "pods", rec.UID)); len(left) != 1 {
		t.Errorf("a part is left: %v", left)
	}
	if got, ok, err := r.Load(rec.Key, rec.UID); !ok || err != nil || got.Instance != rec.Instance {
		t.Errorf("the old record: %t, %v, instance %d", ok, err, got.Instance)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	mustSave(t, r, next)
	if got, _, _ := r.Load(rec.Key, rec.UID); got.Instance != next.Instance {
		t.Errorf("with room again: instance %d, want %d", got.Instance, next.Instance)
	}
}

// Shows: F13
func TestF13_ReadOnlyDisk(t *testing.T) {
	root := smallDisk(t)
	r := record.New(root)
	rec, bad := sample(), sample()
	bad.Name, bad.UID = "bad", "bad"
	mustSave(t, r, rec)
	mustSave(t, r, bad)
	if err := os.Truncate(recordPath(root, "bad"), 10); err != nil {
		t.Fatal(err)
	}
	if err := record.Node(root, "n1"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	next := rec
	next.Instance++
	if err := r.Save(next); !errors.Is(err, unix.EROFS) {
		t.Errorf("save: %v, want that the disk is read-only", err)
	}
	if err := r.Save(rec); err != nil {
		t.Errorf("saving what is there: %v", err)
	}
	if _, ok, err := r.Load(bad.Key, bad.UID); ok || err == nil || !strings.Contains(err.Error(), "could not be renamed") {
		t.Errorf("damaged: %t, %v", ok, err)
	}
	if all, _ := r.All(); len(all) != 1 {
		t.Errorf("%d readable, want 1", len(all))
	}
	if err := record.Node(root, "n1"); err != nil {
		t.Errorf("the same node: %v", err)
	}
	unlock, err := record.Lock(root)
	if err != nil {
		t.Fatalf("lock: %v", err)
	}
	defer unlock()
	var locked *record.LockedError
	if _, err := record.Lock(root); !errors.As(err, &locked) {
		t.Errorf("second lock: %v", err)
	}
}
