package reclaim

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

// drawNode draws a node: one disk for everything, a disk for images, or one for each.
func drawNode(t *rapid.T) Node {
	span := func(name string) time.Duration { return time.Duration(rapid.IntRange(0, 5).Draw(t, name)) * time.Hour }
	usage := func(name string) Usage {
		return Usage{int64(rapid.IntRange(0, 4).Draw(t, name)) * gib, int64(rapid.IntRange(0, 4).Draw(t, name+"-inodes")) * 1000}
	}
	level := func(name string) Level { return Level{int64(rapid.IntRange(0, 30).Draw(t, name)) * gib, 100 * gib} }
	n := Node{Now: noon, Levels: map[string]Level{pod.SignalMemory: level("memory"), pod.SignalPIDs: {int64(rapid.IntRange(0, 300).Draw(t, "pids")), 1000}}}
	fs := func(name string, data, images, layers bool) {
		n.Filesystems = append(n.Filesystems, Filesystem{
			Name: name, Bytes: level(name), Inodes: Level{int64(rapid.IntRange(0, 30).Draw(t, name+"-inodes")) * 1000, 100_000}, Data: data, Images: images, Writable: layers,
		})
	}
	switch rapid.IntRange(0, 3).Draw(t, "disks") {
	case 0:
		fs("/", true, true, true)
	case 1:
		fs("/", true, false, false)
		fs("/runtime", false, true, true)
	case 2:
		fs("/", true, false, true)
		fs("/images", false, true, false)
	case 3:
		fs("/", true, false, false)
		fs("/images", false, true, false)
		fs("/layers", false, false, true)
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "images") {
		it := Image{ID: fmt.Sprint("image", i), Bytes: usage("bytes").Bytes, FirstSeen: noon.Add(-span("first"))}
		if rapid.Bool().Draw(t, "was-used") {
			it.LastUsed = noon.Add(-span("used"))
		}
		if rapid.Bool().Draw(t, "layers-known") {
			it.Layers = []Layer{}
			for range rapid.IntRange(0, 3).Draw(t, "layers") {
				l := rapid.IntRange(0, 5).Draw(t, "layer")
				it.Layers = append(it.Layers, Layer{ID: fmt.Sprint("layer", l), Usage: Usage{int64(l) * gib, int64(l) * 100}})
			}
		}
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 0, 1:
			it.Users = []string{"pod default/web"}
		case 2:
			it.Pinned = true
		case 3:
			it.Archive = true
		case 4:
			it.UnresponsiveRegistry = "registry.example"
		}
		n.Images = append(n.Images, it)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "containers") {
		n.Containers = append(n.Containers, Container{
			ID: fmt.Sprint("container", i), Exited: noon.Add(-span("exited")), Needed: rapid.Bool().Draw(t, "needed"), Writable: usage("layer"), Logs: usage("logs"),
		})
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "sandboxes") {
		n.Sandboxes = append(n.Sandboxes, Sandbox{ID: fmt.Sprint("sandbox", i), Needed: rapid.Bool().Draw(t, "sandbox-needed")})
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "pods") {
		p := running(fmt.Sprint("p", i), rapid.SampledFrom([]int32{-1, 0, 5, critical - 1, critical, critical + 1000}).Draw(t, "priority"), int64(rapid.IntRange(0, 4).Draw(t, "uses"))*gib, gib)
		p.Static, p.Measured, p.Stopping = rapid.Bool().Draw(t, "static"), rapid.Bool().Draw(t, "measured"), rapid.IntRange(0, 4).Draw(t, "stopping") == 0
		p.Volumes, p.PIDs = usage("volumes"), int64(rapid.IntRange(0, 100).Draw(t, "processes"))
		p.Containers = []Running{{Name: "c", Writable: usage("pod-layer"), Logs: usage("pod-logs")}}
		n.Pods = append(n.Pods, p)
	}
	return n
}

func drawPolicy(t *rapid.T) EvictPolicy {
	p := EvictPolicy{Transition: 5 * time.Minute, Cluster: rapid.Bool().Draw(t, "cluster"), MaxGrace: 20}
	for _, signal := range pod.Signals() {
		kind := rapid.IntRange(0, 3).Draw(t, signal)
		if kind == 0 {
			continue
		}
		it := hard(fmt.Sprintf("%s<%d%%", signal, rapid.IntRange(1, 25).Draw(t, "percent")))
		if kind == 2 {
			it.Grace = time.Minute
		}
		if rapid.Bool().Draw(t, "reclaim") {
			it.Reclaim, _ = pod.NewThreshold(signal, "5%")
		}
		p.Thresholds = append(p.Thresholds, it)
	}
	return p
}

// removable reports whether the removal of all unused data would make more of a signal
// available. It shares with the planner only how a signal names its disk.
func removable(n Node, signal string) bool {
	fs := n.disk(signal)
	if fs == nil {
		return false
	}
	amount := func(u Usage) int64 {
		if inodesOf(signal) {
			return u.Inodes
		}
		return u.Bytes
	}
	for _, c := range n.Containers {
		if !c.Needed && (fs.Writable && amount(c.Writable) > 0 || fs.Data && amount(c.Logs) > 0) {
			return true
		}
	}
	if !fs.Images {
		return false
	}
	kept := map[string]bool{}
	gone := func(i Image) bool {
		return len(i.Users) == 0 && !i.Pinned && !i.Archive && i.UnresponsiveRegistry == ""
	}
	for _, i := range n.Images {
		for _, l := range i.Layers {
			kept[l.ID] = kept[l.ID] || !gone(i)
		}
	}
	return slices.ContainsFunc(n.Images, func(i Image) bool {
		if i.Layers == nil {
			return gone(i) && i.Bytes > 0 && !inodesOf(signal)
		}
		return gone(i) && slices.ContainsFunc(i.Layers, func(l Layer) bool { return !kept[l.ID] && amount(l.Usage) > 0 })
	})
}

// TestEvict_Laws: a round removes only unused data. It evicts at most one pod, never a critical
// one, and only if the removal of unused data would not help. The order of its input does not
// change the plan.
func TestEvict_Laws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, policy := drawNode(t), drawPolicy(t)
		plan, after := Evict(n, policy, EvictState{})
		evicted := 0
		for _, s := range plan.Steps {
			if s.Why == "" {
				t.Fatalf("%s has no reason", s)
			}
			switch s.Action {
			case RemoveImage:
				i := n.Images[slices.IndexFunc(n.Images, func(i Image) bool { return i.ID == s.ID })]
				if len(i.Users) > 0 || i.Pinned || i.Archive || i.UnresponsiveRegistry != "" {
					t.Fatalf("%s: it must stay", s)
				}
			case RemoveContainer:
				if slices.ContainsFunc(n.Containers, func(c Container) bool { return c.ID == s.ID && c.Needed }) {
					t.Fatalf("%s: its pod needs it", s)
				}
			case RemoveSandbox:
				if slices.ContainsFunc(n.Sandboxes, func(b Sandbox) bool { return b.ID == s.ID && b.Needed }) {
					t.Fatalf("%s: its pod needs it", s)
				}
			case EvictPod:
				evicted++
				if removable(n, s.Signal) {
					t.Fatalf("%s, although unused data could be removed", s)
				}
				it := n.Pods[slices.IndexFunc(n.Pods, func(p Pod) bool { return p.UID == s.ID })]
				if it.Priority >= critical || policy.Cluster && it.Static || it.Stopping {
					t.Fatalf("%s: it must not be evicted", s)
				}
			}
		}
		if evicted > 1 {
			t.Fatalf("more than one pod is evicted:\n%s", plan)
		}
		other := n
		other.Images, other.Containers, other.Sandboxes, other.Pods, other.Filesystems = rapid.Permutation(n.Images).Draw(t, "i"), rapid.Permutation(n.Containers).Draw(t, "c"),
			rapid.Permutation(n.Sandboxes).Draw(t, "s"), rapid.Permutation(n.Pods).Draw(t, "p"), rapid.Permutation(n.Filesystems).Draw(t, "f")
		otherPolicy := policy
		otherPolicy.Thresholds = rapid.Permutation(policy.Thresholds).Draw(t, "t")
		again, afterAgain := Evict(other, otherPolicy, EvictState{})
		if again.String() != plan.String() || !reflect.DeepEqual(after, afterAgain) {
			t.Fatalf("in another order:\n%s\ninstead of\n%s", again, plan)
		}
	})
}

// TestForesee_Laws: the predicted rounds end. Afterwards no threshold is met, or nothing is left
// that could help.
func TestForesee_Laws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, policy := drawNode(t), drawPolicy(t)
		began := n
		rounds := Foresee(n, policy, EvictState{})
		for _, round := range rounds {
			for _, s := range round.Steps {
				n = n.after(s)
			}
		}
		for _, limit := range policy.inOrder(n) {
			level, ok := n.Level(limit.Signal)
			if !ok || level.Available >= limit.Of(level.Capacity) {
				continue
			}
			if removable(n, limit.Signal) {
				t.Fatalf("%s is met at the end and unused data is left:\n%v", limit.Threshold, rounds)
			}
			for _, p := range n.Pods {
				if policy.evictable(p) && !p.Stopping {
					t.Fatalf("%s is met at the end and pod %s could be evicted:\n%v", limit.Threshold, p.Key, rounds)
				}
			}
		}
		if len(began.Pods)-len(n.Pods) > 0 && len(policy.Thresholds) == 0 {
			t.Fatal("a pod was evicted without a threshold")
		}
	})
}

// TestImages_Laws: garbage collection keeps images that are used or pinned, or that this node
// could not pull again. It removes the least recently used ones first, until enough is free or
// none is left that would free space. Its bytes are those that really become free.
func TestImages_Laws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		policy := ImagePolicy{High: 80, Low: 75, MinAge: time.Duration(rapid.IntRange(0, 2).Draw(t, "min")) * time.Hour}
		plan := Images(n, policy)
		by := map[string]Image{}
		for _, i := range n.Images {
			by[i.ID] = i
		}
		removed := map[string]bool{}
		for at, s := range plan.Steps {
			i := by[s.ID]
			removed[s.ID] = true
			if len(i.Users) > 0 || i.Pinned || i.Archive || i.UnresponsiveRegistry != "" || n.Now.Sub(i.FirstSeen) < policy.MinAge {
				t.Fatalf("%s: it must stay", s)
			}
			if at > 0 && byLastUse(by[plan.Steps[at-1].ID], i) > 0 {
				t.Fatalf("%s is removed after one that was used later:\n%s", s, plan)
			}
		}
		if len(plan.Steps)+len(plan.Kept) != len(n.Images) {
			t.Fatalf("%d images, the plan is:\n%s", len(n.Images), plan)
		}
		if free := occupied(n.Images, nil) - occupied(n.Images, removed); free != plan.Frees {
			t.Fatalf("%d bytes become free, the plan says %d:\n%s", free, plan.Frees, plan)
		}
		if len(plan.Steps) > 0 && plan.Frees-plan.Steps[len(plan.Steps)-1].Bytes >= plan.Need {
			t.Fatalf("it removes more than it needs (%d):\n%s", plan.Need, plan)
		}
		if plan.Frees < plan.Need {
			for _, i := range n.Images {
				all := map[string]bool{i.ID: true}
				for id := range removed {
					all[id] = true
				}
				if !removed[i.ID] && removalBlocker(i)+pullBlocker(i) == "" && n.Now.Sub(i.FirstSeen) >= policy.MinAge && occupied(n.Images, removed) > occupied(n.Images, all) {
					t.Fatalf("%s could be removed, and the plan is short:\n%s", i.ID, plan)
				}
			}
		}
	})
}

// occupied returns the bytes of images without some of them, each layer once.
func occupied(images []Image, without map[string]bool) (sum int64) {
	seen := map[string]bool{}
	for _, i := range images {
		if without[i.ID] {
			continue
		}
		if i.Layers == nil {
			sum += i.Bytes
		}
		for _, l := range i.Layers {
			if !seen[l.ID] {
				sum += l.Bytes
			}
			seen[l.ID] = true
		}
	}
	return sum
}
