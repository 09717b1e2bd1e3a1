package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

const gib = int64(1) << 30

// fakeNode is a node in memory. A step that it carries out frees at once the amount that package
// reclaim expects.
type fakeNode struct {
	mu       sync.Mutex
	node     reclaim.Node
	levels   int // calls
	passes   int // of time
	observed []bool
	fails    map[string]bool // IDs that cannot be removed
	slow     bool            // evicted pods do not stop
	unread   error           // of Observe
	hangs    bool            // Observe with disks blocks until its context ends
	done     []string        // "evict-pod u1"
	evicted  []Eviction
}

func (f *fakeNode) Levels(context.Context) (reclaim.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.levels++
	return reclaim.Node{Now: time.Now(), Filesystems: slices.Clone(f.node.Filesystems), Levels: f.node.Levels}, nil
}

func (f *fakeNode) Observe(ctx context.Context, disks bool) (reclaim.Node, error) {
	if f.hangs && disks {
		<-ctx.Done()
		return reclaim.Node{}, context.Cause(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observed = append(f.observed, disks)
	n := reclaim.Node{Pods: slices.Clone(f.node.Pods)}
	if disks {
		n.Images, n.Containers, n.Sandboxes = slices.Clone(f.node.Images), slices.Clone(f.node.Containers), slices.Clone(f.node.Sandboxes)
	}
	return n, f.unread
}

// set replaces how much of a signal is available.
func (f *fakeNode) set(signal string, available int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, _ := f.node.Level(signal)
	l.Available = available
	f.node = f.node.WithLevel(signal, l)
}

func (f *fakeNode) free(on func(reclaim.Filesystem) reclaim.Usage) {
	f.node.Filesystems = slices.Clone(f.node.Filesystems)
	for i := range f.node.Filesystems {
		fs := &f.node.Filesystems[i]
		fs.Bytes.Available += on(*fs).Bytes
		fs.Inodes.Available += on(*fs).Inodes
	}
}

func when(there bool, u reclaim.Usage) reclaim.Usage {
	if !there {
		return reclaim.Usage{}
	}
	return u
}

func sum(all ...reclaim.Usage) (u reclaim.Usage) {
	for _, o := range all {
		u.Bytes, u.Inodes = u.Bytes+o.Bytes, u.Inodes+o.Inodes
	}
	return u
}

var (
	errFake        = errors.New("the runtime refuses")
	errPodsUnknown = errors.New("not all pods of this node are known")
)

func (f *fakeNode) RemoveImages(_ context.Context, steps []reclaim.Step) (done []reclaim.Step, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range steps {
		if f.fails[s.ID] {
			err = errFake
			continue
		}
		i := slices.IndexFunc(f.node.Images, func(i reclaim.Image) bool { return i.ID == s.ID })
		gone := f.node.Images[i]
		f.node.Images = slices.Delete(slices.Clone(f.node.Images), i, i+1)
		frees := when(gone.Layers == nil, reclaim.Usage{Bytes: gone.Bytes})
		for _, l := range gone.Layers {
			shared := slices.ContainsFunc(f.node.Images, func(i reclaim.Image) bool {
				return slices.ContainsFunc(i.Layers, func(o reclaim.Layer) bool { return o.ID == l.ID })
			})
			frees = sum(frees, when(!shared, l.Usage))
		}
		f.free(func(fs reclaim.Filesystem) reclaim.Usage { return when(fs.Images, frees) })
		f.done, done = append(f.done, fmt.Sprint(s.Action, " ", s.ID)), append(done, s)
	}
	return done, err
}

func (f *fakeNode) RemoveContainer(_ context.Context, _ pod.Key, id string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.node.Containers, func(c reclaim.Container) bool { return c.ID == id })
	if f.fails[id] {
		return false, nil
	}
	gone := f.node.Containers[i]
	f.node.Containers = slices.Delete(slices.Clone(f.node.Containers), i, i+1)
	f.free(func(fs reclaim.Filesystem) reclaim.Usage {
		return sum(when(fs.Writable, gone.Writable), when(fs.Data, gone.Logs))
	})
	f.done = append(f.done, fmt.Sprint(reclaim.RemoveContainer, " ", id))
	return true, nil
}

func (f *fakeNode) RemoveSandbox(_ context.Context, _ pod.Key, id string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.node.Sandboxes, func(b reclaim.Sandbox) bool { return b.ID == id })
	gone := f.node.Sandboxes[i]
	f.node.Sandboxes = slices.Delete(slices.Clone(f.node.Sandboxes), i, i+1)
	f.free(func(fs reclaim.Filesystem) reclaim.Usage { return when(fs.Writable, gone.Usage) })
	f.done = append(f.done, fmt.Sprint(reclaim.RemoveSandbox, " ", id))
	return true, nil
}

func (f *fakeNode) Evict(_ context.Context, _ pod.Key, e Eviction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails[e.UID] {
		return errFake
	}
	f.done, f.evicted = append(f.done, fmt.Sprint(reclaim.EvictPod, " ", e.UID)), append(f.evicted, e)
	if !f.slow {
		f.end(e.UID)
	}
	return nil
}

// end removes a pod; the caller holds the lock.
func (f *fakeNode) end(uid string) {
	i := slices.IndexFunc(f.node.Pods, func(p reclaim.Pod) bool { return p.UID == uid })
	gone := f.node.Pods[i]
	f.node.Pods = slices.Delete(slices.Clone(f.node.Pods), i, i+1)
	f.free(func(fs reclaim.Filesystem) reclaim.Usage {
		u := when(fs.Data, gone.Volumes)
		for _, c := range gone.Containers {
			u = sum(u, when(fs.Writable, c.Writable), when(fs.Data, c.Logs))
		}
		return u
	})
	levels := map[string]reclaim.Level{}
	for signal, l := range f.node.Levels {
		if signal == pod.SignalPIDs {
			l.Available += gone.PIDs
		} else {
			l.Available += gone.Memory
		}
		levels[signal] = l
	}
	f.node.Levels = levels
}

// pass notes that the test lets time pass: reads of the test before it happen before writes of the
// node after it.
func (f *fakeNode) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passes++
}

// actions returns the actions since the last call.
func (f *fakeNode) actions() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	done := f.done
	f.done = nil
	return fmt.Sprint(done)
}

// running is an Upkeep of a fakeNode that runs until the test ends.
type running struct {
	*Upkeep
	*fakeNode
	wake chan struct{}
	log  strings.Builder

	mu         sync.Mutex
	events     []string
	conditions [][]v1.NodeConditionType
}

// prepared returns an Upkeep with these hard thresholds.
func prepared(t *testing.T, f *fakeNode, more func(*reclaim.EvictPolicy), limits ...string) *running {
	t.Helper()
	policy := reclaim.EvictPolicy{Transition: 5 * time.Minute, MaxGrace: 20}
	for _, text := range limits {
		limit, err := pod.ParseThreshold(text)
		if err != nil {
			t.Fatal(err)
		}
		policy.Thresholds = append(policy.Thresholds, reclaim.Threshold{Threshold: limit})
	}
	if more != nil {
		more(&policy)
	}
	r := &running{fakeNode: f, wake: make(chan struct{}, 1)}
	r.Upkeep = New(Config{
		Policy: policy, Observer: f, Actor: f, Wake: r.wake, PodsUnknown: errPodsUnknown,
		SetConditions: func(_ context.Context, now []v1.NodeConditionType) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.conditions = append(r.conditions, now)
		},
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Event: func(reason, kind, message string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, reason+" "+kind+" "+message)
		},
	})
	return r
}

// run runs a prepared Upkeep until the test ends.
func run(t *testing.T, f *fakeNode, more func(*reclaim.EvictPolicy), limits ...string) *running {
	t.Helper()
	r := prepared(t, f, more, limits...)
	r.begin(t)
	return r
}

func (r *running) begin(t *testing.T) {
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	wg.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
}

func (r *running) pressures() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.conditions)
}

// machine returns a node with one disk of 100 GiB and 8 GiB of memory, of which half is free.
func machine(pods ...reclaim.Pod) *fakeNode {
	return &fakeNode{fails: map[string]bool{}, node: reclaim.Node{
		Filesystems: []reclaim.Filesystem{{Name: "/", Bytes: reclaim.Level{Available: 50 * gib, Capacity: 100 * gib}, Data: true, Images: true, Writable: true}},
		Levels:      map[string]reclaim.Level{pod.SignalMemory: {Available: 4 * gib, Capacity: 8 * gib}},
		Pods:        pods,
	}}
}

// using returns a pod that requests nothing and uses memory and a volume.
func using(uid string, memory, volume int64) reclaim.Pod {
	return reclaim.Pod{
		Key: pod.Key{Namespace: "default", Name: uid}, UID: uid, Static: true, Grace: 30, Measured: true,
		Memory: memory, Volumes: reclaim.Usage{Bytes: volume}, Containers: []reclaim.Running{{Name: "c", Memory: memory}},
	}
}
