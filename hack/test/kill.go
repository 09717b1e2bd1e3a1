package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// killNamespace kills the processes of a network namespace and all that descend from them:
// containers have network namespaces of their own, and their shims do not. It returns when all of
// them have ended. It returns the processes that are there still after ten seconds, as "PID NAME".
func killNamespace(space *os.File) (left []string) {
	want, err := space.Stat()
	if err != nil {
		return []string{err.Error()}
	}
	killed := make(map[identity]bool)
	for range 100 {
		all, err := processes()
		if err != nil {
			return []string{err.Error()}
		}
		left = killOnce(all, want, killed)
		for _, p := range all {
			_ = p.handle.Release() // it only closes
		}
		if left == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return left
}

// An identity names one process: a later process with its PID has another start.
type identity struct {
	pid   int
	start uint64 // in clock ticks since the boot
}

// A process is one that has not ended.
type process struct {
	identity
	handle *os.Process
	name   string
	parent int
	space  os.FileInfo // its network namespace; nil for one that is about to end
}

// processes returns the processes that there are now.
func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
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
		p, ok := readProcess(pid)
		if !ok {
			_ = handle.Release() // it only closes
			continue
		}
		p.handle = handle
		all = append(all, p)
	}
	return all, nil
}

// readProcess reads a process from /proc. ok is false if it has ended; a zombie has.
func readProcess(pid int) (p process, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	// PID (NAME) STATE PARENT …; the name may have brackets.
	_, rest, _ := strings.Cut(string(text), "(")
	end := strings.LastIndex(rest, ")")
	if end < 0 {
		return p, false
	}
	fields := strings.Fields(rest[end+1:])
	const state, parent, start = 0, 1, 19
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return p, false
	}
	p.pid, p.name = pid, rest[:end]
	var wrong error
	p.parent, err = strconv.Atoi(fields[parent])
	p.start, wrong = strconv.ParseUint(fields[start], 10, 64)
	p.space, _ = os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	return p, err == nil && wrong == nil
}

// killOnce kills the members of a network namespace and their descendants, and notes them in killed.
// It returns them, with the earlier ones that have not ended: an ending process leaves its namespaces
// before it is a zombie.
func killOnce(all []process, space os.FileInfo, killed map[identity]bool) (left []string) {
	members := make(map[int]bool)
	for _, p := range all {
		if p.space != nil && os.SameFile(p.space, space) {
			members[p.pid] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for _, p := range all {
			if members[p.parent] && !members[p.pid] {
				members[p.pid], changed = true, true
			}
		}
	}
	for _, p := range all {
		if !members[p.pid] && !killed[p.identity] {
			continue
		}
		_ = p.handle.Kill() // it may have ended meanwhile
		killed[p.identity] = true
		left = append(left, fmt.Sprint(p.pid, " ", p.name))
	}
	return left
}
