package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// pause is the interval between tries to remove a cgroup.
const pause = 10 * time.Millisecond

// remove removes the directories of a pod's cgroup that are ours, with all cgroups in them. While they
// have processes, it tries again until wait is over. Its error then is an *occupiedError.
func (c *Cgroups) remove(t *tree, n name, wait time.Duration) error {
	mine, err := c.owned(t, n)
	if err != nil || len(mine) == 0 {
		return err
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(pause) {
		err := c.destroy(t, n, mine)
		if err == nil {
			return c.marks.forget(mine)
		}
		if left, _ := processes(mine); len(left) > 0 {
			err = &occupiedError{n.path(t.systemd), left}
		}
		if !time.Now().Before(deadline) {
			return err
		}
	}
}

// occupiedError says that a cgroup still has processes.
type occupiedError struct {
	cgroup    string
	processes []string
}

func (e *occupiedError) Error() string {
	return fmt.Sprintf("still in cgroup %s: %s", e.cgroup, strings.Join(e.processes, ", "))
}

// killRounds is how many rounds killAll kills processes. A round kills processes that were forked during
// the previous one.
const killRounds = 5

// killAll kills all processes in the pod's cgroups that are ours, and removes the cgroups.
func (c *Cgroups) killAll(t *tree, uid string) (err error) {
	for range killRounds {
		for _, class := range classes() {
			mine, err := c.owned(t, t.pod(class, uid))
			if err != nil {
				return err
			}
			for _, dir := range mine {
				kill(dir)
			}
		}
		if err = c.leave(t, uid, c.endTimeout/killRounds); err == nil {
			return nil
		}
	}
	return err
}

// kill kills the processes in a cgroup and below it. On cgroup v2 the kernel kills all of them at once.
// On cgroup v1 kill signals them one by one. It opens a pidfd of each, and then checks that the process
// ID is still in the cgroup. So it does not kill another process that has got the ID meanwhile.
func kill(dir string) {
	if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	pids, _ := cgroups.GetAllPids(dir)
	for some := range slices.Chunk(pids, 256) {
		held := map[int]int{}
		for _, pid := range some {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil { // else it has ended
				held[pid] = fd
			}
		}
		still, _ := cgroups.GetAllPids(dir)
		for _, pid := range still {
			if fd, ok := held[pid]; ok {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
		}
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}
}

// owned returns the directories of a cgroup that are ours.
func (c *Cgroups) owned(t *tree, n name) (mine []string, err error) {
	for _, dir := range t.host.dirs(n.path(t.systemd)) {
		o, _, err := c.marks.owner(dir)
		if err != nil {
			return nil, err
		}
		if o == ours {
			mine = append(mine, dir)
		}
	}
	return mine, nil
}

// destroy removes directories of a cgroup, if no process runs in any of them. Otherwise it removes none:
// systemd would end the processes, and on cgroup v1 some limits would be lost.
func (c *Cgroups) destroy(t *tree, n name, dirs []string) error {
	if left, err := processes(dirs); err != nil || len(left) > 0 {
		return errors.Join(errors.New("it is not empty"), err)
	}
	if t.systemd {
		m, err := t.host.manager(n, true, dirs)
		if err != nil {
			return err
		}
		return m.Destroy()
	}
	var failed error
	for _, dir := range dirs {
		failed = errors.Join(failed, removeTree(dir))
	}
	return failed
}

// removeTree removes a cgroup's directory and all below it.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	children, readErr := os.ReadDir(dir)
	if readErr != nil {
		return errors.Join(&os.PathError{Op: "rmdir", Path: dir, Err: err}, readErr)
	}
	nested := false
	for _, e := range children {
		if e.IsDir() {
			nested = true
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if nested {
		err = unix.Rmdir(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// prune removes the cgroups above the pods' cgroups that are ours and empty, after the last pod is
// gone; the caller holds mu. A cgroup that stays does no harm, and the next Ensure uses it.
func (c *Cgroups) prune(t *tree) {
	if len(t.pods) > 0 {
		return
	}
	for _, n := range slices.Backward(t.upper()) {
		mine, err := c.owned(t, n)
		if err != nil || len(mine) == 0 || slices.ContainsFunc(mine, occupied) {
			continue
		}
		if err := c.destroy(t, n, mine); err == nil {
			_ = c.marks.forget(mine) // entries that stay do no harm
		}
	}
	t.limited, t.shared = false, nil
}

// occupied reports whether a cgroup has children.
func occupied(dir string) bool {
	children, err := os.ReadDir(dir)
	return err != nil || slices.ContainsFunc(children, fs.DirEntry.IsDir)
}

// processes names the processes in these cgroups and below them, such as "12 (sh)".
func processes(dirs []string) (all []string, err error) {
	seen := map[int]bool{}
	for _, dir := range dirs {
		pids, failed := cgroups.GetAllPids(dir)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) && !errors.Is(failed, unix.ENODEV) { // it exists
			err = errors.Join(err, failed)
		}
		for _, pid := range pids {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			all = append(all, fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	return all, err
}
