package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// Embedded returns the manifest of the bundle in this binary; ok is false if it has none.
func Embedded() (m Manifest, ok bool, err error) {
	if carried == "" {
		return Manifest{}, false, nil
	}
	a, err := openArchive(strings.NewReader(carried))
	if err != nil {
		return Manifest{}, true, err
	}
	defer a.Close()
	return a.manifest, true, nil
}

// provide returns the directory with the programs, and unpacks or repairs it if necessary.
func (r *Runtime) provide() (bin string, err error) {
	var in io.Reader
	switch {
	case r.programs != "":
		return r.programs, nil
	case r.archive != "":
		f, err := os.Open(r.archive)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	case carried != "":
		in = strings.NewReader(carried)
	default:
		return "", ErrSlim
	}
	bin, fresh, err := unpack(in, r.unpacked)
	if fresh {
		// Unpacking takes several times the memory of an idle agent.
		putBack()
		debug.FreeOSMemory()
	}
	return bin, err
}

// An archive is an open bundle; its files are still to be read.
type archive struct {
	manifest Manifest
	tar      *tar.Reader
	raw      []byte // the manifest as it was read
	close    func()
}

func (a *archive) Close() { a.close() }

// openArchive reads the first file of a bundle, its manifest.
func openArchive(in io.Reader) (*archive, error) {
	// One goroutine and small buffers: unpacking happens once, but memory stays allocated.
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	a := &archive{tar: tar.NewReader(z), close: z.Close}
	h, err := a.tar.Next()
	if err == nil && h.Name != "manifest.json" {
		err = fmt.Errorf("it starts with %q, not with its manifest", h.Name)
	}
	if err == nil {
		a.raw, err = io.ReadAll(io.LimitReader(a.tar, manifestLimit))
	}
	if err == nil {
		a.manifest, err = readManifest(bytes.NewReader(a.raw))
	}
	if err != nil {
		z.Close()
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return a, nil
}

// unpack makes dir/<id> hold the files of the bundle in, each as in its manifest, and
// returns that directory. A correct directory is used as it is, and fresh is false. A new
// directory appears complete or not at all.
func unpack(in io.Reader, dir string) (final string, fresh bool, err error) {
	a, err := openArchive(in)
	if err != nil {
		return "", false, err
	}
	defer a.Close()
	final = filepath.Join(dir, a.manifest.ID)
	if intact(final, a.manifest) {
		return final, false, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", false, err
	}
	if err := removeAbandoned(dir); err != nil {
		return "", false, err
	}
	tmp, err := os.MkdirTemp(dir, temporary)
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(tmp)
	if err := a.extract(tmp); err != nil {
		return "", false, fmt.Errorf("unpack the container runtime: %w", err)
	}
	if err := mark(tmp, a.manifest); err != nil {
		return "", false, err
	}
	// A damaged directory is moved aside first; programs that run from it go on.
	old := tmp + ".old"
	if err := os.Rename(final, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", false, err
	}
	defer os.RemoveAll(old)
	if err := os.Rename(tmp, final); err != nil {
		return "", false, err
	}
	return final, true, atomicfile.SyncDir(dir)
}

// temporary is the prefix of a directory that is being unpacked to.
const temporary = ".unpack-"

// removeAbandoned removes the directories of a killed unpacking. The caller holds the lock,
// so no other process unpacks.
func removeAbandoned(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, temporary+"*"))
	for _, d := range left {
		err = errors.Join(err, os.RemoveAll(d))
	}
	return err
}

// extract writes the archive's files below dir and checks each against the manifest. A file
// that is not in the manifest, or one that is missing, is an error.
func (a *archive) extract(dir string) error {
	want := map[string]File{}
	for _, f := range a.manifest.Files {
		want[f.Path] = f
	}
	for {
		h, err := a.tar.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		f, ok := want[h.Name]
		if !ok {
			return fmt.Errorf("%s: not in the manifest", h.Name)
		}
		delete(want, h.Name)
		if err := extractFile(filepath.Join(dir, f.Path), f, a.tar); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	for path := range want {
		return fmt.Errorf("%s: missing", path)
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), a.raw, 0o644)
}

func extractFile(name string, f File, in io.Reader) error {
	perm, err := f.perm()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	defer out.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(in, f.Size+1))
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != f.Size || got != f.SHA256 {
		return fmt.Errorf("damaged: %d bytes with sum %s, not %d with %s", n, got, f.Size, f.SHA256)
	}
	// The agent's umask must not restrict who can run the programs.
	if err := out.Chmod(perm); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return out.Close()
}

// markFile records the stat data of each file when its contents were checked.
const markFile = ".verified"

// seen is the stat data of a file; ctime changes with every write.
type seen struct {
	Size  int64
	Mode  uint32
	UID   uint32 `json:"Uid"`
	Ino   uint64
	Ctime int64
}

func statFile(name string) (seen, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return seen{}, err
	}
	return seen{Size: st.Size, Mode: st.Mode, UID: st.Uid, Ino: st.Ino, Ctime: st.Ctim.Nano()}, nil
}

// mark records that the files of dir are as m says.
func mark(dir string, m Manifest) error {
	marks := map[string]seen{}
	for _, f := range m.Files {
		s, err := statFile(filepath.Join(dir, f.Path))
		if err != nil {
			return err
		}
		marks[f.Path] = s
	}
	js, err := json.Marshal(marks)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, markFile), js, atomicfile.Options{Temp: ".tmp"})
}

// intact reports whether every file of m is in dir and correct. It trusts files with the
// stat data of the last check, and reads the others again.
func intact(dir string, m Manifest) bool {
	marks := map[string]seen{}
	if js, err := os.ReadFile(filepath.Join(dir, markFile)); err == nil {
		_ = json.Unmarshal(js, &marks) // files without a mark are read again
	}
	reread := false
	for _, f := range m.Files {
		now, err := statFile(filepath.Join(dir, f.Path))
		if err != nil {
			return false
		}
		if now == marks[f.Path] {
			continue
		}
		if !f.matches(filepath.Join(dir, f.Path), now) {
			return false
		}
		reread = true
	}
	if reread {
		_ = mark(dir, m) // without it the next start reads the files again
	}
	return true
}

// matches reports whether the file is as in the manifest: a regular file of root's, with
// its mode, size and contents.
func (f File) matches(name string, s seen) bool {
	perm, err := f.perm()
	if err != nil || s.Mode != unix.S_IFREG|uint32(perm) || s.Size != f.Size || int(s.UID) != os.Geteuid() {
		return false
	}
	in, err := os.Open(name)
	if err != nil {
		return false
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return false
	}
	return hex.EncodeToString(sum.Sum(nil)) == f.SHA256
}

// prune removes unpacked bundles from which no process runs. Shims outlive the containerd
// that started them, so an old bundle stays until the last of its pods has ended.
func (r *Runtime) prune(keep string) {
	if r.programs != "" {
		return
	}
	dirs, err := filepath.Glob(filepath.Join(r.unpacked, "*"))
	if err != nil {
		return
	}
	used := inUse(dirs)
	for _, d := range dirs {
		if d == keep || used[d] {
			continue
		}
		if err := os.RemoveAll(d); err != nil {
			r.log.Warn("Failed to remove an old bundle", "directory", d, "error", err)
		}
	}
}
