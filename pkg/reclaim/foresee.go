package reclaim

import (
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Foreseen is a round of a foreseen sequence, and when it happens from now on.
type Foreseen struct {
	In time.Duration
	EvictPlan
}

// mostRounds bounds a foreseen sequence.
const mostRounds = 1000

// Foresee returns the rounds of Evict that follow if every step frees what it is expected to
// and nothing else changes, without those that do nothing. It ends when nothing is left to do.
func Foresee(n Node, p EvictPolicy, pressure Pressure) []Foreseen {
	var all []Foreseen
	began := n.Now
	for range mostRounds {
		var plan EvictPlan
		plan, pressure = Evict(n, p, pressure)
		if len(plan.Steps) == 0 && plan.Wait == 0 {
			if plan.WaitFor != "" {
				all = append(all, Foreseen{n.Now.Sub(began), plan})
			}
			return all
		}
		if len(plan.Steps) == 0 {
			n.Now = n.Now.Add(plan.Wait)
			continue
		}
		all = append(all, Foreseen{n.Now.Sub(began), plan})
		for _, s := range plan.Steps {
			n = n.after(s)
		}
	}
	return all
}

// after returns the node as it is once a step has freed what it is expected to.
func (n Node) after(s Step) Node {
	var on func(Filesystem) Usage
	switch s.Action {
	case RemoveContainer:
		i := slices.IndexFunc(n.Containers, func(c Container) bool { return c.ID == s.ID })
		on = n.Containers[i].on
		n.Containers = slices.Delete(slices.Clone(n.Containers), i, i+1)
	case RemoveSandbox:
		i := slices.IndexFunc(n.Sandboxes, func(b Sandbox) bool { return b.ID == s.ID })
		on = n.Sandboxes[i].on
		n.Sandboxes = slices.Delete(slices.Clone(n.Sandboxes), i, i+1)
	case RemoveImage:
		i := slices.IndexFunc(n.Images, func(i Image) bool { return i.ID == s.ID })
		frees := newShelf(n.Images).take(n.Images[i])
		on = func(f Filesystem) Usage { return frees.when(f.Images) }
		n.Images = slices.Delete(slices.Clone(n.Images), i, i+1)
	case EvictPod:
		i := slices.IndexFunc(n.Pods, func(p Pod) bool { return p.UID == s.ID })
		gone := n.Pods[i]
		on = gone.on
		n.Pods = slices.Delete(slices.Clone(n.Pods), i, i+1)
		levels := make(map[string]Level, len(n.Levels))
		for signal, l := range n.Levels {
			if signal == pod.SignalPIDs {
				l.Available += gone.PIDs
			} else {
				l.Available += gone.Memory
			}
			levels[signal] = l
		}
		n.Levels = levels
	}
	n.Filesystems = slices.Clone(n.Filesystems)
	for i := range n.Filesystems {
		f := &n.Filesystems[i]
		frees := on(*f)
		f.Bytes.Available += frees.Bytes
		f.Inodes.Available += frees.Inodes
	}
	return n
}
