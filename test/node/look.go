package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Process is one process as /proc shows it.
type Process struct {
	Pid     int
	Args    []string
	Started string // clock ticks since boot: with Pid it identifies the process
	OOM     string // oom_score_adj
	Cgroups []string
}

// Processes returns the processes of a container or a sandbox, by their cgroups: the kernel's
// state, whatever the runtime lists.
func (n *Node) Processes(id string) []Process {
	return processes(func(cgroups []byte) bool { return bytes.Contains(cgroups, []byte("/"+id)) }, func(p Process) bool {
		return slices.ContainsFunc(p.Cgroups, func(c string) bool {
			return strings.HasSuffix(c, "/"+id) || strings.Contains(c, "/"+id+"/")
		})
	})
}

// Left returns everything that exists of a node besides its containerd: after a test, all of it is
// a leak.
type Left struct {
	Pods       []string // sandboxes and containers CRI lists, in any state
	Processes  []string // shims, and processes in the node's cgroup or from its directories
	Mounts     []string // below its directories, network namespaces among them
	Cgroups    []string // below its cgroup
	Links      []string // its bridge, and devices attached to it
	Rules      []string // in the packet filter
	Containerd []string // the daemon itself and its files; only Close expects none
}

// Empty reports whether nothing is left; a running containerd does not count.
func (l Left) Empty() bool { return l.String() == "" }

// String returns one line for each thing that is left.
func (l Left) String() string {
	var b strings.Builder
	for _, g := range []struct {
		name  string
		lines []string
	}{
		{"pod", l.Pods}, {"process", l.Processes}, {"mount", l.Mounts}, {"cgroup", l.Cgroups},
		{"link", l.Links}, {"rule", l.Rules}, {"file", l.Containerd},
	} {
		for _, line := range g.lines {
			fmt.Fprintf(&b, "%s\t%s\n", g.name, line)
		}
	}
	return b.String()
}

// Look finds everything that exists of the node's pods. While containerd runs, its own
// process, files and the bridge are not counted.
func (n *Node) Look() Left {
	l, running := n.look()
	l.Rules = n.rules()
	if running {
		l.Pods = n.pods(context.Background())
	}
	return l
}

// LookBeside is Look without the expensive parts: pods and rules.
func (n *Node) LookBeside() Left {
	l, _ := n.look()
	return l
}

func (n *Node) look() (l Left, running bool) {
	for _, p := range allProcesses() {
		line := strings.Join(p.Args, " ")
		if filepath.Base(p.Args[0]) == "containerd" && strings.Contains(line, n.RunDir+"/") {
			running = true
			continue
		}
		ours := strings.Contains(line, n.RunDir+"/") && strings.HasPrefix(filepath.Base(p.Args[0]), "containerd-shim")
		for _, c := range p.Cgroups {
			ours = ours || strings.HasPrefix(c, n.CgroupParent+"/")
		}
		if ours {
			l.Processes = append(l.Processes, fmt.Sprintf("%d %s", p.Pid, line))
		}
	}
	for _, m := range Mounts() {
		if strings.HasPrefix(m, n.RunDir+"/") || strings.HasPrefix(m, n.dir+"/") {
			l.Mounts = append(l.Mounts, m)
		}
	}
	l.Cgroups = n.Cgroups()
	ports, _ := filepath.Glob("/sys/class/net/" + n.Bridge + "/brif/*")
	l.Links = ports
	if running {
		return l, true
	}
	for _, f := range []string{n.RunDir, n.dir} {
		if exists(f) {
			l.Containerd = append(l.Containerd, f)
		}
	}
	if exists("/sys/class/net/" + n.Bridge) {
		l.Links = append(l.Links, n.Bridge)
	}
	return l, false
}

// Sandboxes returns every sandbox CRI lists, ready or not.
func (n *Node) Sandboxes(t testing.TB) []*cri.PodSandbox {
	t.Helper()
	r, err := n.Runtime.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Items
}

// Containers returns every container CRI lists, in any state.
func (n *Node) Containers(t testing.TB) []*cri.Container {
	t.Helper()
	r, err := n.Runtime.ListContainers(t.Context(), &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Containers
}

// RemovePods stops and removes all pods, by CRI.
func (n *Node) RemovePods(ctx context.Context) error {
	r, err := n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range r.Items {
		_, stop := n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
		_, remove := n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		errs = append(errs, stop, remove)
	}
	n.removeCgroups()
	return errors.Join(errs...)
}

func (n *Node) pods(ctx context.Context) []string {
	if n.conn == nil {
		return nil
	}
	var lines []string
	if r, err := n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}); err != nil {
		lines = append(lines, err.Error())
	} else {
		for _, s := range r.Items {
			lines = append(lines, fmt.Sprintf("sandbox %s %s/%s %s", s.Id, s.Metadata.Namespace, s.Metadata.Name, s.State))
		}
	}
	if r, err := n.Runtime.ListContainers(ctx, &cri.ListContainersRequest{}); err != nil {
		lines = append(lines, err.Error())
	} else {
		for _, c := range r.Containers {
			lines = append(lines, fmt.Sprintf("container %s %s %s", c.Id, c.Metadata.Name, c.State))
		}
	}
	return lines
}

// Mounts returns the mount points of this machine.
func Mounts() []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 {
			points = append(points, f[4])
		}
	}
	return points
}

// tiers are the cgroups that agents, and benchmarks, make above pods, and do not remove.
var tiers = []string{"burstable", "besteffort", "kubepods", "raw", "kubepods-burstable.slice", "kubepods-besteffort.slice", "kubepods.slice"}

// Cgroups returns the node's cgroup and those below it in every hierarchy, except those that
// agents do not remove.
func (n *Node) Cgroups() []string {
	var found []string
	for _, root := range CgroupRoots() {
		_ = filepath.WalkDir(filepath.Join(root, n.CgroupParent), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && !slices.Contains(tiers, d.Name()) {
				found = append(found, path)
			}
			return nil
		})
	}
	return found
}

// RemoveTiers removes, below group in the node's own, the cgroups that agents do not remove,
// and group itself; it keeps a cgroup that contains anything else.
func (n *Node) RemoveTiers(group string) {
	for _, root := range CgroupRoots() {
		at := filepath.Join(root, n.CgroupParent, group)
		var dirs []string
		_ = filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && (path == at || slices.Contains(tiers, d.Name())) {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			_ = os.Remove(dir)
		}
	}
}

// RemovePodGroups removes, below group in the node's own, the empty cgroups of pods that were
// removed while no agent ran.
func (n *Node) RemovePodGroups(group string) {
	for _, root := range CgroupRoots() {
		_ = filepath.WalkDir(filepath.Join(root, n.CgroupParent, group), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && podGroup.MatchString(d.Name()) {
				_ = os.Remove(path)
				return fs.SkipDir
			}
			return nil
		})
	}
}

var podGroup = regexp.MustCompile(`^(kubepods.*-)?pod[0-9A-Za-z_.-]+(\.slice)?$`)

// removeCgroups removes the node's own, empty cgroups; their makers are not asked.
func (n *Node) removeCgroups() {
	n.RemovePodGroups("")
	n.RemoveTiers("")
}

// CgroupRoots returns the mount points of the cgroup hierarchies.
func CgroupRoots() []string {
	var roots []string
	text, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "cgroup") {
			roots = append(roots, f[1])
		}
	}
	return roots
}

// rules returns the packet filter's rules that name the node's network or its
// addresses.
func (n *Node) rules() []string {
	out, err := exec.Command("iptables-save").Output()
	if err != nil {
		return nil // no iptables, no rules
	}
	net, _, _ := strings.Cut(n.Subnet, "/")
	net = strings.TrimSuffix(net, "0") // 10.1.2.
	var found []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, `"`+n.Bridge+`\"`) || net != "" && strings.Contains(line, " "+net) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func allProcesses() []Process {
	all := func([]byte) bool { return true }
	return processes(all, func(Process) bool { return true })
}

// processes returns the matching processes. It reads the rest only of those whose cgroups may
// match: tests call it often.
func processes(mayFit func(cgroups []byte) bool, fits func(Process) bool) []Process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []Process
	for _, dir := range dirs {
		groups, _ := os.ReadFile(dir + "/cgroup")
		if !mayFit(groups) {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue // it has exited
		}
		if exe, err := os.Readlink(dir + "/exe"); err != nil {
			continue // a zombie or a kernel thread
		} else if len(line) == 0 {
			line = []byte(exe) // it is just executing
		}
		p := Process{Args: strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")}
		p.Pid, _ = strconv.Atoi(filepath.Base(dir))
		if stat, err := os.ReadFile(dir + "/stat"); err == nil {
			if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 19 {
				p.Started = f[19]
			}
		}
		if oom, err := os.ReadFile(dir + "/oom_score_adj"); err == nil {
			p.OOM = strings.TrimSpace(string(oom))
		}
		for line := range strings.Lines(string(groups)) {
			if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && !slices.Contains(p.Cgroups, f[2]) {
				p.Cgroups = append(p.Cgroups, f[2])
			}
		}
		if fits(p) {
			found = append(found, p)
		}
	}
	return found
}
