package arm

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

// RawPod is a pod of the raw arm: the same pod as an agent's, made by three calls.
type RawPod struct {
	Sandbox   string
	Container string
	Calls     [3]time.Duration // what RunPodSandbox, CreateContainer, StartContainer took

	shape   RawShape
	config  *cri.PodSandboxConfig
	mounts  []*cri.Mount
	seccomp *cri.SecurityProfile
}

// RawShape is how a raw pod differs from the others.
type RawShape struct {
	Dir         string   // made and mounted where not empty
	Volumes     string   // a directory in which the volumes of PodShape.Volumes are made, where not empty
	Unconfined  bool     // without the seccomp filter that the agent asks for
	HostNetwork bool     // in the machine's network
	Args        []string // of the container; none are "forever"
}

func (s RawShape) namespaces() *cri.NamespaceOption {
	n := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
	if s.HostNetwork {
		n.Network = cri.NamespaceMode_NODE
	}
	return n
}

// StartRaw makes and starts a pod. Its image, arguments, network, log, cgroup and confinement
// are those that the agent requests: the arms differ in the agent, not in the container.
func (l *Lab) StartRaw(ctx context.Context, name string, shape RawShape) (*RawPod, error) {
	if shape.Args == nil {
		shape.Args = []string{"forever"}
	}
	p := &RawPod{shape: shape, seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}
	if shape.Unconfined {
		p.seccomp.ProfileType = cri.SecurityProfile_Unconfined
	}
	p.config = &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: Namespace, Uid: name},
		Hostname:     name,
		LogDirectory: l.RawLogDir(name),
		Linux: &cri.LinuxPodSandboxConfig{
			// As deep as an agent's, and outside its tree: an agent does not touch directories that
			// it has not made.
			CgroupParent:    l.rawCgroup(name),
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: shape.namespaces(), Seccomp: p.seccomp},
		},
	}
	if shape.HostNetwork {
		p.config.Hostname = ""
	}
	if shape.Dir != "" {
		if err := os.MkdirAll(shape.Dir, 0o777); err != nil {
			return nil, err
		}
		p.mounts = []*cri.Mount{{HostPath: shape.Dir, ContainerPath: "/data"}}
	}
	if shape.Volumes != "" {
		if err := p.makeVolumes(); err != nil {
			return nil, err
		}
	}
	hosts := filepath.Join(l.Dir, "raw-hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1\tlocalhost\n"), 0o644); err != nil {
		return nil, err
	}
	p.mounts = append(p.mounts, &cri.Mount{HostPath: hosts, ContainerPath: "/etc/hosts"})
	begin := time.Now()
	s, err := l.Node.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return nil, err
	}
	p.Sandbox, p.Calls[0] = s.PodSandboxId, time.Since(begin)
	return p, l.StartRawContainer(ctx, p, 0)
}

// Contents of the config objects of the benchmark's pods.
const (
	RawConfig = "<h1>the page of the benchmark</h1>"
	RawSecret = "the password of the benchmark"
)

// makeVolumes makes an agent's volumes for PodShape.Volumes by plain system calls: two directories,
// and two file systems in memory.
func (p *RawPod) makeVolumes() error {
	files := map[string]string{"config/page.html": RawConfig, "secret/password": RawSecret, "all/page.html": RawConfig, "all/password": RawSecret, "all/name": p.config.Metadata.Name}
	for _, name := range []string{"data", "config", "secret", "all"} {
		dir := filepath.Join(p.shape.Volumes, name)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		if name == "secret" || name == "all" {
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
				return fmt.Errorf("mount %s: %w", dir, err)
			}
		}
		p.mounts = append(p.mounts, &cri.Mount{HostPath: dir, ContainerPath: "/" + name})
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.shape.Volumes, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// RemoveVolumes removes what makeVolumes made.
func (p *RawPod) RemoveVolumes() error {
	if p.shape.Volumes == "" {
		return nil
	}
	for _, name := range []string{"secret", "all"} {
		if err := syscall.Unmount(filepath.Join(p.shape.Volumes, name), 0); err != nil {
			return err
		}
	}
	return os.RemoveAll(p.shape.Volumes)
}

// StartRawContainer makes and starts the pod's container, for the first time or
// again.
func (l *Lab) StartRawContainer(ctx context.Context, p *RawPod, attempt uint32) error {
	begin := time.Now()
	c, err := l.Node.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.Sandbox,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: Container, Attempt: attempt},
			Image:    &cri.ImageSpec{Image: node.Stamp},
			Args:     p.shape.Args,
			Mounts:   p.mounts,
			LogPath:  filepath.Join(Container, strconv.Itoa(int(attempt))+".log"),
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: p.shape.namespaces(),
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
	p.Container, p.Calls[1] = c.ContainerId, time.Since(begin)
	begin = time.Now()
	_, err = l.Node.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.Container})
	p.Calls[2] = time.Since(begin)
	return err
}

func (l *Lab) rawCgroup(pod string) string {
	return l.Node.CgroupParent + "/raw/besteffort/pod" + pod
}

// RemoveRawCgroup removes the cgroup of a raw pod without containers, as an agent does.
func (l *Lab) RemoveRawCgroup(ctx context.Context, pod string) error {
	return Until(ctx, 10*time.Second, 2*time.Millisecond, func() (bool, error) {
		var errs []error
		for _, root := range node.CgroupRoots() {
			if err := os.Remove(filepath.Join(root, l.rawCgroup(pod))); !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		err := errors.Join(errs...)
		return err == nil, err
	})
}

// RawLogDir is where a raw pod's logs go.
func (l *Lab) RawLogDir(pod string) string {
	return filepath.Join(l.Node.LogsDir, Namespace+"_"+pod+"_"+pod)
}

// StartRawBatch starts pods, several at a time, and returns how long it took
// until each ran, in the order they were ready.
func (l *Lab) StartRawBatch(ctx context.Context, prefix string, pods, atOnce int, shape RawShape) ([]time.Duration, error) {
	begin := time.Now()
	var mu sync.Mutex
	var took []time.Duration
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range pods {
		g.Go(func() error {
			_, err := l.StartRaw(gctx, fmt.Sprintf("%s-%02d", prefix, i), shape)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(begin))
			return err
		})
	}
	return took, g.Wait()
}

// AwaitRunning returns when the container started. The event comes a moment
// before the runtime shows the container running.
func (l *Lab) AwaitRunning(ctx context.Context, id string) (at time.Time, err error) {
	err = Until(ctx, 5*time.Second, 2*time.Millisecond, func() (bool, error) {
		r, err := l.Node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		switch {
		case err != nil:
			return true, err
		case r.Status.State != cri.ContainerState_CONTAINER_RUNNING:
			return r.Status.State != cri.ContainerState_CONTAINER_CREATED, fmt.Errorf("container %s of the bench is %s: %s", id, r.Status.State, r.Status.Message)
		}
		at = time.Unix(0, r.Status.StartedAt)
		return true, nil
	})
	return at, err
}

// Stamped is when the container's own program started, which it writes to its log.
func (l *Lab) Stamped(ctx context.Context, id string) (at time.Time, err error) {
	r, err := l.Node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return at, err
	}
	err = Until(ctx, 5*time.Second, 5*time.Millisecond, func() (bool, error) {
		text, err := os.ReadFile(r.Status.LogPath)
		_, after, ok := strings.Cut(string(text), " started ")
		if !ok {
			return false, errors.Join(fmt.Errorf("%s: no stamp", r.Status.LogPath), err)
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(after), 10, 64)
		at = time.Unix(0, ns)
		return true, err
	})
	return at, err
}

// PidOf returns a container's first process.
func PidOf(ctx context.Context, runtime cri.RuntimeServiceClient, id string) (int, error) {
	r, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil || info.Pid <= 1 {
		return 0, errors.Join(fmt.Errorf("container %s does not run: no process in %q", id, r.Info["info"]), err)
	}
	return info.Pid, nil
}

// KillInit kills a container's process from outside, and returns the moment before.
func (l *Lab) KillInit(ctx context.Context, id string) (time.Time, error) {
	pid, err := PidOf(ctx, l.Node.Runtime, id)
	if err != nil {
		return time.Time{}, err
	}
	t := time.Now()
	return t, syscall.Kill(pid, syscall.SIGKILL)
}
