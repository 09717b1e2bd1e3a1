package node

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Meter measures the resources that a machine may run short of.
type Meter struct {
	Root      string // of /proc and /sys
	NodeFs    string // a directory of the file system of pods' data
	ImageFs   string // of images; "" is not known
	LayerFs   string // of containers' writable layers; "" is that of images
	PodsGroup string // cgroup of all pods, as a directory of the cgroup file system; "" is not looked at
	PIDs      int64  // how many the kernel permits; 0 is not looked at
}

// Levels is the result of a measurement.
type Levels struct {
	Disks []Disk
	// By has memory and process IDs, by signal.
	By map[string]Level
	// Cached is the memory of files that the kernel can take back at once.
	Cached int64
}

// Disk is a file system. Data, Images and Writable say whether it holds the data of pods, the
// images, and the writable layers of containers.
type Disk struct {
	Dir                    string // the directory that was measured
	Bytes, Inodes          Level
	Data, Images, Writable bool

	device uint64
}

// Read measures every signal, as the kubelet does (C-1.35.2). Directories on one file system are
// one Disk. An error names the failed measurements; Measure still returns the other levels.
func (m Meter) Read() (Levels, error) {
	all := Levels{By: map[string]Level{}}
	var errs []error
	put := func(signal string, l Level, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", signal, err))
			return
		}
		all.By[signal] = l
	}
	l, cached, err := m.memory()
	put(pod.SignalMemory, l, err)
	all.Cached = cached
	if _, gone := os.Stat(m.PodsGroup); l.Capacity > 0 && m.PodsGroup != "" && gone == nil { // without pods it need not be there
		l, err = m.podsMemory(l.Capacity)
		put(pod.SignalPodsMemory, l, err)
	}
	errs = append(errs, all.disks(m))
	if m.PIDs > 0 {
		l, err = m.processes()
		put(pod.SignalPIDs, l, err)
	}
	return all, errors.Join(errs...)
}

func (all *Levels) disks(m Meter) error {
	var errs []error
	for _, at := range []struct {
		signal, dir string
		holds       func(*Disk)
	}{
		{pod.SignalNodeFs, m.NodeFs, func(d *Disk) { d.Data = true }},
		{pod.SignalImageFs, m.ImageFs, func(d *Disk) { d.Images = true }},
		{pod.SignalContainerFs, cmp.Or(m.LayerFs, m.ImageFs), func(d *Disk) { d.Writable = true }},
	} {
		if at.dir == "" {
			continue
		}
		var s unix.Stat_t
		if err := unix.Stat(at.dir, &s); err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", at.signal, &os.PathError{Op: "stat", Path: at.dir, Err: err}))
			continue
		}
		i := slices.IndexFunc(all.Disks, func(d Disk) bool { return d.device == s.Dev })
		if i < 0 {
			bytes, inodes, err := DiskLevels(at.dir)
			if err != nil {
				errs = append(errs, fmt.Errorf("measure %s: %w", at.signal, err))
				continue
			}
			i = len(all.Disks)
			all.Disks = append(all.Disks, Disk{Dir: at.dir, Bytes: bytes, Inodes: inodes, device: s.Dev})
		}
		at.holds(&all.Disks[i])
	}
	return errors.Join(errs...)
}

// memory measures the machine's memory: memory outside the working set is available.
func (m Meter) memory() (l Level, cached int64, err error) {
	total, err := memory(filepath.Join(m.Root, "proc"), "MemTotal")
	if err != nil {
		return Level{}, 0, err
	}
	group := filepath.Join(m.Root, "sys/fs/cgroup")
	if _, err := os.Stat(filepath.Join(group, "cgroup.controllers")); err != nil {
		group = filepath.Join(group, "memory")
	}
	used, cached, err := workingSet(group)
	return Level{Available: total - used, Capacity: total}, cached, err
}

// podsMemory measures the memory of all pods together, against the limit of their cgroup.
func (m Meter) podsMemory(total int64) (Level, error) {
	limit, err := number(filepath.Join(m.PodsGroup, "memory.max"))
	if errors.Is(err, os.ErrNotExist) {
		limit, err = number(filepath.Join(m.PodsGroup, "memory.limit_in_bytes"))
	}
	switch {
	case errors.Is(err, strconv.ErrSyntax): // "max"
		limit = total
	case err != nil:
		return Level{}, err
	}
	limit = min(limit, total)
	used, _, err := workingSet(m.PodsGroup)
	return Level{Available: limit - used, Capacity: limit}, err
}

// workingSet returns the memory of a cgroup that the kernel cannot reclaim at once; idle is the
// memory that it can. The root of cgroup v2 has no file with its usage; the sum comes from other
// files.
func workingSet(group string) (set, idle int64, err error) {
	stat, err := pairs(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0, 0, err
	}
	used, err := number(filepath.Join(group, "memory.current"))
	idle = stat["inactive_file"]
	if errors.Is(err, os.ErrNotExist) {
		used, err = number(filepath.Join(group, "memory.usage_in_bytes"))
		if total, ok := stat["total_inactive_file"]; ok {
			idle = total
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		used, err = stat["anon"]+stat["file"], nil
	}
	return max(used-idle, 0), idle, err
}

// processes counts processes and threads against the kernel's limit.
func (m Meter) processes() (Level, error) {
	path := filepath.Join(m.Root, "proc/loadavg")
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
	return Level{Available: m.PIDs - n, Capacity: m.PIDs}, nil
}

// DiskLevels returns the bytes and the inodes of the file system that holds dir. One
// that does not count inodes has no lack of them.
func DiskLevels(dir string) (bytes, inodes Level, err error) {
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
