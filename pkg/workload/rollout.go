package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// roll replaces pods of older revisions. It adds as many new pods as maxSurge allows, and removes as
// many old pods as maxUnavailable allows, until no ReplicaSet changes.
func (d *deployment) roll() {
	for changed := true; changed; {
		changed = d.growNewest() || d.shrinkOld()
	}
}

func (d *deployment) growNewest() bool {
	s := d.newest
	if s.Replicas >= d.replicas {
		return d.scale(s, d.replicas, d.rescaled())
	}
	room := d.replicas + d.surge - total(d.sets)
	if room <= 0 {
		return false
	}
	reason := d.rescaled()
	if len(d.replaced()) > 0 {
		reason = fmt.Sprintf("%s: at most %d pods at a time (replicas %d, maxSurge %s)", d.rollout(), d.replicas+d.surge, d.replicas, d.surgeText)
	}
	return d.scale(s, s.Replicas+min(room, d.replicas-s.Replicas), reason)
}

// shrinkOld removes old pods. It removes unavailable pods first, because the rollout would wait for
// them. Then it removes available pods, as long as enough pods stay available. New pods that are
// not available count against maxUnavailable.
func (d *deployment) shrinkOld() bool {
	old := d.old()
	if len(old) == 0 {
		return false
	}
	least := d.replicas - d.unavailable
	most := total(d.sets) - least - (d.newest.Replicas - d.available(d.newest))
	if most <= 0 {
		return false
	}
	changed := false
	for _, s := range old {
		broken := s.Replicas - d.available(s)
		if n := min(most, broken); n > 0 {
			changed = d.scale(s, s.Replicas-n, d.rollout()+": old pods that are not available go first") || changed
			most -= n
		}
	}
	var available int32
	for _, s := range d.sets {
		available += d.available(s)
	}
	spare := available - least
	reason := fmt.Sprintf("%s: %d pods are available, and %d have to be (replicas %d, maxUnavailable %s)", d.rollout(), available, least, d.replicas, d.missingText)
	for _, s := range old {
		if n := min(spare, s.Replicas); n > 0 {
			changed = d.scale(s, s.Replicas-n, reason) || changed
			spare -= n
		}
	}
	return changed
}

// recreate removes all old pods, and adds the new ones when the old ones are gone.
func (d *deployment) recreate() {
	for _, s := range d.old() {
		d.scale(s, 0, d.rollout()+": all old pods stop first (strategy Recreate)")
	}
	if d.newest == nil || d.oldPodsRun(d.newest.Hash) {
		return
	}
	reason := d.rescaled()
	if d.newest.was == 0 && len(d.sets) > 1 {
		reason += ", and all old pods are gone (strategy Recreate)"
	}
	d.scale(d.newest, d.replicas, reason)
}

// isRescaled reports whether the number of replicas changed since the last decision.
func (d *deployment) isRescaled() bool {
	return d.before != nil && d.before.Desired != d.replicas && total(d.sets) > 0
}

// rescale scales the one ReplicaSet that has pods. During a rollout it scales all of them in
// proportion, so that a change of replicas does not speed up the rollout.
func (d *deployment) rescale() {
	active := d.old()
	if d.newest != nil && d.newest.Replicas > 0 {
		active = append(active, d.newest)
	}
	switch {
	case len(active) == 1:
		d.scale(active[0], d.replicas, d.rescaled())
	case len(active) > 1 && d.isSaturated():
		for _, s := range d.old() {
			d.scale(s, 0, fmt.Sprintf("revision %d is complete", d.newest.Number))
		}
	case len(active) > 1 && d.rolling:
		d.spread(active)
	case len(active) == 0 && d.newest != nil:
		d.scale(d.newest, d.replicas, d.rescaled())
	case len(active) == 0 && len(d.sets) > 0:
		d.scale(slices.MaxFunc(d.sets, byAge), d.replicas, d.rescaled())
	}
}

// isSaturated reports whether the newest ReplicaSet has all replicas of the Deployment, and all are
// available.
func (d *deployment) isSaturated() bool {
	return d.newest != nil && d.newest.Replicas == d.replicas && d.before != nil && d.before.Desired == d.replicas &&
		d.available(d.newest) == d.replicas
}

// spread changes the sizes of the active ReplicaSets in proportion. The largest one gets the
// remainder. If two have the same size, the newer one grows, or the older one shrinks.
func (d *deployment) spread(active []*replicaSet) {
	var allowed int32
	if d.replicas > 0 {
		allowed = d.replicas + d.surge
	}
	change := allowed - total(active)
	if change == 0 {
		return
	}
	slices.SortStableFunc(active, func(a, b *replicaSet) int {
		age := byAge(a, b)
		if change > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(b.Replicas, a.Replicas), age)
	})
	sizes, left := make([]int32, len(active)), change
	for i, s := range active {
		share := d.share(s, total(active))
		if change > 0 {
			share = min(share, left)
		} else {
			share = max(share, left)
		}
		sizes[i], left = s.Replicas+share, left-share
	}
	sizes[0] = max(0, sizes[0]+left)
	for i, s := range active {
		d.scale(s, sizes[i], d.rescaled()+", during a rollout in proportion to the sizes of the ReplicaSets")
	}
}

// share returns the change of size with which a ReplicaSet keeps its proportion.
func (d *deployment) share(s *replicaSet, total int32) int32 {
	if d.replicas == 0 {
		return -s.Replicas
	}
	most := total
	if d.before != nil && d.before.Most > 0 {
		most = d.before.Most
	}
	return int32(math.Round(float64(s.Replicas)*float64(d.replicas+d.surge)/float64(most))) - s.Replicas
}

// rescaled returns the reason of a change that follows only from the number of replicas.
func (d *deployment) rescaled() string { return fmt.Sprintf("replicas is %d", d.replicas) }

// replaced returns the ReplicaSets of older revisions that had pods before the decision.
func (d *deployment) replaced() []*replicaSet {
	var out []*replicaSet
	for _, s := range d.sets {
		if s != d.newest && len(s.pods) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// rollout names the rollout: "revision 2 replaces revision 1".
func (d *deployment) rollout() string {
	name := "a new revision"
	if d.newest != nil {
		name = fmt.Sprintf("revision %d", d.newest.Number)
	}
	if old := d.replaced(); len(old) == 1 {
		return fmt.Sprintf("%s replaces revision %d", name, old[0].Number)
	}
	return name + " replaces older revisions"
}
