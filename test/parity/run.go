package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A run is one agent with all cases.
type run struct {
	place
	agent    agent
	recorder *recorder
	record   *Recording
	atOnce   int
	progress func(string)

	mu      sync.Mutex
	process *process
}

// How the cases that see their agent killed are timed, from the moment all of
// their manifests appeared. The agent gets SIGKILL.
const (
	killedAt    = 20 * time.Second
	restartedAt = 26 * time.Second
)

// cases runs all cases: those that leave the agent alone, so many at once; and
// then the others together.
func (r *run) cases(ctx context.Context, all []*Case) error {
	p, err := launch(r.agent, r.dir)
	if err != nil {
		return err
	}
	r.process = p
	defer func() { r.process.end(syscall.SIGTERM) }()
	if err := r.answers(ctx); err != nil {
		return err
	}
	polling, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { r.recorder.poll(polling, r.agent) })
	var lost error
	wg.Go(func() {
		if lost = r.recorder.follow(polling); lost != nil {
			stop()
		}
	})
	// A kubelet that is younger than a probe's period delays the first probe.
	if err := pause(ctx, 10*time.Second); err != nil {
		return err
	}
	quiet, restart := split(all)
	if err := r.beside(polling, quiet, r.atOnce); err != nil {
		return errors.Join(err, lost)
	}
	if len(restart) == 0 {
		return nil
	}
	wg.Go(func() { _ = r.restart(polling) })
	return errors.Join(r.beside(polling, restart, len(restart)), lost)
}

func split(all []*Case) (quiet, restart []*Case) {
	for _, c := range all {
		if c.Restart {
			restart = append(restart, c)
		} else {
			quiet = append(quiet, c)
		}
	}
	// The long ones first, so that none of them is alone in the end.
	slices.SortStableFunc(quiet, func(a, b *Case) int { return int(b.Watch.Duration - a.Watch.Duration) })
	return quiet, restart
}

// beside runs cases, so many at once. Their first moments are apart, so that a
// case sees a machine that does not start ten others.
func (r *run) beside(ctx context.Context, cases []*Case, atOnce int) error {
	const apart = 700 * time.Millisecond
	seats := make(chan struct{}, max(1, atOnce))
	errs := make([]error, len(cases))
	var wg sync.WaitGroup
	for i, c := range cases {
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-seats }()
			if errs[i] = r.one(ctx, c); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", c.Name, errs[i])
			}
			r.progress(c.Name)
		})
		if atOnce < len(cases) {
			_ = pause(ctx, apart)
		}
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// restart kills the agent and starts it again, at the times of the cases that
// wait for that.
func (r *run) restart(ctx context.Context) error {
	if err := pause(ctx, killedAt); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process.end(syscall.SIGKILL)
	if err := pause(ctx, restartedAt-killedAt); err != nil {
		return err
	}
	p, err := launch(r.agent, r.dir)
	if err == nil {
		r.process = p
	}
	return err
}

// answers returns when the agent answers.
func (r *run) answers(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := r.agent.pods(ctx); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %w", r.agent.name(), err)
		}
		if err := r.process.ended(); err != nil {
			return fmt.Errorf("%s: %w\n%s", r.agent.name(), err, r.logTail(20))
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// one runs a case from its manifests' appearance to their end.
func (r *run) one(ctx context.Context, c *Case) error {
	s, err := newStage(r, c)
	if err != nil {
		return err
	}
	s.record.Zero = time.Now()
	if err := s.dropAll(); err != nil {
		return err
	}
	type step struct {
		at time.Duration
		do func() error
	}
	steps := []step{{c.Look.Duration, func() error { return s.look(ctx) }}}
	for _, a := range c.Script {
		steps = append(steps, step{a.At.Duration, func() error { return s.act(ctx, a) }})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	for _, st := range steps {
		if err := pauseUntil(ctx, s.record.Zero.Add(st.at)); err != nil {
			return err
		}
		if err := st.do(); err != nil {
			return err
		}
	}
	if err := pauseUntil(ctx, s.record.Zero.Add(c.Watch.Duration)); err != nil {
		return err
	}
	s.record.Gone = time.Now()
	if err := s.removeAll(); err != nil {
		return err
	}
	if err := pause(ctx, c.After.Duration); err != nil {
		return err
	}
	s.record.End = time.Now()
	if c.Restart {
		s.record.Moments = append(s.record.Moments,
			Moment{s.record.Zero.Add(killedAt), "the agent is killed"}, Moment{s.record.Zero.Add(restartedAt), "the agent starts"})
	}
	names, err := c.pods()
	if err != nil {
		return err
	}
	for _, name := range names {
		s.record.Pods[name] = r.recorder.take(ctx, name)
	}
	s.record.Said = r.said(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Cases[c.Name] = s.record
	return nil
}

// said returns what the agent's log has about a case's manifests being wrong.
func (r *run) said(c *Case) []string {
	f, err := os.Open(filepath.Join(r.dir, r.agent.name()+".log"))
	if err != nil {
		return nil
	}
	defer f.Close()
	var found []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.Contains(line, "/"+c.Name+".") && !strings.Contains(line, "="+c.Name+".") {
			continue
		}
		if i := strings.Index(line, "Manifest"); i > 0 || strings.Contains(line, "an't process manifest") {
			found = append(found, line)
		}
	}
	return found
}

func (r *run) logTail(n int) string {
	text, err := os.ReadFile(filepath.Join(r.dir, r.agent.name()+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func pauseUntil(ctx context.Context, t time.Time) error { return pause(ctx, time.Until(t)) }

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
