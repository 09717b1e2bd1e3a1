package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/compare"
)

// Of a file longer than shortFile only the checksum is kept; of a volume with more than
// manyFiles files, no more are listed.
const (
	shortFile = 4 << 10
	manyFiles = 500
)

// volumeFiles lists every file of the mounts of a container, except the kernel's own file
// systems: path, kind, mode, owner, and content.
func volumeFiles(proc, mounts string, ids idMap) []string {
	var all []string
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 5 || f[4] == "/" || f[4] != "/dev/termination-log" && within(f[4], "/proc", "/sys", "/dev") {
			continue
		}
		root := proc + "root"
		count := 0
		_ = filepath.WalkDir(root+unescape(f[4]), func(path string, _ fs.DirEntry, err error) error {
			if count++; count > manyFiles {
				return fs.SkipAll
			}
			if err != nil {
				all = append(all, strings.TrimPrefix(path, root)+" "+err.Error())
				return nil
			}
			all = append(all, strings.TrimPrefix(path, root)+" "+describeFile(path, ids))
			return nil
		})
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// unescape undoes mountinfo's escapes in a path.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

func within(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") })
}

func describeFile(path string, ids idMap) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err.Error()
	}
	who := fmt.Sprintf("%d:%d", ids.inside(st.Uid), ids.inside(st.Gid))
	owner := fmt.Sprintf("%04o %s", st.Mode&0o7777, who)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "dir " + owner
	case unix.S_IFLNK:
		to, _ := os.Readlink(path)
		return "link " + who + " -> " + to
	case unix.S_IFREG:
		if filepath.Base(path) == "hosts" || filepath.Base(path) == "resolv.conf" || filepath.Base(path) == "hostname" {
			return "file " + owner // its content is compared line by line
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return "file " + owner + " " + err.Error()
		}
		if len(text) > shortFile || !utf8.Valid(text) {
			return fmt.Sprintf("file %s %d bytes %.8x", owner, len(text), sha256.Sum256(text))
		}
		return fmt.Sprintf("file %s %q", owner, text)
	case unix.S_IFCHR, unix.S_IFBLK:
		return fmt.Sprintf("device %s %#o %d:%d", owner, st.Mode&unix.S_IFMT, unix.Major(st.Rdev), unix.Minor(st.Rdev))
	case unix.S_IFIFO:
		return "pipe " + owner
	case unix.S_IFSOCK:
		return "socket " + owner
	}
	return "unknown " + owner
}

// An idMap is the range of the node's user IDs that a container sees from 0 on.
type idMap struct{ first, length uint64 }

// readIDMap reads a process's map. Groups have the same map: CRI supports one range.
func readIDMap(proc string) (m idMap) {
	text, _ := os.ReadFile(proc + "uid_map")
	var from uint64
	if n, _ := fmt.Sscan(string(text), &from, &m.first, &m.length); n != 3 || from != 0 {
		return idMap{}
	}
	return m
}

// inside returns the container's ID for a user ID of the node.
func (m idMap) inside(id uint32) uint32 {
	if n := uint64(id); n >= m.first && n < m.first+m.length {
		return uint32(n - m.first)
	}
	return id
}

// devices lists the content of a container's /dev.
func devices(proc string, ids idMap) []string {
	var all []string
	entries, _ := os.ReadDir(proc + "root/dev")
	for _, e := range entries {
		all = append(all, "/dev/"+e.Name()+" "+describeFile(proc+"root/dev/"+e.Name(), ids))
	}
	return all
}

// lookedSysctls are those of a namespace, not of the machine.
var lookedSysctls = []string{
	"kernel/shm_rmid_forced", "kernel/shmmax", "kernel/shmall", "kernel/shmmni", "kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/sem",
	"kernel/hostname", "kernel/domainname",
	"net/ipv4/ip_local_port_range", "net/ipv4/tcp_syncookies", "net/ipv4/ping_group_range", "net/ipv4/ip_unprivileged_port_start",
	"net/ipv4/ip_local_reserved_ports", "net/ipv4/tcp_keepalive_time", "net/ipv4/tcp_keepalive_intvl", "net/ipv4/tcp_keepalive_probes",
	"net/ipv4/tcp_fin_timeout", "net/ipv4/ip_forward",
}

// sysctlFacts reads them as the container has them, including host and domain name. /proc/sys
// shows the namespaces of the reading thread, which enters the container's and returns: if
// the thread exited instead, the kernel would kill the programs that it has started
// (Pdeathsig).
func sysctlFacts(pid int) compare.Facts {
	f := compare.Facts{}
	runtime.LockOSThread()
	var home []int
	for _, ns := range []string{"net", "ipc", "uts"} {
		was, err := enter(fmt.Sprintf("/proc/self/task/%d/ns/%s", unix.Gettid(), ns), fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil {
			f["error"] = err.Error()
			break
		}
		home = append(home, was)
	}
	if f["error"] == "" {
		for _, s := range lookedSysctls {
			if text, err := os.ReadFile("/proc/sys/" + s); err == nil {
				f[strings.ReplaceAll(s, "/", ".")] = strings.Join(strings.Fields(string(text)), " ")
			}
		}
	}
	for _, fd := range home {
		if err := unix.Setns(fd, 0); err != nil {
			panic("a thread is lost in a container: " + err.Error())
		}
		_ = unix.Close(fd)
	}
	runtime.UnlockOSThread()
	return f
}

// enter moves the thread from a namespace into another, and returns the one it was in.
func enter(from, to string) (home int, err error) {
	if home, err = unix.Open(from, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return 0, err
	}
	fd, err := unix.Open(to, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Setns(fd, 0)
		_ = unix.Close(fd)
	}
	if err != nil {
		_ = unix.Close(home)
	}
	return home, err
}

// namespaceLinks returns the namespaces of a process.
func namespaceLinks(proc string) compare.Facts {
	f := compare.Facts{}
	for _, ns := range []string{"net", "ipc", "uts", "pid", "user", "cgroup"} {
		to, _ := os.Readlink(proc + "ns/" + ns)
		if own, _ := os.Readlink("/proc/self/ns/" + ns); own == to {
			to = "the node's"
		}
		f[ns] = to
	}
	return f
}

// nameNamespaces replaces the namespaces of a pod's containers by numbers, which show which
// containers share one.
func nameNamespaces(looks map[string]Look) {
	names := map[string]string{}
	for _, c := range slices.Sorted(maps.Keys(looks)) {
		for _, ns := range slices.Sorted(maps.Keys(looks[c].Namespaces)) {
			link := looks[c].Namespaces[ns]
			if link == "the node's" {
				continue
			}
			if names[link] == "" {
				names[link] = fmt.Sprintf("%d of the pod", 1+countOf(names, ns))
			}
			looks[c].Namespaces[ns] = names[link]
		}
	}
}

func countOf(names map[string]string, ns string) int {
	n := 0
	for link := range names {
		if strings.HasPrefix(link, ns+":") {
			n++
		}
	}
	return n
}
