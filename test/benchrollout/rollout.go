package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

// shown is the Deployment as the agent shows it.
type shown struct {
	Object  appsv1.Deployment `json:"object"`
	History []struct {
		Revision int64  `json:"revision"`
		Failed   string `json:"failed"`
		Template struct {
			Metadata struct {
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"template"`
	} `json:"history"`
}

// isComplete reports whether all pods are of a version and available, and no other one is desired.
func (s *shown) isComplete(version string) bool {
	is := &s.Object.Status
	return s.Object.Spec.Template.Labels["version"] == version &&
		is.Replicas == replicas && is.UpdatedReplicas == replicas && is.AvailableReplicas == replicas
}

// hasFailed reports whether a version was rolled back.
func (s *shown) hasFailed(version string) bool {
	for _, r := range s.History {
		if r.Template.Metadata.Labels["version"] == version && r.Failed != "" {
			return true
		}
	}
	return false
}

// trial is how long a version may still be rolled back after it was complete.
const trial = 10 * time.Second

// stage is a running agent with the Deployment.
type stage struct {
	*arm.Turn
	load               *Load
	deadline, minReady time.Duration // of the Deployment
	lowest             int32         // the fewest available pods that were seen since the last round began
}

// write gives the Deployment a version.
func (s *stage) write(v version) error {
	file := filepath.Join(s.Manifests, "web.yaml")
	text := manifest(v, s.deadline, s.minReady, trial)
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// deployment returns the Deployment, nil for none.
func (s *stage) deployment(ctx context.Context) (*shown, error) {
	var list struct {
		Items []shown `json:"items"`
	}
	if err := s.Ask(ctx, "/v1/workloads?kind=Deployment&history=true", &list); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

// await returns once the Deployment is as done accepts it.
func (s *stage) await(ctx context.Context, limit time.Duration, done func(*shown) bool) error {
	return arm.Until(ctx, limit, 20*time.Millisecond, func() (bool, error) {
		d, err := s.deployment(ctx)
		if err != nil || d == nil {
			return false, errors.Join(err, errors.New("no Deployment is shown"))
		}
		s.lowest = min(s.lowest, d.Object.Status.AvailableReplicas)
		if done(d) {
			return true, nil
		}
		is := d.Object.Status
		return false, fmt.Errorf("the Deployment has version %s, %d pods, %d of the newest version, %d available",
			d.Object.Spec.Template.Labels["version"], is.Replicas, is.UpdatedReplicas, is.AvailableReplicas)
	})
}

// withStage runs do with the first version complete and under load. In the end nothing is left of
// the Deployment and the Service.
func (b *bench) withStage(ctx context.Context, name string, deadline, minReady time.Duration, do func(*stage) error) error {
	return b.Turn(ctx, b.Nodectl, name, b.Node.Endpoint, nil, func(t *arm.Turn) (err error) {
		s := &stage{Turn: t, load: newLoad("http://"+address+"/", netip.MustParsePrefix(clientRange)), deadline: deadline, minReady: minReady, lowest: replicas}
		defer func() { err = errors.Join(err, s.clear(context.WithoutCancel(ctx))) }()
		if err := s.write(good(0)); err != nil {
			return err
		}
		if err := s.await(ctx, time.Minute, func(d *shown) bool { return d.isComplete(good(0).name) }); err != nil {
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
	})
}

// clear removes the manifest, and returns once nothing is left of it.
func (s *stage) clear(ctx context.Context) error {
	if err := os.Remove(filepath.Join(s.Manifests, "web.yaml")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return arm.Until(ctx, time.Minute, 100*time.Millisecond, func() (bool, error) {
		if s.Ended() {
			return true, errors.New("the agent has ended: the rules of its Services are left")
		}
		var services struct {
			Items []any `json:"items"`
		}
		d, err := s.deployment(ctx)
		err = errors.Join(err, s.Ask(ctx, "/v1/services", &services))
		if err == nil && d == nil && len(services.Items) == 0 {
			return true, nil
		}
		return false, errors.Join(err, errors.New("the Deployment or the Service is left"))
	})
}

// tail is how long the load continues after a round, so that late failures count for it.
const tail = time.Second

// endRound adds the load of a round to a measure.
func (s *stage) endRound(ctx context.Context, m *report.Measure, total *Window, suffix string) error {
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
	m.Arm("fewest available pods" + suffix).Value(float64(s.lowest))
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
func (s *stage) sum(m *report.Measure, total Window) {
	m.Arm(failedKept).Value(float64(total.KeptFailed))
	m.Arm(failedFresh).Value(float64(total.FreshFailed))
	m.Note("%d requests over kept connections, %d over new ones; %d were left out because earlier ones took too long", total.Kept, total.Fresh, total.Late)
	for _, text := range s.load.Errors() {
		m.Note("failed: %s", text)
	}
}

const (
	failedKept  = "failed requests, kept connections"
	failedFresh = "failed requests, new connections"
	updateTook  = "manifest written → all pods new and available"
	slowest     = "slowest bad version: manifest written → the old version complete again"
)

// updates is measure 1: version after version, each of which works.
func (b *bench) updates(ctx context.Context) error {
	m := b.Begin(ctx, updatesID, "updates", fmt.Sprintf("%d updates of a Deployment with %d replicas behind a Service, at %d requests/s", b.rounds, replicas, b.rate))
	return b.withStage(ctx, "updates", updateDeadline, 0, func(s *stage) error {
		var total Window
		for n := 1; n <= b.rounds; n++ {
			begin := time.Now()
			if err := s.write(good(n)); err != nil {
				return err
			}
			if err := s.await(ctx, 2*time.Minute, func(d *shown) bool { return d.hasFailed(good(n).name) || d.isComplete(good(n).name) }); err != nil {
				return err
			}
			if d, err := s.deployment(ctx); err != nil || d == nil || d.hasFailed(good(n).name) {
				return errors.Join(err, fmt.Errorf("version %s, which works, was rolled back", good(n).name))
			}
			m.Arm(updateTook).Add(time.Since(begin))
			if err := s.endRound(ctx, m, &total, ""); err != nil {
				return err
			}
			arm.Say("update %d/%d: %d requests failed so far", n, b.rounds, total.Failed())
		}
		s.sum(m, total)
		return nil
	})
}

// badVersions is measure 2: versions that fail, each in one of four ways, and are rolled back.
func (b *bench) badVersions(ctx context.Context) error {
	m := b.Begin(ctx, badID, "bad versions", fmt.Sprintf(
		"%d versions that fail (%d ways in turn), with nodectl.dev/rollback: on-failure, progressDeadlineSeconds %d and minReadySeconds %d, at %d requests/s",
		b.rounds, len(badKinds), int(b.deadline.Seconds()), int(minReady.Seconds()), b.rate))
	return b.withStage(ctx, "bad", b.deadline, minReady, func(s *stage) error {
		if err := arm.Pause(ctx, trial); err != nil { // the good version passes its trial
			return err
		}
		var total Window
		var worst time.Duration
		s.load.Take()
		for n := range b.rounds {
			v := bad(n)
			begin := time.Now()
			if err := s.write(v); err != nil {
				return err
			}
			back := func(d *shown) bool { return d.hasFailed(v.name) && d.isComplete(good(0).name) }
			if err := s.await(ctx, 2*time.Minute+b.deadline, back); err != nil {
				return fmt.Errorf("%s: %w", v.kind, err)
			}
			took := time.Since(begin)
			worst = max(worst, took)
			m.Arm("complete again, " + v.kind).Add(took)
			if err := s.endRound(ctx, m, &total, ", "+v.kind); err != nil {
				return err
			}
			arm.Say("bad version %d/%d, %s: %s, %d requests failed so far", n+1, b.rounds, v.kind, took.Round(10*time.Millisecond), total.Failed())
		}
		m.Arm(slowest).Value(worst.Seconds())
		s.sum(m, total)
		return nil
	})
}

// updateDeadline is progressDeadlineSeconds for versions that work, the default of Kubernetes: a
// version that is slow on a busy machine must not be rolled back.
const updateDeadline = 10 * time.Minute

// minReady is minReadySeconds for bad versions: a version that dies after three seconds must not
// count as available before.
const minReady = 4 * time.Second
