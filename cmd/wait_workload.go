package cmd

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// ofWorkloads reports whether the first argument of a command names a workload: deployment/web.
func ofWorkloads(args []string) bool {
	if len(args) == 0 {
		return false
	}
	word, _, slash := strings.Cut(args[0], "/")
	_, ok := workloadKindOf(word)
	return ok && (slash || len(args) > 1)
}

// shortName returns the name without its namespace.
func (r workloadRef) shortName() string { return r.name[strings.LastIndex(r.name, "/")+1:] }

// refNames returns names such as "deployments/web".
func refNames(refs []workloadRef) (names []string) {
	for _, ref := range refs {
		names = append(names, ref.plural+"/"+ref.shortName())
	}
	return names
}

// waitWorkloads waits for workloads one after the other, and prints each that reaches the goal.
// left are the other workloads.
func (p *program) waitWorkloads(ctx context.Context, c *client.Client, g goal, namespace string, refs []workloadRef) (left []string, err error) {
	left = refNames(refs)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for _, ref := range refs {
		for {
			met, err := p.workloadMet(ctx, c, g, namespace, ref)
			switch {
			case ctx.Err() != nil:
				return left, context.Cause(ctx)
			case err != nil:
				return left, err
			}
			if met {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return left, context.Cause(ctx)
			}
		}
		left = left[1:]
		if err := p.out.print(ui.WorkloadRef(ref.kind, ref.shortName()) + " condition met\n"); err != nil {
			return left, err
		}
	}
	return nil, nil
}

// workloadMet reports whether a workload has reached the goal.
func (p *program) workloadMet(ctx context.Context, c *client.Client, g goal, namespace string, ref workloadRef) (bool, error) {
	all, err := p.workloads(ctx, c, ref.kind, false)
	if err != nil {
		return false, err
	}
	w, err := oneWorkload(all, ref.workloadKind, namespace, ref.name)
	found := err == nil
	switch {
	case g.kind == "create":
		return found, nil
	case g.kind == "delete":
		return !found, nil
	case !found:
		return false, err
	}
	if g.kind == "condition" && !hasConditions(w) {
		return false, failed(exitFailure, errors.New("a "+ref.singular()+" has no conditions"), "--for=jsonpath={.status.readyReplicas}=N waits for a field")
	}
	return g.workloadMet(w), nil
}

// workloadMet reports whether the status of a workload has reached the goal. Until the agent has
// observed all pods after its start, the status may be out of date.
func (g goal) workloadMet(w *ui.Workload) bool {
	return w.IsObserved() && g.met(w.Object, conditionsOf(w))
}

func hasConditions(w *ui.Workload) bool {
	switch w.Object.(type) {
	case *appsv1.Deployment, *batchv1.Job:
		return true
	}
	return false
}

// conditionsOf yields the conditions of a workload.
func conditionsOf(w *ui.Workload) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		switch o := w.Object.(type) {
		case *appsv1.Deployment:
			for _, c := range o.Status.Conditions {
				if !yield(string(c.Type), string(c.Status)) {
					return
				}
			}
		case *batchv1.Job:
			for _, c := range o.Status.Conditions {
				if !yield(string(c.Type), string(c.Status)) {
					return
				}
			}
		}
	}
}
