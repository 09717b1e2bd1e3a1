package controller

import (
	"maps"
	"reflect"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// release has the workloads of one release that sources have.
type release struct {
	members map[pod.ObjectKey]*entry
	warned  bool // the log has the warning that there are too many
}

// group puts the workloads that sources have into their releases.
func (c *Controller) group() {
	before := c.releases
	c.releases = make(map[workload.ReleaseKey]*release)
	for id, e := range c.workloads {
		if e.object == nil {
			continue
		}
		key := workload.ReleaseOf(e.object)
		if key.Name == "" {
			continue
		}
		r := c.releases[key]
		if r == nil {
			r = &release{members: make(map[pod.ObjectKey]*entry), warned: before[key] != nil && before[key].warned}
			c.releases[key] = r
		}
		r.members[id] = e
	}
	for key, r := range c.releases {
		if len(r.members) > workload.MaxRelease && !r.warned {
			c.cfg.Log.Warn("Too many workloads in a release; each is rolled back alone", "release", key.Name, "namespace", key.Namespace, "layer", key.Layer, "limit", workload.MaxRelease)
		}
		r.warned = len(r.members) > workload.MaxRelease
	}
}

// others returns the other workloads of a workload's release for Next, by kind and key.
func (c *Controller) others(e *entry) []workload.Member {
	var all []workload.Member
	for _, other := range c.otherEntries(e) {
		all = append(all, workload.Member{Object: other.object, State: other.state, Maybe: other.unconfirmed, MaybeSince: other.unconfirmedSince})
	}
	return all
}

// otherEntries returns the other workloads of a workload's release, by kind and key.
func (c *Controller) otherEntries(e *entry) []*entry {
	if e.object == nil {
		return nil
	}
	r := c.releases[workload.ReleaseOf(e.object)]
	if r == nil || len(r.members) > workload.MaxRelease {
		return nil
	}
	var all []*entry
	for _, id := range slices.SortedFunc(maps.Keys(r.members), compareIDs) {
		if other := r.members[id]; other != e && other.object != nil {
			all = append(all, other)
		}
	}
	return all
}

// wakeRelease makes the other workloads of a workload's release due, because their decisions depend on
// a fact of this workload that has changed.
func (c *Controller) wakeRelease(e *entry) {
	all := c.otherEntries(e)
	for _, other := range all {
		other.dueByRelease = true
	}
	if len(all) > 0 {
		c.due.Send()
	}
}

// affectsRelease reports whether two states of a workload differ in a fact on which decisions about
// the other workloads of its release depend.
func affectsRelease(a, b *workload.State) bool {
	newest := func(s *workload.State) string {
		if n := len(s.Revisions); n > 0 {
			return s.Revisions[n-1].Hash
		}
		return ""
	}
	passed := func(s *workload.State) bool { return s.Trial != nil && s.Trial.Passed }
	overridden := func(s *workload.State) bool { return s.Override != nil && s.Override.Template != nil }
	return newest(a) != newest(b) || passed(a) != passed(b) || overridden(a) != overridden(b) || !reflect.DeepEqual(a.Release, b.Release)
}
