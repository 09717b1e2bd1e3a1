package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodsRunningError says that the bundled runtime was not stopped because pods
// run on it.
type PodsRunningError struct{ Pods int }

func (e *PodsRunningError) Error() string {
	if e.Pods == 1 {
		return "1 pod runs on the bundled runtime"
	}
	return fmt.Sprintf("%d pods run on the bundled runtime", e.Pods)
}

const (
	podLimit  = 30 * time.Second // for one pod to end
	stopLimit = 10 * time.Second // for containerd to exit on SIGTERM
	// killLimit is for a killed process to end: one in a system call that cannot be
	// interrupted, such as an unmount that flushes a whole disk, ends after it.
	killLimit = time.Minute
)

// Stop ends the bundled runtime. It removes everything that the runtime and its pods made outside
// the root directory: processes, mounts, network namespaces, cgroups and sockets. With the last
// bundled runtime it also removes the bridge and the packet filter chains. Images and unpacked
// programs stay. While pods run it returns a *PodsRunningError and changes nothing, unless force
// kills them first, without a grace period. The runtime's data about pods is then the same as after
// a reboot. Stop of a runtime that does not run cleans up and is no error.
func (r *Runtime) Stop(ctx context.Context, force bool) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	if _, err := os.Stat(r.root); errors.Is(err, os.ErrNotExist) {
		return nil // it was never used
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	r.answered = process{}
	p, running, err := r.find()
	if err != nil {
		return err
	}
	shims, err := r.shims()
	if err != nil {
		return err
	}
	if n := r.podsRunning(ctx, len(shims)); n > 0 && !force {
		return &PodsRunningError{Pods: n}
	}
	var parents []string
	if !running && len(shims) > 0 {
		if err := r.bootFor(ctx, shims[0]); err != nil {
			r.log.Warn("Failed to start containerd, ending pods without it", "error", err)
		}
		if p, running, err = r.find(); err != nil {
			return err
		}
	}
	if running {
		if parents, err = r.endPods(ctx); err != nil && !force {
			return err
		}
		if err := r.end(ctx, p, stopLimit); err != nil {
			return err
		}
	}
	sandboxes, err := r.endShims(ctx)
	return errors.Join(err, r.tidy(parents, sandboxes))
}

// bootFor starts a containerd to end the pod of a shim: from the shim's bundle if all its
// files are unchanged, else from the present one.
func (r *Runtime) bootFor(ctx context.Context, shim process) error {
	if dir := shim.dir; dir != "" && r.programs == "" {
		if m, err := manifestOf(dir); err == nil && intact(dir, m) {
			return r.boot(ctx, dir)
		}
	}
	bin, err := r.provide()
	if err != nil {
		return err
	}
	return r.boot(ctx, bin)
}

// podsRunning counts the running pods, or the shims if containerd does not answer.
func (r *Runtime) podsRunning(ctx context.Context, shims int) int {
	if c, err := dial(r.Endpoint()); err == nil {
		defer c.Close()
		if listens(r.socket()) {
			if ready, err := c.sandboxes(ctx, true); err == nil {
				return len(ready)
			}
		}
	}
	return shims
}

// endPods ends every pod, also the rest of those that have ended, and returns the cgroups
// they were in.
func (r *Runtime) endPods(ctx context.Context) (parents []string, err error) {
	c, err := dial(r.Endpoint())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.sandboxes(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, s := range all {
		parents = append(parents, c.cgroupParent(ctx, s.Id))
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, podLimit)
			defer cancel()
			if _, err := c.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				return fmt.Errorf("end pod %s/%s: %w", s.GetMetadata().GetNamespace(), s.GetMetadata().GetName(), err)
			}
			return nil
		})
	}
	err = g.Wait()
	slices.Sort(parents)
	return slices.Compact(parents), err
}

// cgroupParent returns the cgroup above a pod's own; "/" if that is unknown, or if there is
// none.
func (c *conn) cgroupParent(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := c.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return "/"
	}
	var info struct {
		Spec struct {
			Linux struct {
				Cgroup string `json:"cgroupsPath"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if json.Unmarshal([]byte(resp.GetInfo()["info"]), &info) != nil || !filepath.IsAbs(info.Spec.Linux.Cgroup) {
		return "/"
	}
	return filepath.Dir(filepath.Clean(info.Spec.Linux.Cgroup))
}

// endShims kills the shims that containerd has not ended, with all their descendants. It
// returns their sandboxes.
func (r *Runtime) endShims(ctx context.Context) (sandboxes []string, err error) {
	shims, err := r.shims()
	errs := []error{err}
	for _, p := range shims {
		sandboxes = append(sandboxes, p.id)
		for _, child := range descendants(p.pid) {
			_ = child.Kill() // it may have ended already
			_ = child.Release()
		}
		_ = p.handle.Kill()
	}
	// One limit for all of them: they wait for the same disk.
	ctx, cancel := context.WithTimeoutCause(ctx, killLimit, errors.New("killed shims do not end"))
	defer cancel()
	for _, p := range shims {
		errs = append(errs, r.end(ctx, p, 0))
	}
	return sandboxes, errors.Join(errs...)
}

// descendants returns the processes that pid and its children started, each by a pidfd that
// was opened before the check of its parent.
func descendants(pid int) []*os.Process {
	var all []*os.Process
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		text, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			child, err := os.FindProcess(n)
			if err != nil {
				continue
			}
			if parent(n) != pid { // it has ended, and its ID may have been reused
				_ = child.Release()
				continue
			}
			all = append(append(all, child), descendants(n)...)
		}
	}
	return all
}

// tidy cleans up after all processes of the runtime have ended: its mounts, the cgroups of
// its pods, the traces of killed sandboxes, and the shared things that no other runtime
// uses.
func (r *Runtime) tidy(parents, sandboxes []string) error {
	var errs []error
	for _, m := range slices.Backward(mounts("/proc")) {
		if below(m.path, r.run) || below(m.path, r.root) {
			if err := unix.Unmount(m.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", m.path, err))
			}
		}
	}
	for _, parent := range parents {
		removeCgroups(parent)
	}
	errs = append(errs, r.removePodTraces(sandboxes), r.removeUnits())
	if err := errors.Join(errs...); err != nil {
		return err // the files of a mount are not ours to remove
	}
	if err := os.RemoveAll(r.run); err != nil {
		return err
	}
	return r.releaseNetwork()
}

// below reports whether path is in dir, not dir itself: if the root directory is a mount of
// its own, it is not ours to unmount.
func below(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// removeCgroups removes the pods' cgroup in every hierarchy, and those above it with
// nodectl's name, as far as they are unused.
func removeCgroups(group string) {
	for _, h := range hierarchies("/proc") {
		for g := group; g != "/" && (g == group || strings.Contains(g, "/nodectl")); g = filepath.Dir(g) {
			if err := unix.Rmdir(filepath.Join(h.mount, g)); err != nil && !errors.Is(err, unix.ENOENT) {
				break
			}
		}
	}
}
