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
	// largestSet is more than any manifest file becomes: what is larger is
	// damage, and not read into memory.
	largestSet = 256 << 20
)

// Set is what stood in one layer when it was last saved: its last good set.
type Set struct {
	Files []pod.Standing // in byte order of File, none of them empty
	At    time.Time      // when the layer was last read well
}

// Sets keeps the last good set of every layer under one root:
//
//	<root>/sources/<hash of the layer>/layer.json      the layer's name, and when it was last read well
//	<root>/sources/<hash of the layer>/<hash>.json     what stands in one of its files
//
// The real names are inside, under the checksum: a file that lies under another
// one's name is damaged. Secrets in there are encrypted (Key); files are 0600,
// directories 0700.
//
// Sets may be used by many goroutines; they take turns.
type Sets struct {
	dir string
	key *Key

	mu sync.Mutex
	// unsaved holds, by layer and file, what could not be saved: the next Save of
	// the layer tries again, so that a disk that was full for a while leaves no
	// gap.
	unsaved map[string]map[string]pod.Standing
}

// NewSets returns the sets under root, with Secrets encrypted with key. It touches
// nothing.
func NewSets(root string, key *Key) *Sets {
	return &Sets{dir: setsDir(root), key: key, unsaved: map[string]map[string]pod.Standing{}}
}

func setsDir(root string) string { return filepath.Join(root, "sources") }

// Load returns the set of every layer that was saved, by the layer's name. It
// returns them also with an error, which names each damaged file that was set
// aside as *.corrupt-<time> and counts as absent, and what could not be read.
// A damaged header costs the time alone: the newest file's stands in. What an
// agent that was killed left half-written is removed. Secrets that an older nodectl wrote
// in clear text are encrypted. One that cannot be decrypted is missing from its file.
func (s *Sets) Load() (map[string]Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return readSets(s.dir, s.key, func(path string, damage error) error {
		var version *versionError
		if errors.As(damage, &version) {
			return fmt.Errorf("read %s: %w", path, damage)
		}
		return setAside(path, damage)
	}, os.Remove, s.encrypt)
}

// LookSets returns what Load would, and changes nothing: it is for those who do
// not hold the root's lock. An error comes with what could be read, and names
// what could not.
func LookSets(root string, key *Key) (map[string]Set, error) {
	return readSets(setsDir(root), key, func(path string, damage error) error {
		return fmt.Errorf("read %s: %w", path, damage)
	}, func(string) error { return nil }, func(string, decoded) error { return nil })
}

// encrypt writes a file in dir again, which has Secrets in clear text.
func (s *Sets) encrypt(dir string, d decoded) error {
	wrote, err := saveStanding(dir, d.layer, d.Standing, s.key)
	if wrote {
		err = errors.Join(err, atomicfile.SyncDir(dir))
	}
	return err
}

// Save puts what stands now into the layer's set: each of changed replaces what
// the set has of its file, and one that is empty takes the file out. at is when
// the layer was last read well; Save with nothing changed puts down at alone.
//
// Each file is replaced atomically: whoever looks, and whatever ends when, there
// is the whole old or the whole new one. All has reached the disk when Save
// returns. What is there already is not written again. After an error the old
// version of what could not be saved stands, so does the old at, nothing else is
// left behind, and the next Save of the layer tries again.
func (s *Sets) Save(layer string, at time.Time, changed []pod.Standing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	todo := s.unsaved[layer]
	if todo == nil {
		todo = make(map[string]pod.Standing, len(changed))
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

// save does what todo says and takes out of it what is done. The error is that
// of the first file that failed.
func (s *Sets) save(layer string, at time.Time, todo map[string]pod.Standing) error {
	dir := filepath.Join(s.dir, hashedName(layer))
	for _, d := range []string{s.dir, dir} {
		if err := makeDir(d); err != nil {
			return err
		}
	}
	// What is there comes before what is gone: whatever ends in between, a pod
	// that moved from one file to another is in one of them.
	order := slices.SortedFunc(maps.Values(todo), func(a, b pod.Standing) int {
		if a.Empty() != b.Empty() {
			return map[bool]int{false: -1, true: 1}[a.Empty()]
		}
		return cmp.Compare(a.File, b.File)
	})
	var first error
	wrote := false
	for _, standing := range order {
		did, err := saveStanding(dir, layer, standing, s.key)
		wrote = wrote || did
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		delete(todo, standing.File)
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

// saveStanding writes one file of a set, or removes it. It reports whether the
// directory has changed, and leaves it to the caller to sync that.
func saveStanding(dir, layer string, standing pod.Standing, key *Key) (wrote bool, err error) {
	path := filepath.Join(dir, hashedName(standing.File)+setSuffix)
	if standing.Empty() {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	data, err := encodeStanding(layer, standing, key)
	if err != nil {
		return false, err
	}
	return write(path, data)
}

// write replaces the file unless it holds data already.
func write(path string, data []byte) (wrote bool, err error) {
	if old, err := readPlain(path); err == nil && bytes.Equal(old, data) {
		return false, nil
	}
	err = swap(path, data)
	return err == nil, err
}

// Forget removes the sets of all layers that keep is not true for: they are not
// configured any more. A directory that does not tell whose it is stays.
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
		return fmt.Errorf("forget sets: %w", err)
	}
	return nil
}

// layerDirs returns the directories that are layers'.
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

// owner returns the layer whose set lies in dir, as the header says or, where
// there is no good one, any file.
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
		if d, err := decodeStanding(data, noKey); err == nil && hashedName(d.layer) == filepath.Base(dir) {
			return d.layer, true
		}
	}
	return "", false
}
