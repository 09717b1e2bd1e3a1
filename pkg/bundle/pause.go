package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// pauseCalls are the system calls of the bundle's pause program (hack/bundle/pause), with
// those of its C library's start.
var pauseCalls = []string{
	"arch_prctl", "brk", "exit", "exit_group", "getrandom", "mprotect", "prlimit64",
	"readlink", "readlinkat", "restart_syscall", "rseq", "rt_sigprocmask", "rt_sigreturn",
	"rt_sigtimedwait", "set_robust_list", "set_tid_address", "wait4",
}

// startCalls are the system calls of runc between the filter and the program, and those
// that the Go runtime may make meanwhile.
var startCalls = []string{
	"clock_gettime", "close", "close_range", "epoll_create1", "epoll_ctl", "epoll_pwait",
	"eventfd2", "execve", "faccessat2", "fcntl", "fstat", "fstatfs", "futex", "getdents64",
	"getpid", "gettid", "madvise", "mmap", "munmap", "nanosleep", "newfstatat", "openat",
	"openat2", "pread64", "read", "rt_sigaction", "sched_getaffinity", "sched_yield",
	"sigaltstack", "statx", "tgkill", "write",
}

// threads allows clone for the threads of the Go runtime, but not for processes.
var threads = map[string]any{
	"names": []string{"clone"}, "action": "SCMP_ACT_ALLOW",
	"args": []map[string]any{{"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": unix.CLONE_THREAD, "valueTwo": unix.CLONE_THREAD}},
}

// pauseProfile returns the pause program's seccomp profile, in the format of runc and CRI.
func pauseProfile() ([]byte, error) {
	names := slices.Sorted(slices.Values(slices.Concat(pauseCalls, startCalls)))
	return json.MarshalIndent(map[string]any{
		"defaultAction": "SCMP_ACT_ERRNO",
		"syscalls":      []map[string]any{{"names": names, "action": "SCMP_ACT_ALLOW"}, threads},
	}, "", "  ")
}

// PauseProfile returns the path of the seccomp profile for the sandboxes of this runtime.
// It writes the file if it is missing or of another version. It is "" on a kernel without
// seccomp filters. The pause container needs few of the calls that the runtime's default
// allows, and a short filter is compiled faster.
func (r *Runtime) PauseProfile() (string, error) {
	// A kernel with filters returns EFAULT, because the call passes none.
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0); errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	want, err := pauseProfile()
	if err != nil {
		return "", err
	}
	r.profile.Lock()
	defer r.profile.Unlock()
	name := filepath.Join(r.root, "pause-seccomp.json")
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, want) {
		return name, nil
	}
	if err := atomicfile.Write(name, want, atomicfile.Options{Temp: ".tmp"}); err != nil {
		return "", fmt.Errorf("write seccomp profile of sandboxes: %w", err)
	}
	return name, nil
}
