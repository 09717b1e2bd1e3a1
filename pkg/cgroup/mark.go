package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/bootid"
)

// attribute is the extended attribute with a cgroup's owner, its mark. On a cgroup of ours, the attribute
// "trusted.nodectl.pod<uid>" claims its child of that name before the child is made. A child with a
// claim and without a mark is also ours: the agent was killed before it could mark the child.
const attribute = "trusted.nodectl"

// owner is the owner of a cgroup.
type owner int

const (
	noCgroup owner = iota // the cgroup does not exist
	unmarked              // it belongs to another program
	theirs                // it belongs to another nodectl
	ours
)

// marks reads and writes the marks of cgroups. A mark is an attribute of the cgroup, and disappears
// together with it. If the kernel does not support such attributes, a file lists our cgroups.
type marks struct {
	id   string // of this node and root directory
	file string
	set  func(path, name string, value []byte) error // sets an extended attribute

	mu   sync.Mutex
	list map[string]entry // by path; nil before it was read
}

// entry is the mark of a cgroup without an attribute.
type entry struct {
	Inode uint64 `json:"inode"` // 0: claimed, and not marked yet
	Mark  string `json:"mark"`
}

// listed is the file's content. It is valid for one boot, like the cgroups.
type listed struct {
	Boot    string           `json:"boot"`
	Cgroups map[string]entry `json:"cgroups"`
}

func newMarks(node, rootDir string) *marks {
	real, err := filepath.EvalSymlinks(rootDir)
	if err != nil {
		real = filepath.Clean(rootDir)
	}
	sum := sha256.Sum256([]byte(real))
	return &marks{
		id:   node + " " + hex.EncodeToString(sum[:8]),
		file: filepath.Join(rootDir, "cgroups.json"),
		set:  func(path, name string, value []byte) error { return unix.Lsetxattr(path, name, value, 0) },
	}
}

// value is the mark of a cgroup whose pod requests milli CPU.
func (m *marks) value(milli int64) string { return m.id + " " + strconv.FormatInt(milli, 10) }

// read returns the owner in a value, and its pod's CPU request.
func (m *marks) read(value string) (owner, int64) {
	rest, ok := strings.CutPrefix(value, m.id+" ")
	if !ok {
		return theirs, 0
	}
	milli, _ := strconv.ParseInt(rest, 10, 64)
	return ours, milli
}

// owner returns the owner of the cgroup in dir, and its pod's CPU request.
func (m *marks) owner(dir string) (owner, int64, error) {
	value, err := attributeOf(dir, attribute)
	switch {
	case err == nil:
		o, milli := m.read(value)
		return o, milli, nil
	case errors.Is(err, fs.ErrNotExist):
		return noCgroup, 0, nil
	case !missing(err):
		return 0, 0, err
	}
	var s unix.Stat_t
	if err := unix.Lstat(dir, &s); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return noCgroup, 0, nil
		}
		return 0, 0, &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.load(); err != nil {
		return 0, 0, err
	}
	if e, ok := m.list[dir]; ok && (e.Inode == 0 || e.Inode == s.Ino) {
		o, milli := m.read(e.Mark)
		return o, milli, nil
	}
	if value, err := attributeOf(filepath.Dir(dir), claimOf(dir)); err == nil {
		if o, milli := m.read(value); o == ours {
			return o, milli, nil
		}
	}
	return unmarked, 0, nil
}

// claim claims cgroups before they are made, in attributes of their parents. It skips cgroups whose
// parents are not ours: the package never changes the cgroups of other programs.
func (m *marks) claim(dirs []string, milli int64) error {
	var in []string
	for _, dir := range dirs {
		o, _, err := m.owner(filepath.Dir(dir))
		if err != nil {
			return err
		}
		if o == ours {
			in = append(in, dir)
		}
	}
	return m.write(in, func(dir string) error {
		return m.set(filepath.Dir(dir), claimOf(dir), []byte(m.value(milli)))
	}, func(string) entry { return entry{Mark: m.value(milli)} })
}

// mark marks existing cgroups.
func (m *marks) mark(dirs []string, milli int64) error {
	err := m.write(dirs, func(dir string) error {
		return m.set(dir, attribute, []byte(m.value(milli)))
	}, func(dir string) entry {
		var s unix.Stat_t
		_ = unix.Lstat(dir, &s) // it may have been removed meanwhile
		return entry{Inode: s.Ino, Mark: m.value(milli)}
	})
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		_ = unix.Lremovexattr(filepath.Dir(dir), claimOf(dir)) // most have no claim
	}
	return nil
}

// write calls set for each of dirs. If the kernel does not support attributes, it adds the entry that e
// returns to the file.
func (m *marks) write(dirs []string, set func(dir string) error, e func(dir string) entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for _, dir := range dirs {
		err := set(dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case refused(err):
			if err := m.load(); err != nil {
				return err
			}
			m.list[dir] = e(dir)
			changed = true
		default:
			return &os.PathError{Op: "mark", Path: dir, Err: err}
		}
	}
	if !changed {
		return nil
	}
	return m.save()
}

// forget drops the entries of removed cgroups.
func (m *marks) forget(dirs []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := false
	for _, dir := range dirs {
		_ = unix.Lremovexattr(filepath.Dir(dir), claimOf(dir))
		if _, ok := m.list[dir]; ok {
			delete(m.list, dir)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return m.save()
}

// settle removes claims in dir whose cgroups were never made.
func (m *marks) settle(dir string) {
	size, err := unix.Llistxattr(dir, nil)
	if err != nil || size == 0 {
		return
	}
	names := make([]byte, size+1024)
	if size, err = unix.Llistxattr(dir, names); err != nil {
		return
	}
	for attr := range strings.SplitSeq(string(names[:size]), "\x00") {
		child, ok := strings.CutPrefix(attr, attribute+".")
		if !ok {
			continue
		}
		value, err := attributeOf(dir, attr)
		if o, _ := m.read(value); err != nil || o != ours {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, child)); errors.Is(err, fs.ErrNotExist) {
			_ = unix.Lremovexattr(dir, attr)
		}
	}
}

// load reads the file once; the caller holds mu. It ignores a file of another boot.
func (m *marks) load() error {
	if m.list != nil {
		return nil
	}
	data, err := os.ReadFile(m.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var l listed
	if err == nil {
		if err := json.Unmarshal(data, &l); err != nil {
			return fmt.Errorf("read %s: %w", m.file, err)
		}
	}
	m.list = make(map[string]entry)
	if boot, _ := bootid.Read(); l.Boot == boot {
		for dir, e := range l.Cgroups {
			m.list[dir] = e
		}
	}
	return nil
}

// save replaces the file; the caller holds mu. It does not sync the file, which is valid only for this
// boot.
func (m *marks) save() error {
	boot, _ := bootid.Read()
	data, err := json.Marshal(listed{boot, m.list})
	if err != nil {
		return err
	}
	return atomicfile.Write(m.file, data, atomicfile.Options{Temp: ".tmp"})
}

func claimOf(dir string) string { return attribute + "." + filepath.Base(dir) }

// attributeOf reads a short extended attribute.
func attributeOf(path, name string) (string, error) {
	value := make([]byte, 512)
	n, err := unix.Lgetxattr(path, name, value)
	if err != nil {
		return "", &os.PathError{Op: "getxattr", Path: path, Err: err}
	}
	return string(value[:n]), nil
}

// missing reports whether the error says that the cgroup exists without the attribute.
func missing(err error) bool {
	return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ERANGE) || refused(err)
}

// refused reports whether the kernel does not support such attributes, or does not allow them for this
// process.
func refused(err error) bool {
	return errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}
