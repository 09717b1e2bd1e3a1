package confine

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Serving drops the rights that a server on open sockets does not need: it becomes a user
// without a name, if it is root; it opens and changes no file, executes nothing, acts on no other
// process, binds no socket, and connects over TCP only to these ports. It has no capability. Open
// files and sockets stay usable. If the kernel lacks Landlock or seccomp, it applies the rest.
//
// An error means that the process keeps rights: it has to end.
func Serving(user int, ports ...uint16) error {
	if os.Geteuid() == 0 {
		if err := becomeUser(user); err != nil {
			return err
		}
	}
	// Other processes of the same user cannot read its memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid to trace this process: %w", err)
	}
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errors.Is(errno, unix.ENOTSUP) { // a program with cgo, which no release is
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	if err := restrictFiles(servingRules, ports); err != nil {
		return err
	}
	if err := dropCapabilities(0); err != nil {
		return err
	}
	filter, ok := newFilter(true)
	if !ok {
		return nil
	}
	for _, call := range []uint32{unix.SYS_OPENAT, unix.SYS_BIND, unix.SYS_LISTEN} {
		filter.deny(call)
	}
	return filter.apply()
}

// becomeUser gives up root.
func becomeUser(user int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leave all groups: %w", err)
	}
	if err := syscall.Setresgid(user, user, user); err != nil {
		return fmt.Errorf("become group %d: %w", user, err)
	}
	if err := syscall.Setresuid(user, user, user); err != nil {
		return fmt.Errorf("become user %d: %w", user, err)
	}
	return nil
}

// servingRules refuse every access to files, and all TCP ports.
func servingRules(version int) []uint64 {
	rules := landlockRules(version, false)
	rules[0] |= unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	return rules
}

// ruleNetPort is LANDLOCK_RULE_NET_PORT, which package unix lacks.
const ruleNetPort = 2

// allowPorts adds a rule to a ruleset of Landlock for each port that may be connected to.
func allowPorts(ruleset uintptr, ports []uint16) error {
	for _, port := range ports {
		rule := [2]uint64{unix.LANDLOCK_ACCESS_NET_CONNECT_TCP, uint64(port)}
		if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset, ruleNetPort, uintptr(unsafe.Pointer(&rule[0])), 0, 0, 0); errno != 0 {
			return fmt.Errorf("allow connections to port %d: %w", port, errno)
		}
	}
	return nil
}
