package logs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/test/suite"
)

// On a full disk the log is rotated, and a failed compression is reported and left for
// later; once there is room it is done.
//
// Shows: F12
func TestF12_FullDisk(t *testing.T) {
	suite.NeedsRoot(t, "the test mounts a small file system")
	p := newPlace(t)
	if err := unix.Mount("tmpfs", p.dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.writer.Close()
		if err := unix.Unmount(p.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p.begin()
	r := p.rotator(logs.Config{})
	first := strings.Repeat("first, incompressible or not\n", 100)
	p.write(first)
	p.rotate(r)
	p.write("second, long enough")
	filler := filepath.Join(p.root, "default_web_uid", "c", "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := r.Rotate(t.Context(), p.path, p.reopen); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "compress 0.log.20260102-030415") {
		t.Errorf("error %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.want(map[string]string{"0.log": "", "0.log.20260102-030415": first, "0.log.20260102-030416": "second, long enough"})
	p.write("third, long enough")
	p.rotate(r)
	p.want(map[string]string{
		"0.log": "", "0.log.20260102-030425": "third, long enough",
		"0.log.20260102-030415.gz": first, "0.log.20260102-030416.gz": "second, long enough",
	})
}
