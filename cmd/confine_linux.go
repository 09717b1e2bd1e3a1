package cmd

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confineReading takes from this process, by Landlock, what a command that reads manifests
// and prints does not do: to create, write, rename and remove files, to execute programs
// and, unless remote, to use TCP. Open files, such as the output, stay usable. It changes
// nothing on a kernel without Landlock.
func confineReading(remote bool) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch errno {
	case 0:
	case unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM: // the last from a container's system call filter
		return nil
	default:
		return fmt.Errorf("ask for the version of Landlock: %w", errno)
	}
	rules := landlockRules(int(version), remote)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules[0])), unsafe.Sizeof(rules[0])*uintptr(len(rules)), 0)
	if errno != 0 {
		return fmt.Errorf("create Landlock ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	// Both are of a thread; threads that start later inherit them.
	_, _, errno = syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errors.Is(errno, unix.ENOTSUP) { // a program with cgo, which no release is
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("restrict this process by Landlock: %w", errno)
	}
	return nil
}

// landlockRules returns struct landlock_ruleset_attr of this version of Landlock: the
// accesses to files and to TCP ports that are handled, hence refused.
func landlockRules(version int, remote bool) []uint64 {
	files := uint64(unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM)
	if version >= 2 {
		files |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		files |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 4 && !remote {
		return []uint64{files, unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP}
	}
	return []uint64{files}
}
