package arm

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the kernel's unit in /proc/PID/stat: USER_HZ, which is 100 on every architecture
// that Go supports.
const tick = 10 * time.Millisecond

// Ticks is the CPU time a process and its reaped children have used, in ticks;
// 0 for no process.
func Ticks(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return parseStat(text)
}

func parseStat(text []byte) time.Duration {
	// After the name, which may hold anything: state is field 3, utime, stime,
	// cutime and cstime are 14 to 17.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var sum time.Duration
	for _, s := range f[min(11, len(f)):min(15, len(f))] {
		n, _ := strconv.ParseInt(s, 10, 64)
		sum += time.Duration(n) * tick
	}
	return sum
}

// CPU is the CPU time that a process's current threads have used, to the nanosecond. Threads
// that have ended are not counted.
func CPU(pid int) time.Duration {
	var sum time.Duration
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has just ended
		}
		ns, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseInt(ns, 10, 64)
		sum += time.Duration(n)
	}
	return sum
}

// Memory returns a process's RssAnon and VmRSS in bytes.
func Memory(pid int) (anon, rss int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return statusBytes(string(text), "RssAnon:"), statusBytes(string(text), "VmRSS:")
}

func statusBytes(text, name string) int64 {
	_, after, _ := strings.Cut(text, "\n"+name)
	f := strings.Fields(after)
	if len(f) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(f[0], 10, 64)
	return kib << 10
}

// Pss returns a process's memory in bytes, with its share of shared pages.
func Pss(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	return statusBytes(string(text), "Pss:")
}

// Written returns how many bytes a process that runs has sent to a disk. Files in memory, sockets
// and pipes do not count.
func Written(pid int) (int64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	if hasEnded(stat) {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	return parseIO(string(text))
}

// hasEnded reports whether /proc/PID/stat is that of a process whose parent has not waited for it.
func hasEnded(stat []byte) bool {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(f) == 0 || string(f[0]) == "Z" || string(f[0]) == "X"
}

func parseIO(text string) (written int64, err error) {
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "write_bytes: %d", &written); err == nil { // "cancelled_write_bytes: " is another line
			return written, nil
		}
	}
	return 0, errors.New("the kernel does not report write_bytes")
}

// Peer returns the process that listens on a socket.
func Peer(endpoint string) (int, error) {
	c, err := net.Dial("unix", strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return 0, e
	}
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// busy is the share of the machine's CPU time that was used in a second in which the bench
// did nothing.
func busy() float64 {
	idle, all := cpuTimes()
	time.Sleep(time.Second)
	idle2, all2 := cpuTimes()
	if all2 == all {
		return 0
	}
	return 1 - float64(idle2-idle)/float64(all2-all)
}

// Worked is the CPU time that all processes have used since the machine started.
func Worked() time.Duration {
	idle, all := cpuTimes()
	return time.Duration(all-idle) * tick
}

func cpuTimes() (idle, all int64) {
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	f := strings.Fields(first)
	for i, s := range f[min(1, len(f)):min(9, len(f))] {
		n, _ := strconv.ParseInt(s, 10, 64)
		all += n
		if i == 3 || i == 4 { // idle, iowait
			idle += n
		}
	}
	return idle, all
}

// load is the one-minute load average.
func load() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	v, _ := strconv.ParseFloat(one, 64)
	return v
}

// pressure is the share of the last ten seconds, in percent, in which a task waited for a
// CPU; 0 if the kernel does not report it.
func pressure() float64 {
	text, _ := os.ReadFile("/proc/pressure/cpu")
	_, after, _ := strings.Cut(string(text), "avg10=")
	s, _, _ := strings.Cut(after, " ")
	v, _ := strconv.ParseFloat(s, 64)
	return v
}

// foreignShims counts the shims of other containerds.
func foreignShims(ours string) int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, name := range lines {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		program, _, _ := bytes.Cut(text, []byte{0})
		if strings.HasPrefix(filepath.Base(string(program)), "containerd-shim") && !bytes.Contains(text, []byte(ours)) {
			n++
		}
	}
	return n
}
