package client

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Pack writes a file or a directory with all below it into a tar, under the name
// base. Symbolic links stay links. It leaves out other kinds of files, and calls note
// for each. It never follows a link out of source, even one that replaces a file or
// directory in the meantime.
func Pack(w io.Writer, source, base string, note func(string)) error {
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	dir, at := source, "."
	if !info.IsDir() {
		dir, at = filepath.Dir(source), filepath.Base(source)
	}
	return packFrom(w, info, dir, at, base, note)
}

// packFrom packs the file or directory that info describes, which is at a path in dir.
func packFrom(w io.Writer, info fs.FileInfo, dir, at, base string, note func(string)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if now, err := root.Lstat(at); err != nil || !os.SameFile(info, now) { // OpenRoot follows links
		return cmp.Or(err, fmt.Errorf("%s was exchanged while it was read", filepath.Join(dir, at)))
	}
	p := packer{tar.NewWriter(w), root, note}
	if err := p.pack(at, base); err != nil {
		return err
	}
	return p.out.Close()
}

// packer packs the files below root.
type packer struct {
	out  *tar.Writer
	root *os.Root
	note func(string)
}

// pack writes the file at a path under name, with everything below it.
func (p packer) pack(at, name string) error {
	info, err := p.root.Lstat(at)
	if err != nil {
		return err
	}
	link := ""
	var f *os.File
	switch kind := info.Mode().Type(); kind {
	case 0, fs.ModeDir:
		if f, err = p.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return err
		}
		defer f.Close()
		if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
			return cmp.Or(err, fmt.Errorf("%s was replaced while it was read", at))
		}
	case fs.ModeSymlink:
		if link, err = p.root.Readlink(at); err != nil {
			return err
		}
	default:
		p.note(filepath.Join(p.root.Name(), at) + " is not a file, directory or link: skipped")
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	h.Uname, h.Gname, h.Uid, h.Gid = "", "", 0, 0 // owners of this machine mean nothing in a container
	if err := p.out.WriteHeader(h); err != nil || f == nil {
		return err
	}
	if info.Mode().IsRegular() {
		_, err = io.CopyN(p.out, f, h.Size)
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s became shorter while it was read", at)
		}
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if err := p.pack(filepath.Join(at, n), path.Join(name, n)); err != nil {
			return err
		}
	}
	return nil
}

// Unpack writes the files and directories of a container's tar below the name base to
// target, and nothing anywhere else (CVE-2019-1002101, CVE-2019-11246, CVE-2019-11249,
// CVE-2019-11251). It leaves out links and devices, and calls note for each. A name that
// is not below base is an error; "." as base allows every name. It fails before it writes
// the file that exceeds most bytes in total: a sparse file of 1 KiB can declare 1 TiB. Each
// name above leastNames counts nameSize bytes, and so does each directory that a name makes.
func Unpack(r io.Reader, base, target string, most int64, note func(string)) error {
	above, last := filepath.Dir(target), filepath.Base(target)
	if err := os.MkdirAll(above, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(above)
	if err != nil {
		return err
	}
	defer root.Close()
	var inside *os.Root // target, opened at the first write: links below it cannot lead out
	defer func() {
		if inside != nil {
			_ = inside.Close()
		}
	}()
	names, before := int64(0), ""
	// The limit includes the data of entries that are left out, and the headers of all names.
	mostBytes := int64(math.MaxInt64)
	if most < math.MaxInt64/4 {
		mostBytes = 2*most + leastNames*nameSize + tarPadding
	}
	all := &io.LimitedReader{R: r, N: mostBytes}
	in, any := tar.NewReader(all), false
	for {
		h, err := in.Next()
		switch {
		case err != nil && all.N <= 0:
			return &TooLargeError{Size: mostBytes}
		case errors.Is(err, io.EOF) && !any:
			return errors.New("no file received: tar in the container wrote none")
		case errors.Is(err, io.EOF):
			return drain(all)
		case err != nil:
			return fmt.Errorf("read the container's tar: %w", err)
		}
		any = true
		rel, err := below(base, h.Name)
		if err != nil {
			return err
		}
		// A name of a PAX header may have 1 MiB: half a million directories. Those that it
		// shares with the previous name are counted already.
		names += 1 + int64(strings.Count(rel[shared(rel, before):], string(filepath.Separator)))
		before = rel
		if names-leastNames > most/nameSize {
			return &TooLargeError{Names: leastNames + most/nameSize}
		}
		if h.Typeflag == tar.TypeReg {
			if h.Size > most-nameSize*max(0, names-leastNames) {
				return &TooLargeError{Name: h.Name, Size: h.Size}
			}
			most -= h.Size
		}
		if rel == "." {
			err = unpackOne(root, last, h, in, note)
		} else if inside, err = within(root, last, inside); err == nil {
			err = unpackOne(inside, rel, h, in, note)
		}
		if err != nil {
			return err
		}
	}
}

// tarPadding is more than the padding of tar after the end of an archive: tar fills a record,
// of 10 KiB by default.
const tarPadding = 1 << 20

// drain reads the padding after the end of an archive.
func drain(r io.Reader) error {
	switch n, err := io.CopyN(io.Discard, r, tarPadding); {
	case n == tarPadding:
		return errors.New("the container sends data after the end of the tar")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

// Empty files and directories need disk space too: leastNames are free, and each further one
// counts as a block of the file system.
const (
	leastNames = 10_000
	nameSize   = 4 << 10 // also enough for the headers of one name, on average
)

// shared returns how many bytes a and b have in common at their beginning.
func shared(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// TooLargeError is the error of a tar with more bytes or more names than allowed.
type TooLargeError struct {
	Name  string // the file that is too large; "": the archive is
	Size  int64  // declared size of the file, or the limit of an archive
	Names int64  // limit of names; 0: the size is too large
}

func (e *TooLargeError) Error() string {
	if e.Names > 0 {
		return fmt.Sprintf("the container sends too much: more than %d names", e.Names)
	}
	if e.Name == "" {
		return fmt.Sprintf("the container sends too much: more than %d bytes", e.Size)
	}
	return fmt.Sprintf("the container sends too much: %q has %d bytes", e.Name, e.Size)
}

// within makes and opens a directory, unless is is open already.
func within(above *os.Root, name string, is *os.Root) (*os.Root, error) {
	if is != nil {
		return is, nil
	}
	if err := above.MkdirAll(name, 0o777); err != nil {
		return nil, err
	}
	return above.OpenRoot(name)
}

// below returns a name of a tar relative to base.
func below(base, name string) (string, error) {
	clean := path.Clean(strings.TrimPrefix(name, "./"))
	rel := clean
	if base != "." && base != "/" {
		switch rest, ok := strings.CutPrefix(clean, base+"/"); {
		case clean == base:
			rel = "."
		case ok:
			rel = rest
		default:
			return "", fmt.Errorf("the container sends %q, which was not requested", name)
		}
	}
	local := filepath.FromSlash(rel)
	if !filepath.IsLocal(local) || strings.ContainsRune(local, 0) {
		return "", fmt.Errorf("the container sends %q, which is outside the requested path", name)
	}
	return local, nil
}

func unpackOne(root *os.Root, name string, h *tar.Header, in io.Reader, note func(string)) error {
	mode := fs.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeReg:
	case tar.TypeSymlink, tar.TypeLink:
		note(fmt.Sprintf("%s is a link to %s: skipped", name, h.Linkname))
		return nil
	default:
		note(name + " is not a file or directory: skipped")
		return nil
	}
	if dir := filepath.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o200)
	if err != nil {
		return err
	}
	if isSparse(h) {
		err = copyHoles(f, in, h.Size)
	} else {
		_, err = io.Copy(f, in)
	}
	return errors.Join(err, f.Close())
}

// isSparse reports whether a file of a tar has holes. Sparse files of the old GNU format have
// their own type in archive/tar, which Unpack leaves out.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// copyHoles copies size bytes, and leaves a hole where there are zeros.
func copyHoles(f *os.File, in io.Reader, size int64) error {
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); at < size; {
		n, err := io.ReadFull(in, block[:min(int64(len(block)), size-at)])
		if err != nil {
			return err
		}
		if !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := f.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(size)
}
