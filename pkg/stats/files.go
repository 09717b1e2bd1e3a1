package stats

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The limits of one answer: a container may have any number of processes and open files, and each costs a
// system call.
const (
	maxFilesOfGroup  = 20_000
	maxFilesOfAnswer = 400_000
)

// openFiles has the numbers of open files and sockets of a cgroup's processes.
type openFiles struct{ descriptors, sockets uint64 }

// fileCounter counts open files for one answer.
type fileCounter struct {
	ctx  context.Context
	proc string
	left int // of maxFilesOfAnswer
}

func newFileCounter(ctx context.Context, proc string) *fileCounter {
	return &fileCounter{ctx: ctx, proc: proc, left: maxFilesOfAnswer}
}

// count counts the open files and sockets of processes. ok is false if there are more than the limits, or the
// context has ended. A process that has exited has none.
func (f *fileCounter) count(pids []string) (all openFiles, ok bool) {
	left := min(maxFilesOfGroup, f.left)
	began := left
	defer func() { f.left -= began - max(left, 0) }()
	for _, pid := range pids {
		if left--; left < 0 || f.ctx.Err() != nil {
			return openFiles{}, false
		}
		dir, err := os.Open(filepath.Join(f.proc, pid, "fd"))
		if err != nil {
			continue
		}
		for {
			names, err := dir.Readdirnames(256)
			if left -= len(names); left < 0 {
				_ = dir.Close()
				return openFiles{}, false
			}
			for _, name := range names {
				all.descriptors++
				if isSocket(dir, name) {
					all.sockets++
				}
			}
			if err != nil || len(names) == 0 {
				break
			}
		}
		_ = dir.Close()
	}
	return all, true
}

// isSocket reports whether the link of a descriptor leads to a socket.
func isSocket(dir *os.File, name string) bool {
	var target [len("socket:")]byte
	n, err := unix.Readlinkat(int(dir.Fd()), name, target[:])
	return err == nil && string(target[:n]) == "socket:"
}

// firstProcess returns the oldest ancestor of the first of these processes that is also one of them. Usually
// that is the container's first process.
func firstProcess(proc string, pids []string) string {
	first := pids[0]
	for range min(len(pids), 100) {
		parent := parentOf(proc, first)
		if !slices.Contains(pids, parent) {
			break
		}
		first = parent
	}
	return first
}

// parentOf returns the process ID of a process's parent; "" if it is not known.
func parentOf(proc, pid string) string {
	line := text(filepath.Join(proc, pid), "stat")
	words := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(words) < 2 {
		return ""
	}
	return words[1]
}

// maxOpenFiles returns the soft limit of open files of a process; -1 if there is no limit.
func maxOpenFiles(proc, pid string) (float64, bool) {
	for line := range strings.Lines(text(filepath.Join(proc, pid), "limits")) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		words := strings.Fields(rest)
		if !ok || len(words) == 0 {
			continue
		}
		if words[0] == "unlimited" {
			return -1, true
		}
		n, err := strconv.ParseUint(words[0], 10, 64)
		return float64(n), err == nil
	}
	return 0, false
}
