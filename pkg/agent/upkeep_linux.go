package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/pkg/upkeep"
)

// pressures holds the node's pressure conditions from the last round of the upkeep.
type pressures struct {
	mu  sync.Mutex
	now []v1.NodeConditionType
}

func (p *pressures) set(now []v1.NodeConditionType) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = now
}

func (p *pressures) get() []v1.NodeConditionType {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// newUpkeep makes the upkeep of this node. The caller calls closeAlarm when the upkeep has ended.
func (a *Agent) newUpkeep(e *engine.Engine, m *member, images *image.Inventory, measured *stats.Stats) (up *upkeep.Upkeep, closeAlarm func()) {
	policy := evictPolicy(a.cfg)
	at := a.newLevels()
	var wake <-chan struct{}
	closeAlarm = func() {}
	if a.cfg.KernelMemcgNotification && os.Geteuid() == 0 {
		alarm, err := node.NewMemoryAlarm("/")
		if err != nil {
			a.log.Info("Cannot watch memory pressure stalls, continuing with other memory checks", "error", err)
		}
		wake, closeAlarm = alarm.C(), alarm.Close
		warned := false
		at.arm = func(now node.Levels) {
			err := alarm.Arm(now, memoryLimits(policy, now.By[pod.SignalMemory].Capacity))
			if err != nil && !warned {
				a.log.Warn("Cannot watch memory usage, continuing with periodic measurements", "error", err)
				warned = true
			}
		}
	}
	live := e.Live()
	return upkeep.New(upkeep.Config{
		Policy: policy,
		Observer: nodeObserver{
			levels: at, runtime: a.runtime.Runtime, images: images, usage: measured.Usage, pods: live.Pods, observed: live.PodsObserved(), rootDir: a.cfg.RootDir,
		},
		Actor: nodeActor{a.runtime.Runtime, images, func(ctx context.Context, key pod.Key, v upkeep.Eviction) error {
			ctx, stop := context.WithTimeout(ctx, evictTimeout)
			defer stop()
			return e.Evict(ctx, key, engine.Eviction{UID: v.UID, Grace: v.Grace, Message: v.Message, Cause: v.Cause, Condition: v.Condition})
		}},
		SetConditions: func(ctx context.Context, now []v1.NodeConditionType) {
			a.pressures.set(now)
			e.SetPressure(ctx, now)
		},
		Event: a.nodeEvents(m), Wake: wake, PodsUnknown: image.ErrPodsUnknown, Log: a.log,
	}), closeAlarm
}

// newLevels returns the part that measures the levels of this node.
func (a *Agent) newLevels() *levels {
	place := func() string {
		at, ok := a.groups.AllPodsCgroup()
		if !ok || os.Geteuid() != 0 {
			return ""
		}
		return cmp.Or(at.Dirs["memory"], at.Dirs[""])
	}
	return &levels{
		runtime: a.runtime.Runtime, place: place,
		meter: node.Meter{Root: "/", NodeFs: a.cfg.RootDir, PIDs: a.host.facts.PIDs},
	}
}

// evictPolicy returns the policy of evictions. The thresholds of the machine's memory apply to the
// cgroup of all pods, too.
func evictPolicy(cfg Config) reclaim.EvictPolicy {
	p := reclaim.EvictPolicy{
		Transition: cfg.PressureTransitionPeriod, MaxGrace: int64(cfg.EvictionMaxPodGracePeriod), Cluster: cfg.Kubeconfig != "",
	}
	for _, t := range cfg.EvictionThresholds() {
		it := reclaim.Threshold{Threshold: t.Threshold, Grace: t.Grace, Reclaim: t.Reclaim}
		p.Thresholds = append(p.Thresholds, it)
		if it.Signal == pod.SignalMemory {
			it.Signal = pod.SignalPodsMemory
			p.Thresholds = append(p.Thresholds, it)
		}
	}
	return p
}

// memoryLimits returns the thresholds of the machine's memory in bytes.
func memoryLimits(p reclaim.EvictPolicy, capacity int64) (all []int64) {
	for _, t := range p.Thresholds {
		if t.Signal == pod.SignalMemory {
			all = append(all, t.Of(capacity))
		}
	}
	return all
}

// levels measures this node for an Upkeep.
type levels struct {
	runtime interface {
		Filesystems(ctx context.Context) (images, containers pod.Filesystem, err error)
	}
	// place returns the directory of the cgroup of all pods, "" if there is none.
	place func() string
	arm   func(node.Levels) // arms the memory alarm after each measurement; may be nil

	mu    sync.Mutex // guards meter
	meter node.Meter
}

// Levels implements upkeep.Observer. It asks the runtime for the directory of its images and the
// cgroup of all pods until the runtime answers. It asks again if that directory vanishes.
func (l *levels) Levels(ctx context.Context) (reclaim.Node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var unknown error
	if l.meter.ImageFs == "" {
		unknown = l.find(ctx)
	}
	if l.meter.PodsGroup == "" { // the runtime may not have answered yet
		l.meter.PodsGroup = l.place()
	}
	read, err := l.meter.Read()
	if l.arm != nil {
		l.arm(read)
	}
	n := reclaim.Node{Now: time.Now(), Levels: make(map[string]reclaim.Level, len(read.By))}
	for signal, level := range read.By {
		n.Levels[signal] = reclaim.Level(level)
	}
	for _, d := range read.Disks {
		n.Filesystems = append(n.Filesystems, reclaim.Filesystem{
			Name: d.Dir, Bytes: reclaim.Level(d.Bytes), Inodes: reclaim.Level(d.Inodes), Data: d.Data, Images: d.Images, Writable: d.Writable,
		})
	}
	if !slices.ContainsFunc(read.Disks, func(d node.Disk) bool { return d.Images }) {
		l.meter.ImageFs, l.meter.LayerFs = "", ""
	}
	return n, errors.Join(err, unknown)
}

// evictTimeout limits how long a round waits until the sync loop has recorded an eviction.
const evictTimeout = 10 * time.Second

// filesystemsTimeout limits how long a round waits for the runtime. A hanging runtime must not delay an
// eviction for memory.
const filesystemsTimeout = time.Second

func (l *levels) find(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, filesystemsTimeout)
	defer stop()
	images, layers, err := l.runtime.Filesystems(ctx)
	if err != nil {
		return err
	}
	l.meter.ImageFs, l.meter.LayerFs = images.Mountpoint, layers.Mountpoint
	return nil
}

// nodeObserver implements upkeep.Observer.
type nodeObserver struct {
	*levels
	runtime  *cri.Runtime
	images   *image.Inventory
	usage    func(ctx context.Context, disks bool) (map[string]stats.PodUsage, error)
	pods     func() []v1.Pod
	observed <-chan struct{} // closed once pods returns all pods
	rootDir  string
}

// usageTimeout limits how long a round waits for the usage of pods. The measurement continues in the
// next round.
const usageTimeout = 10 * time.Second

// Observe implements upkeep.Observer.
func (o nodeObserver) Observe(ctx context.Context, disks bool) (n reclaim.Node, err error) {
	ran := map[string]bool{}
	for _, p := range o.pods() {
		_, ran[string(p.UID)] = runningPod(&p, nil)
	}
	usage, err := o.usageOf(ctx, disks)
	for _, p := range o.pods() {
		it, runs := runningPod(&p, usage)
		_, read := usage[it.UID]
		switch {
		case runs && (read || ran[it.UID]): // not a pod that began to run after the measurement
			n.Pods = append(n.Pods, it)
		case !runs && it.Stopping && o.hasVolumes(it.UID):
			n.Pods = append(n.Pods, it)
		}
	}
	select {
	case <-o.observed:
		if err != nil && len(usage) == 0 {
			err = fmt.Errorf("%w: %w", upkeep.ErrNoVictim, err)
		}
	default:
		err = errors.Join(fmt.Errorf("%w: the pods of this node are not observed yet", upkeep.ErrNoVictim), err)
	}
	if !disks {
		return n, err
	}
	images, failed := o.images.ObserveForEviction(ctx)
	if errors.Is(failed, image.ErrPodsUnknown) {
		return n, errors.Join(err, failed) // an exited container may be that of an unknown pod
	}
	n.Images = images
	have, unread := o.runtime.Pods(ctx)
	for _, p := range have {
		n.Containers = append(n.Containers, exited(p)...)
		n.Sandboxes = append(n.Sandboxes, deadSandboxes(p)...)
	}
	return n, errors.Join(err, failed, unread)
}

func (o nodeObserver) usageOf(ctx context.Context, disks bool) (map[string]stats.PodUsage, error) {
	ctx, stop := context.WithTimeout(ctx, usageTimeout)
	defer stop()
	return o.usage(ctx, disks)
}

// hasVolumes reports whether a pod has volumes that are not removed yet.
func (o nodeObserver) hasVolumes(uid string) bool {
	if !filepath.IsLocal(uid) {
		return false
	}
	instances, err := os.ReadDir(filepath.Join(o.rootDir, "pods", uid))
	return err == nil && len(instances) > 0
}

// runningPod returns a pod in the form of package reclaim. runs is false if none of its containers
// runs.
func runningPod(p *v1.Pod, usage map[string]stats.PodUsage) (it reclaim.Pod, runs bool) {
	it = reclaim.Pod{
		Key: pod.KeyOf(p), UID: string(p.UID), Static: pod.SourceOf(p) != pod.SourceAPI, Stopping: p.DeletionTimestamp != nil || pod.IsPhaseTerminal(p.Status.Phase),
		Grace: v1.DefaultTerminationGracePeriodSeconds,
	}
	if p.Spec.Priority != nil {
		it.Priority = *p.Spec.Priority
	}
	if grace := p.Spec.TerminationGracePeriodSeconds; grace != nil {
		it.Grace = *grace
	}
	requests := plan.Requests(p)
	it.MemoryRequest, it.DiskRequest = requests.Memory().Value(), requests.StorageEphemeral().Value()
	if p.Spec.Resources != nil {
		it.Requests = p.Spec.Resources.Requests
	}
	u := usage[it.UID]
	it.Measured, it.Memory, it.PIDs, it.Volumes = u.Measured, int64(u.Memory), int64(u.PIDs), diskUsage(u.Volumes)
	it.DiskUnknown = u.DiskUnknown
	specs := map[string]v1.ResourceList{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			specs[list[i].Name] = list[i].Resources.Requests
		}
	}
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Running == nil {
				continue
			}
			name := list[i].Name
			c := u.Containers[name]
			it.Containers = append(it.Containers, reclaim.Running{
				Name: name, Memory: int64(c.Memory), Writable: diskUsage(c.Writable), Logs: diskUsage(c.Logs), Requests: specs[name],
			})
		}
	}
	return it, len(it.Containers) > 0
}

func diskUsage(u stats.DiskUsage) reclaim.Usage {
	return reclaim.Usage{Bytes: int64(u.Bytes), Inodes: int64(u.Inodes)}
}
