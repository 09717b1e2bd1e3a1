package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	dataLink = "..data"                // leads to the directory with the current content
	nextLink = "..data_tmp"            // is renamed to dataLink
	stamp    = "..2006_01_02_15_04_05" // prefix of a directory of content
)

// writer replaces all the files of a volume at once (C-1.37.6): the files are in a
// directory of their own, a link leads to it, and a rename makes the link lead to the next
// directory. A reader that opens the directory through the link has the old files or the
// new ones. A reader on the way to a removed file opens it again and finds the new one.
//
//	..2026_03_01_12_00_00.123456789/key
//	..data -> ..2026_03_01_12_00_00.123456789
//	key -> ..data/key
//
// If the agent ends between any two steps, the old or the new files stay, with leftovers that the
// next write removes. If the files are unchanged, nothing is written.
type writer struct {
	root  *os.Root
	group *int64
	// step is called after each step unless it is nil; tests end the process there.
	step func()
}

func (w *writer) write(all files) error {
	all, err := clean(all)
	if err != nil {
		return err
	}
	now, err := w.root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !isStamp(now) || !w.same(now, all) {
		// Old directories of content may fill the disk.
		if err := w.tidy(now, nil); err != nil {
			return err
		}
		if now, err = w.next(all); err != nil {
			return err
		}
	}
	if err := w.link(all); err != nil {
		return err
	}
	return w.tidy(now, all)
}

// clean returns the files by their clean paths; a path below another one is an error.
func clean(all files) (files, error) {
	out := make(files, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := checkPath(name); err != nil {
			return nil, fmt.Errorf("invalid path %q: %w", name, err)
		}
		out[path.Clean(name)] = all[name]
	}
	names := slices.SortedFunc(maps.Keys(out), func(a, b string) int {
		return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
	})
	for i := 1; i < len(names); i++ { // a path below a name follows it
		if above := names[i-1]; strings.HasPrefix(names[i], above+"/") {
			return nil, fmt.Errorf("invalid path %q: %q is a file", names[i], above)
		}
	}
	return out, nil
}

// checkPath returns an error if path is not allowed for a file of a volume.
func checkPath(name string) error {
	if name == "" || path.Clean(name) == "." {
		return errors.New("must not be empty")
	}
	if path.IsAbs(name) {
		return errors.New("must be a relative path")
	}
	if len(name) > syscall.PathMax-1 {
		return fmt.Errorf("must be at most %d characters", syscall.PathMax-1)
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return errors.New("must not contain '..'")
		case len(part) > syscall.NAME_MAX:
			return fmt.Errorf("file names must be at most %d characters", syscall.NAME_MAX)
		case strings.ContainsRune(part, 0):
			return errors.New("must not contain a zero byte")
		}
	}
	if strings.HasPrefix(path.Clean(name), "..") {
		return errors.New("must not start with '..'")
	}
	return nil
}

// isStamp reports whether name is that of a directory of content.
func isStamp(name string) bool {
	if len(name) <= len(stamp) || strings.Contains(name, "/") {
		return false
	}
	_, err := time.Parse(stamp, name[:len(stamp)])
	return err == nil && name[len(stamp)] == '.'
}

// same reports whether dir has these files and no others.
func (w *writer) same(dir string, all files) bool {
	found := 0
	err := fs.WalkDir(w.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, ok := all[strings.TrimPrefix(name, dir+"/")]
		if !ok || !d.Type().IsRegular() {
			return fs.ErrInvalid
		}
		if info, err := d.Info(); err != nil || info.Size() != int64(len(f.data)) {
			return fs.ErrInvalid
		}
		text, err := w.root.ReadFile(name)
		if err != nil || !bytes.Equal(text, f.data) {
			return fs.ErrInvalid
		}
		found++
		return nil
	})
	return err == nil && found == len(all)
}

// next writes the files into a new directory and makes dataLink lead to it. If that fails it
// removes the directory, so that the next try has the space.
func (w *writer) next(all files) (dir string, err error) {
	for at := time.Now().UTC(); ; at = at.Add(time.Nanosecond) {
		dir = at.Format(stamp + ".000000000")
		if err = w.root.Mkdir(dir, 0o700); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return "", err
	}
	w.done()
	if err := w.fill(dir, all); err != nil {
		return "", errors.Join(err, w.root.RemoveAll(dir))
	}
	return dir, nil
}

// fill writes the files into dir and makes dataLink lead to it.
func (w *writer) fill(dir string, all files) error {
	if err := w.root.Chmod(dir, 0o755); err != nil { // the agent's umask may have cleared bits
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := w.file(dir, name, all[name]); err != nil {
			return err
		}
		w.done()
	}
	if w.group != nil {
		f, err := w.root.Open(dir)
		if err != nil {
			return err
		}
		err = setGroupBelow(context.Background(), f, *w.group, true)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		w.done()
	}
	if err := w.root.Remove(nextLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w.done()
	if err := w.root.Symlink(dir, nextLink); err != nil {
		return err
	}
	w.done()
	if err := w.root.Rename(nextLink, dataLink); err != nil {
		return err
	}
	w.done()
	return nil
}

// file writes one file and the directories above it.
func (w *writer) file(dir, name string, f file) error {
	for i, c := range name {
		if c != '/' {
			continue
		}
		above := dir + "/" + name[:i]
		err := w.root.Mkdir(above, 0o700)
		if err == nil {
			err = w.root.Chmod(above, 0o755)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	to, err := w.root.OpenFile(dir+"/"+name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = to.Write(f.data)
	if err == nil && f.owner != nil {
		err = to.Chown(int(*f.owner), -1)
	}
	if err == nil {
		err = to.Chmod(f.mode)
	}
	return errors.Join(err, to.Close())
}

// link makes the links that users see, if they are missing.
func (w *writer) link(all files) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		first, _, _ := strings.Cut(name, "/")
		if _, err := w.root.Lstat(first); err == nil {
			continue // a mount point of that name hides it, as in the kubelet
		}
		if err := w.root.Symlink(dataLink+"/"+first, first); err != nil {
			return err
		}
		if owner := all[name].owner; owner != nil {
			if err := w.root.Lchown(first, int(*owner), -1); err != nil {
				return err
			}
		}
		w.done()
	}
	return nil
}

// tidy removes the links to files that are no longer shown, and all directories of content
// except the current one. If all is nil the links stay.
func (w *writer) tidy(now string, all files) error {
	shown := map[string]bool{}
	for name := range all {
		first, _, _ := strings.Cut(name, "/")
		shown[first] = true
	}
	dir, err := w.root.Open(".")
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		link := e.Type() == fs.ModeSymlink && name != dataLink
		switch {
		case link && all != nil && !shown[name], e.IsDir() && isStamp(name) && name != now:
			if err := w.root.RemoveAll(name); err != nil {
				return err
			}
			w.done()
		}
	}
	return nil
}

func (w *writer) done() {
	if w.step != nil {
		w.step()
	}
}
