package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A store is a directory of the user's cache with the test binaries of the newest run of the first
// tier, of any clone. go caches compiled packages but no linked test binary. It does not link a
// binary again that is in its place and up to date. The files of a store are links to those of a
// clone, and take space only once the clone has other ones. It stays empty on another file system.
type store string

// openStore returns the store; "" without one. KEEP=no turns it off, as in hack/kept.
func openStore(o options) store {
	dir, err := os.UserCacheDir()
	if err != nil || o.tier != "first" || os.Getenv("KEEP") == "no" {
		return ""
	}
	return store(filepath.Join(dir, "nodectl", "tests"))
}

// restore copies the kept binaries into an empty directory. After a failure the run only takes
// longer.
func (s store) restore(out string) {
	for _, name := range s.names() {
		if link(filepath.Join(string(s), name), filepath.Join(out, name)) != nil {
			return
		}
	}
}

// keep adds the named binaries of out. If the names are complete, it removes all others. The caller
// has run the binaries before, so most of their content is on the disk.
func (s store) keep(out string, names []string, complete bool) error {
	if s == "" {
		return nil
	}
	stay := make(map[string]bool)
	var changed []string
	for _, name := range names {
		stay[name] = true
		if !sameFile(filepath.Join(out, name), filepath.Join(string(s), name)) {
			changed = append(changed, name)
		}
	}
	if len(changed) > 0 {
		// After a crash of the machine, a file may have its name and not its content.
		if err := syncDisk(out); err != nil {
			return err
		}
	}
	for _, name := range changed {
		if err := s.add(out, name); err != nil {
			return err
		}
	}
	for _, name := range s.names() {
		if complete && !stay[name] {
			if err := os.Remove(filepath.Join(string(s), name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// add links a binary of out under its name, in place of another one.
func (s store) add(out, name string) error {
	to := filepath.Join(string(s), name)
	part := fmt.Sprintf("%s.%d", to, os.Getpid()) // two runs may add at once
	if err := link(filepath.Join(out, name), part); err != nil {
		return err
	}
	if err := os.Rename(part, to); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

// names returns the paths of the kept binaries, relative to the store.
func (s store) names() []string {
	if s == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(string(s), "*", "*.test"))
	if err != nil {
		return nil
	}
	for i, file := range files {
		files[i] = filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))
	}
	return files
}

// link makes a second name of a file, and the directory of that name.
func link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Link(from, to); !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Remove(to); err != nil {
		return err
	}
	return os.Link(from, to)
}

// sameFile reports whether two names are those of one file.
func sameFile(a, b string) bool {
	one, err := os.Lstat(a)
	if err != nil {
		return false
	}
	other, err := os.Lstat(b)
	return err == nil && os.SameFile(one, other)
}

// syncDisk writes the cached data of dir's file system to the disk.
func syncDisk(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", dir, err)
	}
	return nil
}
