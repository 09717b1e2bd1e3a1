package engine

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/pod"
)

// storageRounds is how many rounds of measurements pass from one that reads the writable layers to
// the next such round. The runtime computes the sizes of these layers only every few seconds.
const storageRounds = 3

// storageLimits says which limits of disk space nodectl has to measure for a pod (C-1.35.9).
type storageLimits struct {
	volumes    bool // the size of an emptyDir on the node's disk
	containers bool // limits.ephemeral-storage of a container
}

func (l storageLimits) any() bool { return l.volumes || l.containers }

func storageLimitsOf(p *v1.Pod) (l storageLimits) {
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].EmptyDir; e != nil && e.Medium == v1.StorageMediumDefault && e.SizeLimit != nil && !e.SizeLimit.IsZero() {
			l.volumes = true
		}
	}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if _, ok := list[i].Resources.Limits[v1.ResourceEphemeralStorage]; ok {
				l.containers = true
			}
		}
	}
	return l
}

// overfull is an instance of a pod that exceeds a limit of its disk space.
type overfull struct {
	key      pod.Key
	uid      string
	instance int
	message  string // names the limit; "": it exceeds none
}

// measurement is the periodic job that measures the disk space of pods with such limits, in a
// goroutine of its own. While a round runs, no other one begins. A volume that hangs delays the
// measurements of other pods only once, by podPatience.
type measurement struct {
	running bool
	rounds  int // the rounds that were due so far
	calls   *boundedcall.Calls
	found   chan overfull // capacity 0: an instance that exceeds a limit
	done    chan struct{} // capacity 1: a round is over
}

// measurementPeriod is how often the volumes of pods with a limit are measured.
const measurementPeriod = 10 * time.Second

func newMeasurement() measurement {
	return measurement{calls: boundedcall.New(maxHanging), found: make(chan overfull), done: make(chan struct{}, 1)}
}

// measure begins a round, unless no pod has such a limit.
func (l *loop) measure(ctx context.Context) {
	if l.jobs.measurement.running || l.cfg.NoStorageLimits {
		return
	}
	type place struct {
		spec *pod.Spec
		overfull
	}
	withLayers := l.cfg.Layers != nil && l.jobs.measurement.rounds%storageRounds == 0
	var places []place
	anyContainer := false
	for _, e := range l.pods {
		if e.want == nil || e.ended || e.last == nil || !e.last.limits.any() || !e.last.limits.volumes && !withLayers {
			continue
		}
		anyContainer = anyContainer || e.last.limits.containers
		places = append(places, place{e.requested(), overfull{key: e.key, uid: e.requested().UID(), instance: e.last.instance}})
	}
	l.jobs.measurement.rounds++
	if len(places) == 0 {
		return
	}
	m, volumes, read, log := &l.jobs.measurement, l.cfg.Volumes, l.cfg.Layers, l.log
	m.running = true
	calls, found, done := m.calls, m.found, m.done
	l.workers.Go(func() {
		defer func() { done <- struct{}{} }() // there is room: one round at a time
		var layers map[string]map[string]int64
		if withLayers && anyContainer {
			var err error
			if layers, err = read(ctx); err != nil {
				log.Debug("Failed to read the sizes of writable layers", "error", err)
			}
		}
		for _, p := range places {
			if ctx.Err() != nil {
				return
			}
			err := calls.Do(ctx, p.key.String(), podPatience, func() (err error) {
				ctx := activity.WithPod(ctx, p.key)
				defer activity.Begin(ctx, activity.Call{Kind: activity.Volume, Name: "measure volumes"})()
				if p.message, err = volumes.ExceededLimit(ctx, p.spec, p.instance, layers[p.uid]); p.message == "" {
					return err
				}
				select {
				case found <- p.overfull:
				case <-ctx.Done():
				}
				return err
			})
			if err != nil {
				log.Debug("Failed to measure the disk space of a pod", "pod", p.key.String(), "error", err)
			}
		}
	})
}

// limitGrace is the grace of a pod that exceeds a limit of its disk, in seconds (C-1.35.9).
const limitGrace = 1

// handleMeasured evicts a pod whose instance exceeds a limit. The worker refuses an eviction of
// an older instance.
func (l *loop) handleMeasured(ctx context.Context, o overfull) {
	l.handleOperation(ctx, &operation{
		kind: opEvict, key: o.key, uid: o.uid, answer: make(chan error, 1),
		eviction: &Eviction{UID: o.uid, Grace: limitGrace, Message: o.message, instance: o.instance},
	})
}
