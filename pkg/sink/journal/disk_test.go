package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/suite"
)

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

// Shows: F12
func TestF12_FullDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "journal.jsonl")
	j := open(t, path)
	report(t, j, testPod("a", "1"), false)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	// The page the journal ends in still has room: some lines fit, then none.
	last, failed := "1", 0
	for i := range 100 {
		message := fmt.Sprint(i, strings.Repeat("x", 500))
		switch err := j.Report(pod.StatusReport{Pod: testPod("a", message), Origin: from, Gone: false, At: t0}); {
		case err == nil:
			last = message
		case !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), secret):
			t.Fatalf("got %v, want that there is no room", err)
		default:
			failed++
		}
		want(t, path, map[string]string{"a": last})
	}
	if failed == 0 {
		t.Fatal("the disk was never full")
	}
	j.compact() // there is no room for that either, and nothing is lost by it
	want(t, path, map[string]string{"a": last})
	if left, _ := filepath.Glob(path + ".*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	report(t, j, testPod("a", "room again"), false)
	report(t, j, testPod("b", "1"), false)
	want(t, path, map[string]string{"a": "room again", "b": "1"})
}

// Shows: F13
func TestF13_ReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "journal.jsonl")
	j := New(path, nil)
	report(t, j, testPod("a", "1"), false)
	j.Close()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := j.Report(pod.StatusReport{Pod: testPod("a", "2"), Origin: from, Gone: false, At: t0}); !errors.Is(err, unix.EROFS) {
		t.Errorf("got %v, want that the disk is read-only", err)
	}
	want(t, path, map[string]string{"a": "1"})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	report(t, j, testPod("a", "2"), false)
	want(t, path, map[string]string{"a": "2"})
}
