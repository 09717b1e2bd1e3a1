package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// beating runs an engine until the test ends, and returns the result of its Healthy.
func (m *machine) beating(cfg Config) (pulse func() string, leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	e := New(cfg)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.Run(ctx); err != nil {
			m.t.Error(err)
		}
	})
	pulse = func() string {
		short, done := context.WithTimeout(ctx, time.Second)
		defer done()
		if err := e.Healthy(short); err != nil {
			return err.Error()
		}
		return ""
	}
	return pulse, func() { cancel(); wg.Wait() }
}

// TestF7_AWorkerThatDoesNotDecideIsNamed blocks one worker while it plans. Healthy names it once
// its time is over, and stops naming it when it continues. No other pod is delayed.
//
// Shows: F7
func TestF7_AWorkerThatDoesNotDecideIsNamed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		free := make(chan struct{})
		cfg := m.config(m.rt.Connect())
		cfg.next = func(v plan.View) plan.Plan {
			if v.Want != nil && v.Want.Name == "web" {
				<-free
			}
			return plan.Next(v)
		}
		pulse, leave := m.beating(cfg)
		m.settle()
		m.src.set(mkpod("db"), mkpod("web"))
		m.pass(planningLimit - time.Second)
		if got := pulse(); got != "" {
			t.Errorf("pulse %q before its time is over", got)
		}
		m.pass(2 * time.Second)
		if got := pulse(); got != "the worker of pod default/web hangs in planning" {
			t.Errorf("pulse %q of a worker that hangs in planning", got)
		}
		if db, web := m.phase("db"), m.phase("web"); db != "Running" || web != "never reported" {
			t.Errorf("db is %s, web is %s", db, web)
		}
		close(free)
		m.pass(10 * time.Minute)
		if got := pulse(); got != "" || m.phase("web") != "Running" {
			t.Errorf("pulse %q, web is %s when it has decided", got, m.phase("web"))
		}
		leave()
	})
}

// still is a Volumes that blocks for one pod, like a disk that does not answer.
type still struct {
	*disk
	put, ready bool
	free       chan struct{}
}

func (s *still) SetUp(ctx context.Context, want *pod.Spec, place pod.Place, instance int) error {
	if s.put && want.Name == "web" {
		<-s.free
	}
	return s.disk.SetUp(ctx, want, place, instance)
}

func (s *still) Ready(want *pod.Spec, instance int) (put, current bool, until time.Time) {
	if s.ready && want.Name == "web" {
		<-s.free
	}
	return s.disk.Ready(want, instance)
}

// A runtime, disk, probe or hook that does not answer a worker does not stop the watchdog's
// heartbeat.
//
// Shows: F7
func TestF7_WhatHangsIsNotTheWorker(t *testing.T) {
	t.Parallel()
	hang := func(method string) func(*machine, *Config, chan struct{}) {
		return func(m *machine, _ *Config, free chan struct{}) {
			lift := m.rt.Fault(critest.Fault{Method: method, Pod: webKey, Hang: true})
			go func() { <-free; lift() }()
		}
	}
	for name, hangs := range map[string]func(m *machine, c *Config, free chan struct{}){
		"a look":    hang("PodSandboxStatus"),
		"a sandbox": hang("RunPodSandbox"),
		"a start":   hang("StartContainer"),
		"volumes": func(m *machine, c *Config, free chan struct{}) {
			c.Volumes = &still{disk: m.disk, put: true, free: free}
		},
		"a directory": func(m *machine, c *Config, free chan struct{}) {
			c.Volumes = &still{disk: m.disk, ready: true, free: free}
		},
		"a hook": func(m *machine, _ *Config, _ chan struct{}) {
			m.disk.hookTakes = map[string]time.Duration{"app": time.Hour}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				free := make(chan struct{})
				cfg := m.config(m.rt.Connect())
				hangs(m, &cfg, free)
				pulse, leave := m.beating(cfg)
				m.settle()
				m.src.set(mkpod("web", hooked))
				for range 20 {
					m.pass(10 * time.Second)
					if got := pulse(); got != "" {
						t.Fatalf("pulse %q", got)
					}
				}
				if web := m.disk.last(webKey); web != nil && web.pod.Status.Phase == v1.PodRunning && isReady(&web.pod.Status) {
					t.Error("nothing hung")
				}
				close(free)
				leave()
			})
		})
	}
}
