package record

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// makeDir makes dir, closed to other users, and what is missing above it. One
// that it made has reached the disk.
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

// replace puts data into path, 0600: whole, or not at all. After an error the
// old file stands. Writers of one path take turns.
func replace(path string, data []byte) error {
	if err := swap(path, data); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// tmpSuffix is that of a file which is not whole yet.
const tmpSuffix = ".tmp"

// swap is replace but for the directory, which the caller syncs.
func swap(path string, data []byte) error {
	return atomicfile.Write(path, data, atomicfile.Options{Temp: tmpSuffix, Sync: true})
}
