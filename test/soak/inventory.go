package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/arm"
	bounds "github.com/nodectl/nodectl/test/growth"
	"github.com/nodectl/nodectl/test/node"
)

// An inventory counts the objects of pods on the machine, by their names in the report. No agent is
// asked for it.
type inventory map[string]int

func (s *soak) inventory(context.Context) inventory {
	left := s.lab.Node.Look()
	inv := inventory{
		"processes": len(left.Processes), "mounts": len(left.Mounts), "cgroups": len(left.Cgroups),
		"bridge ports": len(left.Links), "packet filter rules": len(left.Rules),
		"network namespaces": 0, "pod addresses": 0, "sandboxes": 0, "containers": 0,
	}
	for _, m := range left.Mounts {
		if strings.Contains(m, "/netns/") {
			inv["network namespaces"]++
		}
	}
	for _, p := range left.Pods {
		if strings.HasPrefix(p, "sandbox") {
			inv["sandboxes"]++
		} else {
			inv["containers"]++
		}
	}
	addresses, _ := filepath.Glob("/run/nodectl/addresses/" + s.lab.Node.Bridge + "/[0-9]*")
	inv["pod addresses"] = len(addresses)
	for _, h := range s.houses {
		inv["log directories"] += entries(h.Logs, namespace+"_*")
		inv["log files"] += entries(h.Logs, "*/*/*")
		inv["log links"] += entries(filepath.Join(h.Dir, "containers"), "*")
		inv["pod directories"] += entries(h.Root, "pods/*")
		inv["records"] += entries(h.Root, "pods/*/record.json")
		inv["kept manifests"] += entries(h.Root, "sources/*/*.json") - entries(h.Root, "sources/*/layer.json")
		inv["odd files of the agent"] += entries(h.Root, "*") + entries(h.Root, "pods/*/*") + entries(h.Root, "sources/*")
	}
	return inv
}

func entries(dir, pattern string) int {
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	return len(found)
}

// more returns the objects whose number has grown since before.
func (inv inventory) more(before inventory) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(inv)) {
		if inv[name] > before[name] {
			lines = append(lines, fmt.Sprintf("I6: %d %s, %d before", inv[name], name, before[name]))
		}
	}
	return lines
}

// grown compares the files of a house, on the disk and in containerd, with the table of growing files.
func (s *soak) grown(ctx context.Context, h *house) []string {
	rt := s.lab.Node.Runtime
	ours := map[string]string{pod.LabelNode: h.name}
	_, wrong := s.await(ctx, 10*time.Second, func() []string { // a worker may still remove an exited container
		boxes, err := rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: ours}})
		if err != nil {
			return []string{err.Error()}
		}
		containers, err := rt.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ours}})
		if err != nil {
			return []string{err.Error()}
		}
		n := bounds.Node{
			Dirs: map[bounds.Place]string{
				bounds.Root: h.Root, bounds.Kubelet: filepath.Join(h.Root, "kubelet"), bounds.Logs: h.Logs, bounds.Links: filepath.Join(h.Dir, "containers"),
			},
			Pods: map[string]bool{},
		}
		for _, b := range boxes.Items {
			n.Pods[b.Metadata.Uid] = true
			if b.State != cri.PodSandboxState_SANDBOX_READY {
				n.Objects = append(n.Objects, path.Join("sandboxes", b.Metadata.Uid, b.Id))
			}
		}
		for _, c := range containers.Containers {
			if c.State == cri.ContainerState_CONTAINER_EXITED {
				n.Objects = append(n.Objects, path.Join("exited", c.Labels[pod.LabelPodUID], c.Metadata.Name, c.Id))
			}
		}
		return n.Check()
	})
	for i := range wrong {
		wrong[i] = fmt.Sprintf("growth of %s: %s", h.name, wrong[i])
	}
	return wrong
}

// leftBehind lists the existing objects, one a line.
func (s *soak) leftBehind() string {
	var b strings.Builder
	b.WriteString(s.lab.Node.Look().String())
	for _, h := range s.houses {
		for _, pattern := range []string{"pods/*/*", "sources/*/*"} {
			found, _ := filepath.Glob(filepath.Join(h.Root, pattern))
			b.WriteString(strings.Join(append(found, ""), "\n"))
		}
		found, _ := filepath.Glob(filepath.Join(h.Logs, "*/*/*"))
		b.WriteString(strings.Join(append(found, ""), "\n"))
	}
	return b.String()
}

// A sample is the state of the agents and containerd at a quiet moment, by name.
type sample map[string]float64

// sample looks at the agents of both houses and at containerd.
func (s *soak) sample(ctx context.Context) (sample, error) {
	v := sample{}
	for _, h := range s.houses {
		pid := h.process.PID()
		_, rss := arm.Memory(pid)
		v[h.name+" VmRSS, MB, as it stood"] = float64(rss) / mb
		in, err := h.vitals(ctx)
		if err != nil {
			return nil, err
		}
		anon, rss := arm.Memory(pid)
		v[h.name+" RssAnon, MB"], v[h.name+" VmRSS, MB"] = float64(anon)/mb, float64(rss)/mb
		v[h.name+" heap, MB"], v[h.name+" heap objects"] = in.Heap/mb, in.Objects
		v[h.name+" goroutines"] = in.Goroutines
		v[h.name+" threads"] = float64(entries(fmt.Sprintf("/proc/%d/task", pid), "*"))
		fds, watches := descriptors(pid)
		v[h.name+" file descriptors"], v[h.name+" inotify watches"] = float64(fds), float64(watches)
		if info, err := os.Stat(h.journal()); err == nil {
			v[h.name+" journal, MB"] = float64(info.Size()) / mb
		}
	}
	pid, err := arm.Peer(s.lab.Node.Endpoint)
	if err != nil {
		return nil, err
	}
	anon, _ := arm.Memory(pid)
	fds, _ := descriptors(pid)
	v["containerd RssAnon, MB"], v["containerd file descriptors"] = float64(anon)/mb, float64(fds)
	v["mounts of the machine"] = float64(len(node.Mounts()))
	return v, nil
}

const mb = 1e6

// descriptors counts a process's open files, and its inotify watches.
func descriptors(pid int) (fds, watches int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // closed
		}
		fds++
		watches += bytes.Count(text, []byte("inotify wd:"))
	}
	return fds, watches
}
