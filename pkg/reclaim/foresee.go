package reclaim

import (
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ForecastRound is one round that Foresee predicts.
type ForecastRound struct {
	In time.Duration // how long from now
	EvictPlan
}

// maxRounds is the most rounds that Foresee predicts.
const maxRounds = 1000

// Foresee predicts the rounds of Evict. It assumes that each step frees its planned amount, and that
// nothing else changes. It leaves out rounds without steps, with one exception: if no step can help
// against a threshold, the last round has no steps, and its WaitFor says why.
func Foresee(n Node, p EvictPolicy, state EvictState) []ForecastRound {
	var all []ForecastRound
	began := n.Now
	for range maxRounds {
		var plan EvictPlan
		plan, state = Evict(n, p, state)
		if len(plan.Steps) == 0 && plan.Wait == 0 {
			if plan.WaitFor != "" {
				all = append(all, ForecastRound{n.Now.Sub(began), plan})
			}
			return all
		}
		if len(plan.Steps) == 0 {
			n.Now = n.Now.Add(plan.Wait)
			continue
		}
		all = append(all, ForecastRound{n.Now.Sub(began), plan})
		for _, s := range plan.Steps {
			n = n.after(s)
		}
	}
	return all
}

// after returns the node without the object that a step removes.
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
		frees := newImageSet(n.Images).remove(n.Images[i])
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
