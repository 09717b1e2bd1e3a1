package arm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

const (
	// Namespace is that of every pod of a benchmark.
	Namespace = "bench"
	// Container is the name of a pod's only container.
	Container = "main"
	// NodeName is the agents' name of the node: static pods' names end with it.
	NodeName = "bench"
)

// Lab is a node and a place for files on its file system.
type Lab struct {
	Node   *node.Node
	Events *Events
	Dir    string

	settings Settings
}

// Open starts a node. The caller closes it.
func Open(ctx context.Context) (*Lab, error) { return OpenIn(ctx, "") }

// OpenIn is Open for a node and a lab whose files are below dir; "" is /tmp.
func OpenIn(ctx context.Context, dir string) (*Lab, error) {
	sweep()
	l := &Lab{settings: ReadSettings()}
	var err error
	if l.Node, err = node.StartIn(ctx, dir); err != nil {
		return nil, err
	}
	l.Dir = filepath.Join(filepath.Dir(l.Node.RootDir), "bench")
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return nil, errors.Join(err, l.Node.Close())
	}
	if l.Events, err = Subscribe(ctx, l.Node.Runtime); err != nil {
		return nil, errors.Join(err, l.Node.Close())
	}
	return l, nil
}

// Close removes the node with everything on it, and restores the settings that a kubelet has
// changed on the machine. An error names the remains.
func (l *Lab) Close() error {
	l.Events.Close()
	if err := errors.Join(l.Node.Close(), l.settings.Restore()); err != nil {
		return fmt.Errorf("take the node away: %w", err)
	}
	return nil
}

// Say tells the person at the terminal how far the run is.
func Say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// Pause waits d, or returns ctx's error.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Noise waits up to limit for a quiet machine, and returns how quiet it is then.
func (l *Lab) Noise(ctx context.Context, limit time.Duration) report.Noise {
	var n report.Noise
	for deadline := time.Now().Add(limit); ; {
		n = report.Noise{Load1: load(), Busy: busy(), CPUPressure: pressure(), ForeignShims: foreignShims(l.Node.RunDir)}
		if n.Quiet() || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
	}
	if !n.Quiet() {
		Say("the machine is not quiet (%s): the figures are provisional", n)
	}
	return n
}

// Rest pauses between two samples, and records how busy the machine is while the bench does
// nothing: a machine that was quiet at the start of a measure may not stay so.
func Rest(ctx context.Context, m *report.Measure, d time.Duration) error {
	idle, all := cpuTimes()
	if err := Pause(ctx, d); err != nil {
		return err
	}
	idle2, all2 := cpuTimes()
	if all2 > all {
		m.Arm(report.Between).Value(100 * (1 - float64(idle2-idle)/float64(all2-all)))
	}
	return nil
}

// Clear removes every pod of the node, two at a time.
func (l *Lab) Clear(ctx context.Context) error {
	r, err := l.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, s := range r.Items {
		g.Go(func() error { return l.RemoveSandbox(ctx, s.Id) })
	}
	return g.Wait()
}

// RemoveSandbox stops a pod without its grace period, and removes it.
func (l *Lab) RemoveSandbox(ctx context.Context, id string) error {
	if _, err := l.Node.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := l.Node.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// Until calls f every so often until it is done, and returns its error then; after limit it
// returns the last one.
func Until(ctx context.Context, limit, every time.Duration, f func() (done bool, err error)) error {
	for deadline := time.Now().Add(limit); ; {
		done, err := f()
		if done {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", limit, err)
		}
		if err := Pause(ctx, every); err != nil {
			return err
		}
	}
}

// AwaitNoPods returns when the node shows no sandbox.
func (l *Lab) AwaitNoPods(ctx context.Context) error {
	return Until(ctx, time.Minute, 50*time.Millisecond, func() (bool, error) {
		r, err := l.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil || len(r.Items) == 0 {
			return true, err
		}
		return false, fmt.Errorf("%d sandboxes, want none", len(r.Items))
	})
}

// RunningContainers returns the IDs of the running containers.
func (l *Lab) RunningContainers(ctx context.Context) (map[string]bool, error) {
	r, err := l.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	ids := make(map[string]bool, len(r.Containers))
	for _, c := range r.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			ids[c.Id] = true
		}
	}
	return ids, nil
}

// AwaitRunningContainers returns when n containers run.
func (l *Lab) AwaitRunningContainers(ctx context.Context, n int) error {
	return Until(ctx, 2*time.Minute, 500*time.Millisecond, func() (bool, error) {
		ids, err := l.RunningContainers(ctx)
		if err != nil || len(ids) == n {
			return true, err
		}
		return false, fmt.Errorf("%d containers run, want %d", len(ids), n)
	})
}

// Everything returns every sandbox and container of the node with its state.
func (l *Lab) Everything(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	s, err := l.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, i := range s.Items {
		all[i.Id] = i.State.String()
	}
	c, err := l.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for _, i := range c.Containers {
		all[i.Id] = i.State.String()
	}
	return all, nil
}
