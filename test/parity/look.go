package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/compare"
	"github.com/nodectl/nodectl/test/node"
)

// lookInside reads the state of a running container from /proc and the cgroup trees,
// independently of the agent and the runtime.
func lookInside(ctx context.Context, runtime cri.RuntimeServiceClient, id string) (Look, error) {
	l := Look{Files: map[string]string{}, Cgroup: compare.Facts{}, Proc: compare.Facts{}}
	pid, err := arm.PidOf(ctx, runtime, id)
	if err != nil {
		return l, err
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	for _, name := range []string{"etc/hosts", "etc/resolv.conf", "etc/hostname"} {
		text, err := os.ReadFile(proc + "root/" + name)
		if err != nil {
			text = []byte("not there\n")
		}
		l.Files["/"+name] = string(text)
	}
	env, err := os.ReadFile(proc + "environ")
	if err != nil {
		return l, err
	}
	l.Env = strings.Split(strings.Trim(string(env), "\x00"), "\x00")
	slices.Sort(l.Env)
	mounts, err := os.ReadFile(proc + "mountinfo")
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(string(mounts)) {
		l.Mounts = append(l.Mounts, mountLine(line))
	}
	ids := readIDMap(proc)
	l.Volumes, l.Devices = volumeFiles(proc, string(mounts), ids), devices(proc, ids)
	l.Sysctls, l.Namespaces = sysctlFacts(pid), namespaceLinks(proc)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(string(status)) {
		k, v, _ := strings.Cut(line, ":")
		switch k {
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
			l.Proc[k] = strings.TrimSpace(v)
		case "Uid", "Gid", "Groups":
			f := strings.Fields(v)
			for i, id := range f {
				if n, err := strconv.ParseUint(id, 10, 32); err == nil {
					f[i] = strconv.Itoa(int(ids.inside(uint32(n))))
				}
			}
			l.Proc[k] = strings.Join(f, " ")
		}
	}
	for _, name := range []string{"oom_score_adj", "cmdline", "uid_map", "gid_map", "setgroups"} {
		text, _ := os.ReadFile(proc + name)
		l.Proc[name] = strings.Join(strings.Fields(strings.ReplaceAll(string(text), "\x00", " ")), " ")
	}
	l.Proc["cwd"], _ = os.Readlink(proc + "cwd")
	groups, err := os.ReadFile(proc + "cgroup")
	if err != nil {
		return l, err
	}
	l.Cgroup = cgroupFacts(string(groups))
	return l, nil
}

// mountLine returns one line of mountinfo without the IDs and devices that differ for every
// mount.
func mountLine(line string) string {
	f := strings.Fields(line)
	dash := slices.Index(f, "-")
	if dash < 6 || len(f) < dash+4 {
		return line
	}
	root, point, options, kind := f[3], f[4], f[5], f[dash+1]
	shared := ""
	for _, o := range f[6:dash] { // "shared:12", "master:3": who is in the group is each run's
		group, _, _ := strings.Cut(o, ":")
		shared += " " + group
	}
	super := ""
	if kind == "tmpfs" {
		super = " " + f[dash+3]
	}
	if kind == "overlay" || kind == "proc" || kind == "sysfs" || kind == "cgroup" {
		root = "/"
	}
	return point + " " + kind + " " + root + " " + options + super + shared
}

// cgroupSettings are the files with the limits of a cgroup.
var cgroupSettings = []string{
	"memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.oom_control",
	"memory.memsw.limit_in_bytes", "memory.swappiness", "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us",
	"cpuset.cpus", "cpuset.mems", "cpuset.sched_load_balance", "pids.max", "hugetlb.*.limit_in_bytes",
	"memory.max", "memory.min", "memory.high", "cpu.max", "cpu.weight",
}

// cgroupFacts reads the cgroup of each hierarchy, and the pod's above it.
func cgroupFacts(groups string) compare.Facts {
	facts := compare.Facts{}
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		controllers, path := f[1], f[2]
		first, _, _ := strings.Cut(controllers, ",")
		facts["path of "+first] = path
		group(facts, "container", filepath.Join("/sys/fs/cgroup", controllers, path))
		group(facts, "pod", filepath.Join("/sys/fs/cgroup", controllers, filepath.Dir(path)))
	}
	return facts
}

// group adds the settings that a group has, in one hierarchy.
func group(f compare.Facts, name, dir string) {
	for _, set := range cgroupSettings {
		files, _ := filepath.Glob(filepath.Join(dir, set))
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil {
				f[name+" "+filepath.Base(file)] = strings.TrimSpace(strings.SplitN(string(text), "\n", 2)[0])
			}
		}
	}
}

// tierFacts reads the cgroups above all pods.
func tierFacts(cgroup string) compare.Facts {
	facts := compare.Facts{}
	for _, root := range node.CgroupRoots() {
		for _, tier := range []string{"", "kubepods", "kubepods/burstable", "kubepods/besteffort"} {
			group(facts, "$CGROUP/"+tier, filepath.Join(root, cgroup, tier))
		}
	}
	return facts
}

// logFiles lists the files of a pod's containers below the log directory, and the links to
// them.
func logFiles(logs, pod string) []string {
	var found []string
	dirs, _ := filepath.Glob(filepath.Join(logs, "*_"+pod+"-"+nodeName+"_*"))
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
		for _, f := range files {
			name, _ := filepath.Rel(logs, f)
			found = append(found, name)
		}
	}
	// The kubelet's links are in one place, nodectl's beside the pods' logs.
	for _, dir := range []string{arm.LinksDir, filepath.Join(filepath.Dir(logs), "containers")} {
		links, _ := filepath.Glob(filepath.Join(dir, pod+"-"+nodeName+"_*"))
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, logs+"/") {
				found = append(found, filepath.Join(arm.LinksDir, filepath.Base(l))+" -> "+strings.TrimPrefix(to, logs+"/"))
			}
		}
	}
	return found
}
