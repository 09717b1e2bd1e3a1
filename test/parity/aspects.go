package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/compare"
)

// progress compares how a pod's status changed, as the agents report it.
func (k *comparison) progress(name string, p, q *PodRecord) {
	course := func(aspect, what string, of func(*v1.PodStatus) string) {
		a, b := k.na.stretches(k.a, p, of), k.nb.stretches(k.b, q, of)
		if !compare.Same(a, b, k.c.Within.Duration) {
			k.differ(aspect, "%s: %s: %s; nodectl %s", name, what, compare.Course(a), compare.Course(b))
		}
	}
	course("phase", "phase", phase)
	for _, kind := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady, v1.PodScheduled, "AllContainersRestarting"} {
		course("conditions", string(kind), func(s *v1.PodStatus) string {
			for _, c := range s.Conditions {
				if c.Type == kind {
					return strings.TrimSpace(string(c.Status) + " " + c.Reason)
				}
			}
			return ""
		})
	}
	for _, c := range containersOf(p, q) {
		in := func(of func(v1.ContainerStatus) string) func(*v1.PodStatus) string {
			return func(s *v1.PodStatus) string {
				for _, cs := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
					if cs.Name == c {
						return of(cs)
					}
				}
				return ""
			}
		}
		course("states", c, in(func(cs v1.ContainerStatus) string { return state(cs.State) }))
		course("last states", c, in(func(cs v1.ContainerStatus) string { return state(cs.LastTerminationState) }))
		course("ready", c, in(func(cs v1.ContainerStatus) string { return strconv.FormatBool(cs.Ready) }))
		course("started", c, in(func(cs v1.ContainerStatus) string { return strconv.FormatBool(cs.Started != nil && *cs.Started) }))
		course("restarts", c, in(func(cs v1.ContainerStatus) string { return strconv.Itoa(int(cs.RestartCount)) }))
	}
}

// containersOf returns the names of all containers that either agent reports.
func containersOf(records ...*PodRecord) []string {
	names := map[string]bool{}
	for _, p := range records {
		for _, s := range p.Seen {
			for _, c := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses) {
				names[c.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func phase(s *v1.PodStatus) string {
	if s.Reason != "" {
		return string(s.Phase) + " (" + s.Reason + ")"
	}
	return string(s.Phase)
}

func state(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + s.Waiting.Reason)
	}
	return "none"
}

// last compares the agents' reports of a pod at the end of its time.
func (k *comparison) last(name string, p, q *PodRecord) {
	final := func(c *CaseRecord, p *PodRecord, n *normaliser) compare.Facts {
		if s := p.final(c); s != nil {
			return n.status(*s)
		}
		return compare.Facts{}
	}
	k.facts("status", name, final(k.a, p, k.na), final(k.b, q, k.nb))
}

func (k *comparison) facts(aspect, where string, a, b compare.Facts) {
	k.found.Facts(k.of(aspect), where+": ", a, b)
}

func (k *comparison) lists(aspect, where string, a, b []string) {
	k.found.Lists(k.of(aspect), where+": ", a, b)
}

// aspectOf returns the aspect of a value in a CRI configuration.
func aspectOf(path string) string {
	for _, p := range [][2]string{
		{"envs", "env"}, {"mounts", "mounts"}, {"linux.resources", "cgroup"}, {"linux.cgroup_parent", "cgroup"},
		{"linux.overhead", "cgroup"}, {"linux.security_context", "identity"}, {"labels", "labels"},
		{"annotations", "annotations"}, {"log_", "log files"}, {"dns_config", "resolv.conf"}, {"hostname", "hostname"},
		{"port_mappings", "ports"}, {"linux.sysctls", "sysctls"},
	} {
		if strings.HasPrefix(path, p[0]) {
			return p[1]
		}
	}
	return "asked for"
}

// asked compares the requests to the runtime: each sandbox of the pod, each run of its
// containers. A difference that is the same in all of them is reported once.
func (k *comparison) asked(name string, p, q *PodRecord) {
	split := func(where string, a, b compare.Facts) {
		parts := map[string][2]compare.Facts{}
		for side, f := range []compare.Facts{a, b} {
			for key, v := range f {
				aspect := aspectOf(key)
				pair := parts[aspect]
				if pair[0] == nil {
					pair = [2]compare.Facts{{}, {}}
				}
				pair[side][key] = v
				parts[aspect] = pair
			}
		}
		for _, aspect := range slices.Sorted(maps.Keys(parts)) {
			k.facts(aspect, where, parts[aspect][0], parts[aspect][1])
		}
	}
	for i := range min(len(p.Sandboxes), len(q.Sandboxes)) {
		split(name+": sandbox", k.na.Facts(p.Sandboxes[i].Config), k.nb.Facts(q.Sandboxes[i].Config))
	}
	for _, what := range slices.Sorted(maps.Keys(p.Refused)) {
		if q.Refused[what] != nil {
			split(name+": "+what+" that was refused", k.na.Facts(p.Refused[what]), k.nb.Facts(q.Refused[what]))
		}
	}
	k.lists("pulls", name, k.na.lines(p.Pulls), k.nb.lines(q.Pulls))
	for _, pair := range k.matching {
		if slices.Contains(p.Runs, pair[0]) {
			split(name+": "+pair[0].Container, k.na.Facts(pair[0].Config), k.nb.Facts(pair[1].Config))
		}
	}
}

// insides compares how containers look from inside.
func (k *comparison) insides(name string, p, q *PodRecord) {
	for _, c := range slices.Sorted(maps.Keys(p.Inside)) {
		a := p.Inside[c]
		b, ok := q.Inside[c]
		if !ok {
			continue // it ran under one agent only: events reports that
		}
		where := name + ": " + c
		for _, f := range compare.Keys(a.Files, b.Files) {
			k.lists(f, where, k.na.lines(linesOf(f, a.Files[f])), k.nb.lines(linesOf(f, b.Files[f])))
		}
		k.lists("env", where, k.na.lines(a.Env), k.nb.lines(b.Env))
		k.lists("mounts", where, k.na.lines(a.Mounts), k.nb.lines(b.Mounts))
		k.facts("cgroup", where, k.na.Facts(a.Cgroup), k.nb.Facts(b.Cgroup))
		k.facts("identity", where, k.na.Facts(a.Proc), k.nb.Facts(b.Proc))
		k.facts("namespaces", where, a.Namespaces, b.Namespaces)
		k.facts("sysctls", where, k.na.Facts(a.Sysctls), k.nb.Facts(b.Sysctls))
		k.lists("files", where, k.na.lines(a.Volumes), k.nb.lines(b.Volumes))
		k.lists("devices", where, k.na.lines(a.Devices), k.nb.lines(b.Devices))
	}
}

// linesOf returns the lines of a container's file, and marks those that are also in the
// node's own file.
func linesOf(file, text string) []string {
	lines := strings.Split(text, "\n")
	if file != "/etc/hosts" {
		return lines
	}
	own, _ := os.ReadFile(file)
	of := strings.Split(string(own), "\n")
	for i, l := range lines {
		if l != "" && slices.Contains(of, l) {
			lines[i] = "the node's: " + l
		}
	}
	return lines
}

// cut reports whether a run was killed before it could write its usual output.
func (r *Run) cut() bool { return r.Exit == 137 && r.Finished.Sub(r.Started) < time.Second }

// logs compares the containers' logs and their files.
func (k *comparison) logs(name string, p, q *PodRecord) {
	links := func(files []string) (links, others []string) {
		for _, f := range files {
			if strings.HasPrefix(f, "/") {
				links = append(links, f)
			} else {
				others = append(others, f)
			}
		}
		return links, others
	}
	la, oa := links(k.na.lines(p.Files))
	lb, ob := links(k.nb.lines(q.Files))
	k.lists("log links", name, la, lb)
	k.lists("log files", name, oa, ob)
	for _, pair := range k.matching {
		if !slices.Contains(p.Runs, pair[0]) {
			continue
		}
		a, b := k.na.log(pair[0].Log), k.nb.log(pair[1].Log)
		if pair[0].cut() && pair[1].cut() && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) {
			continue
		}
		if a != b && pair[0].Finished.IsZero() == pair[1].Finished.IsZero() {
			k.differ("output", "%s: %s, attempt %d, wrote %q; nodectl's %q", name, pair[0].Container, pair[0].Attempt, a, b)
		}
	}
}

const (
	noticed   = 2 * time.Second  // after an exit both agents have seen it
	collected = 65 * time.Second // how long the kubelet may take to collect garbage
)

// left compares the numbers of kept exited runs of a container, and the remains of a removed pod
// after the kubelet had time to collect them.
func (k *comparison) left(name string, p, q *PodRecord) {
	at := func(aspect string, atA, atB time.Time) {
		a, freshA := kept(p, atA)
		b, freshB := kept(q, atB)
		for _, what := range compare.Keys(freshA, freshB) {
			delete(a, what)
			delete(b, what)
		}
		k.facts(aspect, name, a, b)
	}
	at("kept", k.a.Gone, k.b.Gone)
	if k.c.After.Duration >= collected {
		at("left", k.a.End, k.b.End)
	}
}

// kept counts the objects of a pod at a moment. fresh are counts that an agent cannot have acted on
// yet, because a run had just ended.
func kept(p *PodRecord, at time.Time) (facts, fresh compare.Facts) {
	facts, fresh = compare.Facts{}, compare.Facts{}
	count := func(what string) {
		n, _ := strconv.Atoi(facts[what])
		facts[what] = strconv.Itoa(n + 1)
	}
	for _, r := range p.Runs {
		what := "dead lives of " + r.Container
		if r.Finished.IsZero() || r.Finished.After(at) || !r.Removed.IsZero() && r.Removed.Before(at) {
			continue
		}
		if count(what); at.Sub(r.Finished) < noticed {
			fresh[what] = "just now"
		}
	}
	for _, s := range p.Sandboxes {
		if s.Removed.IsZero() || s.Removed.After(at) {
			count("sandboxes")
		}
	}
	return facts, fresh
}
