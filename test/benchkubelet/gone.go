package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// grace is the grace period of the pods that are removed. It is the least that a kubelet
// gives, and their container ignores SIGTERM: every arm waits for all of it.
const grace = 2 * time.Second

// goner is the shape of the pods that are removed: with their own network namespace and
// directory.
var goner = arm.PodShape{EmptyDir: true, Grace: int(grace / time.Second), Args: "ignore, forever"}

// goneLimit is the time limit for removing everything. The kubelet collects garbage once a
// minute.
const goneLimit = 3 * time.Minute

// collection is the period of the kubelet's garbage collection, which begins at its start.
// The removals of its manifests are spread over one period.
const collection = time.Minute

// traces has the objects of one pod on the machine.
type traces struct {
	sandbox, container string
	paths              []string
}

// measureGone is M5.
func (b *bench) measureGone(ctx context.Context) error {
	m := b.Begin(ctx, 5, "manifest gone → nothing left, beyond the grace",
		fmt.Sprintf("unlink → no container, sandbox, pod directory, cgroup, network namespace, log directory, less the grace of %s, which the container uses up; pod network, emptyDir; the kubelet's go spread over a period of its garbage collection; raw: StopContainer, StopPodSandbox, RemovePodSandbox, and its cgroup", grace))
	pods := b.Count(4, 2)
	arms := append(program.Each(b.Agents, func(a *arm.Agent, round int) error {
		return b.Turn(ctx, a, fmt.Sprintf("gone-%d", round), b.Node.Endpoint, nil, func(r *arm.Turn) error { return b.agentGone(ctx, m, r, round, pods) })
	}), func(round int) error { return b.rawGone(ctx, m, round, pods) })
	return b.Take(ctx, m, b.Count(2, 1), arms...)
}

func (b *bench) agentGone(ctx context.Context, m *report.Measure, r *arm.Turn, round, pods int) error {
	left := make([]traces, pods)
	for i := range left {
		name := fmt.Sprintf("gone-%d", i)
		_, e, err := b.Start(ctx, r.Place, name, goner)
		if err != nil {
			return err
		}
		if left[i], err = b.tracesOf(ctx, e, r.Root, r.Logs); err != nil {
			return err
		}
	}
	if r.Agent != b.Nodectl {
		return b.agentGoneSpread(ctx, m, r, round, left)
	}
	for i := range left {
		if err := arm.Rest(ctx, m, arm.Spacing); err != nil {
			return err
		}
		mark := b.Events.Mark()
		begin, err := r.Remove(fmt.Sprintf("gone-%d", i))
		if err != nil {
			return err
		}
		o, err := b.awaitGone(ctx, begin, mark, left[i])
		if err != nil {
			return err
		}
		if err := o.note(m, r.Name); err != nil {
			return err
		}
	}
	return nil
}

// agentGoneSpread removes manifests at times spread over a collection, without
// waiting for one pod's end before the next.
func (b *bench) agentGoneSpread(ctx context.Context, m *report.Measure, r *arm.Turn, round int, left []traces) error {
	apart := b.Span(collection/time.Duration(len(left)), time.Second)
	due := r.Exec.Add(b.Span(9*time.Second+time.Duration(round)*2500*time.Millisecond, 4*time.Second))
	ends := make([]end, len(left))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for i, traces := range left {
			if err := arm.Pause(ctx, time.Until(due.Add(time.Duration(i)*apart))); err != nil {
				return err
			}
			mark := b.Events.Mark()
			begin, err := r.Remove(fmt.Sprintf("gone-%d", i))
			if err != nil {
				return err
			}
			g.Go(func() error {
				var err error
				ends[i], err = b.awaitGone(ctx, begin, mark, traces)
				return err
			})
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for _, o := range ends {
		if err := o.note(m, r.Name); err != nil {
			return err
		}
	}
	return nil
}

// tracesOf finds the traces of a pod that has just started.
func (b *bench) tracesOf(ctx context.Context, e arm.Seen, roots ...string) (traces, error) {
	t := traces{sandbox: e.GetPodSandboxStatus().GetId(), container: e.GetContainerId()}
	uid := e.GetPodSandboxStatus().GetMetadata().GetUid()
	for _, root := range append(roots, cgroupRootsOf(b.Node.CgroupParent)...) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && holdsAny(d.Name(), uid, t.sandbox, t.container) {
				t.paths = append(t.paths, path)
			}
			return nil
		})
	}
	ns, err := b.networkNamespace(ctx, t.sandbox)
	if err != nil {
		return t, err
	}
	if t.paths = append(t.paths, ns); len(t.paths) < 4 {
		return t, fmt.Errorf("a pod has only %v on the machine", t.paths)
	}
	return t, nil
}

func cgroupRootsOf(parent string) []string {
	var all []string
	for _, root := range node.CgroupRoots() {
		all = append(all, filepath.Join(root, parent))
	}
	return all
}

func holdsAny(s string, parts ...string) bool {
	for _, p := range parts {
		if p != "" && strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// networkNamespace returns the file that a sandbox's network namespace is
// mounted on.
func (b *bench) networkNamespace(ctx context.Context, sandbox string) (string, error) {
	r, err := b.Node.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	if err != nil {
		return "", err
	}
	var info struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		return "", err
	}
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" && n.Path != "" {
			return n.Path, nil
		}
	}
	return "", fmt.Errorf("sandbox %s has no network namespace of its own", sandbox)
}

// end is how a pod is removed, step by step.
type end struct {
	begin, ended, stopped, removed, vanished time.Time
}

// awaitGone returns when nothing is left of the pod whose removal was requested at begin.
func (b *bench) awaitGone(ctx context.Context, begin time.Time, mark int, left traces) (end, error) {
	o := end{begin: begin}
	g, gctx := errgroup.WithContext(ctx)
	await := func(what string, at *time.Time, match ...func(arm.Seen) bool) {
		g.Go(func() error {
			for _, match := range match {
				e, err := b.Events.AwaitFor(gctx, goneLimit, mark, what, match)
				if err != nil {
					return err
				}
				if e.At.After(*at) {
					*at = e.At
				}
			}
			return nil
		})
	}
	await("end of the container", &o.ended, arm.Stopped(left.container))
	await("end of the sandbox", &o.stopped, arm.Stopped(left.sandbox))
	await("removal", &o.removed, arm.Deleted(left.container), arm.Deleted(left.sandbox))
	g.Go(func() error {
		var err error
		o.vanished, err = awaitVanished(gctx, left.paths)
		return err
	})
	return o, g.Wait()
}

// note adds a pod's end to an arm, without its grace.
func (o end) note(m *report.Measure, arm string) error {
	if took := o.ended.Sub(o.begin); took < grace {
		return fmt.Errorf("a container of %s ended after %s: before its grace was over", arm, took)
	}
	last := o.removed
	if o.vanished.After(last) {
		last = o.vanished
	}
	for _, step := range []struct {
		name string
		at   time.Time
	}{
		{", container ended", o.ended}, {", sandbox stopped", o.stopped}, {", both removed", o.removed},
		{", directories, cgroups, network namespace gone", o.vanished}, {"", last},
	} {
		m.Arm(arm + step.name).Add(step.at.Sub(o.begin) - grace)
	}
	return nil
}

// awaitVanished returns when none of the paths exists any more.
func awaitVanished(ctx context.Context, paths []string) (time.Time, error) {
	err := arm.Until(ctx, goneLimit, 10*time.Millisecond, func() (bool, error) {
		for len(paths) > 0 {
			if _, err := os.Lstat(paths[0]); !errors.Is(err, fs.ErrNotExist) {
				return false, fmt.Errorf("%s is still there", paths[0])
			}
			paths = paths[1:]
		}
		return true, nil
	})
	return time.Now(), err
}

func (b *bench) rawGone(ctx context.Context, m *report.Measure, round, pods int) error {
	for i := range pods {
		name := fmt.Sprintf("gone-raw-%d-%d", round, i)
		dir := filepath.Join(b.Dir, "turn", "pod"+name)
		mark := b.Events.Mark()
		p, err := b.StartRaw(ctx, name, arm.RawShape{Dir: dir, Args: []string{"ignore", "forever"}})
		if err != nil {
			return err
		}
		e, err := b.Events.Await(ctx, mark, "start of "+name, arm.Started(name))
		if err != nil {
			return err
		}
		left, err := b.tracesOf(ctx, e, filepath.Dir(dir), b.Node.LogsDir)
		if err != nil {
			return err
		}
		if err := arm.Rest(ctx, m, arm.Spacing); err != nil {
			return err
		}
		mark = b.Events.Mark()
		begin := time.Now()
		_, err = b.Node.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.Container, Timeout: int64(grace / time.Second)})
		if err := errors.Join(err, b.RemoveSandbox(ctx, p.Sandbox), b.RemoveRawCgroup(ctx, name), os.RemoveAll(dir), os.RemoveAll(b.RawLogDir(name))); err != nil {
			return err
		}
		o, err := b.awaitGone(ctx, begin, mark, left)
		if err != nil {
			return err
		}
		if err := o.note(m, "raw"); err != nil {
			return err
		}
	}
	return b.Empty()
}
