package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	layerFile = "layer.json" // the header of a layer's set
	setSuffix = ".json"
	// largestSet is larger than any manifest file: a larger file is damaged, and is not
	// read into memory.
	largestSet = 256 << 20
)

// Set is the last good set of a layer, as it was last saved.
type Set struct {
	Files []pod.LastGoodSet // in byte order of File, none of them empty
	At    time.Time         // when the layer was last read without an error
}

// Sets keeps the last good set of every layer under one root:
//
//	<root>/sources/<hash of the layer>/layer.json      the layer's name, and when it was last read without an error
//	<root>/sources/<hash of the layer>/<hash>.json     the content of one of its files
//
// Each file contains the real names of its layer and file, under its checksum. A file with the name of
// another one counts as damaged. Secrets are encrypted (Key). Files have mode 0600, directories 0700.
//
// Many goroutines may use Sets; their calls run one after the other.
type Sets struct {
	dir string
	key *Key

	mu sync.Mutex
	// unsaved holds the files that could not be saved, such as on a full disk, by layer and file.
	// The next Save of the layer tries again.
	unsaved map[string]map[string]pod.LastGoodSet
}

// NewSets returns the sets under root, with Secrets encrypted with key. It does no I/O.
func NewSets(root string, key *Key) *Sets {
	return &Sets{dir: setsDir(root), key: key, unsaved: map[string]map[string]pod.LastGoodSet{}}
}

func setsDir(root string) string { return filepath.Join(root, "sources") }

// Load returns the saved set of every layer, by the layer's name. If there is an error, the sets
// lack the files that it names: damaged ones, which Load has renamed to *.corrupt-<time>, and
// unreadable ones. A Secret that cannot be decrypted is missing from its file. If the header of a
// layer is damaged, At is the modification time of the newest file. Load removes half-written files
// of a killed agent, and encrypts Secrets that an older nodectl wrote in clear text.
func (s *Sets) Load() (map[string]Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]bool{} // the directories with a damaged file
	return readSets(s.dir, s.key, func(path string, damage error) error {
		var version *versionError
		if errors.As(damage, &version) {
			return fmt.Errorf("read %s: %w", path, damage)
		}
		if dir := filepath.Dir(path); !found[dir] {
			removeOldest(dir)
			found[dir] = true
		}
		return setAside(path, damage)
	}, os.Remove, s.encrypt)
}

// LookSets returns the sets like Load, but changes nothing: it is for callers without the root's
// lock. If there is an error, the sets lack the files that it names.
func ReadSets(root string, key *Key) (map[string]Set, error) {
	return readSets(setsDir(root), key, func(path string, damage error) error {
		return fmt.Errorf("read %s: %w", path, damage)
	}, func(string) error { return nil }, func(string, decoded) error { return nil })
}

// encrypt rewrites a file in dir that has Secrets in clear text.
func (s *Sets) encrypt(dir string, d decoded) error {
	wrote, err := saveFileSet(dir, d.layer, d.LastGoodSet, s.key)
	if wrote {
		err = errors.Join(err, atomicfile.SyncDir(dir))
	}
	return err
}

// Save updates the layer's set: each of changed replaces its file in the set, and an empty
// one removes the file. at is when the layer was last read without an error; Save without
// changes records only at.
//
// Each file is replaced atomically: a reader always finds the complete old or the complete new
// one. Everything is synced when Save returns. Unchanged files are not written again. After an
// error, the failed files and the saved time stay as they were, and no temporary file is left. The
// next Save of the layer tries the failed files again.
func (s *Sets) Save(layer string, at time.Time, changed []pod.LastGoodSet) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	todo := s.unsaved[layer]
	if todo == nil {
		todo = make(map[string]pod.LastGoodSet, len(changed))
	}
	for _, c := range changed {
		todo[c.File] = c
	}
	total := len(todo)
	err := s.save(layer, at, todo)
	if len(todo) == 0 {
		delete(s.unsaved, layer)
	} else {
		s.unsaved[layer] = todo
	}
	switch {
	case err == nil:
		return nil
	case len(todo) > 1:
		return fmt.Errorf("save the set of %s: %d of %d files, first: %w", layer, len(todo), total, err)
	}
	return fmt.Errorf("save the set of %s: %w", layer, err)
}

// save saves the files in todo and removes the saved ones from it. The error is that of the
// first file that failed.
func (s *Sets) save(layer string, at time.Time, todo map[string]pod.LastGoodSet) error {
	dir := filepath.Join(s.dir, hashedName(layer))
	for _, d := range []string{s.dir, dir} {
		if err := makeDir(d); err != nil {
			return err
		}
	}
	// New files come before removals: a pod that moves from one file to another is always
	// in one of them.
	order := slices.SortedFunc(maps.Values(todo), func(a, b pod.LastGoodSet) int {
		if a.Empty() != b.Empty() {
			return map[bool]int{false: -1, true: 1}[a.Empty()]
		}
		return cmp.Compare(a.File, b.File)
	})
	var first error
	wrote := false
	for _, fileSet := range order {
		did, err := saveFileSet(dir, layer, fileSet, s.key)
		wrote = wrote || did
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		delete(todo, fileSet.File)
	}
	if first == nil {
		header, err := encodeLayer(layer, at)
		if err != nil {
			return err
		}
		did, err := write(filepath.Join(dir, layerFile), header)
		wrote = wrote || did
		first = err
	}
	if wrote {
		first = cmp.Or(first, atomicfile.SyncDir(dir))
	}
	return first
}

// saveFileSet writes one file of a set, or removes it. It reports whether the directory
// has changed; the caller syncs that.
func saveFileSet(dir, layer string, fileSet pod.LastGoodSet, key *Key) (wrote bool, err error) {
	path := filepath.Join(dir, hashedName(fileSet.File)+setSuffix)
	if fileSet.Empty() {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	data, err := encodeFileSet(layer, fileSet, key)
	if err != nil {
		return false, err
	}
	return write(path, data)
}

// write replaces the file unless it has this content already.
func write(path string, data []byte) (wrote bool, err error) {
	if old, err := readPlain(path); err == nil && bytes.Equal(old, data) {
		return false, nil
	}
	err = swap(path, data)
	return err == nil, err
}

// Forget removes the sets of all layers for which keep is false: they are no longer
// configured. A directory without a readable layer name stays.
func (s *Sets) Forget(keep func(layer string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirs, err := layerDirs(s.dir)
	errs := []error{err}
	removed := false
	for _, dir := range dirs {
		layer, ok := owner(dir)
		if !ok || keep(layer) {
			continue
		}
		delete(s.unsaved, layer)
		errs = append(errs, os.RemoveAll(dir))
		removed = true
	}
	if removed {
		errs = append(errs, atomicfile.SyncDir(s.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove last good sets: %w", err)
	}
	return nil
}

// layerDirs returns the directories of layers.
func layerDirs(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() && len(e.Name()) == len(hashedName("")) {
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	return dirs, err
}

// owner returns the layer of the set in dir, from the header or, if that is damaged, from
// any file.
func owner(dir string) (layer string, ok bool) {
	if data, err := readPlain(filepath.Join(dir, layerFile)); err == nil {
		if l, err := decodeLayer(data); err == nil {
			return l.Layer, hashedName(l.Layer) == filepath.Base(dir)
		}
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), setSuffix) {
			continue
		}
		data, err := readPlain(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if d, err := decodeFileSet(data, noKey); err == nil && hashedName(d.layer) == filepath.Base(dir) {
			return d.layer, true
		}
	}
	return "", false
}
