package stats

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// reading is the result of one pass over all pods. A finished reading does not change.
type reading struct {
	time time.Time // when it began
	done time.Time
	full bool // it has the data for /stats/summary and /metrics/cadvisor
	host *group
	all  *group // all pods together; nil: pods have no cgroups
	// agent and runtime are the usage of these processes, which may have no cgroups of their own; nil:
	// unknown.
	agent, runtime *group
	pods           []podReading
	links          []link // of the machine
	failed         error  // why the runtime did not report the usage of containers
}

// podReading is a pod with a running container.
type podReading struct {
	pod        *v1.Pod
	group      *group // nil: the pod has no cgroup of its own
	sandbox    *group // nil: unknown
	sandboxID  string
	containers []containerReading
	links      []link
}

// containerReading is a running container.
type containerReading struct {
	status *v1.ContainerStatus
	id     string              // the container ID of the runtime
	group  *group              // nil: unknown
	usage  *pod.ContainerUsage // nil: not reported
}

// read returns a reading that is not older than freshness: that of another caller, or a new one. The end of
// ctx ends it.
func (s *Stats) read(ctx context.Context, full bool) (*reading, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	if r := s.last; r != nil && (r.full || !full) {
		if age := s.now().Sub(r.done); age >= 0 && age < freshness {
			return r, nil
		}
	}
	r := s.pass(ctx, full)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s.warn(r.failed)
	s.rates(r)
	s.last = r
	return r, nil
}

// warn logs a failure of the runtime, unless the last failure had the same text; the caller holds the turn.
func (s *Stats) warn(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != s.lastWarning {
		s.cfg.Log.Warn("Failed to read container usage from runtime", "error", err)
	}
	s.lastWarning = text
}

// pass makes a reading.
func (s *Stats) pass(ctx context.Context, full bool) *reading {
	r := &reading{time: s.now(), full: full, host: s.readHost(full)}
	reported := map[string]*pod.ContainerUsage{} // by container ID
	usage, err := s.cfg.Runtime.ContainerUsage(ctx)
	r.failed = err
	for i := range usage {
		reported[usage[i].ID] = &usage[i]
	}
	at, ok := s.placeOfAll()
	cgroups := s.cfg.Cgroups
	if !ok {
		cgroups = nil // the runtime does not answer: do not ask again for each pod
	} else {
		r.all, _ = readGroup(at, s.now(), full)
	}
	if full {
		r.links = linksOf(s.proc, "self")
	}
	r.agent = s.readSystem(os.Getpid(), full)
	if s.cfg.RuntimePID != nil {
		r.runtime = s.readSystem(s.cfg.RuntimePID(), full)
	}
	s.readPods(ctx, r, cgroups, reported)
	r.done = s.now()
	return r
}

// cgroupsOnly makes a reading of the pods' cgroups, without a call to the runtime.
func (s *Stats) cgroupsOnly(ctx context.Context) *reading {
	r := &reading{time: s.now(), full: false}
	s.readPods(ctx, r, s.cfg.Cgroups, nil)
	r.done = s.now()
	return r
}

// placeOfAll returns the cgroup of all pods; false: pods have none, or it is not known.
func (s *Stats) placeOfAll() (pod.Cgroup, bool) {
	if s.cfg.Cgroups == nil {
		return pod.Cgroup{}, false
	}
	return s.cfg.Cgroups.AllPodsCgroup()
}

func (s *Stats) readPods(ctx context.Context, r *reading, cgroups Cgroups, reported map[string]*pod.ContainerUsage) {
	pods := s.cfg.Pods()
	for i := range pods {
		if ctx.Err() != nil {
			break
		}
		if p, ok := s.readPod(&pods[i], cgroups, reported, r.full); ok {
			r.pods = append(r.pods, p)
		}
	}
}

// readHost reads the machine's usage: from the root cgroup if that has the value, else from /proc.
func (s *Stats) readHost(full bool) *group {
	m, now := s.machine(), s.now()
	g := &group{}
	if s.cfg.Cgroups != nil {
		if at, ok := s.cfg.Cgroups.HostCgroup(); ok {
			if of, ok := readGroup(at, now, full); ok {
				g = of
			}
		}
	}
	g.host, g.time, g.began, g.at.Path = true, now, m.booted, "/"
	if g.cpu.total == 0 {
		g.cpu.total, g.cpu.user, g.cpu.system, _ = hostCPU(s.proc)
	}
	if g.memory.usage == 0 { // the root of cgroup v2 does not have it
		info := meminfo(s.proc)
		g.memory.usage = info["MemTotal"] - min(info["MemFree"], info["MemTotal"])
		g.memory.inactive, g.memory.active = info["Inactive(file)"], info["Active(file)"]
		g.memory.workingSet = g.memory.usage - min(g.memory.inactive, g.memory.usage)
		g.memory.rss, g.memory.cache, g.memory.mapped = info["AnonPages"], info["Cached"], info["Mapped"]
	}
	g.memory.swap = 0
	if info := meminfo(s.proc); info["SwapTotal"] > 0 {
		g.memory.swap = info["SwapTotal"] - min(info["SwapFree"], info["SwapTotal"])
	}
	g.memory.limit, g.memory.swapLimit, g.threadsMax = m.memory, m.swap, uint64(m.maxPIDs)
	if n, ok := threadsNow(s.proc); ok {
		g.threads = uint64(n)
	}
	return g
}

// readSystem reads the usage of a process; nil if it does not exist. With full, and only on cgroup v2, the
// result has the pressure on the process's cgroup.
func (s *Stats) readSystem(pid int, full bool) *group {
	id := strconv.Itoa(pid)
	p, ok := readProcess(s.proc, id, s.machine().booted)
	if pid <= 0 || !ok {
		return nil
	}
	g := &group{process: id, at: pod.Cgroup{Path: "process " + id}, began: p.began, time: s.now(), threadsMax: unlimited}
	g.cpu.total = p.cpu
	g.memory = memoryUsage{
		usage: p.rss, workingSet: p.rss, rss: p.rss, swap: p.swap, faults: p.faults, majorFaults: p.majorFaults,
		limit: unlimited, swapLimit: unlimited, reservation: unlimited,
	}
	if full {
		for line := range strings.Lines(text(filepath.Join(s.proc, id), "cgroup")) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				g.readPressure(filepath.Join(s.sys, "fs/cgroup", path))
			}
		}
	}
	return g
}

// readPod reads one pod. ok is false if no container of it runs.
func (s *Stats) readPod(p *v1.Pod, cgroups Cgroups, reported map[string]*pod.ContainerUsage, full bool) (r podReading, ok bool) {
	r.pod = p
	children := map[string]pod.Cgroup{} // by the IDs in their names
	if cgroups != nil {
		if at, ok := cgroups.PodCgroup(p); ok {
			if r.group, ok = readGroup(at, s.now(), full); ok {
				children = childrenOf(at)
			}
		}
	}
	containers := map[string]bool{}
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			c := containerReading{status: &list[i], id: idOf(list[i].ContainerID)}
			containers[c.id] = true
			if list[i].LastTerminationState.Terminated != nil {
				containers[idOf(list[i].LastTerminationState.Terminated.ContainerID)] = true
			}
			if list[i].State.Running == nil {
				continue
			}
			if at, ok := children[c.id]; ok {
				c.group, _ = readGroup(at, s.now(), full)
			}
			if c.usage = reported[c.id]; c.group == nil && c.usage == nil {
				continue // it has exited since the status was reported
			}
			r.containers = append(r.containers, c)
		}
	}
	if full {
		s.readSandbox(&r, children, func(id string) bool { return containers[id] || reported[id] != nil })
	}
	return r, len(r.containers) > 0
}

// readSandbox finds the cgroup of the sandbox, whose ID is not in the status. It is the oldest cgroup of the
// pod that does not belong to a container. readSandbox also reads the pod's network, which the sandbox and all
// containers share.
func (s *Stats) readSandbox(r *podReading, children map[string]pod.Cgroup, container func(id string) bool) {
	for id, at := range children {
		if container(id) {
			continue
		}
		if g, ok := readGroup(at, s.now(), true); ok && (r.sandbox == nil || g.began.Before(r.sandbox.began)) {
			r.sandbox, r.sandboxID = g, id
		}
	}
	groups := []*group{r.sandbox}
	for _, c := range r.containers {
		groups = append(groups, c.group)
	}
	for _, g := range groups {
		if g == nil {
			continue
		}
		for _, pid := range processesOf(g.at) {
			if r.links = linksOf(s.proc, pid); r.links != nil {
				return
			}
			break // all processes of a container share a network
		}
	}
}

// containerID matches the ID in the name of a container's cgroup: the name itself, or
// cri-containerd-<id>.scope, crio-<id>.scope.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// childrenOf returns the children of a pod's cgroup by the container IDs in their names.
func childrenOf(at pod.Cgroup) map[string]pod.Cgroup {
	entries, err := os.ReadDir(someDir(at))
	if err != nil {
		return nil
	}
	all := map[string]pod.Cgroup{}
	for _, e := range entries {
		if id := containerID.FindString(e.Name()); id != "" && e.IsDir() {
			all[id] = below(at, e.Name())
		}
	}
	return all
}

// idOf removes the runtime's name from an ID: "containerd://<id>".
func idOf(id string) string {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		return bare
	}
	return id
}
