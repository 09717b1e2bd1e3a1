package stats

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// diskTraffic is the I/O of one block device since the machine booted.
type diskTraffic struct {
	reads, readsMerged, sectorsRead      uint64
	writes, writesMerged, sectorsWritten uint64
	current                              uint64 // I/Os in progress
	reading, writing, busy, weighted     time.Duration
}

// readTraffic reads /proc/diskstats. The result is by the numbers of devices, such as "259:0".
func readTraffic(proc string) map[string]*diskTraffic {
	all := map[string]*diskTraffic{}
	for line := range strings.Lines(text(proc, "diskstats")) {
		words := strings.Fields(line)
		if len(words) < 14 {
			continue
		}
		var n [11]uint64
		for i := range n {
			n[i], _ = strconv.ParseUint(words[3+i], 10, 63)
		}
		ms := func(i int) time.Duration { return time.Duration(n[i]) * time.Millisecond }
		all[words[0]+":"+words[1]] = &diskTraffic{
			reads: n[0], readsMerged: n[1], sectorsRead: n[2], reading: ms(3),
			writes: n[4], writesMerged: n[5], sectorsWritten: n[6], writing: ms(7),
			current: n[8], busy: ms(9), weighted: ms(10),
		}
	}
	return all
}

// maxDisks limits the file systems of the machine that a scrape reads. diskPatience is how long it waits for
// each.
const (
	maxDisks     = 64
	diskPatience = time.Second
)

// hostDisks returns the file systems on the machine's disks and that of the agent's directory, by device.
func (s *Stats) hostDisks(ctx context.Context) map[string]disk {
	traffic := readTraffic(s.proc)
	all := map[string]disk{}
	for _, dir := range append([]string{s.cfg.RootDir}, diskMounts(text(filepath.Dir(s.mountinfo), filepath.Base(s.mountinfo)))...) {
		var d disk
		err := s.calls.Do(ctx, "file system at "+dir, diskPatience, func() (err error) { d, err = readDisk(dir); return err })
		if err == nil {
			d.traffic = traffic[d.device]
			all[deviceByNumber(s.sys, d.device)] = d
		}
	}
	return all
}

// diskMounts returns one mount point of each file system on a disk. Like cAdvisor, it takes those of the types
// ext2 to ext4, xfs and btrfs.
func diskMounts(mountinfo string) (dirs []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		mount, fs, _ := strings.Cut(strings.TrimSpace(line), " - ")
		at, kind := strings.Fields(mount), strings.Fields(fs)
		if len(at) < 5 || len(kind) < 2 || seen[at[2]] || strings.Contains(at[4], `\`) || len(dirs) == maxDisks {
			continue
		}
		if strings.HasPrefix(kind[0], "ext") || kind[0] == "xfs" || kind[0] == "btrfs" {
			seen[at[2]] = true
			dirs = append(dirs, at[4])
		}
	}
	return dirs
}
