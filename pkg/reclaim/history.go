package reclaim

import (
	"maps"
	"time"
)

// ImageHistory has the times at which images were in use, by image ID. The runtime does not have
// them, so the agent stores them.
type ImageHistory map[string]ImageTimes

// ImageTimes says when an image was first seen and when it was last in use.
type ImageTimes struct {
	First time.Time `json:"first"`
	// InUse says that the image is in use now. Last is when its last use ended; zero if it was
	// never in use, or is in use now.
	InUse bool      `json:"inUse,omitempty"`
	Last  time.Time `json:"last,omitzero"`
}

// Remember returns the images with FirstSeen and LastUsed, and the updated history. The history
// changes only when an image appears or disappears, or becomes used or unused. So an idle node writes
// nothing. If an image was in use in before and is unused now, its last use ends now. A time after now
// becomes now, because the clock was set back.
func Remember(before ImageHistory, images []Image, now time.Time) ([]Image, ImageHistory) {
	after := make(ImageHistory, len(images))
	seen := make([]Image, 0, len(images))
	for _, i := range images {
		t, known := before[i.ID]
		if !known || t.First.After(now) {
			t.First = now
		}
		if t.Last.After(now) {
			t.Last = now
		}
		switch {
		case len(i.Users) > 0:
			t.InUse, t.Last = true, time.Time{}
		case t.InUse:
			t.InUse, t.Last = false, now
		}
		i.FirstSeen, i.LastUsed = t.First, t.Last
		if t.InUse {
			i.LastUsed = now
		}
		after[i.ID] = t
		seen = append(seen, i)
	}
	return seen, after
}

// Equal reports whether two histories have the same images and times.
func (h ImageHistory) Equal(o ImageHistory) bool {
	return maps.EqualFunc(h, o, func(a, b ImageTimes) bool {
		return a.First.Equal(b.First) && a.Last.Equal(b.Last) && a.InUse == b.InUse
	})
}
