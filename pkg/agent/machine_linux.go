package agent

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// warnOfCgroupV1 warns on a machine with cgroup v1, which Kubernetes has deprecated (F34, C-1.41.5).
func warnOfCgroupV1(log *slog.Logger) {
	if cgroupVersion() == 1 {
		log.Warn("This machine uses cgroup v1, which Kubernetes has deprecated", "hint", "boot with systemd.unified_cgroup_hierarchy=1")
	}
}

// cgroupVersion returns 1 or 2, or 0 if it is unknown.
func cgroupVersion() int {
	var fs unix.Statfs_t
	switch err := unix.Statfs("/sys/fs/cgroup", &fs); {
	case err != nil:
		return 0
	case fs.Type == unix.CGROUP2_SUPER_MAGIC:
		return 2
	}
	return 1
}

// descriptorInterval is the interval in which watchDescriptors tries to open a file.
const descriptorInterval = 5 * time.Second

// watchDescriptors logs when this process runs out of file descriptors, and when it has some again
// (F10). Other errors in that time do not name the cause. It returns when ctx ends.
func watchDescriptors(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(descriptorInterval)
	defer tick.Stop()
	for out := false; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		switch {
		case err == nil:
			_ = unix.Close(fd)
			if out {
				log.Info("File descriptors are available again")
			}
		case !out:
			var limit unix.Rlimit
			_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // 0 means unknown
			log.Warn("Out of file descriptors: pods continue, and operations that open a file wait", "error", err, "limit", limit.Cur)
		}
		out = err != nil
	}
}
