package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
)

// nodeName is the node's, with both.
const nodeName = "n1"

// Raw is what one cluster showed.
type Raw struct {
	Arm, Version string
	Began        time.Time
	Words        map[string]string // names of this run, and the words for them
	Pods         map[string][]Version
	Course       map[string][]string // what a case waited for in vain
	Events       []v1.Event
	Requests     []request
	Node         *v1.Node
	Lease        json.RawMessage
	Views        map[string][]byte // what the node's server answers, by path
}

// A Version is a pod as a watch showed it.
type Version struct {
	At      time.Time
	Deleted bool
	Pod     *v1.Pod
}

// recorder follows the pods.
type recorder struct {
	watch watch.Interface
	wg    sync.WaitGroup

	mu    sync.Mutex
	pods  map[string][]Version
	newer chan struct{} // closed and replaced when there is more
}

func follow(ctx context.Context, s *stage.Stage) (*recorder, error) {
	w, err := s.Admin.Get().Namespace("default").Resource("pods").
		VersionedParams(&metav1.ListOptions{Watch: true}, scheme.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, err
	}
	r := &recorder{watch: w, pods: map[string][]Version{}, newer: make(chan struct{})}
	r.wg.Go(func() {
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*v1.Pod); ok {
				r.add(Version{At: time.Now(), Deleted: e.Type == watch.Deleted, Pod: p})
			}
		}
	})
	return r, nil
}

func (r *recorder) add(v Version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.Pod.ManagedFields = nil
	r.pods[v.Pod.Name] = append(r.pods[v.Pod.Name], v)
	close(r.newer)
	r.newer = make(chan struct{})
}

func (r *recorder) close() { r.watch.Stop(); r.wg.Wait() }

// await returns when done accepts the newest version of a pod; nil for a missing pod.
func (r *recorder) await(ctx context.Context, name string, limit time.Duration, done func(p *v1.Pod) bool) error {
	late := time.After(limit)
	for {
		r.mu.Lock()
		var now *v1.Pod
		if all := r.pods[name]; len(all) > 0 && !all[len(all)-1].Deleted {
			now = all[len(all)-1].Pod
		}
		newer := r.newer
		r.mu.Unlock()
		if done(now) {
			return nil
		}
		select {
		case <-newer:
		case <-late:
			return errLate
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errLate = errors.New("not in time")

// record gives all cases to a cluster whose node is the arm's agent.
func record(ctx context.Context, o options, arm string) (raw *Raw, err error) {
	s, err := stage.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	agent, err := stage.Kubelet(o.kubelet)
	if arm == "nodectl" {
		agent, err = s.Nodectl(ctx, o.nodectl)
	}
	if err != nil {
		return nil, err
	}
	agent.Debug = true
	raw = &Raw{Arm: arm, Version: agent.Version(), Began: time.Now(), Course: map[string][]string{}, Views: map[string][]byte{}}
	rec, err := follow(ctx, s)
	if err != nil {
		return nil, err
	}
	defer rec.close()
	turn, err := s.Begin(ctx, agent, nodeName, filepath.Join(o.keep, arm+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, turn.Finish()) }()
	raw.Words = map[string]string{
		s.Address: "$ADDRESS", turn.Root: "$ROOT", s.Node.LogsDir: "$LOGS", s.Node.CgroupParent: "$CGROUP",
		s.Node.RunDir: "$RUN", s.Node.RootDir: "$RUNTIME", subnet(s.Node.Subnet): "$SUBNET.", turn.Manifests: "$MANIFESTS", s.Dir: "$DIR",
	}
	c := &course{Stage: s, turn: turn, rec: rec, raw: raw}
	if err := c.all(ctx, o); err != nil {
		return nil, err
	}
	raw.Events, err = c.events(ctx)
	if err != nil {
		return nil, err
	}
	raw.Requests, err = requests(s.Cluster.AuditLog)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	raw.Pods = rec.pods
	return raw, err
}

// all runs the cases, several in parallel, and reads the node's server when they are done.
func (c *course) all(ctx context.Context, o options) error {
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
			if o.match.MatchString(scenarios[next-1].name) {
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
				if o.progress {
					lab.Say("%s %5.1fs %s", c.raw.Arm, time.Since(began).Seconds(), s.name)
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

func writeJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

func readJSON(name string, v any) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}
