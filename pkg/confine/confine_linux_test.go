//go:build !cgo

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// confinedEnv makes this test's program try the attacks of a manifest that controls the parser:
// "before" without confinement, "after" with it, "remote" with sockets to peers, "filter" with the
// filter of system calls alone.
const confinedEnv = "NODECTL_TEST_CONFINED"

func init() {
	mode := os.Getenv(confinedEnv)
	if mode == "" {
		return
	}
	var err error
	switch mode {
	case "after", "remote":
		err = Reading(mode == "remote")
	case "filter":
		err = filterCalls(false)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	confined := mode == "after" || mode == "remote"
	// The kernel judged a call, and then its arguments, which do no harm.
	judged := func(err, argument error) error {
		if errors.Is(err, argument) {
			return nil
		}
		return err
	}
	call := func(argument syscall.Errno, number uintptr, args ...uintptr) func() error {
		return func() error {
			a := [6]uintptr{}
			copy(a[:], args)
			if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
				return judged(errno, argument)
			}
			return nil
		}
	}
	parent := uintptr(os.Getppid())
	none := ^uintptr(0) // no descriptor, and no number of System V
	stdin := uintptr(0) // no terminal: a call that reaches it fails with ENOTTY
	dir := os.Args[1]
	dial := func(network, address string) func() error {
		return func() error {
			c, err := net.Dial(network, address)
			if err == nil {
				c.Close()
			}
			return err
		}
	}
	lease := func(kind int) func() error {
		return func() error {
			f, err := os.Open(filepath.Join(dir, "file"))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
			return err
		}
	}
	for _, try := range []struct {
		what string
		do   func() error
	}{
		{"write", func() error {
			f, err := os.OpenFile(filepath.Join(dir, "file"), os.O_WRONLY, 0)
			if err == nil {
				f.Close()
			}
			return err
		}},
		{"create", func() error { return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600) }},
		{"mkdir", func() error { return os.Mkdir(filepath.Join(dir, "sub"), 0o700) }},
		{"link", func() error { return os.Symlink("file", filepath.Join(dir, "link")) }},
		{"execute", func() error { return exec.Command("/bin/true").Run() }},
		{"connect", dial("tcp", os.Args[2])},
		{"runtime", dial("unix", os.Args[3])},
		{"chmod", func() error { return os.Chmod(filepath.Join(dir, "file"), 0o644) }},
		{"signal", func() error { return unix.Kill(os.Getppid(), 0) }},
		{"tgkill", func() error { return unix.Tgkill(os.Getppid(), os.Getppid(), 0) }},
		{"owntgkill", func() error { return unix.Tgkill(os.Getpid(), os.Getpid(), 0) }},
		{"owner", call(0, unix.SYS_FCNTL, stdin, unix.F_SETOWN, parent)},
		{"prlimit", func() error { return unix.Prlimit(os.Getppid(), unix.RLIMIT_NOFILE, nil, new(unix.Rlimit)) }},
		{"ownprlimit", func() error { return unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, new(unix.Rlimit)) }},
		{"type", call(unix.ENOTTY, unix.SYS_IOCTL, stdin, unix.TIOCSTI)},
		{"linux", call(unix.ENOTTY, unix.SYS_IOCTL, stdin, unix.TIOCLINUX)},
		{"size", call(unix.ENOTTY, unix.SYS_IOCTL, stdin, unix.TIOCGWINSZ)},
		{"fastopen", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			to := netip.MustParseAddrPort(os.Args[2])
			return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		}},
		{"udp", dial("udp", os.Args[2])},
		{"socketpair", func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0); return err }},
		{"fork", call(unix.EINVAL, unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS)},
		{"unshare", call(0, unix.SYS_UNSHARE, 0)},
		{"sysv", call(unix.ENOENT, unix.SYS_MSGGET, 0x6e6f6465)},
		{"shmat", call(unix.EINVAL, unix.SYS_SHMAT, none)},
		{"shmctl", call(unix.EINVAL, unix.SYS_SHMCTL, none)},
		{"semop", call(unix.EINVAL, unix.SYS_SEMOP, none)},
		{"semtimedop", call(unix.EINVAL, unix.SYS_SEMTIMEDOP, none)},
		{"semctl", call(unix.EINVAL, unix.SYS_SEMCTL, none)},
		{"msgsnd", call(unix.EFAULT, unix.SYS_MSGSND, none)},
		{"msgrcv", call(unix.EINVAL, unix.SYS_MSGRCV, none)},
		{"msgctl", call(unix.EINVAL, unix.SYS_MSGCTL, none)},
		{"setns", call(unix.EBADF, unix.SYS_SETNS, none, unix.CLONE_NEWUSER)},
		{"execve", call(unix.EFAULT, unix.SYS_EXECVE)},
		{"execveat", call(unix.EFAULT, unix.SYS_EXECVEAT, none)},
		{"flock", call(unix.EBADF, unix.SYS_FLOCK, none, unix.LOCK_EX)},
		{"setlk", call(unix.EFAULT, unix.SYS_FCNTL, stdin, unix.F_SETLK)},
		{"setlkw", call(unix.EFAULT, unix.SYS_FCNTL, stdin, unix.F_SETLKW)},
		{"ofdsetlk", call(unix.EFAULT, unix.SYS_FCNTL, stdin, unix.F_OFD_SETLK)},
		{"ofdsetlkw", call(unix.EFAULT, unix.SYS_FCNTL, stdin, unix.F_OFD_SETLKW)},
		{"notify", call(unix.ENOTDIR, unix.SYS_FCNTL, stdin, unix.F_NOTIFY)},
		{"lease", lease(unix.F_RDLCK)},
		{"writelease", lease(unix.F_WRLCK)},
		{"netlink", func() error {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"truncate", func() error { return os.Truncate(filepath.Join(dir, "file"), 0) }},
		{"emptied", func() error {
			f, err := os.OpenFile(filepath.Join(dir, "file"), os.O_RDONLY|os.O_TRUNC, 0)
			if err == nil {
				f.Close()
			}
			return err
		}},
		{"read", func() error { _, err := os.ReadFile(filepath.Join(dir, "file")); return err }},
		{"remove", func() error { return os.Remove(filepath.Join(dir, "file")) }},
	} {
		verdict := "allowed"
		switch err := try.do(); {
		case errors.Is(err, fs.ErrPermission):
			verdict = "refused"
		case err != nil:
			verdict = err.Error()
		}
		fmt.Println(try.what, verdict)
	}
	if status, err := os.ReadFile("/proc/thread-self/status"); confined {
		_, effective, _ := strings.Cut(string(status), "\nCapEff:\t")
		effective, _, _ = strings.Cut(effective, "\n")
		if mask, err2 := strconv.ParseUint(effective, 16, 64); err != nil || err2 != nil || mask&^(1<<unix.CAP_DAC_READ_SEARCH) != 0 {
			fmt.Println("capabilities", effective, err, err2)
		}
	}
	// Threads that were there before, and new ones.
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := os.WriteFile(filepath.Join(dir, "thread"), nil, 0o600); confined && !errors.Is(err, fs.ErrPermission) {
				fmt.Println("a thread may write:", err)
			}
		})
	}
	all.Wait()
	os.Exit(0)
}

// A manifest that exploits a parser of merge can read the same files as the command. It cannot
// change files, execute programs, connect, or signal processes.
//
// Shows: D1
func TestReading_ParserIsTakenOver_ChangesNothing(t *testing.T) {
	if v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 || v < 4 {
		t.Fatalf("this kernel has Landlock %d (%v); the test needs 4", v, errno)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket := filepath.Join(t.TempDir(), "runtime")
	u, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	const others = "shmat, shmctl, semop, semtimedop, semctl, msgsnd, msgrcv, msgctl, setns, execve, execveat, flock, setlk, setlkw, ofdsetlk, ofdsetlkw, notify"
	const words = "write, create, mkdir, link, execute, connect, runtime, chmod, signal, tgkill, owntgkill, owner, prlimit, ownprlimit, " +
		"type, linux, size, fastopen, udp, socketpair, fork, unshare, sysv, " + others + ", lease, writelease, netlink, truncate, emptied, read, remove"
	const files, sockets = ", write, mkdir, link, remove", ", connect, fastopen, udp"
	const filtered = "create, execute, runtime, chmod, signal, tgkill, owner, prlimit, type, linux, socketpair, fork, unshare, sysv, writelease, netlink, truncate, emptied, " + others
	for mode, refused := range map[string]string{
		"before": "",
		"after":  filtered + files + sockets,
		"remote": filtered + files,
		"filter": filtered + sockets,
	} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe", dir, l.Addr().String(), socket)
			cmd.Env = []string{confinedEnv + "=" + mode}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want := ""
			for _, what := range strings.Split(words, ", ") {
				verdict := "allowed"
				if strings.Contains(", "+refused+",", ", "+what+",") {
					verdict = "refused"
				}
				want += what + " " + verdict + "\n"
			}
			if string(out) != want {
				t.Errorf("got\n%swant\n%s", out, want)
			}
		})
	}
}

// The rules have only the accesses that the kernel's version of Landlock knows.
func TestLandlockRules_Version_KnowsItsAccesses(t *testing.T) {
	for version, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3} {
		rules := landlockRules(version, false)
		if len(rules) != want || (rules[0]&unix.LANDLOCK_ACCESS_FS_REFER != 0) != (version >= 2) || (rules[0]&unix.LANDLOCK_ACCESS_FS_TRUNCATE != 0) != (version >= 3) || (rules[0]&unix.LANDLOCK_ACCESS_FS_IOCTL_DEV != 0) != (version >= 5) {
			t.Errorf("version %d: %x", version, rules)
		}
		if rules[0]&(unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_READ_DIR) != 0 {
			t.Errorf("version %d refuses reading: %x", version, rules)
		}
	}
}
