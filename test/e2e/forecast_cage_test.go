package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cagedArg makes this test binary run another program: see caged.
const cagedArg = "in-a-cage"

// caged returns the command as run in a cage. Every file system that it sees is read-only,
// and the kernel ends it at once (SIGSYS) when it tries to open a file for writing, to
// create, change, rename or remove one, or to lock one. It may read files and use sockets.
// writable names a directory that would be writable without the cage.
func caged(cmd *exec.Cmd, writable string) *exec.Cmd {
	cmd.Args = append([]string{os.Args[0], cagedArg, writable, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/proc/self/exe"
	return cmd
}

// runCaged executes the program args name, in a cage.
func runCaged(writable string, args []string) error {
	runtime.LockOSThread() // the cage applies to the thread, and to the program that it executes
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("make / read-only: %w", err)
	}
	if err := os.Mkdir(filepath.Join(writable, "written"), 0o700); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("the cage is open: %w", errors.Join(err, errors.New(writable+" can be written to")))
	}
	filter, err := cage()
	if err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("close the cage: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("close the cage: %w", err)
	}
	return fmt.Errorf("%s: %w", args[0], unix.Exec(args[0], args, os.Environ()))
}

// cage returns the filter of system calls. Calls that only amd64 has, as rename without a
// directory, fail on the read-only file systems.
func cage() ([]unix.SockFilter, error) {
	arch, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !known {
		return nil, errors.New("no cage for " + runtime.GOARCH)
	}
	// Offsets in struct seccomp_data, of the lower half on both architectures.
	const number, architecture, second, third = 0, 4, 16 + 8, 16 + 2*8
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET, K: k} }
	end, allow := answer(unix.SECCOMP_RET_KILL_PROCESS), answer(unix.SECCOMP_RET_ALLOW)
	// equal skips the next n instructions unless the loaded value is k.
	equal := func(k uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: n}
	}
	// The calls of another architecture are unknown here: it ends the program.
	other := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jt: 1}
	f := []unix.SockFilter{load(architecture), other, end, load(number)}
	for _, nr := range []uint32{
		unix.SYS_FLOCK, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
		unix.SYS_MKNODAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE,
		unix.SYS_FALLOCATE, unix.SYS_UTIMENSAT, unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_OPENAT2,
	} {
		f = append(f, equal(nr, 1), end)
	}
	const writes = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC | unix.O_APPEND
	f = append(f, equal(unix.SYS_OPENAT, 4), load(third),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: writes, Jf: 1}, end, allow)
	locks := []uint32{unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_SETLK, unix.F_OFD_SETLKW}
	f = append(f, equal(unix.SYS_FCNTL, uint8(2*len(locks)+2)), load(second))
	for _, cmd := range locks {
		f = append(f, equal(cmd, 1), end)
	}
	return append(f, allow, allow), nil
}
