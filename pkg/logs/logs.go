// Package logs keeps the logs of running containers small. It renames a log that has grown
// too large, makes the runtime begin a new one, and compresses the renamed ones. Above a
// limit it removes the oldest. The package also reads logs, and copies those of a removed pod.
//
// The engine calls Rotate periodically, with the log's path from the runtime. A container's log
// and its rotated files have the kubelet's names (C-1.43.1):
//
//	<attempt>.log                        the runtime writes to it
//	<attempt>.log.20060102-150405        the newest rotated file, which readers may still read
//	<attempt>.log.20060102-150405.gz     older ones
//	<attempt>.log.20060102-150405.tmp    being compressed
//
// At every moment, even after SIGKILL, each line that the runtime has written is in a file
// that the next rotation finds. Only the lines in the oldest files above the limit are
// removed.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The defaults of the zero Config (C-1.43.1).
const (
	defaultMaxSize  = 10 << 20
	defaultMaxFiles = 5
)

// ErrNotRegular says that a log's path is not a regular file: a pod may have put a link or a pipe
// there. No function of the package opens or changes it (F84).
var ErrNotRegular = errors.New("is not a regular file")

// Config is the configuration of a Rotator.
type Config struct {
	// Dir is the directory of all pods' logs. Rotate changes nothing outside it.
	Dir string
	// MaxSize is how large a log may grow, in bytes; 0 is 10 MiB, less than 0 means no
	// limit.
	MaxSize int64
	// MaxFiles is how many files a container's log may have, including the current one; 0
	// is 5.
	MaxFiles int
	// Plain leaves rotated logs uncompressed.
	Plain bool
	// Now returns the time of a rotation, for the file's name; nil is time.Now.
	Now func() time.Time
}

// Rotator rotates logs. It has no state between calls, and may be used by many goroutines,
// each for a different container.
type Rotator struct{ cfg Config }

// New returns a Rotator. It does no I/O.
func New(c Config) *Rotator {
	if c.MaxSize == 0 {
		c.MaxSize = defaultMaxSize
	}
	if c.MaxFiles <= 0 {
		c.MaxFiles = defaultMaxFiles
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Rotator{cfg: c}
}

// Rotate rotates the log at path, an absolute path below Config.Dir, if it is too large. reopen makes
// the runtime write to a new file at path. If reopen fails, the old file gets its name back. It is no
// error if the log does not exist, or disappears meanwhile (F84).
//
// After the rotation, Rotate compresses older logs. That may take long, and ctx ends it: the next
// rotation does the rest. After an error the container still logs.
func (r *Rotator) Rotate(ctx context.Context, path string, reopen func(context.Context) error) error {
	if r.cfg.MaxSize < 0 {
		return nil
	}
	dir, name, err := r.open(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rotate %s: %w", path, err)
	}
	defer dir.Close()
	rotated, err := r.rotate(ctx, dir, name, reopen)
	if err != nil {
		return fmt.Errorf("rotate %s: %w", path, err)
	}
	if !rotated {
		return nil
	}
	if err := r.tidy(ctx, dir, name); err != nil {
		return fmt.Errorf("tidy rotated logs of %s: %w", path, err)
	}
	return nil
}

// open opens the directory of a log below Dir, without following a link out of it.
func (r *Rotator) open(path string) (dir *os.Root, name string, err error) {
	rel, err := filepath.Rel(r.cfg.Dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, "", fmt.Errorf("it is not below %s", r.cfg.Dir)
	}
	all, err := os.OpenRoot(r.cfg.Dir)
	if err != nil {
		return nil, "", err
	}
	defer all.Close()
	dir, err = all.OpenRoot(filepath.Dir(rel))
	return dir, filepath.Base(rel), err
}

// rotate renames the log and makes the runtime begin a new one, if it is too large.
func (r *Rotator) rotate(ctx context.Context, dir *os.Root, name string, reopen func(context.Context) error) (rotated bool, err error) {
	info, err := dir.Lstat(name)
	switch {
	case gone(err):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, ErrNotRegular
	case info.Size() <= r.cfg.MaxSize:
		return false, nil
	}
	to, err := r.freeName(dir, name)
	if err != nil {
		return false, err
	}
	if err := dir.Rename(name, to); gone(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if err := reopen(ctx); err != nil {
		return false, errors.Join(fmt.Errorf("start a new log: %w", err), giveBack(dir, to, name))
	}
	return true, nil
}

// freeName returns the name for the rotated log, with a time that no other rotated log has.
func (r *Rotator) freeName(dir *os.Root, name string) (string, error) {
	for at := r.cfg.Now(); ; at = at.Add(time.Second) {
		to := name + "." + at.Format(stamp)
		_, plain := dir.Lstat(to)
		_, packed := dir.Lstat(to + packedSuffix)
		if gone(plain) && gone(packed) {
			return to, nil
		}
		for _, err := range []error{plain, packed} {
			if err != nil && !gone(err) {
				return "", err
			}
		}
	}
}

// giveBack gives a log its name back, unless the runtime has begun a new log in spite of its error. The
// old log then keeps its new name, because the new log would be lost otherwise.
func giveBack(dir *os.Root, rotated, name string) error {
	err := dir.Link(rotated, name)
	switch {
	case err == nil:
		err = dir.Remove(rotated)
	case errors.Is(err, fs.ErrExist):
		return nil
	case !gone(err): // on a file system without hard links
		err = dir.Rename(rotated, name)
	}
	if gone(err) {
		return nil
	}
	return err
}

// gone reports whether err says that a file does not exist.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// stampOf returns the time in the name of a rotated log, which begins with prefix; ok is
// false for other names.
func stampOf(name, prefix string) (text string, ok bool) {
	text, ok = strings.CutPrefix(name, prefix)
	text = strings.TrimSuffix(text, packedSuffix)
	_, err := time.Parse(stamp, text)
	return text, ok && err == nil
}
