package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// A scenario is one case: its objects, and the steps that are done and awaited. Its pods have
// its name, or a name that begins with it, or the names it lists.
type scenario struct {
	name    string
	shows   string
	objects string // before the pod
	pod     string // spec, with two spaces before each line; "" is none
	also    []string
	steps   []step
	keep    bool // the steps take the pod away
}

// A step is done in turn.
type step func(ctx context.Context, c *course, s *scenario) error

func (s *scenario) run(ctx context.Context, c *course) error {
	if s.objects != "" {
		if err := c.apply(ctx, s.objects); err != nil {
			return err
		}
	}
	if s.pod != "" {
		if err := c.apply(ctx, manifest(s.name, s.pod)); err != nil {
			return err
		}
	}
	for _, do := range s.steps {
		if err := do(ctx, c, s); ctx.Err() != nil {
			return err
		} else if err != nil { // rejections by the API server are part of the comparison
			c.note(s.name, err.Error())
		}
	}
	if s.keep {
		return nil
	}
	for _, name := range append([]string{s.name}, s.also...) {
		if err := c.remove(ctx, s.name, name, nil); err != nil {
			return err
		}
	}
	return nil
}

func manifest(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: parity}}\nspec:\n  terminationGracePeriodSeconds: 2\n" + spec
}

// until waits for the scenario's pod, and keeps the pod that it sees.
func until(what string, done func(*v1.Pod) bool) step {
	return func(ctx context.Context, c *course, s *scenario) error {
		c.await(ctx, s.name, s.name, what, func(p *v1.Pod) bool { return p != nil && done(p) })
		return arm.Pause(ctx, shown)
	}
}

// patched changes the scenario's pod.
func patched(subresource, body string) step {
	return func(ctx context.Context, c *course, s *scenario) error {
		return c.patch(ctx, s.name, subresource, body)
	}
}

// made makes objects.
func made(manifests string) step {
	return func(ctx context.Context, c *course, s *scenario) error { return c.apply(ctx, manifests) }
}

// removed deletes the pod with a grace of its own.
func removed(grace int64) step {
	return func(ctx context.Context, c *course, s *scenario) error { return c.remove(ctx, s.name, s.name, &grace) }
}

// static is the case of a static pod: its manifest appears, its mirror pod is deleted and
// comes back, its manifest is removed.
func static(ctx context.Context, c *course, s *scenario) error {
	file := filepath.Join(c.turn.Manifests, "static.yaml")
	if err := os.WriteFile(file, []byte(manifest("static", running)), 0o600); err != nil {
		return err
	}
	name := "static-" + nodeName
	c.await(ctx, s.name, name, "to be Ready", ready)
	if err := arm.Pause(ctx, shown); err != nil {
		return err
	}
	var first string
	c.await(ctx, s.name, name, "to be there", func(p *v1.Pod) bool {
		if p != nil {
			first = string(p.UID)
		}
		return p != nil
	})
	if err := c.Admin.Delete().Namespace("default").Resource("pods").Name(name).Do(ctx).Error(); err != nil {
		return err
	}
	c.await(ctx, s.name, name, "to be made again, Ready", func(p *v1.Pod) bool { return p != nil && string(p.UID) != first && ready(p) })
	if err := arm.Pause(ctx, shown); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil {
		return err
	}
	c.await(ctx, s.name, name, "to be gone", func(p *v1.Pod) bool { return p == nil })
	return nil
}

// The conditions that a case waits for.

func condition(p *v1.Pod, kind v1.PodConditionType) v1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

func ready(p *v1.Pod) bool { return p != nil && condition(p, v1.PodReady) == v1.ConditionTrue }

func containersReady(p *v1.Pod) bool { return condition(p, v1.ContainersReady) == v1.ConditionTrue }

func phase(want v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p.Status.Phase == want }
}

// waiting accepts a first container that waits for a reason, after so many restarts.
func waiting(restarts int32, reasons ...string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			for _, r := range reasons {
				if c.RestartCount >= restarts && c.State.Waiting != nil && c.State.Waiting.Reason == r {
					return true
				}
			}
		}
		return false
	}
}

func restarted(n int32) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= n && p.Status.ContainerStatuses[0].State.Running != nil
	}
}

// container is a container called main.
func container(args, more string) string {
	if more != "" {
		more = ", " + more
	}
	return fmt.Sprintf("  containers: [{name: main, image: %s, args: [%s]%s}]\n", node.Stamp, args, more)
}

var running = container("forever", "")
