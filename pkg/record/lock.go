package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// LockedError says that another process has locked a root directory.
type LockedError struct {
	Root string
	PID  int // of that process; 0 if unknown
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is in use by another nodectl", e.Root)
	}
	return fmt.Sprintf("%s is in use by another nodectl, process %d", e.Root, e.PID)
}

// Lock locks root for this process, until unlock is called or the process ends. It makes root if
// that does not exist. It does not wait: if another process holds the lock, the error is a
// *LockedError. There are two kernel locks: on root itself, and on the file <root>/lock, which also
// has the PID. On a read-only disk without that file, root's own lock is enough (F13).
func Lock(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	file, err := lockBoth(dir)
	if err != nil {
		dir.Close()
		return nil, err
	}
	return func() {
		// Unlock explicitly: a child process may have copies of the descriptors until it executes
		// its program.
		for _, f := range []*os.File{file, dir} {
			if f != nil {
				_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // if that fails, closing the last copy unlocks
				f.Close()
			}
		}
	}, nil
}

// lockBoth locks dir and the file in it, and writes the PID. The file is nil if it cannot
// be made on a read-only disk.
func lockBoth(dir *os.File) (*os.File, error) {
	root := dir.Name()
	path := filepath.Join(root, "lock")
	dirErr := flock(dir)
	if errors.Is(dirErr, syscall.EWOULDBLOCK) {
		return nil, &LockedError{Root: root, PID: holder(path)}
	}
	file, err := openLock(path)
	if errors.Is(err, syscall.EROFS) && dirErr == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	// A file system may lock files, but not directories.
	err = flock(file)
	if err != nil {
		file.Close()
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, &LockedError{Root: root, PID: holder(path)}
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	writePID(file)
	return file, nil
}

func flock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// openLock opens the file for writing, or for reading on a read-only disk.
func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if !errors.Is(err, syscall.EROFS) {
		return f, err
	}
	if f, readErr := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); readErr == nil {
		return f, nil
	}
	return nil, err
}

// writePID overwrites the previous PID and cuts off the rest, so that a full disk does not
// prevent it (F12). The lock also works without the PID.
func writePID(f *os.File) {
	text := strconv.Itoa(os.Getpid()) + "\n"
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		text = ""
	}
	_ = f.Truncate(int64(len(text)))
}

// holder returns the PID in the file of a lock, 0 if that names no running process: the process that
// holds the lock may not have written its PID yet.
func holder(path string) int {
	text, err := os.ReadFile(path)
	if err != nil || len(text) > 32 {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0
	}
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return 0
	}
	return pid
}
