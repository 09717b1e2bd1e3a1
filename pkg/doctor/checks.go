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
		{"ND001", "nodectl is not root", Warns, "run it as root: volumes, cgroups and most runtimes' sockets need that", func(f Facts) []string {
			return one(f.UID != 0, fmt.Sprintf("this is user %d, and not root: what only root may see was not looked at", f.UID))
		}},
		{"ND002", "Root lacks CAP_SYS_ADMIN", Blocks, "start nodectl outside of a container, or in a privileged one", func(f Facts) []string {
			return one(f.UID == 0 && !f.has(capSysAdmin), "root has no CAP_SYS_ADMIN here: volumes cannot be mounted")
		}},
		{"ND003", "oom_score_adj cannot be lowered", Warns, "give the agent and the runtime CAP_SYS_RESOURCE, or set restrict_oom_score_adj = true in containerd's CRI plugin", func(f Facts) []string {
			return one(f.UID == 0 && !f.has(capSysResource), fmt.Sprintf("without CAP_SYS_RESOURCE no oom_score_adj goes below this process's %d: the runtime may refuse to start pods", f.OOM))
		}},
		{"ND004", "Few file descriptors", Warns, "LimitNOFILE=65536 in the unit file, or ulimit -n", func(f Facts) []string {
			return one(f.Descriptors > 0 && f.Descriptors < 4096, fmt.Sprintf("a process may open %d files here; a node of 110 pods needs more", f.Descriptors))
		}},
	}
}

func cgroupChecks() []check {
	return []check{
		{"ND010", "No cgroups", Blocks, "mount cgroup v2: mount -t cgroup2 none /sys/fs/cgroup; systemd does it by itself", func(f Facts) []string {
			return one(f.Cgroup.Version == "", "no cgroup hierarchy is mounted at /sys/fs/cgroup")
		}},
		{"ND011", "cgroup v1", Warns, "boot with systemd.unified_cgroup_hierarchy=1", func(f Facts) []string {
			return one(f.Cgroup.Version == "v1", "this machine has cgroup v1: Kubernetes has left it, and memory.high, PSI and whole-group OOM kills are missing")
		}},
		{"ND012", "Two cgroup hierarchies", Warns, "boot with systemd.unified_cgroup_hierarchy=1", func(f Facts) []string {
			return one(f.Cgroup.Version == "hybrid", "cgroup v1 and v2 are both mounted: pods are held by v1")
		}},
		{"ND013", "Controllers that pods need are missing", Blocks, "enable them: cgroup_enable=memory cpu on the kernel's command line, or +cpu +memory +pids in cgroup.subtree_control of the cgroup above", func(f Facts) []string {
			return f.controllers("cpu", "memory", "pids")
		}},
		{"ND014", "Controllers that some pods need are missing", Warns, "enable them as ND013 says; without hugetlb there are no huge pages, without cpuset no pinning", func(f Facts) []string {
			return f.controllers("cpuset", "hugetlb")
		}},
		{"ND015", "Cgroups cannot be made", Blocks, "Delegate=yes in the unit file; in a container, mount /sys/fs/cgroup writable and use a cgroup namespace of its own", func(f Facts) []string {
			return one(f.Cgroup.Version != "" && f.UID == 0 && !f.Cgroup.Writable, "/sys/fs/cgroup is read-only: pods cannot have cgroups")
		}},
		{"ND016", "The runtime's cgroup driver does not fit", Blocks, "SystemdCgroup = false for the runtime's runc", func(f Facts) []string {
			return one(f.Runtime.Driver && f.Runtime.Systemd && !f.Systemd, "the runtime's cgroup driver is systemd, and systemd does not run this machine")
		}},
		{"ND017", "Two who keep cgroups", Warns, "SystemdCgroup = true for the runtime's runc", func(f Facts) []string {
			return one(f.Runtime.Driver && !f.Runtime.Systemd && f.Systemd && f.Cgroup.Version == "v2" && !f.Runtime.Bundled, "the runtime's cgroup driver is cgroupfs, and systemd runs this machine: both keep the same cgroups")
		}},
		{"ND018", "The pods' cgroups are somebody else's", Blocks, "stop whoever made them (systemctl disable --now kubelet, or the other nodectl) and remove them when nothing runs there any more; or give nodectl a cgroup of its own, as --cgroup-root /nodectl", func(f Facts) []string {
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
		{"ND020", "No runtime answers", Blocks, "install containerd and start it, or name a runtime's socket with --runtime-endpoint", func(f Facts) []string {
			return one(f.Runtime.Err != "" && !f.Runtime.Bundled, f.Runtime.Err)
		}},
		{"ND021", "The runtime is not ready", Blocks, "its log says why: journalctl -u containerd", func(f Facts) []string {
			return one(f.Runtime.Name != "" && !f.Runtime.Ready, f.Runtime.Name+" is not ready: "+f.Runtime.ReadyMsg)
		}},
		{"ND022", "The runtime has no network", Blocks, "put a CNI configuration into /etc/cni/net.d and its plugins into /opt/cni/bin", func(f Facts) []string {
			return one(f.Runtime.Name != "" && f.Runtime.Ready && !f.Runtime.Network, f.Runtime.Name+" has no network for pods: "+f.Runtime.NetMsg)
		}},
		{"ND023", "The runtime has known holes", Warns, "install a version that has the fix", func(f Facts) []string {
			return slices.Concat(holes(f.Runtime.Name, f.Runtime.Version), holes("runc", f.Runc))
		}},
		{"ND024", "No CNI configuration", Blocks, "install one, as the CNI plugins' bridge: a .conflist in the directory", func(f Facts) []string {
			return one(!f.Runtime.Bundled && f.Runtime.Err == "" && !f.Runtime.Network && len(f.CNI.Configs)+len(f.CNI.Broken) == 0, "no CNI configuration in "+f.CNI.Dir)
		}},
		{"ND025", "A CNI configuration cannot be read", Warns, "mend or remove it: the first file by name is the one that counts", func(f Facts) []string {
			return f.CNI.Broken
		}},
		{"ND026", "A CNI plugin is missing", Warns, "install it into /opt/cni/bin (Debian and Fedora: containernetworking-plugins, and the runtime's bin_dir)", func(f Facts) []string {
			return one(len(f.CNI.Missing) > 0 && !f.Runtime.Bundled, "the CNI configuration names plugins that are not there: "+strings.Join(f.CNI.Missing, ", "))
		}},
	}
}

func kernelChecks() []check {
	return []check{
		{"ND040", "No overlayfs", Warns, "modprobe overlay; the runtime falls back to copying images otherwise", func(f Facts) []string {
			return one(!slices.Contains(f.Filesystems, "overlay"), "the kernel has no overlayfs")
		}},
		{"ND041", "No seccomp", Blocks, "a kernel with CONFIG_SECCOMP_FILTER", func(f Facts) []string {
			return one(!f.Seccomp, "the kernel has no seccomp filters: containers that want the runtime's profile, which is all, do not start")
		}},
		{"ND042", "No user namespaces", Warns, "sysctl user.max_user_namespaces=65536", func(f Facts) []string {
			return one(f.UserNS == 0, "the kernel makes no user namespaces: pods with hostUsers: false do not start")
		}},
		{"ND043", "The kernel's settings are not those a node needs", Warns, "set them in /etc/sysctl.d", func(f Facts) []string {
			if f.Where.Protect {
				return nil
			}
			return one(len(f.defaults()) > 0, "the kubelet would set "+strings.Join(f.defaults(), ", ")+"; nodectl sets nothing")
		}},
		{"ND044", "The kernel's settings keep serve from starting", Blocks, "set them in /etc/sysctl.d, or leave out --protect-kernel-defaults", func(f Facts) []string {
			return one(f.Where.Protect && len(f.defaults()) > 0, "--protect-kernel-defaults wants "+strings.Join(f.defaults(), ", "))
		}},
		{"ND045", "Few inotify watches", Warns, "sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288", func(f Facts) []string {
			return slices.Concat(f.least("fs.inotify.max_user_instances", 128), f.least("fs.inotify.max_user_watches", 65536))
		}},
		{"ND046", "Few process numbers", Warns, "sysctl kernel.pid_max=4194304", func(f Facts) []string {
			return f.least("kernel.pid_max", 32768)
		}},
		{"ND047", "The clock is not kept", Warns, "run chrony or systemd-timesyncd: certificates and tokens are judged by this clock", func(f Facts) []string {
			return one(f.Clock.Known && !f.Clock.Synced, "nobody keeps this machine's clock in time")
		}},
		{"ND048", "The clock is far from the machine's own", Warns, "set the one that is wrong: timedatectl, hwclock", func(f Facts) []string {
			return one(f.Clock.HasRTC && f.Clock.RTC.Abs() > 2*time.Minute, fmt.Sprintf("the system's clock and the machine's are %s apart", f.Clock.RTC.Abs().Round(time.Second)))
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
	return one(ok && have < want, fmt.Sprintf("%s is %d; %d and more is well", name, have, want))
}

func leftoverChecks() []check {
	return []check{
		{"ND080", "A kubelet runs here", Blocks, "stop it: systemctl disable --now kubelet; two agents fight over the same node", func(f Facts) (all []string) {
			for _, p := range f.Kubelets {
				all = append(all, fmt.Sprintf("a kubelet runs: %s, process %d", p.Exe, p.PID))
			}
			return all
		}},
		{"ND081", "A kubelet's pods are left", Warns, "drain the node before the change; what is left goes with 'crictl rmp' and the directories in /var/lib/kubelet/pods", func(f Facts) []string {
			return one(f.LeftPods > 0 && len(f.Kubelets) == 0, fmt.Sprintf("/var/lib/kubelet/pods holds %d pods of a kubelet that does not run", f.LeftPods))
		}},
		{"ND082", "The root directory is a kubelet's", Blocks, "give nodectl a directory of its own with --root-dir; its default is /var/lib/nodectl", func(f Facts) []string {
			return one(f.RootOf != "", f.Where.RootDir+" is a kubelet's: "+f.RootOf+" is there")
		}},
	}
}
