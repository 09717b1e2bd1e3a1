package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// readSets reads every set below root. It calls damaged for each invalid file, and its error includes
// that of damaged. It calls left for each half-written file of a killed agent, and clear for each
// file with Secrets in clear text.
func readSets(root string, key *Key, damaged func(path string, damage error) error, left func(path string) error, clear func(dir string, d decoded) error) (map[string]Set, error) {
	dirs, err := layerDirs(root)
	errs := []error{err}
	all := make(map[string]Set, len(dirs))
	for _, dir := range dirs {
		r := setReader{dir: dir, key: key, damaged: damaged, left: left, clear: clear}
		r.read()
		errs = append(errs, r.errs...)
		if r.found {
			all[r.layer] = r.set
		}
	}
	if err := errors.Join(errs...); err != nil {
		return all, fmt.Errorf("last good sets: %w", err)
	}
	return all, nil
}

// setReader reads the set in one directory.
type setReader struct {
	dir     string
	key     *Key
	damaged func(path string, damage error) error
	left    func(path string) error
	clear   func(dir string, d decoded) error

	layer string
	found bool // layer is known
	set   Set
	errs  []error
}

func (r *setReader) read() {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.errs = append(r.errs, err)
	}
	var newest time.Time
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		switch {
		case strings.HasSuffix(e.Name(), tmpSuffix):
			_ = r.left(path) // a file that stays does no harm
		case e.Name() == layerFile:
			r.one(path, r.header)
		case strings.HasSuffix(e.Name(), setSuffix):
			if r.one(path, r.fileSet) {
				if info, err := e.Info(); err == nil && info.ModTime().After(newest) {
					newest = info.ModTime()
				}
			}
		}
	}
	if r.set.At.IsZero() {
		r.set.At = newest.UTC()
	}
	slices.SortFunc(r.set.Files, compareSets)
}

// one reads one file and reports whether it was valid.
func (r *setReader) one(path string, take func(name string, data []byte) error) bool {
	data, err := readPlain(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed between listing and reading
		return false
	case errors.Is(err, errTooLarge):
		r.errs = append(r.errs, r.damaged(path, err))
		return false
	case err != nil:
		r.errs = append(r.errs, err)
		return false
	}
	if err := take(filepath.Base(path), data); err != nil {
		r.errs = append(r.errs, r.damaged(path, err))
		return false
	}
	return true
}

// header reads the layer's header.
func (r *setReader) header(_ string, data []byte) error {
	l, err := decodeLayer(data)
	if err != nil {
		return err
	}
	if hashedName(l.Layer) != filepath.Base(r.dir) {
		return errMoved
	}
	r.layer, r.found, r.set.At = l.Layer, true, l.At
	return nil
}

// fileSet reads one file of the set.
func (r *setReader) fileSet(name string, data []byte) error {
	d, err := decodeFileSet(data, r.key)
	if err != nil {
		return err
	}
	if hashedName(d.layer) != filepath.Base(r.dir) || hashedName(d.File)+setSuffix != name {
		return errMoved
	}
	r.layer, r.found = d.layer, true
	if !d.Empty() {
		r.set.Files = append(r.set.Files, d.LastGoodSet)
	}
	if d.lost != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %s: %w", secretsLost, d.File, d.lost))
	}
	if d.clear {
		if err := r.clear(r.dir, d); err != nil {
			r.errs = append(r.errs, fmt.Errorf("encrypt the Secrets of %s: %w", d.File, err))
		}
	}
	return nil
}

var (
	errMoved    = errors.New("the file has the name of another layer or file")
	errTooLarge = errors.New("the file is larger than the limit of a set")
)

// readPlain reads a regular file up to the size limit of a set. It opens no file of another type, since
// reading a pipe may never end.
func readPlain(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read %s: not a regular file", path)
	case info.Size() > largestSet:
		return nil, errTooLarge
	}
	return os.ReadFile(path)
}

func compareSets(a, b pod.LastGoodSet) int { return strings.Compare(a.File, b.File) }
