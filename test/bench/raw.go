package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

const (
	namespace = "bench"
	container = "main"
	nodeName  = "bench" // static pods' names end with it
)

// rawPod is a pod of the raw arm: the same pod as the agent's, made by three
// calls and nothing else.
type rawPod struct {
	config    *cri.PodSandboxConfig
	sandbox   string
	container string
	mounts    []*cri.Mount
	seccomp   *cri.SecurityProfile
	calls     [3]time.Duration // what RunPodSandbox, CreateContainer, StartContainer took
}

// rawShape is what is not the same in every raw pod.
type rawShape struct {
	dir        string // made and mounted where not empty
	unconfined bool   // without the seccomp filter that the agent asks for
}

// startRaw makes and starts a pod. Its image, arguments, network, log, cgroup
// and confinement are those the agent asks for: what differs between the arms
// is the agent, not the container.
func (b *bench) startRaw(ctx context.Context, name string, shape rawShape) (*rawPod, error) {
	p := &rawPod{seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}
	if shape.unconfined {
		p.seccomp.ProfileType = cri.SecurityProfile_Unconfined
	}
	p.config = &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: name},
		Hostname:     name,
		LogDirectory: b.logDir(name, name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    b.node.CgroupParent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces(), Seccomp: p.seccomp},
		},
	}
	if shape.dir != "" {
		if err := os.MkdirAll(shape.dir, 0o777); err != nil {
			return nil, err
		}
		p.mounts = []*cri.Mount{{HostPath: shape.dir, ContainerPath: "/data"}}
	}
	begin := time.Now()
	s, err := b.node.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return nil, err
	}
	p.sandbox, p.calls[0] = s.PodSandboxId, time.Since(begin)
	return p, b.startRawContainer(ctx, p, 0)
}

func (b *bench) startRawContainer(ctx context.Context, p *rawPod, attempt uint32) error {
	begin := time.Now()
	c, err := b.node.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.sandbox,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: container, Attempt: attempt},
			Image:    &cri.ImageSpec{Image: node.Stamp},
			Args:     []string{"forever"},
			Mounts:   p.mounts,
			LogPath:  filepath.Join(container, strconv.Itoa(int(attempt))+".log"),
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: namespaces(),
					Seccomp:          p.seccomp,
					MaskedPaths: []string{
						"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
						"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
						"/sys/devices/virtual/powercap", "/sys/firmware",
					},
					ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
				},
			},
		},
		SandboxConfig: p.config,
	})
	if err != nil {
		return err
	}
	p.container, p.calls[1] = c.ContainerId, time.Since(begin)
	begin = time.Now()
	_, err = b.node.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.container})
	p.calls[2] = time.Since(begin)
	return err
}

func namespaces() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

// logDir is where a pod's logs go, in both arms.
func (b *bench) logDir(pod, uid string) string {
	return filepath.Join(b.node.LogsDir, namespace+"_"+pod+"_"+uid)
}

// startRawBatch starts pods, several at a time, and returns how long it took
// until the last one ran, and the first.
func (b *bench) startRawBatch(ctx context.Context, prefix string, pods, atOnce int) (all, first time.Duration, err error) {
	begin := time.Now()
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range pods {
		g.Go(func() error {
			_, err := b.startRaw(gctx, fmt.Sprintf("%s-%02d", prefix, i), rawShape{})
			mu.Lock()
			defer mu.Unlock()
			if first == 0 {
				first = time.Since(begin)
			}
			return err
		})
	}
	err = g.Wait()
	return time.Since(begin), first, err
}

// startedAt is what CRI says about a container's start.
func (b *bench) startedAt(ctx context.Context, id string) (time.Time, error) {
	r, err := b.node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return time.Time{}, err
	}
	if r.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		return time.Time{}, fmt.Errorf("container %s of the bench is %s: %s", id, r.Status.State, r.Status.Message)
	}
	return time.Unix(0, r.Status.StartedAt), nil
}

// stamped is when the container's own program began, which it writes to its log.
func (b *bench) stamped(ctx context.Context, id string) (time.Time, error) {
	r, err := b.node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return time.Time{}, err
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		text, err := os.ReadFile(r.Status.LogPath)
		if _, after, ok := strings.Cut(string(text), " started "); ok {
			ns, err := strconv.ParseInt(strings.TrimSpace(after), 10, 64)
			return time.Unix(0, ns), err
		}
		if time.Now().After(deadline) {
			return time.Time{}, errors.Join(fmt.Errorf("%s: no stamp", r.Status.LogPath), err)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return time.Time{}, err
		}
	}
}

// killInit ends a container's process as the kernel would, from outside, and
// returns the moment before.
func (b *bench) killInit(ctx context.Context, id string) (time.Time, error) {
	r, err := b.node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return time.Time{}, err
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil || info.Pid <= 1 {
		return time.Time{}, fmt.Errorf("no process in %q: %w", r.Info["info"], err)
	}
	t := time.Now()
	return t, syscall.Kill(info.Pid, syscall.SIGKILL)
}

// clear removes every pod of the node, two at a time.
func (b *bench) clear(ctx context.Context) error {
	r, err := b.node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, s := range r.Items {
		g.Go(func() error { return b.removeSandbox(ctx, s.Id) })
	}
	return g.Wait()
}

func (b *bench) removeSandbox(ctx context.Context, id string) error {
	if _, err := b.node.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := b.node.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// awaitNoPods returns when the node shows no sandbox.
func (b *bench) awaitNoPods(ctx context.Context) error {
	return b.awaitPods(ctx, 0, func(r *cri.ListPodSandboxResponse) int { return len(r.Items) })
}

func (b *bench) awaitPods(ctx context.Context, n int, count func(*cri.ListPodSandboxResponse) int) error {
	const limit = time.Minute
	for deadline := time.Now().Add(limit); ; {
		r, err := b.node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		if count(r) == n {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d sandboxes after %s, want %d", count(r), limit, n)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// pause waits d, or returns ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
