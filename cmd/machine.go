//go:build linux

package cmd

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// tellCgroups says what is ahead of a machine with cgroup v1 (F34, C-1.41.5).
func tellCgroups(log *slog.Logger) {
	if cgroupVersion() == 1 {
		log.Warn("This machine has cgroup v1, which is on its way out: the kubelet refuses it from 1.35 on, and runtimes will; " +
			"boot with systemd.unified_cgroup_hierarchy=1")
	}
}

// cgroupVersion is 1 or 2, and 0 where it is not known.
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

// descriptorsEvery is how often it is tried whether anything can be opened.
const descriptorsEvery = 5 * time.Second

// tellDescriptors says once that this process can open nothing more, and once that
// it can again (F10): whatever needs a file descriptor fails meanwhile, each in
// its own words. It returns at the end of ctx.
func tellDescriptors(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(descriptorsEvery)
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
				log.Info("There are file descriptors again")
			}
		case !out:
			var limit unix.Rlimit
			_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // 0 says that it is not known
			log.Warn("No file descriptor is left: pods run on, and what has to open something waits", "error", err, "limit", limit.Cur)
		}
		out = err != nil
	}
}
