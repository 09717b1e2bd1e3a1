package record

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// makeDir makes dir, closed to other users, and its missing parents. It syncs the entry of dir in its
// parent.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

// replace writes data to path atomically, with mode 0600, and syncs it. After an error the old file
// stays. Only one goroutine at a time may write a path.
func replace(path string, data []byte) error {
	if err := swap(path, data); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// tmpSuffix is the suffix of an incomplete file.
const tmpSuffix = ".tmp"

// swap is replace without the sync of the directory; the caller does that.
func swap(path string, data []byte) error {
	return atomicfile.Write(path, data, atomicfile.Options{Temp: tmpSuffix, Sync: true})
}
