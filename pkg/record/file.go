package record

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
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
	return syncDir(filepath.Dir(dir))
}

// replace puts data into path, 0600: whole, or not at all. After an error the
// old file stands. Writers of one path take turns.
func replace(path string, data []byte) error {
	if err := swap(path, data); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// tmpSuffix is that of a file which is not whole yet.
const tmpSuffix = ".tmp"

// swap is replace but for the directory, which the caller syncs.
func swap(path string, data []byte) error {
	tmp := path + tmpSuffix
	err := writeSynced(tmp, data)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
