package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/arm"
)

// A run is one agent with all cases.
type run struct {
	place
	agent    *arm.Agent
	recorder *recorder
	record   *Recording
	atOnce   int
	progress func(string)

	process *arm.Process
	earlier []string // log lines of the processes before

	mu     sync.Mutex
	rounds map[string]int // of each case
}

// Times of the cases whose agent is killed by SIGKILL, from the start of the last of them.
const (
	killedAt    = 20 * time.Second
	restartedAt = 26 * time.Second
)

// On a busy machine calls of the runtime are slow, and agents late. A case with a call that
// took longer than disturbed is run again, up to again times; the least disturbed run is
// kept.
const (
	disturbed = 900 * time.Millisecond
	again     = 2
)

// cases runs all cases: first those that leave the agent alone, several at once, or one after
// the other; and then the others together.
func (r *run) cases(ctx context.Context, all []*Case) error {
	if err := r.start(); err != nil {
		return err
	}
	defer func() { _ = r.process.End(syscall.SIGTERM) }() // a kubelet's exit code varies
	if err := r.answers(ctx); err != nil {
		return err
	}
	polling, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { r.recorder.poll(polling, r.agent, r.Place) })
	var lost error
	wg.Go(func() {
		if lost = r.recorder.follow(polling); lost != nil {
			stop()
		}
	})
	// A kubelet that runs for less than a probe's period delays the first probe.
	if err := arm.Pause(ctx, 10*time.Second); err != nil {
		return err
	}
	quiet, restart, alone := split(all)
	var err error
	for i := 0; i <= again && err == nil; i++ {
		err = r.round(polling, r.still(quiet), func(cases []*Case) error { return r.beside(polling, cases, max(1, r.atOnce>>i)) })
	}
	for i := 0; i <= again && err == nil; i++ {
		err = r.round(polling, r.still(alone), func(cases []*Case) error { return r.beside(polling, cases, 1) })
	}
	for i := 0; i <= again && err == nil; i++ {
		err = r.round(polling, r.still(restart), func(cases []*Case) error { return r.together(polling, cases) })
	}
	return errors.Join(err, lost)
}

// round runs cases when nothing is left of their earlier pods, which would affect them: a
// kubelet takes a minute to collect them.
func (r *run) round(ctx context.Context, cases []*Case, do func([]*Case) error) error {
	if len(cases) == 0 {
		return nil
	}
	r.progress(fmt.Sprintf("%d cases", len(cases)))
	_ = arm.Until(ctx, 2*time.Minute, time.Second, func() (bool, error) {
		left, err := r.recorder.left(ctx, cases)
		return err != nil || !left, errors.Join(err, errors.New("pods are left"))
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return do(cases)
}

// still returns the cases that were not run, or were disturbed.
func (r *run) still(cases []*Case) []*Case {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []*Case
	for _, c := range cases {
		if rec := r.record.Cases[c.Name]; rec == nil || rec.Slowest > disturbed {
			left = append(left, c)
		}
	}
	return left
}

func split(all []*Case) (quiet, restart, alone []*Case) {
	for _, c := range all {
		switch {
		case c.Restart:
			restart = append(restart, c)
		case c.Alone:
			alone = append(alone, c)
		default:
			quiet = append(quiet, c)
		}
	}
	// The long ones first, so that none of them is alone in the end.
	slices.SortStableFunc(quiet, func(a, b *Case) int {
		return int(b.Watch.Duration + b.After.Duration - a.Watch.Duration - a.After.Duration)
	})
	return quiet, restart, alone
}

// beside runs cases, atOnce in parallel, each started when the one before it runs.
func (r *run) beside(ctx context.Context, cases []*Case, atOnce int) error {
	seats := make(chan struct{}, atOnce)
	errs := make([]error, len(cases))
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, c := range cases {
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
			return errors.Join(append(errs, ctx.Err())...)
		}
		s, err := r.begin(ctx, c)
		if err != nil {
			return err
		}
		began := time.Now()
		wg.Go(func() {
			defer func() { <-seats }()
			errs[i] = s.play(ctx, began)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// together runs cases with one clock for all, and kills the agent and starts it again.
func (r *run) together(ctx context.Context, cases []*Case) error {
	if len(cases) == 0 {
		return nil
	}
	var stages []*stage
	for _, c := range cases {
		s, err := r.begin(ctx, c)
		if err != nil {
			return err
		}
		stages = append(stages, s)
	}
	began := time.Now()
	errs := make([]error, len(stages)+1)
	var wg sync.WaitGroup
	for i, s := range stages {
		s.record.Moments = []Moment{{began.Add(killedAt), "the agent is killed"}, {began.Add(restartedAt), "the agent starts"}}
		wg.Go(func() { errs[i] = s.play(ctx, began) })
	}
	errs[len(stages)] = r.restart(ctx, began)
	wg.Wait()
	return errors.Join(errs...)
}

func (r *run) restart(ctx context.Context, began time.Time) error {
	if err := pauseUntil(ctx, began.Add(killedAt)); err != nil {
		return err
	}
	if err := r.process.End(syscall.SIGKILL); err != nil {
		return err
	}
	r.earlier = append(r.earlier, r.process.Lines()...)
	if err := pauseUntil(ctx, began.Add(restartedAt)); err != nil {
		return err
	}
	return r.start()
}

// start starts the agent, for the first time or again.
func (r *run) start() (err error) {
	r.process, err = r.agent.Start(r.Place)
	return err
}

// answers returns when the agent answers.
func (r *run) answers(ctx context.Context) error {
	err := arm.Until(ctx, time.Minute, 100*time.Millisecond, func() (bool, error) {
		err := r.agent.Pods(ctx, r.Place, &v1.PodList{})
		return err == nil || r.process.Ended(), err
	})
	if err != nil {
		return fmt.Errorf("%s does not answer: %w\n%s", r.agent.Name, err, r.process.Tail())
	}
	return nil
}

// settled is how long to wait until a container of a case runs.
const settled = 3 * time.Second

// begin writes the manifests of a case and returns when a container of it runs, or when none
// does for a while.
func (r *run) begin(ctx context.Context, c *Case) (*stage, error) {
	s, err := newStage(r, c)
	if err != nil {
		return nil, err
	}
	for pod := range s.manifests {
		r.recorder.forget(pod)
	}
	if err := r.removeImages(ctx, c); err != nil {
		return nil, err
	}
	s.record.Zero = time.Now()
	if err := s.dropAll(); err != nil {
		return nil, err
	}
	for time.Since(s.record.Zero) < settled && !c.Refused {
		if err := arm.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		if r.process.Ended() {
			return nil, fmt.Errorf("%s: the agent ended\n%s", c.Name, r.process.Tail())
		}
		for pod := range s.manifests {
			if r.recorder.started(pod) {
				return s, nil
			}
		}
	}
	return s, nil
}

// said returns the agent's log lines about errors in a case's manifests.
func (r *run) said(c *Case) []string {
	var found []string
	for _, line := range append(slices.Clip(r.earlier), r.process.Lines()...) {
		if !strings.Contains(line, "/"+c.Name+".") && !strings.Contains(line, "/"+c.Name+"-") {
			continue
		}
		if i := strings.Index(line, "Manifest"); i > 0 || strings.Contains(line, "an't process ") {
			found = append(found, line)
		}
	}
	return found
}

func pauseUntil(ctx context.Context, t time.Time) error { return arm.Pause(ctx, time.Until(t)) }
