package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// tree writes files below a directory; a name that ends in / is a directory, and a
// content that begins with -> a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch target, link := strings.CutPrefix(text, "-> "); {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func certificate(t *testing.T, from, to time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return "a line\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestLookReadsAMachine: Look reads every fact of a made-up machine from its file.
func TestLookReadsAMachine(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	root := tree(t, map[string]string{
		"proc/self/status":                       "Name:\tx\nCapEff:\t0000000001200000\nSeccomp:\t0\n",
		"proc/self/oom_score_adj":                "-5\n",
		"proc/sys/kernel/osrelease":              "6.12.0\n",
		"proc/sys/kernel/hostname":               "box\n",
		"proc/sys/net/ipv4/ip_forward":           "1\n",
		"proc/sys/user/max_user_namespaces":      "0\n",
		"proc/sys/fs/inotify/max_user_instances": "8\n",
		"proc/sys/kernel/panic":                  "0\n",
		"proc/filesystems":                       "nodev\toverlay\n\text4\n",
		"proc/meminfo":                           "MemTotal: 1000 kB\nMemAvailable: 300 kB\n",
		"proc/swaps":                             "Filename\t\t\t\tType\n/dev/sda2                               partition\t1\t0\t-2\n",
		"proc/net/tcp":                           "  sl  local_address\n   0: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n",
		"proc/net/tcp6":                          "  sl\n   0: 00000000000000000000000001000000:2808 0:0 0A 0:0 0:0 0 0 0 4712 1\n   1: 0:2808 0:0 01 0:0 0:0 0 0 0 9 1\n",
		"proc/7/comm":                            "kubelet\n",
		"proc/7/exe":                             "-> /usr/bin/kubelet",
		"proc/7/fd/3":                            "-> socket:[4711]",
		"proc/8/comm":                            "kubelet\n",
		"proc/8/exe":                             "-> /usr/bin/nodectl (deleted)",
		"proc/8/fd/5":                            "-> socket:[4712]",
		"sys/fs/cgroup/cgroup.controllers":       "cpu memory pids\n",
		"sys/class/rtc/rtc0/since_epoch":         "1767225540\n",
		"run/systemd/system/":                    "",
		"etc/resolv.conf":                        "# nameserver 192.0.2.9\nnameserver 127.0.0.53\nsearch x\n",
		"etc/cni/net.d/00-broken.conf":           "{",
		"etc/cni/net.d/10-net.conflist":          `{"plugins":[{"type":"bridge"},{"type":"portmap"}]}`,
		"etc/cni/net.d/20-other.conf":            `{"type":"macvlan"}`,
		"etc/cni/net.d/README":                   "no",
		"opt/cni/bin/bridge":                     "",
		"usr/sbin/nft":                           "",
		"var/lib/kubelet/pods/a/":                "",
		"var/lib/kubelet/pods/b/":                "",
		"var/lib/nodectl/memory_manager_state":   "",
		"etc/nodectl/manifests/web.yaml":         "",
		"etc/nodectl/manifests/.web.yaml.swp":    "",
		"etc/nodectl/manifests/README":           "",
		"etc/kubernetes/kubelet.conf":            "",
		"etc/kubernetes/pki/ca.crt":              certificate(t, now.Add(-time.Hour), now.Add(time.Hour)),
		"pki/kubelet-client-current.pem":         "no certificate",
		"etc/kubernetes/proxy.conf":              "",
		"usr/lib/systemd/system/nodectl.service": "",
	})
	f := ReadFacts(t.Context(), AgentConfig{
		Root: root, RootDir: "/var/lib/nodectl", ResolvConf: "/etc/resolv.conf", Port: 10250, HealthzPort: 10248, CertDir: "/pki",
		Manifests: []string{"/etc/nodectl/manifests"}, Kubeconfig: "/etc/kubernetes/kubelet.conf", Bootstrap: "/none", ClientCA: "/etc/kubernetes/pki/ca.crt",
	}, now)
	var files []string
	for _, x := range f.Files {
		files = append(files, x.Path)
	}
	for name, pair := range map[string][2]any{
		"capabilities": {uint64(1<<capSysAdmin | 1<<capSysResource), f.Caps},
		"oom":          {-5, f.OOM},
		"systemd":      {true, f.Systemd},
		"kernel":       {"6.12.0", f.Kernel},
		"cgroup":       {Cgroup{"v2", []string{"cpu", "memory", "pids"}, true, ""}, f.Cgroup},
		"cni": {CNI{Dir: "/etc/cni/net.d", Configs: []string{"/etc/cni/net.d/10-net.conflist", "/etc/cni/net.d/20-other.conf"},
			Broken: []string{"/etc/cni/net.d/00-broken.conf: unexpected end of JSON input"}, Missing: []string{"portmap"}}, f.CNI},
		"filesystems": {[]string{"overlay", "ext4"}, f.Filesystems},
		"seccomp":     {true, f.Seccomp},
		"userns":      {int64(0), f.UserNS},
		"sysctls":     {map[string]string{"net.ipv4.ip_forward": "1", "fs.inotify.max_user_instances": "8", "kernel.panic": "0"}, f.Sysctls},
		"bridge":      {false, f.Bridge},
		"iptables":    {true, f.Iptables},
		"resolver":    {Resolver{Path: "/etc/resolv.conf", Servers: []string{"127.0.0.53"}}, f.Resolver},
		"clock":       {Clock{HasRTC: true, RTC: time.Minute}, f.Clock},
		"memory":      {[2]uint64{300 << 10, 1000 << 10}, [2]uint64{f.MemoryFree, f.MemorySize}},
		"swap":        {[]string{"/dev/sda2"}, f.Swap},
		"ports":       {[]Port{{10250, "--port", "kubelet (process 7)", false}, {10248, "--healthz-port", "kubelet (process 8)", true}}, f.Ports},
		"kubelets":    {[]Process{{7, "/usr/bin/kubelet"}}, f.Kubelets},
		"pods":        {2, f.LeftPods},
		"root":        {"memory_manager_state", f.RootOf},
		"files": {[]string{"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/pki/ca.crt", "/pki/kubelet-client-current.pem", "/var/lib/nodectl",
			"/etc/nodectl/manifests", "/etc/nodectl/manifests/web.yaml", "/etc/nodectl", "/etc",
			"/usr/lib/systemd/system/nodectl.service", "/etc/kubernetes/proxy.conf"}, files},
		"certificates": {[]Certificate{{Path: "/etc/kubernetes/pki/ca.crt", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)},
			{Path: "/pki/kubelet-client-current.pem", Err: "contains no certificate"}}, f.Certs},
		"runc": {"", f.Runc},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if !slices.ContainsFunc(f.Disks, func(d Disk) bool { return d.What == "nodefs" && d.Size > 0 && d.Free <= d.Size }) {
		t.Errorf("disks: %+v", f.Disks)
	}
}

// TestLookAtCgroups: the three hierarchies, and none.
func TestLookAtCgroups(t *testing.T) {
	t.Parallel()
	for want, files := range map[string]map[string]string{
		"":       {"sys/": ""},
		"v1":     {"sys/fs/cgroup/memory/": "", "sys/fs/cgroup/cpu,cpuacct/": ""},
		"hybrid": {"sys/fs/cgroup/memory/": "", "sys/fs/cgroup/unified/cgroup.controllers": ""},
		"v2":     {"sys/fs/cgroup/cgroup.controllers": "cpu"},
	} {
		c := looker{tree(t, files)}.cgroup()
		if c.Version != want || want == "v1" && !slices.Contains(c.Controllers, "cpu") {
			t.Errorf("%q: %+v", want, c)
		}
	}
}

// TestLookAtNothing: a machine without files has facts too, and Look makes no file.
func TestLookAtNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := ReadFacts(t.Context(), AgentConfig{Root: root, RootDir: "/r", Kubeconfig: "/k", Manifests: []string{"/m"}, CertDir: "/c", ResolvConf: "/x"}, time.Now())
	if len(Examine(f)) == 0 {
		t.Error("Examine finds no problem on a machine without files")
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// A user who can write in a directory of manifests puts a FIFO and a link to a device there:
// doctor reports both and opens neither. Opening the FIFO would block.
func TestLook_ManifestIsNoRegularFile_IsNotOpened(t *testing.T) {
	t.Parallel()
	l := looker{tree(t, map[string]string{"m/device.yaml": "-> /dev/null", "m/pod.yaml": "x"})}
	if err := unix.Mkfifo(l.path("/m/fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	const none = "is neither a file nor a directory"
	want := map[string]string{"/m": "", "/m/device.yaml": none, "/m/fifo.yaml": none, "/m/pod.yaml": ""}
	for _, x := range l.manifests("/m") {
		if err, ok := want[x.Path]; !ok || x.Err != err {
			t.Errorf("%s: %q, want %q", x.Path, x.Err, err)
		}
		delete(want, x.Path)
	}
	if len(want) > 0 {
		t.Errorf("manifests did not return: %v", want)
	}
}

// A user replaces a file that doctor reads by a FIFO, on which an open blocks, or by an
// endless file.
func TestLook_FileExchangedForFIFOOrEndless_IsNotRead(t *testing.T) {
	t.Parallel()
	l := looker{tree(t, map[string]string{"zero": "-> /dev/zero", "etc/cni/net.d/1.conf": "x", "large": ""})}
	if err := errors.Join(unix.Mkfifo(l.path("/fifo"), 0o600), unix.Mkfifo(l.path("/etc/cni/net.d/2.conf"), 0o600), os.Truncate(l.path("/large"), 1<<40)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/fifo": "is not a regular file", "/zero": "is not a regular file", "/large": "is larger than 1024 KiB"} {
		if c := l.certificate(path); c.Err != want {
			t.Errorf("%s: %q, want %q", path, c.Err, want)
		}
	}
	if c := l.cni(); len(c.Broken) != 2 || c.Broken[1] != "/etc/cni/net.d/2.conf: is not a regular file" {
		t.Errorf("%q", c.Broken)
	}
}

// A user exchanges a file that doctor reads for a device: opening it can start it.
func TestLook_FileExchangedForDevice_IsNotOpened(t *testing.T) {
	t.Parallel()
	l := looker{tree(t, map[string]string{"etc/cni/net.d/x": ""})}
	device := l.path("/etc/cni/net.d/1.conf")
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil { // as /dev/zero
		t.Skip("needs root to make a device; make test has it:", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, device, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	if c := l.cni(); len(c.Broken) != 1 || !strings.HasSuffix(c.Broken[0], ": is not a regular file") {
		t.Errorf("%q", c.Broken)
	}
	if n, err := unix.Read(fd, make([]byte, 4096)); err == nil && n > 0 {
		t.Error("the device was opened")
	}
}

// The owner of a file holds a write lease on it: doctor does not wait until the kernel breaks
// the lease.
func TestLook_OwnerHoldsALease_DoesNotWait(t *testing.T) {
	t.Parallel()
	l := looker{tree(t, map[string]string{"f": "x"})}
	owners, err := os.Open(l.path("/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer owners.Close()
	if _, err := unix.FcntlInt(owners.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	if x := l.file("/f", "a file", Manifest); !x.Exists || x.Err != unix.EWOULDBLOCK.Error() {
		t.Errorf("%+v", x)
	}
}

// TestLookAtRights: Look reads the rights of a file from the file system, and records why a
// file cannot be opened.
func TestLookAtRights(t *testing.T) {
	t.Parallel()
	l := looker{tree(t, map[string]string{"f": "x", "l": "-> nowhere"})}
	if err := os.Chmod(l.path("/f"), 0o640); err != nil {
		t.Fatal(err)
	}
	x := l.file("/f", "a file", Secret)
	if !x.Exists || x.Mode.Perm() != 0o640 || x.UID != os.Getuid() || x.GID != os.Getgid() || x.exposed(x.UID, 0o077, "read") == "" || x.exposed(x.UID, 0o022, "written") != "" {
		t.Errorf("%+v", x)
	}
	if x.UID != 0 && x.exposed(x.UID+1, 0, "read") == "" {
		t.Errorf("a file of user %d is not exposed to it", x.UID)
	}
	if x := l.file("/l", "a link", Secret); x.Exists || x.why() != "no such file or directory" {
		t.Errorf("%+v", x)
	}
}
