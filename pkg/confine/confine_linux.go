// Package confine takes rights from this process that it does not need, by Landlock, seccomp and
// capabilities: of a command that reads manifests and prints (Reading), and of a server that
// answers on open sockets (Serving). Input that exploits a parser gains none of them.
//
// A process that has given up a right cannot get it back.
package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reading drops the rights that a command that reads manifests and prints does not
// need: to create, write, truncate, rename and remove files, to change their owners, modes and
// attributes, to start processes and execute programs, to act on other processes, to type into
// its terminal, to make sockets of any kind or, if remote, of any kind but those of IPv4 and
// IPv6 (a container runtime listens on a Unix socket). It keeps only the capability to read every file. Open files and
// connections stay usable. If the kernel lacks Landlock or seccomp, it applies the rest.
func Reading(remote bool) error {
	// All of this applies to a thread; threads that start later inherit it.
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errors.Is(errno, unix.ENOTSUP) { // a program with cgo, which no release is
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	if err := restrictFiles(func(version int) []uint64 { return landlockRules(version, remote) }, nil); err != nil {
		return err
	}
	if err := dropCapabilities(1 << unix.CAP_DAC_READ_SEARCH); err != nil {
		return err
	}
	return filterCalls(remote)
}

// isAbsent reports whether an error says that the kernel, or the system call filter of a
// container, does not offer a call.
func isAbsent(errno syscall.Errno) bool {
	return errno == unix.ENOSYS || errno == unix.EOPNOTSUPP || errno == unix.EPERM
}

// restrictFiles restricts this process by Landlock. rules returns the rules for a version of it;
// TCP connections to ports are allowed although the rules may refuse others.
func restrictFiles(rulesOf func(version int) []uint64, ports []uint16) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case isAbsent(errno):
		return nil
	case errno != 0:
		return fmt.Errorf("ask for the version of Landlock: %w", errno)
	}
	rules := rulesOf(int(version))
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules[0])), unsafe.Sizeof(rules[0])*uintptr(len(rules)), 0)
	if errno != 0 {
		return fmt.Errorf("create Landlock ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	if len(rules) > 1 { // this version knows of ports
		if err := allowPorts(fd, ports); err != nil {
			return err
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("restrict this process by Landlock: %w", errno)
	}
	return nil
}

// landlockRules returns struct landlock_ruleset_attr of this version of Landlock: the
// accesses to files and to TCP ports that are handled, hence refused, and the refused means
// to reach other processes.
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
	if version >= 5 {
		files |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	var ports uint64
	if !remote {
		ports = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	switch {
	case version >= 6:
		return []uint64{files, ports, unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL}
	case version >= 4:
		return []uint64{files, ports}
	}
	return []uint64{files}
}

// dropCapabilities keeps, if they are there, only these capabilities.
func dropCapabilities(keep uint32) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	kept := sets[0].Permitted & keep
	sets = [2]unix.CapUserData{{Effective: kept, Permitted: kept}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}

// deniedCalls change root's files or act on other processes without a capability and
// without a check by Landlock, or bypass the filter. io_uring makes sockets. User namespaces,
// also those of root's containers, give capabilities. openat2 and clone3 have flags in memory,
// which a filter cannot read. The kernel executes a program for request_key. A process that
// guesses the ID of shared memory needs no SHMGET. A lock stops other programs.
var deniedCalls = append([]uint32{
	unix.SYS_TRUNCATE, unix.SYS_OPENAT2, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FILE_SETATTR,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT,
	unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_IO_URING_SETUP,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETATTR,
	unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER,
	unix.SYS_CLONE3, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_SOCKETPAIR,
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
	unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_FLOCK,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
}, oldCalls...)

// callFilter is a BPF program that filters system calls. The call's number is loaded before
// and after every rule; the first rule that matches the call decides.
type callFilter []unix.SockFilter

// Offsets in struct seccomp_data.
const (
	callNumber = 0
	callArch   = 4
	callArgs   = 16 // of 8 bytes each; the low half is first on little-endian machines
)

var (
	denied  = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	allowed = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// unless skips skipped instructions unless the loaded value passes a test.
func unless(test uint16, value uint32, skipped int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: value, Jf: uint8(skipped)}
}

// newCallFilter denies calls of another architecture.
func newCallFilter(arch uint32) callFilter {
	const x32 = 0x40000000 // a bit of the numbers of a second set of calls on amd64
	return callFilter{
		load(callArch), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jt: 1}, denied,
		load(callNumber), unless(unix.BPF_JGE, x32, 1), denied,
	}
}

func (f *callFilter) deny(call uint32) {
	*f = append(*f, unless(unix.BPF_JEQ, call, 1), denied)
}

// denyUnless denies a call whose argument, of 32 bits, is none of these values.
func (f *callFilter) denyUnless(call, arg uint32, values ...uint32) {
	f.judge(call, arg, unix.BPF_JEQ, allowed, denied, values)
}

// denyIfBoth denies a call whose argument, of 32 bits, is value, if the next argument is next.
func (f *callFilter) denyIfBoth(call, arg, value, next uint32) {
	*f = append(*f, unless(unix.BPF_JEQ, call, 6), load(callArgs+8*arg), unless(unix.BPF_JEQ, value, 3),
		load(callArgs+8*(arg+1)), unless(unix.BPF_JEQ, next, 1), denied, load(callNumber))
}

// denyIfBit denies a call whose argument, of 32 bits, has this bit.
func (f *callFilter) denyIfBit(call, arg, bit uint32) {
	f.judge(call, arg, unix.BPF_JSET, denied, allowed, []uint32{bit})
}

// denyUnlessBit denies a call whose argument, of 32 bits, lacks this bit.
func (f *callFilter) denyUnlessBit(call, arg, bit uint32) {
	f.judge(call, arg, unix.BPF_JSET, allowed, denied, []uint32{bit})
}

func (f *callFilter) judge(call, arg uint32, test uint16, pass, fail unix.SockFilter, values []uint32) {
	body := callFilter{load(callArgs + 8*arg)}
	for _, value := range values {
		body = append(body, unless(test, value, 1), pass)
	}
	body = append(body, fail)
	*f = append(append(*f, unless(unix.BPF_JEQ, call, len(body))), body...)
}

// filterCalls makes deniedCalls, and some other calls with certain arguments, fail with
// EPERM.
func filterCalls(remote bool) error {
	filter, ok := newFilter(remote)
	if !ok {
		return nil
	}
	return filter.apply()
}

// newFilter returns the filter of filterCalls; ok is false on another architecture.
func newFilter(remote bool) (filter callFilter, ok bool) {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, false
	}
	filter = newCallFilter(arch)
	for _, call := range deniedCalls {
		filter.deny(call)
	}
	if remote {
		filter.denyUnless(unix.SYS_SOCKET, 0, unix.AF_INET, unix.AF_INET6)
	} else {
		filter.deny(unix.SYS_SOCKET)
	}
	filter.denyIfBit(unix.SYS_OPENAT, 2, unix.O_TRUNC)
	// Threads only: a process would have another ID, and may have a user namespace.
	filter.denyUnlessBit(unix.SYS_CLONE, 0, unix.CLONE_THREAD)
	// The runtime of Go signals its own threads.
	filter.denyUnless(unix.SYS_TGKILL, 0, uint32(os.Getpid()))
	filter.denyUnless(unix.SYS_PRLIMIT64, 0, 0)
	// Each open of a file with a write lease waits. Read leases stay: reading a manifest asks
	// by one whether a program is writing it.
	filter.denyIfBoth(unix.SYS_FCNTL, 1, unix.F_SETLEASE, unix.F_WRLCK)
	// Others lock files, delay those who open them (F_SETDELEG), or have signals sent.
	filter.denyUnless(unix.SYS_FCNTL, 1, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL,
		unix.F_DUPFD_CLOEXEC, unix.F_SETLEASE, unix.F_GETLEASE)
	// Printing needs these two. Others type into the terminal (TIOCSTI, TIOCLINUX), or change
	// attributes of a file that is open for reading.
	filter.denyUnless(unix.SYS_IOCTL, 1, unix.TCGETS, unix.TIOCGWINSZ)
	return filter, true
}

// apply makes the filter decide about all calls of this process that no rule of it decides about.
func (f callFilter) apply() error {
	filter := append(slices.Clone(f), allowed)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// SECCOMP_FILTER_FLAG_TSYNC applies the filter to all threads. The first result is the
	// ID of a thread that could not take it.
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	switch {
	case isAbsent(errno) || errno == unix.EINVAL: // the last from a kernel without filters
		return nil
	case errno != 0:
		return fmt.Errorf("filter system calls: %w", errno)
	case thread != 0:
		return fmt.Errorf("filter system calls: thread %d did not take the filter", thread)
	}
	runtime.KeepAlive(filter)
	return nil
}
