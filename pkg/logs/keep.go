package logs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The limits of Keep for one pod: containers, attempts of each, and bytes of each attempt.
const (
	keptContainers = 20
	keptAttempts   = 2
	keptBytes      = 1 << 20
)

// Keep copies the ends of the logs of a pod that is about to be removed to the directory to. from is
// the directory of the pod's logs, relative to dir. It copies the last MiB of the two newest logs of
// each container, for up to 20 containers. The copies have mode 0600. Keep copies only regular files:
// a pod may have put links or pipes there (F84). It continues after a failure, and the error names the
// logs that it could not copy.
func Keep(dir, from, to string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	containers, err := namesIn(root, from)
	if err != nil {
		return err
	}
	var errs []error
	for _, container := range containers[:min(len(containers), keptContainers)] {
		below := path.Join(from, container)
		attempts, err := attemptsIn(root, below)
		errs = append(errs, err)
		for _, n := range attempts {
			errs = append(errs, keepOne(root, path.Join(below, strconv.Itoa(n)+".log"), filepath.Join(to, container), n))
		}
	}
	return errors.Join(errs...)
}

func namesIn(root *os.Root, name string) ([]string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}

// attemptsIn returns the newest attempts of a container that have logs.
func attemptsIn(root *os.Root, below string) ([]int, error) {
	names, err := namesIn(root, below)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, name := range names {
		text, is := strings.CutSuffix(name, ".log")
		if n, err := strconv.Atoi(text); is && err == nil && n >= 0 {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all[max(0, len(all)-keptAttempts):], nil
}

// keepOne copies the end of one log to a file in the directory to.
func keepOne(root *os.Root, name, to string, attempt int) (err error) {
	if info, err := root.Lstat(name); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("copy %s: %w", name, ErrNotRegular)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may have become a pipe
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("copy %s: %w", name, ErrNotRegular)
	}
	if over := info.Size() - keptBytes; over > 0 {
		if _, err := f.Seek(over, io.SeekStart); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(to, strconv.Itoa(attempt)+".log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(f, keptBytes))
	return errors.Join(err, out.Close())
}

// KeepNewest removes subdirectories of dir whose names are numbers, and leaves those with the highest
// numbers: as many as the parameter most. It succeeds if dir does not exist.
func KeepNewest(dir string, most int) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	errs := []error{err}
	for _, n := range numbers[:max(0, len(numbers)-most)] {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, strconv.Itoa(n))))
	}
	return errors.Join(errs...)
}
