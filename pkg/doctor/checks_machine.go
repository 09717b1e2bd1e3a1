package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

func fileChecks() []check {
	return []check{
		{"ND030", "Other users can write a manifest", Blocks, "run chown root and chmod go-w on it: a user who can write a manifest can become root on this machine. --insecure-manifest-permissions makes nodectl read it anyway", func(f Facts) []string {
			return f.files(Manifest, func(x File) string {
				if f.Agent.Permissive {
					return ""
				}
				return x.exposed(f.UID, 0o022, "written")
			})
		}},
		{"ND031", "nodectl cannot read a source of manifests", Warns, "create the file or directory if it does not exist, else let nodectl read it; or name another source with -f", func(f Facts) []string {
			return f.files(Manifest, func(x File) string {
				return words(x.Err != "" || !x.Exists, "cannot be read: "+x.why())
			})
		}},
		{"ND032", "Other users can read a file with secrets", Warns, "run chown root and chmod 600 on it", func(f Facts) []string {
			return f.files(Secret, func(x File) string {
				return x.exposed(f.UID, 0o077, "read or written")
			})
		}},
		{"ND033", "Other users can write a file that nodectl trusts", Warns, "run chown root and chmod go-w on it", func(f Facts) []string {
			return f.files(Trusted, func(x File) string {
				return x.exposed(f.UID, 0o022, "written")
			})
		}},
		{"ND034", "nodectl cannot read a configured file", Blocks, "create the file if it does not exist, else let nodectl read it; or remove the setting that names it", func(f Facts) []string {
			missing := func(x File) string {
				return words(x.What != kubeconfigFile && (!x.Exists || x.Err != ""), "cannot be read: "+x.why())
			}
			return append(f.files(Secret, missing), f.files(Trusted, missing)...)
		}},
		{"ND035", "A certificate is not valid now", Blocks, "check the clock first (ND047). Replace the files of --tls-cert-file and --client-ca-file. nodectl serve renews the certificates in --cert-dir; to renew an expired client certificate it needs --bootstrap-kubeconfig with a valid token. In a kubeadm cluster, run 'kubeadm join' again", func(f Facts) (all []string) {
			for _, c := range f.Certs {
				switch {
				case c.Err != "":
					all = append(all, c.Path+": "+c.Err)
				case f.Now.Before(c.NotBefore):
					all = append(all, fmt.Sprintf("%s is not valid before %s", c.Path, c.NotBefore.UTC().Format(time.RFC3339)))
				case f.Now.After(c.NotAfter):
					all = append(all, fmt.Sprintf("%s expired at %s", c.Path, c.NotAfter.UTC().Format(time.RFC3339)))
				}
			}
			return all
		}},
		{"ND036", "A certificate expires soon", Warns, "in a cluster nodectl rotates its own certificates; renew all others yourself", func(f Facts) (all []string) {
			for _, c := range f.Certs {
				left := c.NotAfter.Sub(f.Now)
				if whole := c.NotAfter.Sub(c.NotBefore); c.Err == "" && left > 0 && left < min(7*24*time.Hour, whole/10) {
					all = append(all, fmt.Sprintf("%s expires in %s", c.Path, left.Round(time.Minute)))
				}
			}
			return all
		}},
	}
}

// kubeconfigFile is the name of --kubeconfig's file in Facts.Files.
const kubeconfigFile = "--kubeconfig"

func (f Facts) files(role Role, wrong func(File) string) (all []string) {
	for _, x := range f.Files {
		if msg := wrong(x); x.Role == role && msg != "" {
			all = append(all, fmt.Sprintf("%s (%s) %s", x.Path, x.What, msg))
		}
	}
	return all
}

// exposed says which users other than root and the agent's own have one of these rights, or
// own the file; "" for none. access names the rights: "written".
func (x File) exposed(own int, rights uint32, access string) string {
	if !x.Exists || x.Err != "" {
		return ""
	}
	var users, causes []string
	mode := uint32(x.Mode.Perm())
	if mode&rights&0o070 != 0 {
		users = append(users, fmt.Sprintf("group %d", x.GID))
	}
	if mode&rights&0o007 != 0 {
		users = append(users, "all users")
	}
	if len(users) > 0 {
		causes = append(causes, fmt.Sprintf("can be %s by %s (mode %04o)", access, strings.Join(users, " and "), mode))
	}
	if x.UID != 0 && x.UID != own {
		causes = append(causes, fmt.Sprintf("belongs to user %d", x.UID))
	}
	return strings.Join(causes, " and ")
}

func (x File) why() string {
	if x.Err != "" {
		return x.Err
	}
	return "no such file or directory"
}

func words(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func resourceChecks() []check {
	return []check{
		{"ND050", "Disk space is below the eviction threshold", Warns, "free disk space, or lower --eviction-hard: below the threshold the node reports DiskPressure, and the agent removes unused data, then evicts pods", func(f Facts) []string {
			return f.short("available", "bytes", func(d Disk) (uint64, uint64) { return d.Free, d.Size })
		}},
		{"ND051", "Free inodes are below the eviction threshold", Warns, "remove files, or lower --eviction-hard: below the threshold the node reports DiskPressure, as for ND050; without free inodes nothing starts", func(f Facts) []string {
			return f.short("inodesFree", "inodes", func(d Disk) (uint64, uint64) { return d.InodesFree, d.Inodes })
		}},
		{"ND052", "Free memory is below the eviction threshold", Warns, "stop processes, or lower --eviction-hard: below the threshold the node reports MemoryPressure, and the agent evicts pods", func(f Facts) (all []string) {
			for _, t := range f.Agent.Thresholds {
				if t.Signal == pod.SignalMemory && f.MemorySize > 0 && below(t, f.MemoryFree, f.MemorySize) {
					all = append(all, fmt.Sprintf("%d MiB of memory are free, less than %s", f.MemoryFree>>20, limit(t)))
				}
			}
			return all
		}},
		{"ND053", "Swap is on", Warns, "run swapoff -a: swap slows down the memory that pods requested, and may write secrets to a disk", func(f Facts) []string {
			return one(len(f.Swap) > 0 && !f.Agent.FailSwapOn, "swap is on: "+strings.Join(f.Swap, ", "))
		}},
		{"ND054", "Swap keeps nodectl serve from starting", Blocks, "run swapoff -a and remove swap from /etc/fstab, or set --fail-swap-on=false", func(f Facts) []string {
			return one(len(f.Swap) > 0 && f.Agent.FailSwapOn, "--fail-swap-on is set, and swap is on: "+strings.Join(f.Swap, ", "))
		}},
	}
}

// short returns the disks with less free than their threshold.
func (f Facts) short(of, unit string, left func(Disk) (free, size uint64)) (all []string) {
	for _, d := range f.Disks {
		for _, t := range f.Agent.Thresholds {
			free, size := left(d)
			if t.Signal == d.What+"."+of && size > 0 && below(t, free, size) {
				all = append(all, fmt.Sprintf("%s (%s) has %d of %d %s free, less than %s", d.Path, d.What, free, size, unit, limit(t)))
			}
		}
	}
	return all
}

func below(t pod.Threshold, free, size uint64) bool {
	if t.Quantity != nil {
		return free < uint64(max(0, t.Quantity.Value()))
	}
	return float64(free) < float64(size)*t.Percent/100
}

func limit(t pod.Threshold) string {
	if t.Quantity != nil {
		return t.Quantity.String()
	}
	return strconv.FormatFloat(t.Percent, 'g', -1, 64) + "%"
}

func (f Facts) sysctl(name string) (int64, bool) {
	n, err := strconv.ParseInt(f.Sysctls[name], 10, 64)
	return n, err == nil
}

func (f Facts) off(name string) bool {
	n, ok := f.sysctl(name)
	return ok && n == 0
}

func networkChecks() []check {
	return []check{
		{"ND060", "A port is in use", Blocks, "stop the process that listens on it, or choose another port with --port or --healthz-port", func(f Facts) (all []string) {
			for _, p := range f.Ports {
				if !p.Own {
					all = append(all, fmt.Sprintf("port %d (%s) is in use by %s", p.Number, p.What, p.By))
				}
			}
			return all
		}},
		{"ND061", "IP forwarding is off", Blocks, "run sysctl net.ipv4.ip_forward=1, and set it in a file in /etc/sysctl.d", func(f Facts) []string {
			return one(f.off("net.ipv4.ip_forward"), "net.ipv4.ip_forward is 0: pods cannot reach addresses beyond this machine")
		}},
		{"ND062", "Bridged packets bypass iptables", Warns, "run modprobe br_netfilter, then sysctl net.bridge.bridge-nf-call-iptables=1; for the next boot, write the module into a file in /etc/modules-load.d and the setting into one in /etc/sysctl.d", func(f Facts) []string {
			cause := "net.bridge.bridge-nf-call-iptables is 0"
			if f.Sysctls["net.bridge.bridge-nf-call-iptables"] == "" {
				cause = "the kernel module br_netfilter is not loaded"
			}
			return one(!f.Bridge, cause+": a pod cannot reach a Service whose endpoint is a pod on the same bridge")
		}},
		{"ND063", "Neither iptables nor nftables is installed", Warns, "install iptables or nftables: the CNI plugins bridge, portmap and firewall run them", func(f Facts) []string {
			return one(!f.Iptables, "neither iptables nor nft is installed")
		}},
		{"ND064", "resolv.conf names a loopback address", Warns, "set --resolv-conf /run/systemd/resolve/resolv.conf", func(f Facts) []string {
			for _, s := range f.Resolver.Servers {
				if strings.HasPrefix(s, "127.") || s == "::1" {
					return []string{f.Resolver.Path + " names " + s + ": in a pod that address is the pod itself, and a cluster's DNS server would query itself"}
				}
			}
			return nil
		}},
		{"ND065", "resolv.conf names no DNS server, or too many", Warns, "edit the file, or name another one with --resolv-conf", func(f Facts) []string {
			switch r := f.Resolver; {
			case r.Err != "":
				return []string{r.Path + ": " + r.Err}
			case r.Path != "" && len(r.Servers) == 0:
				return []string{r.Path + " names no DNS server"}
			case len(r.Servers) > 3:
				return []string{fmt.Sprintf("%s names %d DNS servers; pods get the first three", r.Path, len(r.Servers))}
			}
			return nil
		}},
		{"ND066", "The node's name is localhost", Warns, "run hostnamectl set-hostname, or set --node-name", func(f Facts) []string {
			bare, _, _ := strings.Cut(f.Agent.NodeName, ".")
			return one(bare == "localhost", "the node's name is "+f.Agent.NodeName+", which does not tell machines apart")
		}},
		{"ND067", "The machine has no IP address", Warns, "configure a network interface, or set --node-ip", func(f Facts) []string {
			return one(f.Addresses == 0, "this machine has no IP address except loopback")
		}},
		{"ND068", "Credentials for the API server are missing", Blocks, "run 'kubeadm join', which writes the kubeconfig, or set --bootstrap-kubeconfig", func(f Facts) []string {
			for _, x := range f.Files {
				if x.What == kubeconfigFile && !x.Exists && f.Agent.Bootstrap == "" {
					return []string{x.Path + " does not exist, and --bootstrap-kubeconfig is not set"}
				}
			}
			return nil
		}},
		{"ND069", "The kernel has no nftables", Warns, "load the kernel module nf_tables, or use a kernel with CONFIG_NF_TABLES", func(f Facts) []string {
			return one(f.NoNFTables, "nf_tables is missing: Services of manifests are not served")
		}},
	}
}
