package reclaim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Threshold is an eviction threshold of a signal: a quantity, or a percentage of the capacity. It is
// met while less than that is available.
type Threshold struct {
	pod.Threshold
	// Grace is how long the threshold must be met without interruption until it is due. Zero makes
	// it a hard threshold (C-1.35.3).
	Grace time.Duration
	// Reclaim is the minimum reclaim: once the threshold is due, rounds continue until the
	// threshold and this amount are available. The zero value is none.
	Reclaim pod.Threshold
}

// isHard reports whether the threshold is due as soon as it is met. It then evicts pods with
// hardGrace.
func (t Threshold) isHard() bool { return t.Grace == 0 }

// key identifies a threshold from one round to the next.
func (t Threshold) key() string { return fmt.Sprintf("%s for %s", t.Threshold, t.Grace) }

// goal returns the smallest available amount with which the threshold is not met. With reclaiming, it
// includes the minimum reclaim.
func (t Threshold) goal(capacity int64, reclaiming bool) int64 {
	goal := t.Of(capacity)
	if reclaiming {
		goal += t.Reclaim.Of(capacity)
	}
	return goal
}

// EvictPolicy says when a node is under pressure, and which pods may be evicted.
type EvictPolicy struct {
	Thresholds []Threshold
	// Transition is how long a condition stays after its signal has cleared (C-1.35.4).
	Transition time.Duration
	// MaxGrace limits the grace period of pods that a soft threshold evicts, in seconds.
	MaxGrace int64
	// Cluster says that an API server assigns pods to this node. Static pods are then never
	// evicted (C-1.35.8). Without an API server every pod is static, and may be evicted.
	Cluster bool
}

// EvictState has the facts that Evict needs from the last round. The zero value is for the first
// round.
type EvictState struct {
	// Since has the time since which each threshold is met, by its key. Reclaiming has the
	// thresholds that are due. They stay in both until their minimum reclaim is reached.
	Since      map[string]time.Time
	Reclaiming map[string]bool
	// Conditions is when a threshold of each condition was last met.
	Conditions map[v1.NodeConditionType]time.Time
	// Evicted is the UID of the pod that was evicted last, "" for none. EvictedAt is when that was.
	Evicted   string
	EvictedAt time.Time
}

// EvictWait is how long an evicted pod may take to free its resources before rounds evict
// another pod (C-1.35.5).
const EvictWait = 30 * time.Second

// EvictPlan is the result of a round of Evict.
type EvictPlan struct {
	Steps []Step
	// Conditions are the pressure conditions that the node has now, sorted by name.
	Conditions []v1.NodeConditionType
	// Starved has the resources whose thresholds are due, most urgent first, by their names in
	// the kubelet's event EvictionThresholdMet.
	Starved []string
	// WaitFor is the reason to wait: the grace period of a soft threshold, or an evicted pod that
	// is still stopping. Wait is the time until the first of these reasons ends. If no step could
	// help, WaitFor says why, and Wait is zero.
	Wait    time.Duration
	WaitFor string
}

// String returns one line for each step, then the conditions and WaitFor.
func (p EvictPlan) String() string {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(s.String() + "\n")
	}
	for _, c := range p.Conditions {
		b.WriteString("condition " + string(c) + "\n")
	}
	switch {
	case p.Wait > 0:
		fmt.Fprintf(&b, "wait %s: %s\n", p.Wait, p.WaitFor)
	case p.WaitFor != "":
		fmt.Fprintf(&b, "stuck: %s\n", p.WaitFor)
	}
	return b.String()
}

// Evict plans one round. For a threshold of a disk it first removes unused data from that disk:
// exited containers, then sandboxes without containers, then images. Of the images, it takes the least
// recently used ones first, and young ones too (C-1.33.12). It evicts a pod only when no unused data
// is left that would help, and at most one in a round. It evicts the next one only when the first is
// gone or EvictWait is over (C-1.35.5).
//
// Memory comes before disks. Data that the plan removes from a disk counts for all thresholds of that
// disk. After an eviction, the round plans nothing for less urgent thresholds: the evicted pod may
// free enough for them.
//
// before is the after that the last round returned.
func Evict(n Node, p EvictPolicy, before EvictState) (plan EvictPlan, after EvictState) {
	thresholds := p.inOrder(n)
	after = EvictState{Since: map[string]time.Time{}, Reclaiming: map[string]bool{}, Conditions: maps.Clone(before.Conditions), Evicted: before.Evicted, EvictedAt: before.EvictedAt}
	if after.Conditions == nil {
		after.Conditions = map[v1.NodeConditionType]time.Time{}
	}
	var due []Threshold
	for _, t := range thresholds {
		level, measured := n.Level(t.Signal)
		if !measured || level.Available >= t.goal(level.Capacity, before.Reclaiming[t.key()]) {
			continue
		}
		since, met := before.Since[t.key()]
		if !met || since.After(n.Now) {
			since = n.Now
		}
		after.Since[t.key()] = since
		after.Conditions[pod.ConditionOf(t.Signal)] = n.Now
		if left := t.Grace - n.Now.Sub(since); left > 0 {
			plan.wait(left, fmt.Sprintf("%s is met; its grace period of %s has not ended", t.Threshold, t.Grace))
			continue
		}
		after.Reclaiming[t.key()] = true
		due = append(due, t)
	}
	for c, seen := range after.Conditions {
		if seen.After(n.Now) { // the clock was set back
			seen = n.Now
			after.Conditions[c] = seen
		}
		if n.Now.Sub(seen) < p.Transition || n.Now.Equal(seen) {
			plan.Conditions = append(plan.Conditions, c)
		} else {
			delete(after.Conditions, c)
		}
	}
	slices.Sort(plan.Conditions)
	r := round{node: n, policy: p, plan: &plan, after: &after, images: newImageSet(n.Images), freed: map[string]Usage{}, helped: map[string]bool{}, planned: map[string]bool{}}
	for _, t := range due {
		if name := resourceOf(t.Signal); !slices.Contains(plan.Starved, name) {
			plan.Starved = append(plan.Starved, name)
		}
		if !r.evicts {
			r.relieve(t)
		}
	}
	return plan, after
}

// inOrder returns the thresholds, most urgent first: memory first, process IDs last. Like the kubelet,
// it leaves out those of containerfs if that is the same file system as nodefs or imagefs.
func (p EvictPolicy) inOrder(n Node) []Threshold {
	own := slices.ContainsFunc(n.Filesystems, func(f Filesystem) bool { return f.Writable && !f.Data && !f.Images })
	all := slices.DeleteFunc(slices.Clone(p.Thresholds), func(t Threshold) bool {
		return !own && (t.Signal == pod.SignalContainerFs || t.Signal == pod.SignalContainerInos)
	})
	order := []string{
		pod.SignalMemory, pod.SignalPodsMemory, pod.SignalNodeFs, pod.SignalImageFs, pod.SignalContainerFs,
		pod.SignalNodeInodes, pod.SignalImageInodes, pod.SignalContainerInos, pod.SignalPIDs,
	}
	slices.SortStableFunc(all, func(a, b Threshold) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Signal), slices.Index(order, b.Signal)), cmp.Compare(a.Grace, b.Grace))
	})
	return all
}

// resourceOf returns the kubelet's name of the resource that a signal measures.
func resourceOf(signal string) string {
	switch signal {
	case pod.SignalMemory, pod.SignalPodsMemory:
		return string(v1.ResourceMemory)
	case pod.SignalPIDs:
		return "pids"
	}
	if inodesOf(signal) {
		return "inodes"
	}
	return string(v1.ResourceEphemeralStorage)
}

func inodesOf(signal string) bool { return strings.HasSuffix(signal, ".inodesFree") }

// disk returns the file system that a signal measures, nil if it measures none.
func (n Node) disk(signal string) *Filesystem {
	name, _, _ := strings.Cut(signal, ".")
	i := slices.IndexFunc(n.Filesystems, func(f Filesystem) bool {
		return name == "nodefs" && f.Data || name == "imagefs" && f.Images || name == "containerfs" && f.Writable
	})
	if i < 0 {
		return nil
	}
	return &n.Filesystems[i]
}

// Level returns the level of a signal; the result is false if it was not measured.
func (n Node) Level(signal string) (Level, bool) {
	if fs := n.disk(signal); fs != nil {
		if inodesOf(signal) {
			return fs.Inodes, fs.Inodes.Capacity > 0 // some file systems count none
		}
		return fs.Bytes, fs.Bytes.Capacity > 0
	}
	l, ok := n.Levels[signal]
	return l, ok
}

// WithLevel returns the node with another level of a signal. If other signals measure the same disk,
// their levels change too.
func (n Node) WithLevel(signal string, l Level) Node {
	n.Filesystems, n.Levels = slices.Clone(n.Filesystems), maps.Clone(n.Levels)
	switch fs := n.disk(signal); {
	case fs == nil:
		n.Levels[signal] = l
	case inodesOf(signal):
		fs.Inodes = l
	default:
		fs.Bytes = l
	}
	return n
}

func (p *EvictPlan) wait(d time.Duration, why string) {
	if p.Wait == 0 || d < p.Wait {
		p.Wait, p.WaitFor = d, why
	}
}

// round is the state of one call of Evict.
type round struct {
	node    Node
	policy  EvictPolicy
	plan    *EvictPlan
	after   *EvictState
	images  *imageSet
	freed   map[string]Usage // how much the plan frees, by file system
	helped  map[string]bool  // file systems on which the plan removes data
	planned map[string]bool  // IDs of the images, containers and sandboxes that the plan removes
	evicts  bool             // the plan evicts a pod
}

// relieve adds the steps that a threshold requires.
func (r *round) relieve(t Threshold) {
	level, _ := r.node.Level(t.Signal)
	why := fmt.Sprintf("%s is %s, the limit is %s", t.Signal, amount(t.Signal, level.Available), strings.TrimPrefix(t.Threshold.String(), t.Signal+"<"))
	if fs := r.node.disk(t.Signal); fs != nil {
		missing := t.goal(level.Capacity, true) - level.Available
		r.removeData(*fs, func(u Usage) bool {
			if inodesOf(t.Signal) {
				return u.Inodes >= missing
			}
			return u.Bytes >= missing
		}, why)
		if r.helped[fs.Name] {
			return
		}
	}
	r.evict(t, level, why)
}

// amount formats an amount of a signal for messages.
func amount(signal string, n int64) string {
	if signal == pod.SignalPIDs || inodesOf(signal) {
		return fmt.Sprint(n)
	}
	return Size(n)
}

// removeData adds steps that remove unused data from a file system until enough is free, or no
// unused data is left. Space that earlier steps of the plan free there counts.
func (r *round) removeData(fs Filesystem, enough func(Usage) bool, why string) {
	if fs.Data || fs.Writable {
		for _, c := range slices.SortedFunc(slices.Values(r.node.Containers), func(a, b Container) int {
			return cmp.Or(a.Exited.Compare(b.Exited), cmp.Compare(a.ID, b.ID))
		}) {
			if !c.Needed && !r.planned[c.ID] && !enough(r.freed[fs.Name]) {
				ago := r.node.Now.Sub(c.Exited).Round(time.Second)
				r.remove(fs, Step{Action: RemoveContainer, ID: c.ID, Name: c.Name, Pod: c.Pod, Why: fmt.Sprintf("%s; the container exited %s ago", why, ago)}, c.on)
			}
		}
	}
	if fs.Writable {
		for _, b := range slices.SortedFunc(slices.Values(r.node.Sandboxes), func(a, b Sandbox) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
		}) {
			if !b.Needed && !r.planned[b.ID] && !enough(r.freed[fs.Name]) {
				r.remove(fs, Step{Action: RemoveSandbox, ID: b.ID, Pod: b.Pod, Why: why + "; the sandbox has ended and has no container"}, b.on)
			}
		}
	}
	if !fs.Images {
		return
	}
	unused := slices.DeleteFunc(slices.Clone(r.images.images), func(i Image) bool {
		return r.planned[i.ID] || removalBlocker(i) != "" || pullBlocker(i) != ""
	})
	chosen, _ := r.images.choose(unused, nil, func(u Usage) bool { return enough(r.freed[fs.Name].plus(u)) })
	for _, i := range chosen {
		frees := r.images.remove(i)
		r.remove(fs, Step{Action: RemoveImage, ID: i.ID, Name: i.Name(), Why: why + "; the image is " + unusedFor(i, r.node.Now)}, func(f Filesystem) Usage {
			return frees.when(f.Images)
		})
	}
}

// remove adds a step that removes data from fs. on returns how much the step frees on a file system.
func (r *round) remove(fs Filesystem, s Step, on func(Filesystem) Usage) {
	for _, f := range r.node.Filesystems {
		frees := on(f)
		s.Bytes += frees.Bytes
		r.freed[f.Name] = r.freed[f.Name].plus(frees)
		if frees != (Usage{}) || f.Name == fs.Name {
			r.helped[f.Name] = true
		}
	}
	r.planned[s.ID] = true
	r.plan.Steps = append(r.plan.Steps, s)
}

// on returns the space that a container takes on a file system.
func (c Container) on(fs Filesystem) Usage {
	return c.Writable.when(fs.Writable).plus(c.Logs.when(fs.Data))
}

func (b Sandbox) on(fs Filesystem) Usage { return b.Usage.when(fs.Writable) }

// on returns the space that a pod takes on a file system, as the kubelet counts it: its volumes and
// logs on nodefs, its containers' writable layers on containerfs.
func (p Pod) on(fs Filesystem) Usage {
	all := p.Volumes.when(fs.Data)
	for _, c := range p.Containers {
		all = all.plus(c.Writable.when(fs.Writable)).plus(c.Logs.when(fs.Data))
	}
	return all
}

// when returns u if counts is true, otherwise zero.
func (u Usage) when(counts bool) Usage {
	if !counts {
		return Usage{}
	}
	return u
}
