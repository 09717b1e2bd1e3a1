package node

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// places is where Measure looks.
type places struct {
	root      string // of /proc and /sys
	nodeFs    string // a directory of the file system of pods' data
	imageFs   string // of images; "" is not known
	podsGroup string // cgroup of all pods, as a directory of the cgroup file system; "" is not looked at
	pids      int64
}

// levels measures every signal, as the kubelet does (C-1.35.2). An error names what
// could not be measured; the other levels are returned.
func (p places) levels() (map[string]Level, error) {
	all := map[string]Level{}
	var errs []error
	put := func(signal string, l Level, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", signal, err))
			return
		}
		all[signal] = l
	}
	l, err := p.memory()
	put(pod.SignalMemory, l, err)
	if _, gone := os.Stat(p.podsGroup); p.podsGroup != "" && gone == nil { // without pods it need not be there
		l, err = p.podsMemory(l.Capacity)
		put(pod.SignalPodsMemory, l, err)
	}
	bytes, inodes, err := Disk(p.nodeFs)
	put(pod.SignalNodeFs, bytes, err)
	put(pod.SignalNodeInodes, inodes, err)
	if p.imageFs != "" {
		bytes, inodes, err = Disk(p.imageFs)
		put(pod.SignalImageFs, bytes, err)
		put(pod.SignalImageInodes, inodes, err)
	}
	// Containers' layers lie where images do.
	put(pod.SignalContainerFs, bytes, err)
	put(pod.SignalContainerInos, inodes, err)
	if p.pids > 0 {
		l, err = p.processes()
		put(pod.SignalPIDs, l, err)
	}
	return all, errors.Join(errs...)
}

// memory is the machine's: what is not in a working set is available.
func (p places) memory() (Level, error) {
	total, err := memory(filepath.Join(p.root, "proc"), "MemTotal")
	if err != nil {
		return Level{}, err
	}
	group := filepath.Join(p.root, "sys/fs/cgroup")
	if _, err := os.Stat(filepath.Join(group, "cgroup.controllers")); err != nil {
		group = filepath.Join(group, "memory")
	}
	used, err := workingSet(group)
	return Level{Available: total - used, Capacity: total}, err
}

// podsMemory is that of all pods together, held to what their cgroup allows.
func (p places) podsMemory(total int64) (Level, error) {
	limit, err := number(filepath.Join(p.podsGroup, "memory.max"))
	if errors.Is(err, os.ErrNotExist) {
		limit, err = number(filepath.Join(p.podsGroup, "memory.limit_in_bytes"))
	}
	switch {
	case errors.Is(err, strconv.ErrSyntax): // "max"
		limit = total
	case err != nil:
		return Level{}, err
	}
	limit = min(limit, total)
	used, err := workingSet(p.podsGroup)
	return Level{Available: limit - used, Capacity: limit}, err
}

// workingSet is what a cgroup uses of memory and the kernel cannot take back at
// once. The root of cgroup v2 does not say what it uses; its parts do.
func workingSet(group string) (int64, error) {
	stat, err := pairs(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0, err
	}
	used, err := number(filepath.Join(group, "memory.current"))
	idle := stat["inactive_file"]
	if errors.Is(err, os.ErrNotExist) {
		used, err = number(filepath.Join(group, "memory.usage_in_bytes"))
		if total, ok := stat["total_inactive_file"]; ok {
			idle = total
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		used, err = stat["anon"]+stat["file"], nil
	}
	return max(used-idle, 0), err
}

// processes counts processes and threads against the kernel's limit.
func (p places) processes() (Level, error) {
	path := filepath.Join(p.root, "proc/loadavg")
	data, err := os.ReadFile(path)
	if err != nil {
		return Level{}, err
	}
	words := strings.Fields(string(data)) // 0.20 0.18 0.12 1/80 11206
	if len(words) < 4 {
		return Level{}, fmt.Errorf("%s: no number of processes in %q", path, data)
	}
	_, text, _ := strings.Cut(words[3], "/")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return Level{}, fmt.Errorf("%s: %w", path, err)
	}
	return Level{Available: p.pids - n, Capacity: p.pids}, nil
}

// Disk returns the bytes and the inodes of the file system that holds dir. One
// that does not count inodes has no lack of them.
func Disk(dir string) (bytes, inodes Level, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Level{}, Level{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	size := cmp.Or(int64(s.Frsize), int64(s.Bsize))
	return Level{int64(s.Bavail) * size, int64(s.Blocks) * size}, Level{int64(s.Ffree), int64(s.Files)}, nil
}

func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return int64(min(n, 1<<62)), nil
}

// pairs reads a file of names and numbers.
func pairs(path string) (map[string]int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			all[name] = n
		}
	}
	return all, nil
}
