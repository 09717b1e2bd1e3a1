package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/service/nft"
)

// runcTimeout is the timeout of runc --version.
const runcTimeout = 2 * time.Second

// runc runs runc for its version, which no file has.
func (l looker) runc(ctx context.Context) string {
	if l.root != "" {
		return "" // run no program of a test's tree
	}
	ctx, cancel := context.WithTimeout(ctx, runcTimeout)
	defer cancel()
	for _, path := range []string{"/usr/local/sbin/runc", "/usr/local/bin/runc", "/usr/sbin/runc", "/usr/bin/runc"} {
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(out)) {
			if v, ok := strings.CutPrefix(line, "runc version "); ok {
				return strings.TrimSpace(v)
			}
		}
	}
	return ""
}

// cni reads the configurations as a runtime does: files with one of three extensions, of
// which the first by name counts, and its plugins are programs.
func (l looker) cni() CNI {
	c := CNI{Dir: "/etc/cni/net.d"}
	for _, name := range l.names(c.Dir) {
		ext := filepath.Ext(name)
		if ext != ".conf" && ext != ".conflist" && ext != ".json" {
			continue
		}
		data, err := l.read(filepath.Join(c.Dir, name))
		var list struct {
			Type    string
			Plugins []struct{ Type string }
		}
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		path := filepath.Join(c.Dir, name)
		switch {
		case err != nil:
			c.Broken = append(c.Broken, path+": "+reason(err))
			continue
		case list.Type == "" && len(list.Plugins) == 0:
			c.Broken = append(c.Broken, path+": names no plugin")
			continue
		}
		if c.Configs = append(c.Configs, path); len(c.Configs) > 1 {
			continue
		}
		if list.Type != "" {
			list.Plugins = append(list.Plugins, struct{ Type string }{list.Type})
		}
		for _, p := range list.Plugins {
			if !l.program(p.Type, "/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni") {
				c.Missing = append(c.Missing, p.Type)
			}
		}
	}
	return c
}

// program reports whether one of the directories has this program.
func (l looker) program(name string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return l.exists(filepath.Join(d, name)) })
}

func (l looker) kernel(f *Facts) {
	for _, line := range l.lines("/proc/filesystems") {
		if words := strings.Fields(line); len(words) > 0 {
			f.Filesystems = append(f.Filesystems, words[len(words)-1])
		}
	}
	for _, line := range l.lines("/proc/self/status") {
		f.Seccomp = f.Seccomp || strings.HasPrefix(line, "Seccomp_filters:") || strings.HasPrefix(line, "Seccomp:")
	}
	f.UserNS = -1
	if n, err := strconv.ParseInt(l.text("/proc/sys/user/max_user_namespaces"), 10, 64); err == nil {
		f.UserNS = n
	}
	f.Sysctls = map[string]string{}
	names := []string{"net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables", "fs.inotify.max_user_instances", "fs.inotify.max_user_watches", "kernel.pid_max"}
	for _, s := range KernelDefaults() {
		names = append(names, s[0])
	}
	for _, name := range names {
		if v := l.text("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); v != "" {
			f.Sysctls[name] = v
		}
	}
	f.Clock = l.clock(f.Now)
}

// clock reads from the kernel whether its clock is synchronized, and the time of the
// hardware clock.
func (l looker) clock(now time.Time) (c Clock) {
	if l.root == "" {
		var t unix.Timex // modes 0: read only
		state, err := unix.Adjtimex(&t)
		c.Known = err == nil
		c.Synced = state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	}
	if at, err := strconv.ParseInt(l.text("/sys/class/rtc/rtc0/since_epoch"), 10, 64); err == nil {
		c.HasRTC, c.RTC = true, now.Sub(time.Unix(at, 0))
	}
	return c
}

func (l looker) network(f *Facts) {
	f.Bridge = f.Sysctls["net.bridge.bridge-nf-call-iptables"] == "1"
	dirs := []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"}
	f.Iptables = l.program("iptables", dirs...) || l.program("nft", dirs...)
	f.NoNFTables = l.root == "" && errors.Is(nft.Supported(), nft.ErrUnsupported)
	f.HostName = l.text("/proc/sys/kernel/hostname")
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.IsGlobalUnicast() {
				f.Addresses++
			}
		}
	}
	if p := f.Agent.ResolvConf; p != "" {
		f.Resolver.Path = p
		data, err := l.read(p)
		if err != nil {
			f.Resolver.Err = reason(err)
		}
		f.Resolver.Servers = fields(data, "nameserver")
	}
	for _, p := range []struct {
		what string
		port int
	}{{"--port", f.Agent.Port}, {"--healthz-port", f.Agent.HealthzPort}} {
		if by, own, taken := l.listener(p.port); taken {
			f.Ports = append(f.Ports, Port{p.port, p.what, by, own})
		}
	}
}

// listener finds the process that listens on a TCP port.
func (l looker) listener(port int) (by string, own, taken bool) {
	if port <= 0 {
		return "", false, false
	}
	want := ":" + strings.ToUpper(strconv.FormatInt(int64(port)+0x10000, 16)[1:])
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for _, line := range l.lines(table) {
			w := strings.Fields(line)
			const listening = "0A"
			if len(w) < 10 || w[3] != listening || !strings.HasSuffix(w[1], want) {
				continue
			}
			pid := l.holder("socket:[" + w[9] + "]")
			if pid == 0 {
				return "another process", false, true
			}
			return l.comm(pid), l.own(pid), true
		}
	}
	return "", false, false
}

// holder finds the process that has a socket open; 0 if it is not visible.
func (l looker) holder(socket string) int {
	for _, name := range l.names("/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		dir := "/proc/" + name + "/fd"
		for _, fd := range l.names(dir) {
			if link, err := os.Readlink(l.path(dir + "/" + fd)); err == nil && link == socket {
				return pid
			}
		}
	}
	return 0
}

func (l looker) resources(f *Facts) {
	memory := map[string]uint64{}
	for _, line := range l.lines("/proc/meminfo") {
		if w := strings.Fields(line); len(w) > 1 {
			n, _ := strconv.ParseUint(w[1], 10, 64)
			memory[strings.TrimSuffix(w[0], ":")] = n << 10
		}
	}
	f.MemoryFree, f.MemorySize = memory["MemAvailable"], memory["MemTotal"]
	for _, line := range l.lines("/proc/swaps")[1:] {
		if device, _, ok := strings.Cut(line, " "); ok {
			f.Swap = append(f.Swap, device)
		} else if device, _, ok := strings.Cut(line, "\t"); ok {
			f.Swap = append(f.Swap, device)
		}
	}
	for _, d := range [][2]string{{"nodefs", f.Agent.RootDir}, {"imagefs", "/var/lib/containerd"}} {
		if disk, ok := l.disk(d[0], d[1]); ok {
			f.Disks = append(f.Disks, disk)
		}
	}
}

// disk measures the file system of a path that may not exist yet.
func (l looker) disk(what, path string) (Disk, bool) {
	for at := path; ; at = filepath.Dir(at) {
		var s unix.Statfs_t
		if unix.Statfs(l.path(at), &s) == nil {
			size := uint64(s.Bsize)
			return Disk{what, path, s.Bavail * size, s.Blocks * size, s.Ffree, s.Files}, true
		}
		if at == filepath.Dir(at) {
			return Disk{}, false
		}
	}
}
