package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

// underLoad is a running system with the Deployment under load.
type underLoad struct {
	system
	load   *Load
	lowest int32 // the fewest available pods that were seen since the last round began
	shows  bool  // the system shows how many pods are available
}

// await returns the state of the Deployment once done accepts it.
func (s *underLoad) await(ctx context.Context, limit time.Duration, done func(state) bool) (last state, err error) {
	err = arm.Until(ctx, limit, 50*time.Millisecond, func() (bool, error) {
		var err error
		if last, err = s.state(ctx); err != nil {
			return false, err
		}
		if s.shows = last.available != unknown; s.shows {
			s.lowest = min(s.lowest, last.available)
		}
		if done(last) {
			return true, nil
		}
		return false, errors.New(last.text)
	})
	return last, err
}

// awaitComplete returns once all pods are of a version that works.
func (s *underLoad) awaitComplete(ctx context.Context, limit time.Duration, v version) error {
	last, err := s.await(ctx, limit, func(is state) bool { return is.hasFailed(v) || is.complete == v.name })
	if err == nil && last.complete != v.name {
		err = fmt.Errorf("version %s, which works, has failed: %s", v.name, last.text)
	}
	return err
}

// withLoad runs do with the first version complete and under load. In the end nothing is left of
// the Deployment and the Service.
func (b *bench) withLoad(ctx context.Context, sys system, watched bool, of settings, do func(*underLoad) error) (err error) {
	s := &underLoad{system: sys, load: newLoad(sys.url(), netip.MustParsePrefix(clientRange)), lowest: replicas}
	s.load.watched = watched
	defer func() { err = errors.Join(err, s.clear(context.WithoutCancel(ctx))) }()
	// The first version must not fail on a busy machine.
	if err := s.apply(ctx, good(0), settings{updateDeadline, of.minReady}); err != nil {
		return err
	}
	if err := s.awaitComplete(ctx, patience, good(0)); err != nil {
		return err
	}
	if err := arm.Pause(ctx, arm.Settled); err != nil {
		return err
	}
	loaded, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.load.Run(loaded, b.rate)
	}()
	defer func() {
		stop()
		<-ended
	}()
	if err := arm.Pause(ctx, arm.Settled); err != nil {
		return err
	}
	if w := s.load.Take(); w.Failed() > 0 {
		return fmt.Errorf("%d requests failed before the first update: %q", w.Failed(), s.load.Errors())
	}
	s.lowest = replicas
	return do(s)
}

// runArm takes both measures of an arm, with one start of its programs. An arm that is absent has a
// note instead.
func (b *bench) runArm(ctx context.Context, k kind, i int) error {
	if !b.takes(k) {
		return nil
	}
	if reason := k.absent(); reason != "" {
		b.Begin(ctx, updatesOf(i), k.name, "updates, and bad versions").Note("was not taken: %s", reason)
		return nil
	}
	return k.with(ctx, b, func(sys system) error {
		if b.Wants(strconv.Itoa(updatesOf(i))) {
			if err := b.updates(ctx, sys, k, updatesOf(i)); err != nil {
				return err
			}
		}
		if b.Wants(strconv.Itoa(badOf(i))) {
			return b.badVersions(ctx, sys, k, badOf(i))
		}
		return nil
	})
}

// begin begins a measure of an arm.
func (b *bench) begin(ctx context.Context, k kind, id int, name, method string) *report.Measure {
	if k.compared {
		name = k.name + ": " + name
	}
	return b.Bench.Begin(ctx, id, name, method)
}

// tail is how long the load continues after a round, so that late failures count for it.
const tail = time.Second

// endRound adds the load of a round to a measure.
func (s *underLoad) endRound(ctx context.Context, m *report.Measure, total *Window, suffix string) error {
	if err := arm.Rest(ctx, m, tail); err != nil {
		return err
	}
	w := s.load.Take()
	total.Kept += w.Kept
	total.Fresh += w.Fresh
	total.KeptFailed += w.KeptFailed
	total.FreshFailed += w.FreshFailed
	total.Late += w.Late
	m.Arm("failed requests a round" + suffix).Value(float64(w.Failed()))
	if s.shows {
		m.Arm("fewest available pods" + suffix).Value(float64(s.lowest))
	}
	if len(w.Took) > 0 {
		ms := make([]float64, 0, len(w.Took))
		for _, d := range w.Took {
			ms = append(ms, float64(d)/float64(time.Millisecond))
		}
		m.Arm("p99 of a round").Add(time.Duration(report.Quantile(ms, 0.99) * float64(time.Millisecond)))
		m.Arm("slowest request of a round").Add(slices.Max(w.Took))
	}
	s.lowest = replicas
	return nil
}

// sum notes the load of a whole measure.
func (s *underLoad) sum(m *report.Measure, total Window) {
	m.Arm(failedKept).Value(float64(total.KeptFailed))
	m.Arm(failedFresh).Value(float64(total.FreshFailed))
	m.Arm(sent).Value(float64(total.Kept + total.Fresh))
	m.Arm(leftOut).Value(float64(total.Late))
	m.Note("%d requests over kept connections, %d over new ones; %d were left out because earlier ones took too long", total.Kept, total.Fresh, total.Late)
	for _, text := range s.load.Errors() {
		m.Note("failed: %s", text)
	}
}

const (
	failedKept  = "failed requests, kept connections"
	failedFresh = "failed requests, new connections"
	sent        = "requests"
	leftOut     = "requests that were left out"
	updateTook  = "manifest written → all pods new and available"
	slowest     = "slowest bad version: manifest written → the old version complete again"
)

// updates is the first measure of an arm: version after version, each of which works.
func (b *bench) updates(ctx context.Context, sys system, k kind, id int) error {
	rounds := b.roundsOf(k)
	method := fmt.Sprintf("%d updates of a Deployment at %d requests/s, %s", rounds, b.rate, k.pods)
	m := b.begin(ctx, k, id, "updates", method)
	of := settings{deadline: updateDeadline}
	return b.withLoad(ctx, sys, k.watched, of, func(s *underLoad) error {
		var total Window
		for n := 1; n <= rounds; n++ {
			begin := time.Now()
			if err := s.apply(ctx, good(n), of); err != nil {
				return err
			}
			if err := s.awaitComplete(ctx, patience, good(n)); err != nil {
				return err
			}
			m.Arm(updateTook).Add(time.Since(begin))
			if err := s.endRound(ctx, m, &total, ""); err != nil {
				return err
			}
			arm.Say("%s: update %d/%d: %d requests failed so far", k.name, n, rounds, total.Failed())
		}
		s.sum(m, total)
		return nil
	})
}

// badVersions is the second measure of an arm: versions that fail, each in one of four ways.
func (b *bench) badVersions(ctx context.Context, sys system, k kind, id int) error {
	rounds := b.roundsOf(k)
	of := settings{deadline: b.deadline, minReady: minReady}
	method := fmt.Sprintf("%d versions that fail (%d ways in turn) at %d requests/s, %s; progressDeadlineSeconds %d, minReadySeconds %d; undone by %s",
		rounds, len(badKinds), b.rate, k.pods, int(b.deadline.Seconds()), int(minReady.Seconds()), k.undo)
	m := b.begin(ctx, k, id, "bad versions", method)
	return b.withLoad(ctx, sys, k.watched, of, func(s *underLoad) error {
		if err := arm.Pause(ctx, trial); err != nil { // the good version passes its trial
			return err
		}
		var total Window
		var worst time.Duration
		s.load.Take()
		for n := range rounds {
			took, err := b.badVersion(ctx, s, m, bad(n), of)
			if err != nil {
				return fmt.Errorf("%s: %w", bad(n).kind, err)
			}
			worst = max(worst, took)
			if err := s.endRound(ctx, m, &total, ", "+bad(n).kind); err != nil {
				return err
			}
			arm.Say("%s: bad version %d/%d, %s: %s, %d requests failed so far", k.name, n+1, rounds, bad(n).kind, took.Round(10*time.Millisecond), total.Failed())
		}
		m.Arm(slowest).Value(worst.Seconds())
		s.sum(m, total)
		return nil
	})
}

// badVersion applies a version that fails, and returns how long it took until the good one was
// complete again.
func (b *bench) badVersion(ctx context.Context, s *underLoad, m *report.Measure, v version, of settings) (time.Duration, error) {
	begin := time.Now()
	if err := s.apply(ctx, v, of); err != nil {
		return 0, err
	}
	if _, err := s.await(ctx, patience, func(is state) bool { return is.hasFailed(v) }); err != nil {
		return 0, err
	}
	m.Arm("reported as failed, " + v.kind).Add(time.Since(begin))
	if err := s.undo(ctx, good(0), of); err != nil {
		return 0, err
	}
	// A Deployment keeps the reason of the failure until the undo is complete.
	if _, err := s.await(ctx, patience, func(is state) bool { return is.complete == good(0).name }); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	m.Arm(backTook + v.kind).Add(took)
	return took, nil
}

// patience is how long a version may take on a busy machine.
const patience = 5 * time.Minute

// backTook begins the names of the series of bad versions, which end with their kind.
const backTook = "complete again, "

// updateDeadline is progressDeadlineSeconds for versions that work, the default of Kubernetes: a
// version that is slow on a busy machine must not be rolled back.
const updateDeadline = 10 * time.Minute

// minReady is minReadySeconds for bad versions: a version that dies after three seconds must not
// count as available before.
const minReady = 4 * time.Second
