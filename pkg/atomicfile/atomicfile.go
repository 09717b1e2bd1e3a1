// Package atomicfile replaces files: a reader, and an agent after a crash, finds the whole
// old or the whole new content.
//
// Write writes a temporary file beside the file and renames it. Whether the content must
// survive a loss of power is the caller's choice: Options.Sync, and SyncDir after it.
//
// If Write fails, the old file stays as it was.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Options say how Write writes a file.
type Options struct {
	// Mode of the file, whatever the umask; zero is 0600.
	Mode fs.FileMode
	// Temp names the temporary file. It is a suffix of the file's name (".tmp"): a file that
	// a crash left is overwritten, and writers of one file have to take turns. With a * it
	// is a pattern of os.CreateTemp in the file's directory. "" is the pattern ".NAME-*".
	Temp string
	// Sync makes the content reach the disk before the file gets its name.
	Sync bool
}

// Write replaces the content of the file at path, or creates it.
func Write(path string, data []byte, o Options) error {
	return WriteBy(path, o, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteBy is Write with the content that write produces.
func WriteBy(path string, o Options, write func(io.Writer) error) error {
	f, err := fill(path, o, os.O_WRONLY, write)
	if err != nil {
		return err
	}
	if err = f.Close(); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Rewrite is Write for a file that stays open: write writes the content, and the file is
// returned open for reads and appends. Options.Temp has to be a suffix.
func Rewrite(path string, o Options, write func(io.Writer) error) (*os.File, error) {
	f, err := fill(path, o, os.O_RDWR|os.O_APPEND, write)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// fill creates the temporary file of path and writes it. After an error it removes the
// file.
func fill(path string, o Options, flag int, write func(io.Writer) error) (*os.File, error) {
	f, err := create(path, o.Temp, flag)
	if err != nil {
		return nil, err
	}
	err = write(f)
	if err == nil && o.Mode != 0 {
		err = f.Chmod(o.Mode)
	}
	if err == nil && o.Sync {
		err = f.Sync()
	}
	if err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// create creates the temporary file of path, 0600.
func create(path, temp string, flag int) (*os.File, error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	switch {
	case temp == "":
		return os.CreateTemp(dir, "."+name+"-*")
	case strings.Contains(temp, "*"):
		return os.CreateTemp(dir, temp)
	}
	return os.OpenFile(path+temp, flag|os.O_CREATE|os.O_TRUNC|noFollow, 0o600)
}

// randomName is a name that the pattern ".NAME-*" gives a temporary file.
var randomName = regexp.MustCompile(`^\..+\.[a-z]+-[0-9]+$`)

// RemoveRandom removes the temporary files that killed writers without Options.Temp left in a
// directory. None may be writing there.
func RemoveRandom(dir string) {
	entries, _ := os.ReadDir(dir) // the next start tries again
	for _, e := range entries {
		if e.Type().IsRegular() && randomName.MatchString(e.Name()) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// SyncDir makes the names in a directory reach the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
