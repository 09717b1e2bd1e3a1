package upkeep

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// Forecast is what rounds would do from now on.
type Forecast struct {
	// Node has the levels that the rounds are foreseen from, assumed ones included.
	Node   reclaim.Node
	Rounds []reclaim.Foreseen
}

// AssumeError is the error of Foresee for an assumption that does not hold for this node.
type AssumeError struct{ Signal, Why string }

func (e *AssumeError) Error() string { return e.Signal + ": " + e.Why }

// Foresee observes the node in full and returns the rounds that would follow, and changes
// nothing. Each assumption replaces how much of a signal is available. An error of the
// observation is returned with the forecast, which lacks what could not be read.
func (u *Upkeep) Foresee(ctx context.Context, assume []pod.Threshold) (Forecast, error) {
	n, failed := u.cfg.Observer.Observe(ctx, true)
	levels, err := u.cfg.Observer.Levels(ctx)
	if ctx.Err() != nil {
		return Forecast{}, context.Cause(ctx)
	}
	if failed == nil {
		failed = err
	}
	n.Now, n.Filesystems, n.Levels = levels.Now, slices.Clone(levels.Filesystems), levels.Levels
	for _, a := range assume {
		if n, err = assumed(n, a); err != nil {
			return Forecast{}, err
		}
	}
	return Forecast{n, reclaim.Foresee(n, u.cfg.Policy, u.memory())}, failed
}

// assumed returns the node with another level of one signal.
func assumed(n reclaim.Node, a pod.Threshold) (reclaim.Node, error) {
	l, measured := n.Level(a.Signal)
	if !measured {
		return n, &AssumeError{a.Signal, "this node does not measure it"}
	}
	if l.Available = a.Of(l.Capacity); l.Available > l.Capacity {
		return n, &AssumeError{a.Signal, fmt.Sprintf("%d is more than the %d that this node has", l.Available, l.Capacity)}
	}
	return n.WithLevel(a.Signal, l), nil
}

// ParseAssumptions reads texts such as "memory.available=50Mi" and "nodefs.available=5%". Each
// text may be a list.
func ParseAssumptions(texts []string) ([]pod.Threshold, error) {
	var all []pod.Threshold
	for _, list := range texts {
		for text := range strings.SplitSeq(list, ",") {
			a, err := pod.ParseAmount(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(all, func(o pod.Threshold) bool { return o.Signal == a.Signal }) {
				return nil, fmt.Errorf("%s is assumed twice", a.Signal)
			}
			all = append(all, a)
		}
	}
	return all, nil
}
