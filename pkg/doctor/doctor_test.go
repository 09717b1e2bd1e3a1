package doctor

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite docs/doctor.md")

// sound returns the facts of a machine without problems.
func sound(t *testing.T) Facts {
	t.Helper()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	thresholds, err := pod.ParseThresholds([]string{"memory.available<100Mi", "nodefs.available<10%", "nodefs.inodesFree<5%"})
	if err != nil {
		t.Fatal(err)
	}
	return Facts{
		Agent: AgentConfig{NodeName: "n1", RootDir: "/var/lib/nodectl", ResolvConf: "/etc/resolv.conf", Thresholds: thresholds, Port: 10250},
		Now:   now, Caps: 1<<41 - 1, Systemd: true, Descriptors: 65536, Runc: "1.5.1",
		Cgroup:      Cgroup{"v2", []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"}, true, ""},
		Runtime:     Runtime{Endpoint: "unix:///run/containerd/containerd.sock", Name: "containerd", Version: "v2.4.2", Ready: true, Network: true, Systemd: true, Driver: true},
		CNI:         CNI{Dir: "/etc/cni/net.d", Configs: []string{"/etc/cni/net.d/10-b.conflist"}},
		Filesystems: []string{"ext4", "overlay"}, Seccomp: true, UserNS: 1000,
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "fs.inotify.max_user_instances": "512", "fs.inotify.max_user_watches": "524288", "kernel.pid_max": "4194304",
			"vm.overcommit_memory": "1", "vm.panic_on_oom": "0", "kernel.panic": "10", "kernel.panic_on_oops": "1"},
		Bridge: true, Iptables: true, Addresses: 1, Resolver: Resolver{Path: "/etc/resolv.conf", Servers: []string{"192.0.2.1"}},
		Clock: Clock{Known: true, Synced: true, HasRTC: true, RTC: time.Second},
		Certs: []Certificate{{Path: "/c", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(1000 * time.Hour)}},
		Files: []File{
			{Path: "/etc/nodectl/manifests", What: "manifests", Role: Manifest, Exists: true, Mode: 0o755},
			{Path: "/etc/kubernetes/kubelet.conf", What: kubeconfigFile, Role: Secret, Exists: true, Mode: 0o600},
			{Path: "/etc/kubernetes/pki/ca.crt", What: "--client-ca-file", Role: Trusted, Exists: true, Mode: 0o644},
		},
		Disks:      []Disk{{"nodefs", "/var/lib/nodectl", 50, 100, 50, 100}},
		MemoryFree: 1 << 30, MemorySize: 2 << 30,
	}
}

// faults are machines with one problem each, with its code. Every code has one.
var faults = []struct {
	code, says string
	seed       func(*Facts)
}{
	{"ND001", "user 7", func(f *Facts) { f.UID = 7 }},
	{"ND002", "CAP_SYS_ADMIN", func(f *Facts) { f.Caps = 1 << capSysResource }},
	{"ND003", "below this one's 100", func(f *Facts) { f.Caps &^= 1 << capSysResource; f.OOM = 100 }},
	{"ND004", "1024 files", func(f *Facts) { f.Descriptors = 1024 }},
	{"ND010", "/sys/fs/cgroup", func(f *Facts) { f.Cgroup = Cgroup{} }},
	{"ND011", "v1", func(f *Facts) { f.Cgroup.Version = "v1" }},
	{"ND012", "both", func(f *Facts) { f.Cgroup.Version = "hybrid" }},
	{"ND013", "memory, pids", func(f *Facts) { f.Cgroup.Controllers = []string{"cpu", "cpuset", "hugetlb"} }},
	{"ND014", "hugetlb", func(f *Facts) { f.Cgroup.Controllers = []string{"cpu", "memory", "pids", "cpuset"} }},
	{"ND015", "read-only", func(f *Facts) { f.Cgroup.Writable = false }},
	{"ND016", "systemd", func(f *Facts) { f.Systemd = false }},
	{"ND017", "both manage", func(f *Facts) { f.Runtime.Systemd = false }},
	{"ND018", "kubepods is not nodectl's", func(f *Facts) { f.Cgroup.Foreign = "cgroup /sys/fs/cgroup/kubepods is not nodectl's" }},
	{"ND020", "does not answer", func(f *Facts) {
		f.Runtime = Runtime{Err: "/run/containerd/containerd.sock: does not answer", Network: true}
	}},
	{"ND021", "sick", func(f *Facts) { f.Runtime.Ready, f.Runtime.ReadyMsg = false, "sick" }},
	{"ND022", "cni plugin not initialized", func(f *Facts) { f.Runtime.Network, f.Runtime.NetMsg = false, "cni plugin not initialized" }},
	{"ND023", "runc 1.1.11: CVE-2024-21626", func(f *Facts) { f.Runc = "1.1.11" }},
	{"ND023", "containerd v1.7.28: CVE-2024-25621", func(f *Facts) { f.Runtime.Version = "v1.7.28" }},
	{"ND024", "/etc/cni/net.d", func(f *Facts) { f.Runtime.Network, f.CNI.Configs = false, nil }},
	{"ND025", "10-b.conflist: broken", func(f *Facts) { f.CNI.Broken = []string{"10-b.conflist: broken"} }},
	{"ND026", "portmap", func(f *Facts) { f.CNI.Missing = []string{"portmap"} }},
	{"ND030", "/etc/nodectl/manifests (manifests) can be written by group 33 (mode 0775)", func(f *Facts) { f.Files[0].Mode, f.Files[0].GID = 0o775, 33 }},
	{"ND030", "can be written by group 0 and all users (mode 0777) and belongs to user 1000", func(f *Facts) { f.Files[0].Mode, f.Files[0].UID = 0o777, 1000 }},
	{"ND030", "(manifests) belongs to user 1000", func(f *Facts) { f.Files[0].UID = 1000 }},
	{"ND031", "no such file or directory", func(f *Facts) { f.Files[0].Exists = false }},
	{"ND031", "permission denied", func(f *Facts) { f.Files[0].Err = "permission denied" }},
	{"ND032", "kubelet.conf (--kubeconfig) can be read or written by group 0 (mode 0640)", func(f *Facts) { f.Files[1].Mode = 0o640 }},
	{"ND033", "ca.crt", func(f *Facts) { f.Files[2].Mode = 0o664 }},
	{"ND034", "ca.crt", func(f *Facts) { f.Files[2].Exists = false }},
	{"ND035", "/c expired at", func(f *Facts) { f.Now = f.Now.Add(1001 * time.Hour) }},
	{"ND035", "is not valid before", func(f *Facts) { f.Now = f.Now.Add(-2 * time.Hour) }},
	{"ND035", "contains no certificate", func(f *Facts) { f.Certs[0].Err = "contains no certificate" }},
	{"ND036", "expires in 50h", func(f *Facts) { f.Now = f.Now.Add(950 * time.Hour) }},
	{"ND040", "overlayfs", func(f *Facts) { f.Filesystems = nil }},
	{"ND041", "seccomp", func(f *Facts) { f.Seccomp = false }},
	{"ND042", "user namespaces", func(f *Facts) { f.UserNS = 0 }},
	{"ND043", "kernel.panic=10 (it is 0)", func(f *Facts) { f.Sysctls["kernel.panic"] = "0" }},
	{"ND044", "kernel.panic=10 (it is 0)", func(f *Facts) { f.Sysctls["kernel.panic"], f.Agent.Protect = "0", true }},
	{"ND045", "max_user_instances is 8", func(f *Facts) { f.Sysctls["fs.inotify.max_user_instances"] = "8" }},
	{"ND046", "pid_max is 4096", func(f *Facts) { f.Sysctls["kernel.pid_max"] = "4096" }},
	{"ND047", "clock", func(f *Facts) { f.Clock.Synced = false }},
	{"ND048", "1h0m0s", func(f *Facts) { f.Clock.RTC = -time.Hour }},
	{"ND050", "/var/lib/nodectl (nodefs) has 9 of 100 bytes free, less than 10%", func(f *Facts) { f.Disks[0].Free = 9 }},
	{"ND051", "4 of 100 inodes", func(f *Facts) { f.Disks[0].InodesFree = 4 }},
	{"ND052", "99 MiB", func(f *Facts) { f.MemoryFree = 99 << 20 }},
	{"ND053", "/dev/sda2", func(f *Facts) { f.Swap = []string{"/dev/sda2"} }},
	{"ND054", "/dev/sda2", func(f *Facts) { f.Swap, f.Agent.FailSwapOn = []string{"/dev/sda2"}, true }},
	{"ND060", "port 10250 (--port) is in use by kubelet (process 7)", func(f *Facts) { f.Ports = []Port{{10250, "--port", "kubelet (process 7)", false}} }},
	{"ND061", "ip_forward", func(f *Facts) { f.Sysctls["net.ipv4.ip_forward"] = "0" }},
	{"ND062", "br_netfilter is not loaded", func(f *Facts) { f.Bridge = false }},
	{"ND062", "bridge-nf-call-iptables is 0", func(f *Facts) { f.Bridge, f.Sysctls["net.bridge.bridge-nf-call-iptables"] = false, "0" }},
	{"ND063", "iptables", func(f *Facts) { f.Iptables = false }},
	{"ND064", "127.0.0.53", func(f *Facts) { f.Resolver.Servers = []string{"192.0.2.1", "127.0.0.53"} }},
	{"ND065", "no DNS server", func(f *Facts) { f.Resolver.Servers = nil }},
	{"ND065", "4 DNS servers", func(f *Facts) { f.Resolver.Servers = []string{"a", "b", "c", "d"} }},
	{"ND065", "no such file", func(f *Facts) { f.Resolver = Resolver{Path: "/r", Err: "no such file"} }},
	{"ND066", "localhost", func(f *Facts) { f.Agent.NodeName = "localhost.localdomain" }},
	{"ND067", "loopback", func(f *Facts) { f.Addresses = 0 }},
	{"ND068", "kubelet.conf", func(f *Facts) { f.Files[1].Exists = false }},
	{"ND069", "nf_tables", func(f *Facts) { f.NoNFTables = true }},
	{"ND080", "process 7", func(f *Facts) { f.Kubelets = []Process{{7, "/usr/bin/kubelet"}} }},
	{"ND081", "3 pods", func(f *Facts) { f.LeftPods = 3 }},
	{"ND082", "cpu_manager_state", func(f *Facts) { f.RootOf = "cpu_manager_state" }},
}

// TestEveryFaultIsNamed: a sound machine has no finding, and one with a problem has only
// that one's.
func TestEveryFaultIsNamed(t *testing.T) {
	t.Parallel()
	if all := Examine(sound(t)); len(all) > 0 {
		t.Errorf("Examine finds problems on a sound machine: %+v", all)
	}
	seen := map[string]bool{}
	for _, c := range faults {
		seen[c.code] = true
		f := sound(t)
		c.seed(&f)
		all := Examine(f)
		i := slices.IndexFunc(all, func(x Finding) bool { return x.Code == c.code })
		if i < 0 || !strings.Contains(all[i].Message, c.says) {
			t.Errorf("%s: got %+v, want a finding that says %q", c.code, all, c.says)
			continue
		}
		beside := slices.ContainsFunc(all, func(x Finding) bool { return x.Code != c.code })
		if beside && !slices.Contains([]string{"ND020", "ND024"}, c.code) { // these two have a second finding as their cause
			t.Errorf("%s: more findings than this one: %+v", c.code, all)
		}
		if Healthy(all) == slices.ContainsFunc(all, func(x Finding) bool { return x.Severity == Blocks }) {
			t.Errorf("%s: healthy %v with %+v", c.code, Healthy(all), all)
		}
	}
	for _, c := range checks() {
		if !seen[c.code] {
			t.Errorf("faults has no case for %s", c.code)
		}
	}
}

// TestCodesAreOnes: codes are unique and in order.
func TestCodesAreOnes(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^ND\d{3}$`)
	seen := map[string]bool{}
	for _, c := range checks() {
		if !form.MatchString(c.code) || seen[c.code] || c.title == "" || c.remedy == "" {
			t.Errorf("%+v", c)
		}
		seen[c.code] = true
	}
}

func TestWhatBlocksStandsFirst(t *testing.T) {
	t.Parallel()
	f := sound(t)
	f.Swap, f.Kubelets = []string{"/dev/sda2"}, []Process{{7, "kubelet"}}
	all := Examine(f)
	if len(all) != 2 || all[0].Code != "ND080" || all[1].Code != "ND053" || Healthy(all) {
		t.Errorf("%+v", all)
	}
}

// TestD1_KnownHoles: a version is compared with the fix of its own line of releases.
//
// Shows: D1
func TestD1_KnownHoles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, version string
		known         int
	}{
		{"runc", "1.1.4", 5}, {"runc", "1.1.11", 4}, {"runc", "1.1.12", 3}, {"runc", "1.2.7", 2}, {"runc", "1.2.8", 1}, {"runc", "1.3.2", 2},
		{"runc", "1.3.6", 0}, {"runc", "1.4.0", 1}, {"runc", "1.4.3", 0}, {"runc", "1.5.1", 0}, {"runc", "2.0.0", 0},
		{"runc", "", 0}, {"runc", "devel", 0}, {"crun", "1.0.0", 0},
		{"containerd", "v1.6.0", 10}, {"containerd", "1.6.38", 4}, {"containerd", "1.7.29", 2}, {"containerd", "1.7.33", 0}, {"containerd", "2.0.0", 5},
		{"containerd", "v2.0.3", 6}, {"containerd", "v2.0.6", 4}, {"containerd", "v2.1.9-k3s1", 0}, {"containerd", "v2.2.9", 1}, {"containerd", "v2.3.1", 4},
		{"containerd", "v2.4.1", 1}, {"containerd", "v2.4.2", 0},
		{"cri-o", "1.23.1", 1}, {"cri-o", "1.30.0", 0},
	} {
		if got := vulnerabilities(c.name, c.version); len(got) != c.known {
			t.Errorf("%s %s: %q, want %d", c.name, c.version, got, c.known)
		}
	}
}

// TestD3_EveryCheckOfTheBenchmark: a sound node of a cluster passes all checks, and each
// check that can fail does on a bad one.
//
// Shows: D3
func TestD3_EveryCheckOfTheBenchmark(t *testing.T) {
	t.Parallel()
	node := func() Facts {
		f := sound(t)
		f.Agent.Kubeconfig, f.Agent.ClientCA, f.Agent.ServerCert = "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/pki/ca.crt", ""
		f.Agent.Settings = Settings{Cluster: true, RotateCertificates: true, RotateServer: true, ServerPort: 10250, IdleTimeout: time.Minute, EventQPS: 50, PodPidsLimit: 100, MinTLS: "VersionTLS13"}
		f.Files[2].Mode = 0o600
		for _, what := range []string{unitFile, proxyFile, "configuration"} {
			f.Files = append(f.Files, File{Path: "/" + what, What: what, Exists: true, Mode: 0o600})
		}
		return f
	}
	all := CIS(node())
	if len(all) != 24 {
		t.Errorf("%d checks, want 10 of 4.1 and 14 of 4.2", len(all))
	}
	for _, r := range all {
		if r.Status != Pass || r.Evidence == "" {
			t.Errorf("%+v", r)
		}
	}
	for id, seed := range map[string]func(*Facts){
		"4.1.1": func(f *Facts) { f.Files[3].Mode = 0o644 }, "4.1.2": func(f *Facts) { f.Files[3].GID = 5 },
		"4.1.3": func(f *Facts) { f.Files[4].Mode = 0o604 }, "4.1.4": func(f *Facts) { f.Files[4].UID = 5 },
		"4.1.5": func(f *Facts) { f.Files[1].Mode = 0o640 }, "4.1.6": func(f *Facts) { f.Files[1].UID = 5 },
		"4.1.7": func(f *Facts) { f.Files[2].Mode = 0o644 }, "4.1.8": func(f *Facts) { f.Files[2].UID = 5 },
		"4.1.9": func(f *Facts) { f.Files[5].Mode = 0o644 }, "4.1.10": func(f *Facts) { f.Files[5].UID = 5 },
		"4.2.3": func(f *Facts) { f.Agent.ClientCA = "" }, "4.2.5": func(f *Facts) { f.Agent.Settings.IdleTimeout = 0 },
		"4.2.7": func(f *Facts) { f.Agent.Settings.NodeNameGiven = true }, "4.2.8": func(f *Facts) { f.Agent.Settings.EventQPS = -1 },
		"4.2.9": func(f *Facts) { f.Agent.Settings.RotateServer = false }, "4.2.10": func(f *Facts) { f.Agent.Settings.RotateCertificates = false },
		"4.2.11": func(f *Facts) { f.Agent.Settings.RotateServer = false }, "4.2.13": func(f *Facts) { f.Agent.Settings.PodPidsLimit = -1 },
	} {
		f := node()
		seed(&f)
		r := CIS(f)[slices.IndexFunc(CIS(f), func(r Result) bool { return r.ID == id })]
		if r.Status != Fail {
			t.Errorf("%s: %+v, want it to fail", id, r)
		}
	}
	bare := CIS(Facts{Agent: AgentConfig{Settings: Settings{IdleTimeout: 1, PodPidsLimit: 1, RotateCertificates: true}}})
	for _, r := range bare {
		if want := map[bool]string{true: NotHere, false: Pass}[strings.HasPrefix(r.ID, "4.1.")]; r.Status != want {
			t.Errorf("without a cluster: %+v, want %s", r, want)
		}
	}
}

// TestDoctorIsWrittenDown: docs/doctor.md has the table of checks.
func TestDoctorIsWrittenDown(t *testing.T) {
	t.Parallel()
	const file = "../../docs/doctor.md"
	var b bytes.Buffer
	b.WriteString(doctorHead)
	for _, c := range checks() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.code, c.severity, c.title, strings.ReplaceAll(c.remedy, "|", "\\|"))
	}
	b.WriteString(cisHead)
	for _, r := range CIS(Facts{}) {
		fmt.Fprintf(&b, "| %s | %s |\n", r.ID, r.Title)
	}
	b.WriteString(vulnerabilitiesHead)
	for _, h := range knownVulnerabilities() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", h.name, h.id, h.about, h.since, strings.Join(h.fixed, ", "))
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(have)); diff != "" {
		t.Errorf("%s is not the table; go test ./pkg/doctor -update writes it\n%s", file, diff)
	}
}

const doctorHead = `# nodectl doctor

` + "`nodectl doctor`" + ` checks whether ` + "`nodectl serve`" + ` with the same flags, variables and files
can run on this machine. It reports each problem with a code, a severity, a sentence
and a remedy. The exit code is 1 if a problem blocks, and 0 otherwise. doctor only
reads: it runs one program, ` + "`runc --version`" + `, and calls only the container runtime.
` + "`-o json`" + ` prints a ` + "`DoctorReport`" + ` (docs/schemas).

A code never changes its meaning, and the code of a removed check is not used again.

| Code | Severity | Problem | Remedy |
|---|---|---|---|
`

const cisHead = `
## CIS Kubernetes Benchmark

` + "`nodectl doctor --cis`" + ` adds every check of section 4 (worker nodes) of version 1.9. Each
has a result and its evidence: PASS, FAIL, or N/A if the checked file does not exist.
A check that fails does not change the exit code.

| Check | Title |
|---|---|
`

const vulnerabilitiesHead = `
## Known vulnerabilities

ND023 reports these. It compares a version with the fix of the same release line.

| Runtime | CVE | Effect | Since | Fixed in |
|---|---|---|---|---|
`
