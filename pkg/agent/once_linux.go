package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Set is a set of pods for runonce, with its sources and their policy.
type Set struct {
	*podconfig.Merged
	Sources readonly.Sources // already read
}

// NotServed returns the Services of the set, by key. runonce serves none: it ends while its pods
// run, and could not update the rules of a Service when pods change.
func (s Set) NotServed() []pod.Key {
	var all []pod.Key
	for _, o := range servicesIn(s.Merged) {
		all = append(all, o.Key)
	}
	return all
}

// Progress shows the progress of runonce: pulls, and statuses of pods.
type Progress interface {
	PullLines
	engine.Sink
}

// Gone is the goal that the pods are stopped and removed.
const Gone = string(engine.UntilGone)

// runtimeTimeout is how long Ready waits for an answer of the runtime.
const runtimeTimeout = 5 * time.Second

// Ready waits until the runtime answers, and imports the images of the image directory.
func (a *Agent) Ready(ctx context.Context) error {
	if err := a.runtime.await(ctx, runtimeTimeout); err != nil {
		return err
	}
	if err := a.runtime.images.Import(ctx); err != nil && ctx.Err() == nil {
		a.cfg.Notice(err.Error())
	}
	return nil
}

// CheckPodsMayStart returns an error if no pod may start on this node: it is drained, or the
// machine shuts down.
func (a *Agent) CheckPodsMayStart() error {
	if h := a.halts.current(); h != nil {
		return readonly.Fail(readonly.Failure, errors.New(h.Text()))
	}
	return nil
}

// Once runs the pods of a set until they reach a goal: running, ready, done, or Gone. At the end of
// ctx it returns the report so far with the error of ctx.
func (a *Agent) Once(ctx context.Context, set Set, until string, to Progress) (feed.Report, error) {
	defer a.runtime.pulls(ctx, to)()
	if until == Gone {
		return a.down(ctx, set, to)
	}
	a.dns.resume(a.state.records.All)
	receive := receivers{sinks: []engine.Sink{to}}
	if len(workloadsIn(set.Merged)) > 0 {
		w := a.newController(true, func() readonly.Rules { return set.Sources.Rules })
		defer w.Close()
		receive.listeners, receive.workloads = []engine.Sink{w}, onceWorkloads{w, set.Sources.Config}
	}
	return a.newEngine(nil, set.Sources.Rules, receive).Once(ctx, set.Merged, engine.Until(until))
}

// down removes the pods of a set, and the states of its workloads.
func (a *Agent) down(ctx context.Context, set Set, to ...engine.Sink) (feed.Report, error) {
	all, err := a.withRecorded(set.Merged)
	if err != nil {
		a.log.Warn("Failed to read some records", "error", err)
	}
	report, err := a.newEngine(nil, set.Sources.Rules, receivers{sinks: to}).Once(ctx, all, engine.UntilGone)
	if err == nil {
		err = errors.Join(a.forget(set.Merged), a.removeServices(set.Merged), a.removeDNS())
	}
	return report, err
}

// Remove removes the pods of a set. It has a time limit of its own, which depends on their grace
// periods.
func (a *Agent) Remove(set Set) error {
	limit := time.Minute
	all, _ := a.withRecorded(set.Merged) // down logs the error
	for spec := range all.Pods.All() {
		if g := spec.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
			limit = max(limit, time.Minute+time.Duration(*g)*time.Second)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	report, err := a.down(ctx, set)
	if err != nil {
		for _, r := range report.Pods {
			if r.Reason != "" {
				err = fmt.Errorf("%w: pod %s: %s: %s", err, r.Key, r.Reason, r.Message)
			}
		}
		return readonly.Fail(readonly.Runtime, fmt.Errorf("clean up: %w", err))
	}
	a.log.Debug("Cleaned up")
	return nil
}
