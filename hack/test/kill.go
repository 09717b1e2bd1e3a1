package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// killNamespace kills the processes of a network namespace and all that descend from them:
// containers have network namespaces of their own, and their shims do not. It returns the
// processes that are there still after ten seconds, as "PID NAME".
func killNamespace(space *os.File) (left []string) {
	want, err := space.Stat()
	if err != nil {
		return []string{err.Error()}
	}
	for range 100 {
		if left = killOnce(want); left == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return left
}

// killOnce kills the processes that there are now, and returns them.
func killOnce(space os.FileInfo) (killed []string) {
	type process struct {
		handle *os.Process
		name   string
		parent int
		member bool
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	all := make(map[int]*process)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The handle is a pidfd. It is opened before /proc is read: either both are of one process,
		// or that process has ended and the handle kills nothing.
		handle, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		defer handle.Release() //nolint:errcheck // it only closes
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		p := &process{handle: handle}
		// PID (NAME) STATE PARENT …; the name may have brackets.
		_, rest, _ := strings.Cut(string(text), "(")
		end := strings.LastIndex(rest, ")")
		var state string
		if _, err := fmt.Sscan(rest[end+1:], &state, &p.parent); err != nil || state == "Z" {
			continue
		}
		p.name = rest[:end]
		own, err := os.Stat("/proc/" + e.Name() + "/ns/net")
		p.member = err == nil && os.SameFile(own, space)
		all[pid] = p
	}
	for changed := true; changed; {
		changed = false
		for _, p := range all {
			if parent := all[p.parent]; parent != nil && parent.member && !p.member {
				p.member, changed = true, true
			}
		}
	}
	for pid, p := range all {
		if p.member {
			_ = p.handle.Kill() // it may have ended meanwhile
			killed = append(killed, fmt.Sprint(pid, " ", p.name))
		}
	}
	return killed
}
