package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/test/arm"
	bounds "github.com/nodectl/nodectl/test/growth"
	"github.com/nodectl/nodectl/test/registry"
)

const (
	mib      = int64(1) << 20
	diskSize = 2 << 30
	limit    = 512 * mib // the eviction threshold
	keepers  = 10        // pods that have no part in it
	// mayLose is how much less may be free at the end than after the first cycle.
	mayLose = 64 * mib
)

// filler is one run that fills a disk.
type filler struct {
	options
	lab     *arm.Lab
	place   arm.Place
	agent   *arm.Agent
	process *arm.Process
	disk    string // the mount point
	images  []string
	kept    map[string]bool // the keepers' containers
	report  *fillReport

	mu sync.Mutex // guards report.Violations
}

// fillAll fills a file system that holds everything of a node: images, writable layers, volumes,
// logs and the agent's root directory. It fills it by a pod's logs, a pod's writable layer, a pod's
// emptyDir and by images in turn, until 256, 64, 8 MiB or nothing is available. Each time the agent
// has to evict that pod, or to remove the images, and then the disk has to be empty again.
//
// All the time the node is Ready or reports DiskPressure, and the containers of the other pods run
// on. Unless nothing was left, the agent could write everything. In the end nothing has leaked.
func fillAll(ctx context.Context, o options) (_ *fillReport, err error) {
	if o.out, err = filepath.Abs(o.out); err != nil { // of the program, which is built in another directory
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(o.out), os.MkdirAll(o.out, 0o755)); err != nil {
		return nil, err
	}
	f := &filler{options: o, agent: &arm.Agent{Name: "fill", Binary: o.binary}, report: &fillReport{Time: time.Now()}, kept: map[string]bool{}}
	defer func() { f.report.Took = time.Since(f.report.Time).Seconds() }()
	if f.agent.Binary == "" {
		if f.agent, err = arm.NewNodectl(ctx, o.out, ""); err != nil {
			return nil, err
		}
	}
	f.agent.KeepLogs, f.agent.LogLevel = o.out, o.logLevel
	f.agent.Args = []string{
		"--eviction-hard", fmt.Sprintf("nodefs.available<%d,imagefs.available<%d,nodefs.inodesFree<2%%", limit, limit),
		"--eviction-pressure-transition-period", "5s", "--container-log-max-size", "4Gi", "--image-gc-high-threshold", "100",
	}
	unmount, err := f.mount(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	if f.lab, err = arm.OpenIn(ctx, f.disk); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.lab.Close()) }()
	if f.report.Machine, err = f.lab.Machine(ctx, f.agent); err != nil {
		return nil, err
	}
	images := registry.Start(registry.Options{})
	defer images.Close()
	for i := range 3 {
		image, err := images.Store(fmt.Sprintf("fill:%d", i), 2, 24*mib)
		if err != nil {
			return nil, err
		}
		f.images = append(f.images, image)
	}
	err = f.start(ctx)
	if err == nil {
		err = f.cycles(ctx)
	}
	if f.process != nil {
		err = errors.Join(err, f.process.End(syscall.SIGTERM))
	}
	return f.report, errors.Join(err, f.lab.Empty())
}

// mount makes the file system.
func (f *filler) mount(ctx context.Context) (unmount func() error, err error) {
	if f.disk, err = os.MkdirTemp("/tmp", "ndt-fill-"); err != nil {
		return nil, err
	}
	file := filepath.Join(f.out, "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, diskSize)); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", file}, {"mount", "-o", "loop", file, f.disk}} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	return func() error {
		out, err := exec.Command("umount", f.disk).CombinedOutput()
		if err != nil {
			return fmt.Errorf("umount %s: %w: %s", f.disk, err, out)
		}
		return errors.Join(os.Remove(f.disk), os.Remove(file))
	}, nil
}

// start starts the agent and the keepers.
func (f *filler) start(ctx context.Context) (err error) {
	if f.place, err = f.lab.NewPlace("fill"); err != nil {
		return err
	}
	f.place.NodeName, f.place.Logs = "fill", filepath.Join(f.place.Dir, "logs")
	if err := os.MkdirAll(f.place.Logs, 0o755); err != nil {
		return err
	}
	for i := range keepers {
		if _, err := f.place.DropPod(fmt.Sprintf("keep%d", i), arm.PodShape{EmptyDir: true, HostNetwork: true, Grace: 1}); err != nil {
			return err
		}
	}
	if f.process, err = f.agent.Start(f.place); err != nil {
		return err
	}
	if err := f.agent.Ready(ctx, f.process); err != nil {
		return err
	}
	if err := f.lab.AwaitRunningContainers(ctx, keepers); err != nil {
		return err
	}
	f.kept, err = f.lab.RunningContainers(ctx)
	return err
}

// cycles fills and empties the disk while a goroutine watches the node.
func (f *filler) cycles(ctx context.Context) error {
	watched, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { f.watch(watched) })
	defer wg.Wait()
	defer stop()
	left := []int64{256 * mib, 64 * mib, 8 * mib, 0}
	for k := 0; k < f.fill && (f.limit == 0 || time.Since(f.report.Time) < f.limit); k++ {
		c := cycle{Kind: kinds[k%len(kinds)], Left: left[k/len(kinds)%len(left)]}
		if c.Kind == "images" {
			c.Left = limit - 60*mib // removing images has to suffice
		}
		if err := f.cycle(ctx, k, &c); err != nil {
			return fmt.Errorf("cycle %d (%s, %d MiB left): %w", k, c.Kind, c.Left/mib, err)
		}
		f.report.Cycles = append(f.report.Cycles, c)
		full := f.agentLog()
		if n := len(f.report.Full); c.Left > 0 && len(full) > n {
			f.violation("the agent could not write with %d MiB left: %s", c.Left/mib, full[n])
		}
		f.report.Full = full
		arm.Say("cycle %d/%d: %s to %d MiB: relieved after %.1f s, empty after %.1f s, %d MiB available",
			k+1, f.fill, c.Kind, c.Left/mib, c.Relieved, c.Emptied, c.Available/mib)
	}
	if all := f.report.Cycles; len(all) > 1 {
		if lost := all[len(kinds)-1].Available - all[len(all)-1].Available; lost > mayLose && len(all) > len(kinds) {
			f.violation("%d MiB less are available at the end than after the first cycles", lost/mib)
		}
	}
	f.grown(ctx)
	return nil
}

var kinds = []string{"logs", "writable layer", "emptyDir", "images"}

// cycle fills the disk, waits until the agent has relieved it, and empties it.
func (f *filler) cycle(ctx context.Context, k int, c *cycle) (err error) {
	hog := fmt.Sprintf("hog%d", k)
	var relieved func() (bool, error)
	ballast := filepath.Join(f.disk, "ballast")
	if c.Kind == "images" {
		for _, image := range f.images {
			if _, err := f.lab.Node.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
				return err
			}
		}
		if err := f.fillTo(ballast, c.Left); err != nil {
			return err
		}
		relieved = func() (bool, error) {
			free, err := f.available()
			return err == nil && free >= limit, errors.Join(err, fmt.Errorf("%d MiB are available", free/mib))
		}
	} else {
		file, err := f.hog(ctx, hog, c.Kind)
		if err != nil {
			return err
		}
		if err := f.fillTo(file, c.Left); err != nil {
			return err
		}
		relieved = func() (bool, error) {
			st, ok, err := f.status(hog)
			return ok && st.Phase == v1.PodFailed && st.Reason == "Evicted", errors.Join(err, fmt.Errorf("%s is %s %s", hog, st.Phase, st.Reason))
		}
	}
	began := time.Now()
	if err := await(ctx, relieved); err != nil {
		return err
	}
	c.Relieved = time.Since(began).Seconds()
	if c.Kind == "images" {
		err = os.Remove(ballast)
	} else {
		_, err = f.place.Remove(hog)
	}
	if err != nil {
		return err
	}
	began = time.Now()
	err = await(ctx, func() (bool, error) { return f.empty(ctx, hog) })
	c.Emptied = time.Since(began).Seconds()
	c.Available, _ = f.available()
	return err
}

// await calls f until it reports true; the error is then none.
func await(ctx context.Context, f func() (bool, error)) error {
	return arm.Until(ctx, 3*time.Minute, 200*time.Millisecond, func() (bool, error) {
		ok, err := f()
		if ok {
			err = nil
		}
		return ok, err
	})
}

// empty reports whether nothing is left of a pod, and the node is not short of disk.
func (f *filler) empty(ctx context.Context, hog string) (bool, error) {
	if _, there, err := f.status(hog); err != nil || there {
		return false, errors.Join(err, errors.New(hog+" is still there"))
	}
	ready, pressure, err := f.conditions(ctx)
	return ready && !pressure, errors.Join(err, fmt.Errorf("ready %v, DiskPressure %v", ready, pressure))
}

// hog starts a pod and returns the file that fills the disk for it.
func (f *filler) hog(ctx context.Context, hog, kind string) (file string, err error) {
	if _, err := f.place.DropPod(hog, arm.PodShape{EmptyDir: true, HostNetwork: true, Grace: 1}); err != nil {
		return "", err
	}
	var id, uid string
	if err := await(ctx, func() (bool, error) {
		r, err := f.lab.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
			State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}, LabelSelector: map[string]string{"io.kubernetes.pod.name": hog + "-" + f.place.NodeName},
		}})
		if len(r.GetContainers()) == 1 {
			id, uid = r.Containers[0].Id, r.Containers[0].Labels["io.kubernetes.pod.uid"]
			return true, nil
		}
		return false, errors.Join(err, errors.New(hog+" does not run"))
	}); err != nil {
		return "", err
	}
	switch kind {
	case "logs":
		return one(filepath.Join(f.place.Logs, "*_"+uid, "*", "0.log"))
	case "emptyDir":
		dir, err := one(filepath.Join(f.place.Root, "pods", uid, "*", "volumes", "*", "data"))
		return filepath.Join(dir, "fill"), err
	}
	all := f.lab.Node.Processes(id)
	if len(all) == 0 {
		return "", fmt.Errorf("%s has no process", hog)
	}
	return fmt.Sprintf("/proc/%d/root/fill", all[0].Pid), nil
}

func one(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s: %v, %w", pattern, found, err)
	}
	return found[0], nil
}

// fillTo enlarges a file until so much is available.
func (f *filler) fillTo(file string, left int64) error {
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	for step := int64(diskSize); step >= 64<<10; {
		free, err := f.available()
		if err != nil || free <= left {
			return err
		}
		info, err := to.Stat()
		if err != nil {
			return err
		}
		switch err := unix.Fallocate(int(to.Fd()), 0, info.Size(), min(free-left, step)); {
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		case err != nil:
			return err
		}
	}
	return nil
}

func (f *filler) available() (int64, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(f.disk, &fs)
	return int64(fs.Bavail) * fs.Bsize, err
}

// status returns a pod's status in the journal: the newest one that the agent could write.
func (f *filler) status(hog string) (st v1.PodStatus, there bool, err error) {
	entries, err := journal.Read(filepath.Join(f.place.Root, "journal.jsonl"))
	for key, e := range entries {
		if key.Name == hog+"-"+f.place.NodeName {
			return e.Pod.Status, true, err
		}
	}
	return st, false, err
}

// grown compares the node with the table of growing files.
func (f *filler) grown(ctx context.Context) {
	pods := map[string]bool{}
	r, err := f.lab.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		f.violation("%v", err)
	}
	for _, b := range r.GetItems() {
		pods[b.Metadata.Uid] = true
	}
	wrong := bounds.Node{Pods: pods, Dirs: map[bounds.Place]string{
		bounds.Root: f.place.Root, bounds.Kubelet: filepath.Join(f.place.Root, "kubelet"), bounds.Logs: f.place.Logs, bounds.Links: filepath.Join(f.place.Dir, "containers"),
	}}.Check()
	for _, line := range slices.Concat(wrong, bounds.Node{Dirs: map[bounds.Place]string{bounds.Root: f.lab.Node.RootDir, bounds.Run: f.lab.Node.RunDir}}.Check()) {
		f.violation("growth: %s", line)
	}
}

// agentLog returns the lines of the agent's log that say that it could not write.
func (f *filler) agentLog() (full []string) {
	for _, line := range f.process.Lines() {
		if strings.Contains(line, "no space left on device") {
			full = append(full, line)
		}
		if strings.Contains(line, "panic") {
			f.violation("F8: %s", line)
		}
	}
	return full
}
