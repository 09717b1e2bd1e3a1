package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
)

// nodeName is the node's, with both.
const nodeName = "n1"

// Raw is the raw recording of one cluster.
type Raw struct {
	Arm, Version string
	Began        time.Time
	Words        map[string]string // names of this run, and the words for them
	Pods         map[string]stage.Versions
	Course       map[string][]string // the condition that a case did not reach
	Events       []v1.Event
	Requests     []request
	Node         *v1.Node
	Lease        json.RawMessage
	Views        map[string][]byte // the answers of the node's server, by path
}

// record gives all cases to a cluster whose node is the arm's agent.
func record(ctx context.Context, o *options, name string) (raw *Raw, err error) {
	s, err := stage.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	agent, err := arm.NewKubelet(o.Kubelet, "")
	if name == "nodectl" {
		agent, err = arm.NewNodectl(ctx, s.Dir, o.Nodectl)
	}
	if err != nil {
		return nil, err
	}
	agent.LogLevel, agent.KeepLogs = "debug", o.Keep
	if err := s.Configure(agent); err != nil {
		return nil, err
	}
	raw = &Raw{Arm: name, Began: time.Now(), Course: map[string][]string{}, Views: map[string][]byte{}}
	if raw.Version, err = agent.Version(); err != nil {
		return nil, err
	}
	pods, err := s.Watch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if all := pods.Close(); raw != nil {
			raw.Pods = all
		}
	}()
	turn, err := s.Begin(ctx, agent, nodeName)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, turn.Finish()) }()
	raw.Words = map[string]string{
		s.Address: "$ADDRESS", turn.Root: "$ROOT", s.Node.LogsDir: "$LOGS", s.Node.CgroupParent: "$CGROUP",
		s.Node.RunDir: "$RUN", s.Node.RootDir: "$RUNTIME", subnet(s.Node.Subnet): "$SUBNET.", turn.Manifests: "$MANIFESTS", s.Dir: "$DIR",
	}
	c := &course{Stage: s, turn: turn, pods: pods, raw: raw}
	if err := c.all(ctx, o); err != nil {
		return nil, err
	}
	raw.Events, err = c.events(ctx)
	if err != nil {
		return nil, err
	}
	raw.Requests, err = requests(s.Cluster.AuditLog)
	return raw, err
}

// all runs the cases, several in parallel, and reads the node's server when they are done.
func (c *course) all(ctx context.Context, o *options) error {
	if err := c.apply(ctx, steady); err != nil {
		return err
	}
	for _, name := range steadyPods {
		c.await(ctx, "view", name, "to be Ready", ready)
	}
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	next := 0
	take := func() *scenario {
		mu.Lock()
		defer mu.Unlock()
		for next < len(scenarios) {
			next++
			if o.Match.MatchString(scenarios[next-1].name) {
				return &scenarios[next-1]
			}
		}
		return nil
	}
	for range atOnce {
		wg.Go(func() {
			for s := take(); s != nil; s = take() {
				err := s.run(ctx, c)
				mu.Lock()
				if err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
				}
				mu.Unlock()
				if o.Verbose {
					arm.Say("%s %5.1fs %s", c.raw.Arm, time.Since(began).Seconds(), s.name)
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	return c.look(ctx)
}

// atOnce is how many cases run beside each other.
const atOnce = 8
