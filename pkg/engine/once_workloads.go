package engine

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Workloads are the workloads of a set that Once runs.
type Workloads interface {
	// Batches yields the set with the pods of its workloads, and then a batch for each decision
	// about a workload, until ctx is done.
	Batches(ctx context.Context) iter.Seq[podconfig.Batch]
	// Has reports whether a workload has the pod, and leaves whether the workload has given it up.
	Has(key pod.Key) (has, leaves bool)
	// Results returns the result of each workload, "" while Once has to wait for it. set is the
	// newest set; it does not contain the rejected pods of workloads. pods has the newest report
	// of each pod of a workload.
	Results(until Until, set *podconfig.Merged, pods map[pod.Key]feed.PodReport) []feed.WorkloadReport
}

// onceWithWorkloads is Once for a set that changes with the pods of its workloads.
func (e *Engine) onceWithWorkloads(ctx context.Context, l *loop, until Until, results map[pod.Key]feed.PodReport) (rep feed.Report, err error) {
	w := e.cfg.Workloads
	l.mode.leaves = func(key pod.Key) bool { has, leaves := w.Has(key); return has && leaves }
	l.mode.finished = func() bool {
		var complete bool
		complete, rep.Workloads = l.arrivedWithWorkloads(w, until, results)
		return complete
	}
	err = e.run(ctx, l, func(ctx context.Context, out chan<- podconfig.Batch) {
		for b := range w.Batches(ctx) {
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
		}
	})
	for i := range rep.Workloads {
		if r := &rep.Workloads[i]; r.Result == "" {
			r.Result = feed.ResultTimeout
			if errors.Is(ctx.Err(), context.Canceled) {
				r.Message = cmp.Or(r.Message, "interrupted")
			}
		}
	}
	if l.state != nil {
		for spec := range l.state.Pods.All() {
			if has, _ := w.Has(spec.Key); !has {
				rep.Pods = append(rep.Pods, l.finalReport(ctx, spec, results))
			}
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return rep, err
}

// arrivedWithWorkloads is arrived for a set with workloads. It reports whether each workload has a
// result, and each pod that belongs to no workload. It stores the results of these pods in results.
func (l *loop) arrivedWithWorkloads(w Workloads, until Until, results map[pod.Key]feed.PodReport) (complete bool, workloads []feed.WorkloadReport) {
	complete = l.start.dispatching()
	ofWorkloads := make(map[pod.Key]feed.PodReport)
	if l.state != nil {
		for spec := range l.state.Pods.All() {
			r, known := l.goalResult(spec, until)
			if has, _ := w.Has(spec.Key); has {
				ofWorkloads[spec.Key] = r
				continue
			}
			if known && (r.Result != "" || until == UntilReady) {
				results[spec.Key] = r
			}
			complete = complete && results[spec.Key].Result != ""
		}
	}
	maps.DeleteFunc(results, func(_ pod.Key, r feed.PodReport) bool { return r.Result == "" })
	workloads = w.Results(until, cmp.Or(l.state, &podconfig.Merged{}), ofWorkloads)
	for _, r := range workloads {
		complete = complete && r.Result != ""
	}
	return complete, workloads
}
