package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The capabilities that the checks need, by number.
const (
	capSysAdmin    = 21
	capSysResource = 24
)

func (f Facts) has(capability int) bool { return f.Caps&(1<<capability) != 0 }

func rightsChecks() []check {
	return []check{
		{"ND001", "nodectl is not root", Warns, "run it as root: volumes, cgroups and most runtimes' sockets need root", func(f Facts) []string {
			return one(f.UID != 0, fmt.Sprintf("doctor runs as user %d and not as root: it did not check what only root can read", f.UID))
		}},
		{"ND002", "Root lacks CAP_SYS_ADMIN", Blocks, "run nodectl outside of a container, or in a privileged one", func(f Facts) []string {
			return one(f.UID == 0 && !f.has(capSysAdmin), "root lacks CAP_SYS_ADMIN: nodectl cannot mount volumes")
		}},
		{"ND003", "oom_score_adj cannot be lowered", Warns, "give the agent and the runtime CAP_SYS_RESOURCE, or set restrict_oom_score_adj = true in containerd's CRI plugin", func(f Facts) []string {
			return one(f.UID == 0 && !f.has(capSysResource), fmt.Sprintf("without CAP_SYS_RESOURCE no process can get an oom_score_adj below this one's %d: the runtime may refuse to start pods", f.OOM))
		}},
		{"ND004", "The limit of open files is low", Warns, "set LimitNOFILE=65536 in the unit file, or raise ulimit -n", func(f Facts) []string {
			return one(f.Descriptors > 0 && f.Descriptors < 4096, fmt.Sprintf("a process may open at most %d files; a node of 110 pods needs more", f.Descriptors))
		}},
	}
}

func cgroupChecks() []check {
	return []check{
		{"ND010", "No cgroup hierarchy is mounted", Blocks, "mount cgroup v2: mount -t cgroup2 none /sys/fs/cgroup; systemd mounts it by itself", func(f Facts) []string {
			return one(f.Cgroup.Version == "", "no cgroup hierarchy is mounted at /sys/fs/cgroup")
		}},
		{"ND011", "The machine uses cgroup v1", Warns, "boot with systemd.unified_cgroup_hierarchy=1", func(f Facts) []string {
			return one(f.Cgroup.Version == "v1", "this machine uses cgroup v1, which Kubernetes has deprecated: memory.high, PSI and whole-group OOM kills are missing")
		}},
		{"ND012", "cgroup v1 and v2 are both mounted", Warns, "boot with systemd.unified_cgroup_hierarchy=1", func(f Facts) []string {
			return one(f.Cgroup.Version == "hybrid", "cgroup v1 and v2 are both mounted: v1 limits the pods")
		}},
		{"ND013", "cgroup controllers that all pods need are missing", Blocks, "enable them: cgroup_enable=memory on the kernel's command line, or write +cpu +memory +pids to cgroup.subtree_control of the parent cgroup", func(f Facts) []string {
			return f.controllers("cpu", "memory", "pids")
		}},
		{"ND014", "cgroup controllers that some pods need are missing", Warns, "enable them as for ND013; without hugetlb pods get no huge pages, without cpuset no CPU pinning", func(f Facts) []string {
			return f.controllers("cpuset", "hugetlb")
		}},
		{"ND015", "nodectl cannot create cgroups", Blocks, "set Delegate=yes in the unit file; in a container, mount /sys/fs/cgroup writable and give the container its own cgroup namespace", func(f Facts) []string {
			return one(f.Cgroup.Version != "" && f.UID == 0 && !f.Cgroup.Writable, "/sys/fs/cgroup is read-only: nodectl cannot create the pods' cgroups")
		}},
		{"ND016", "The runtime's cgroup driver needs systemd", Blocks, "set SystemdCgroup = false for runc in the runtime's configuration", func(f Facts) []string {
			return one(f.Runtime.Driver && f.Runtime.Systemd && !f.Systemd, "the runtime's cgroup driver is systemd, but systemd is not this machine's init")
		}},
		{"ND017", "The runtime and systemd both manage cgroups", Warns, "set SystemdCgroup = true for runc in the runtime's configuration", func(f Facts) []string {
			return one(f.Runtime.Driver && !f.Runtime.Systemd && f.Systemd && f.Cgroup.Version == "v2" && !f.Runtime.Bundled, "the runtime's cgroup driver is cgroupfs, but systemd is this machine's init: both manage the same cgroups")
		}},
		{"ND018", "The pods' cgroups belong to another agent", Blocks, "stop the agent that created them (systemctl disable --now kubelet, or the other nodectl) and remove them when no process is left in them; or give nodectl its own cgroup, such as --cgroup-root /nodectl", func(f Facts) []string {
			return one(f.Cgroup.Foreign != "", f.Cgroup.Foreign)
		}},
	}
}

func (f Facts) controllers(names ...string) []string {
	if f.Cgroup.Version == "" {
		return nil
	}
	var missing []string
	for _, n := range names {
		if !slices.Contains(f.Cgroup.Controllers, n) {
			missing = append(missing, n)
		}
	}
	return one(len(missing) > 0, "cgroup controllers are missing: "+strings.Join(missing, ", "))
}

func runtimeChecks() []check {
	return []check{
		{"ND020", "No container runtime answers", Blocks, "install and start containerd, or name a runtime's socket with --runtime-endpoint", func(f Facts) []string {
			return one(f.Runtime.Err != "" && !f.Runtime.Bundled, f.Runtime.Err)
		}},
		{"ND021", "The runtime is not ready", Blocks, "read its log: journalctl -u containerd", func(f Facts) []string {
			return one(f.Runtime.Name != "" && !f.Runtime.Ready, f.Runtime.Name+" is not ready: "+f.Runtime.ReadyMsg)
		}},
		{"ND022", "The runtime has no pod network", Blocks, "put a CNI configuration into /etc/cni/net.d and its plugins into /opt/cni/bin", func(f Facts) []string {
			return one(f.Runtime.Name != "" && f.Runtime.Ready && !f.Runtime.Network, f.Runtime.Name+" has no pod network: "+f.Runtime.NetMsg)
		}},
		{"ND023", "The runtime has known vulnerabilities", Warns, "install a version with the fix", func(f Facts) []string {
			return slices.Concat(vulnerabilities(f.Runtime.Name, f.Runtime.Version), vulnerabilities("runc", f.Runc))
		}},
		{"ND024", "No CNI configuration", Blocks, "put a .conflist into the directory, such as one for the bridge plugin", func(f Facts) []string {
			return one(!f.Runtime.Bundled && f.Runtime.Err == "" && !f.Runtime.Network && len(f.CNI.Configs)+len(f.CNI.Broken) == 0, "no CNI configuration in "+f.CNI.Dir)
		}},
		{"ND025", "A CNI configuration cannot be read", Warns, "repair or remove it: the runtime uses the first file by name", func(f Facts) []string {
			return f.CNI.Broken
		}},
		{"ND026", "A CNI plugin is missing", Warns, "install it into /opt/cni/bin (Debian and Fedora: install containernetworking-plugins, and set the runtime's bin_dir)", func(f Facts) []string {
			return one(len(f.CNI.Missing) > 0 && !f.Runtime.Bundled, "the CNI configuration names plugins that are not installed: "+strings.Join(f.CNI.Missing, ", "))
		}},
	}
}

func kernelChecks() []check {
	return []check{
		{"ND040", "The kernel has no overlayfs", Warns, "run modprobe overlay; without overlayfs the runtime copies images", func(f Facts) []string {
			return one(!slices.Contains(f.Filesystems, "overlay"), "the kernel has no overlayfs")
		}},
		{"ND041", "The kernel has no seccomp", Blocks, "use a kernel with CONFIG_SECCOMP_FILTER", func(f Facts) []string {
			return one(!f.Seccomp, "the kernel has no seccomp filters: containers with the runtime's profile, which is the default, do not start")
		}},
		{"ND042", "The kernel allows no user namespaces", Warns, "run sysctl user.max_user_namespaces=65536", func(f Facts) []string {
			return one(f.UserNS == 0, "the kernel allows no user namespaces: pods with hostUsers: false do not start")
		}},
		{"ND043", "Kernel settings differ from a kubelet's", Warns, "set them in /etc/sysctl.d", func(f Facts) []string {
			if f.Agent.Protect {
				return nil
			}
			return one(len(f.defaults()) > 0, "the kubelet would set "+strings.Join(f.defaults(), ", ")+"; nodectl changes no kernel setting")
		}},
		{"ND044", "Kernel settings keep nodectl serve from starting", Blocks, "set them in /etc/sysctl.d, or remove --protect-kernel-defaults", func(f Facts) []string {
			return one(f.Agent.Protect && len(f.defaults()) > 0, "--protect-kernel-defaults requires "+strings.Join(f.defaults(), ", "))
		}},
		{"ND045", "The limits of inotify are low", Warns, "run sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288", func(f Facts) []string {
			return slices.Concat(f.least("fs.inotify.max_user_instances", 128), f.least("fs.inotify.max_user_watches", 65536))
		}},
		{"ND046", "The limit of process IDs is low", Warns, "run sysctl kernel.pid_max=4194304", func(f Facts) []string {
			return f.least("kernel.pid_max", 32768)
		}},
		{"ND047", "The clock is not synchronized", Warns, "run chrony or systemd-timesyncd: nodectl checks certificates and tokens against this clock", func(f Facts) []string {
			return one(f.Clock.Known && !f.Clock.Synced, "no time service synchronizes this machine's clock")
		}},
		{"ND048", "The system clock differs from the hardware clock", Warns, "set the wrong one with timedatectl or hwclock", func(f Facts) []string {
			return one(f.Clock.HasRTC && f.Clock.RTC.Abs() > 2*time.Minute, fmt.Sprintf("the system clock and the hardware clock differ by %s", f.Clock.RTC.Abs().Round(time.Second)))
		}},
	}
}

// KernelDefaults returns the names and values of the kernel's settings that a kubelet sets,
// or requires with protectKernelDefaults.
func KernelDefaults() [][2]string {
	return [][2]string{{"vm.overcommit_memory", "1"}, {"vm.panic_on_oom", "0"}, {"kernel.panic", "10"}, {"kernel.panic_on_oops", "1"},
		{"kernel.keys.root_maxkeys", "1000000"}, {"kernel.keys.root_maxbytes", "25000000"}}
}

func (f Facts) defaults() (all []string) {
	for _, s := range KernelDefaults() {
		if have, ok := f.Sysctls[s[0]]; ok && have != s[1] {
			all = append(all, s[0]+"="+s[1]+" (it is "+have+")")
		}
	}
	return all
}

func (f Facts) least(name string, want int64) []string {
	have, ok := f.sysctl(name)
	return one(ok && have < want, fmt.Sprintf("%s is %d; it should be at least %d", name, have, want))
}

func leftoverChecks() []check {
	return []check{
		{"ND080", "A kubelet is running", Blocks, "stop it: systemctl disable --now kubelet; two agents on one runtime stop each other's pods", func(f Facts) (all []string) {
			for _, p := range f.Kubelets {
				all = append(all, fmt.Sprintf("a kubelet is running: %s, process %d", p.Exe, p.PID))
			}
			return all
		}},
		{"ND081", "Pods of a former kubelet are left", Warns, "drain a node before you replace its kubelet; remove leftover pods with 'crictl rmp', and their directories in /var/lib/kubelet/pods", func(f Facts) []string {
			return one(f.LeftPods > 0 && len(f.Kubelets) == 0, fmt.Sprintf("/var/lib/kubelet/pods has directories of %d pods, and no kubelet is running", f.LeftPods))
		}},
		{"ND082", "The root directory belongs to a kubelet", Blocks, "give nodectl its own directory with --root-dir; the default is /var/lib/nodectl", func(f Facts) []string {
			return one(f.RootOf != "", f.Agent.RootDir+" belongs to a kubelet: it contains "+f.RootOf)
		}},
	}
}
