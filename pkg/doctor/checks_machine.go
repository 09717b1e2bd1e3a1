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
		{"ND030", "A manifest can be written by others", Blocks, "chown root, chmod go-w; whoever writes a manifest is root on this machine. --insecure-manifest-permissions reads it all the same", func(f Facts) []string {
			return f.files(Manifest, func(x File) string {
				return words(x.Exists && !f.Where.Permissive && x.loose(f.UID, 0o022), "can be written by others")
			})
		}},
		{"ND031", "A source of manifests cannot be read", Warns, "make it, or name another one with -f", func(f Facts) []string {
			return f.files(Manifest, func(x File) string {
				return words(x.Err != "" || !x.Exists, "cannot be read: "+x.why())
			})
		}},
		{"ND032", "A secret can be read by others", Warns, "chmod 600, chown root", func(f Facts) []string {
			return f.files(Secret, func(x File) string {
				return words(x.Exists && x.loose(f.UID, 0o077), "can be read or written by others")
			})
		}},
		{"ND033", "What decides can be written by others", Warns, "chmod go-w, chown root", func(f Facts) []string {
			return f.files(Trusted, func(x File) string {
				return words(x.Exists && x.loose(f.UID, 0o022), "can be written by others")
			})
		}},
		{"ND034", "A file that was named is not there", Blocks, "put it there, or leave the setting out", func(f Facts) []string {
			missing := func(x File) string {
				return words(x.What != kubeconfigFile && (!x.Exists || x.Err != ""), "cannot be read: "+x.why())
			}
			return append(f.files(Secret, missing), f.files(Trusted, missing)...)
		}},
		{"ND035", "A certificate is not valid now", Blocks, "see the clock first (ND047), then have it signed again: with --bootstrap-kubeconfig by removing --kubeconfig's file, with kubeadm by 'kubeadm join'", func(f Facts) (all []string) {
			for _, c := range f.Certs {
				switch {
				case c.Err != "":
					all = append(all, c.Path+": "+c.Err)
				case f.Now.Before(c.NotBefore):
					all = append(all, fmt.Sprintf("%s is valid from %s on", c.Path, c.NotBefore.UTC().Format(time.RFC3339)))
				case f.Now.After(c.NotAfter):
					all = append(all, fmt.Sprintf("%s has expired at %s", c.Path, c.NotAfter.UTC().Format(time.RFC3339)))
				}
			}
			return all
		}},
		{"ND036", "A certificate expires soon", Warns, "a node of a cluster rotates its own; others are yours to renew", func(f Facts) (all []string) {
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

// loose reports whether a user other than root and the agent's own has these rights, or
// owns the file.
func (x File) loose(own int, rights uint32) bool {
	return x.Err == "" && (uint32(x.Mode.Perm())&rights != 0 || x.UID != 0 && x.UID != own)
}

func (x File) why() string {
	if x.Err != "" {
		return x.Err
	}
	return "not there"
}

func words(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func resourceChecks() []check {
	return []check{
		{"ND050", "Little space", Blocks, "make room, or lower --eviction-hard: below it a node of a cluster is under DiskPressure, and the scheduler stays away. What runs stays, and pods of files still start, as long as there is room at all", func(f Facts) []string {
			return f.short("available", "bytes", func(d Disk) (uint64, uint64) { return d.Free, d.Size })
		}},
		{"ND051", "Few inodes", Blocks, "remove small files, or lower --eviction-hard: what comes of it is what ND050 says", func(f Facts) []string {
			return f.short("inodesFree", "inodes", func(d Disk) (uint64, uint64) { return d.InodesFree, d.Inodes })
		}},
		{"ND052", "Little memory", Blocks, "end something, or lower --eviction-hard: below it a node of a cluster is under MemoryPressure, and the scheduler stays away. nodectl ends no pod for it; the kernel does, when nothing is left", func(f Facts) (all []string) {
			for _, t := range f.Where.Thresholds {
				if t.Signal == pod.SignalMemory && f.MemorySize > 0 && below(t, f.MemoryFree, f.MemorySize) {
					all = append(all, fmt.Sprintf("%d MiB of memory are free, and less than %s", f.MemoryFree>>20, limit(t)))
				}
			}
			return all
		}},
		{"ND053", "Swap is on", Warns, "swapoff -a: memory that pods were promised is slow then, and what is secret may reach a disk", func(f Facts) []string {
			return one(len(f.Swap) > 0 && !f.Where.FailSwapOn, "swap is on: "+strings.Join(f.Swap, ", "))
		}},
		{"ND054", "Swap keeps serve from starting", Blocks, "swapoff -a, and take it out of /etc/fstab; or --fail-swap-on=false", func(f Facts) []string {
			return one(len(f.Swap) > 0 && f.Where.FailSwapOn, "--fail-swap-on, and swap is on: "+strings.Join(f.Swap, ", "))
		}},
	}
}

// short returns the disks with less free than their threshold.
func (f Facts) short(of, unit string, left func(Disk) (free, size uint64)) (all []string) {
	for _, d := range f.Disks {
		for _, t := range f.Where.Thresholds {
			free, size := left(d)
			if t.Signal == d.What+"."+of && size > 0 && below(t, free, size) {
				all = append(all, fmt.Sprintf("%s (%s) has %d of %d %s left, and less than %s", d.Path, d.What, free, size, unit, limit(t)))
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
		{"ND060", "A port is taken", Blocks, "stop who listens there, or choose another one with --port or --healthz-port", func(f Facts) (all []string) {
			for _, p := range f.Ports {
				if !p.Own {
					all = append(all, fmt.Sprintf("port %d (%s) is taken by %s", p.Number, p.What, p.By))
				}
			}
			return all
		}},
		{"ND061", "Packets are not forwarded", Blocks, "sysctl net.ipv4.ip_forward=1, and a file in /etc/sysctl.d", func(f Facts) []string {
			return one(f.off("net.ipv4.ip_forward"), "net.ipv4.ip_forward is 0: pods reach nobody beyond this machine")
		}},
		{"ND062", "Bridged packets pass no rules", Warns, "modprobe br_netfilter, then sysctl net.bridge.bridge-nf-call-iptables=1", func(f Facts) []string {
			return one(!f.Bridge, "br_netfilter is not loaded, or net.bridge.bridge-nf-call-iptables is 0: Services do not reach pods on the same bridge")
		}},
		{"ND063", "No iptables", Warns, "install iptables or nftables: CNI's bridge, portmap and firewall call them", func(f Facts) []string {
			return one(!f.Iptables, "neither iptables nor nft is installed")
		}},
		{"ND064", "DNS would run in a circle", Warns, "--resolv-conf /run/systemd/resolve/resolv.conf", func(f Facts) []string {
			for _, s := range f.Resolver.Servers {
				if strings.HasPrefix(s, "127.") || s == "::1" {
					return []string{f.Resolver.Path + " names " + s + ": to a pod, that is the pod itself, and to a cluster's DNS a loop"}
				}
			}
			return nil
		}},
		{"ND065", "No DNS servers", Warns, "name them in the file, or another file with --resolv-conf", func(f Facts) []string {
			switch r := f.Resolver; {
			case r.Err != "":
				return []string{r.Path + ": " + r.Err}
			case r.Path != "" && len(r.Servers) == 0:
				return []string{r.Path + " names no server"}
			case len(r.Servers) > 3:
				return []string{fmt.Sprintf("%s names %d servers; pods get the first three", r.Path, len(r.Servers))}
			}
			return nil
		}},
		{"ND066", "The machine has no name of its own", Warns, "hostnamectl set-hostname, or --node-name", func(f Facts) []string {
			bare, _, _ := strings.Cut(f.Where.NodeName, ".")
			return one(bare == "localhost", "the node's name is "+f.Where.NodeName+", as everybody's")
		}},
		{"ND067", "No address", Warns, "bring up a network, or name one with --node-ip", func(f Facts) []string {
			return one(f.Addresses == 0, "this machine has no address beside loopback's")
		}},
		{"ND068", "Nothing to speak to the API server with", Blocks, "'kubeadm join' writes them; or name a --bootstrap-kubeconfig", func(f Facts) []string {
			for _, x := range f.Files {
				if x.What == kubeconfigFile && !x.Exists && f.Where.Bootstrap == "" {
					return []string{x.Path + " is not there, and no --bootstrap-kubeconfig"}
				}
			}
			return nil
		}},
	}
}
