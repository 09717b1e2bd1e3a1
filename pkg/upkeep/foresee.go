package upkeep

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// Forecast is the result of Foresee: the rounds that it predicts.
type Forecast struct {
	// Node is the node before these rounds, with the assumed levels.
	Node   reclaim.Node
	Rounds []reclaim.ForecastRound
}

// AssumeError is the error of Foresee for an assumed level that this node cannot have.
type AssumeError struct{ Signal, Why string }

func (e *AssumeError) Error() string { return e.Signal + ": " + e.Why }

// Foresee observes the node and predicts the next rounds. It changes nothing. Each assumption
// replaces the available amount of a signal. If a part of the node could not be read, Foresee returns
// the error together with a forecast that lacks that part. The error is an *AssumeError if this node
// cannot have an assumed level.
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
	return Forecast{n, reclaim.Foresee(n, u.cfg.Policy, u.lastState())}, failed
}

// assumed returns the node with the assumed level of one signal.
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

// ParseAssumptions parses texts such as "memory.available=50Mi" and "nodefs.available=5%". A text may
// have several assumptions, separated by commas. It is an error to assume a signal twice.
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
