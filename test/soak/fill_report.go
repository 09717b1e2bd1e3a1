package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

// A fillReport has the findings of a run that fills a disk.
type fillReport struct {
	Time       time.Time         `json:"time"`
	Took       float64           `json:"seconds"`
	Machine    map[string]string `json:"machine"`
	Cycles     []cycle           `json:"cycles"`
	Looks      int               `json:"looks"`    // at the node, every half second
	Pressure   int               `json:"pressure"` // of these: with DiskPressure
	Full       []string          `json:"full"`     // lines of the agent's log: it could not write
	Violations []string          `json:"violations"`
}

// A cycle is one time that the disk was filled and emptied.
type cycle struct {
	Kind      string  `json:"kind"`
	Left      int64   `json:"leftBytes"`
	Relieved  float64 `json:"relievedAfterSeconds"` // the pod was evicted, or the images were removed
	Emptied   float64 `json:"emptiedAfterSeconds"`
	Available int64   `json:"availableBytes"` // then
}

// violation records a violation once.
func (f *filler) violation(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if !slices.Contains(f.report.Violations, line) {
		arm.Say("VIOLATION %s", line)
		f.report.Violations = append(f.report.Violations, line)
	}
}

// conditions returns the agent's conditions of the node.
func (f *filler) conditions(ctx context.Context) (ready, pressure bool, err error) {
	var n v1.Node
	if err := f.place.Ask(ctx, "/v1/node", &n); err != nil {
		return false, false, err
	}
	for _, c := range n.Status.Conditions {
		ready = ready || c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		pressure = pressure || c.Type == v1.NodeDiskPressure && c.Status == v1.ConditionTrue
	}
	return ready, pressure, nil
}

// watch looks at the node and at the keepers' containers until ctx ends.
func (f *filler) watch(ctx context.Context) {
	const patience = 10 * time.Second
	answered := time.Now()
	for arm.Pause(ctx, 500*time.Millisecond) == nil {
		ready, pressure, err := f.conditions(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			answered = time.Now()
			f.report.Looks++
			if pressure {
				f.report.Pressure++
			}
			if !ready && !pressure {
				f.violation("the node is not Ready and reports no DiskPressure")
			}
		case time.Since(answered) > patience:
			f.violation("the agent does not answer for %s: %v", patience, err)
		}
		ids, err := f.lab.RunningContainers(ctx)
		if err != nil {
			continue // the disk is full for containerd, too
		}
		for id := range f.kept {
			if !ids[id] {
				f.violation("I2: container %.12s of a pod that has no part in it has ended", id)
			}
		}
	}
}

func (r *fillReport) text() string {
	var b strings.Builder
	verdict := "the node is healthy"
	if len(r.Violations) > 0 {
		verdict = fmt.Sprintf("FAILED, %d violations", len(r.Violations))
	}
	fmt.Fprintf(&b, "%d cycles, %s: %s.\n", len(r.Cycles), time.Duration(r.Took*float64(time.Second)).Round(time.Second), verdict)
	b.WriteString(report.Origin(&report.Report{Time: r.Time, Machine: r.Machine}))
	fmt.Fprintf(&b, "Looked at the node %d times, %d times with DiskPressure. Lines of the agent's log about a full disk: %d.\n\n", r.Looks, r.Pressure, len(r.Full))
	fmt.Fprintf(&b, "%-16s %8s %8s %16s %16s\n", "filled by", "MiB left", "cycles", "relieved, s", "emptied, s")
	for _, kind := range kinds {
		for _, left := range []int64{limit - 60*mib, 256 * mib, 64 * mib, 8 * mib, 0} {
			var relieved, emptied []float64
			for _, c := range r.Cycles {
				if c.Kind == kind && c.Left == left {
					relieved, emptied = append(relieved, c.Relieved), append(emptied, c.Emptied)
				}
			}
			if len(relieved) > 0 {
				fmt.Fprintf(&b, "%-16s %8d %8d %7.1f ≤ %6.1f %7.1f ≤ %6.1f\n", kind, left/mib, len(relieved),
					report.Quantile(relieved, 0.5), slices.Max(relieved), report.Quantile(emptied, 0.5), slices.Max(emptied))
			}
		}
	}
	if n := len(r.Cycles); n > 0 {
		fmt.Fprintf(&b, "\nAvailable after the first cycle %d MiB, after the last %d MiB.\n", r.Cycles[0].Available/mib, r.Cycles[n-1].Available/mib)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\n- %s", v)
	}
	return b.String() + "\n"
}
