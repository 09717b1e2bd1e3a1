package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Victim is a process that the kernel killed because the machine was out of memory.
type Victim struct {
	Process string
	PID     int // 0 is not known
}

// Message returns the kubelet's text of the event.
func (v Victim) Message() string {
	const text = "System OOM encountered"
	if v.Process == "" || v.PID == 0 {
		return text
	}
	return fmt.Sprintf("%s, victim process: %s, pid: %d", text, v.Process, v.PID)
}

// kernelLog yields one record at each read, and waits for the next one.
const kernelLog = "/dev/kmsg"

// WatchOOM calls found for each process that the kernel kills from now on because the machine
// is out of memory, until ctx ends (C-1.25.10). It sleeps while the kernel logs nothing. An
// error says that the kernel's log cannot be read.
func WatchOOM(ctx context.Context, found func(Victim)) error {
	f, err := os.OpenFile(kernelLog, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(0, io.SeekEnd); err != nil { // earlier records were reported
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	if err := readOOM(f, found); ctx.Err() == nil {
		return err
	}
	return nil
}

// readOOM reads the kernel's log to its end.
func readOOM(log io.Reader, found func(Victim)) error {
	buffer := make([]byte, 8192) // the kernel's longest record
	var oom oomReport
	for {
		n, err := log.Read(buffer)
		switch {
		case errors.Is(err, unix.EPIPE): // records were overwritten before they were read
			continue
		case err != nil:
			return err
		}
		if victim, ok := oom.add(string(buffer[:n])); ok {
			found(victim)
		}
	}
}

var (
	killLine   = regexp.MustCompile(`^oom-kill:constraint=([A-Z_]+),.*,task=(.*),pid=(\d+),uid=\d+`)
	killedLine = regexp.MustCompile(`Killed process (\d+) \((.+)\)`)
)

// oomReport is the lines that the kernel logs about one kill.
type oomReport struct {
	open  bool // it has begun
	group bool // a cgroup was out of memory, not the machine
}

// add reads a record, "6,1234,98765,-;text". ok says that it completes a report of the
// machine. Text of programs, which they can write to the log, is no record of the kernel.
func (r *oomReport) add(record string) (v Victim, ok bool) {
	head, text, _ := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	priority, _, _ := strings.Cut(head, ",")
	if n, err := strconv.Atoi(priority); err != nil || n>>3 != 0 { // of another facility than the kernel
		return Victim{}, false
	}
	if strings.Contains(text, "invoked oom-killer:") {
		*r = oomReport{open: true}
		return Victim{}, false
	}
	if !r.open {
		return Victim{}, false
	}
	if strings.Contains(text, "killed as a result of limit of") { // before Linux 5.0
		r.group = true
		return Victim{}, false
	}
	if m := killLine.FindStringSubmatch(text); m != nil {
		v.Process = m[2]
		v.PID, _ = strconv.Atoi(m[3])
		r.group = r.group || m[1] == "CONSTRAINT_MEMCG"
	} else if m := killedLine.FindStringSubmatch(text); m != nil {
		v.Process = m[2]
		v.PID, _ = strconv.Atoi(m[1])
	} else {
		return Victim{}, false
	}
	r.open = false
	return v, !r.group
}
