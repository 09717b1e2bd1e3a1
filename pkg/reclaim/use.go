package reclaim

import (
	"maps"
	"time"
)

// Uses is what a node remembers of its images, by ID: what no runtime tells, and what must
// survive a restart of the agent.
type Uses map[string]Use

// Use is when an image appeared and when it was last in use.
type Use struct {
	First time.Time `json:"first"`
	// InUse says that it is in use now; Last, when that ended, zero for never.
	InUse bool      `json:"inUse,omitempty"`
	Last  time.Time `json:"last,omitzero"`
}

// Remember returns the images with what is known of their use, and the record to remember. It
// is equal to before while no image appears, vanishes, comes into use or goes out of use: an
// idle node has nothing to write. An image that went out of use unobserved did so
// now. Times in the future, from before the clock was set back, become now.
func Remember(before Uses, images []Image, now time.Time) ([]Image, Uses) {
	after := make(Uses, len(images))
	seen := make([]Image, 0, len(images))
	for _, i := range images {
		u, known := before[i.ID]
		if !known || u.First.After(now) {
			u.First = now
		}
		if u.Last.After(now) {
			u.Last = now
		}
		switch used := len(i.Users) > 0; {
		case used:
			u.InUse, u.Last = true, time.Time{}
		case u.InUse:
			u.InUse, u.Last = false, now
		}
		i.FirstSeen, i.LastUsed = u.First, u.Last
		if u.InUse {
			i.LastUsed = now
		}
		after[i.ID] = u
		seen = append(seen, i)
	}
	return seen, after
}

// Equal reports whether two records say the same.
func (u Uses) Equal(o Uses) bool {
	return maps.EqualFunc(u, o, func(a, b Use) bool {
		return a.First.Equal(b.First) && a.Last.Equal(b.Last) && a.InUse == b.InUse
	})
}
