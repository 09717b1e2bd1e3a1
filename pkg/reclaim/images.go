package reclaim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ImagePolicy says when images are removed.
type ImagePolicy struct {
	// If High percent or more of the image file system are used, images are removed until Low
	// percent are used. 100 turns this off.
	High, Low int
	// MinAge is how long an image stays at least after it was first seen.
	MinAge time.Duration
	// MaxAge is how long an image may be unused. An image that was unused for longer is removed
	// even if the disk has room. Zero turns this off.
	MaxAge time.Duration
}

// ImagePlan is the result of Images or Prune.
type ImagePlan struct {
	Steps []Step // in the order of removal
	// Kept has every other image: first those that must stay, then those that a later collection
	// may remove. Each group is sorted, the least recently used image first.
	Kept []KeptImage
	// Need is how many bytes must become free to reach the low threshold; zero while the file
	// system is below the high one. Frees is how many the steps free.
	Need, Frees int64
	// Used is the used percentage of the image file system, Capacity its size in bytes.
	Used     int
	Capacity int64
}

// KeptImage is an image that stays, and the reason.
type KeptImage struct {
	ID, Name, Why string
}

// String returns one line for each step, then one for each kept image.
func (p ImagePlan) String() string {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(s.String() + "\n")
	}
	for _, k := range p.Kept {
		fmt.Fprintf(&b, "keep %s id=%s # %s\n", k.Name, k.ID, k.Why)
	}
	if p.Need > p.Frees {
		fmt.Fprintf(&b, "short of %d bytes\n", p.Need-p.Frees)
	}
	return b.String()
}

// Images plans the garbage collection of images (C-1.33.8 to C-1.33.11). It removes those that
// were unused for MaxAge. Then, if the image file system is filled to High or more, it removes
// the least recently used ones until Low is reached. An image with users or a pin stays. So does
// one that this node could not pull again, because it came from an archive or its registry does
// not answer.
//
// Step.Bytes is how much the step frees: a layer is freed together with the last image that has it.
func Images(n Node, p ImagePolicy) ImagePlan {
	var plan ImagePlan
	for _, fs := range n.Filesystems {
		if !fs.Images || fs.Bytes.Capacity <= 0 {
			continue
		}
		available := min(fs.Bytes.Available, fs.Bytes.Capacity)
		plan.Capacity = fs.Bytes.Capacity
		plan.Used = 100 - int(available*100/plan.Capacity)
		if p.High < 100 && plan.Used >= p.High {
			plan.Need = plan.Capacity*int64(100-p.Low)/100 - available
		}
	}
	images := newImageSet(n.Images)
	unused := images.candidates(func(i Image) string { return cmp.Or(removalBlocker(i), pullBlocker(i)) }, &plan)
	var younger []Image
	for _, i := range unused {
		idle := n.Now.Sub(idleSince(i))
		if p.MaxAge == 0 || idle <= p.MaxAge {
			younger = append(younger, i)
			continue
		}
		plan.remove(i, images.remove(i), fmt.Sprintf("%s; the limit is %s", unusedFor(i, n.Now), p.MaxAge))
		plan.Steps[len(plan.Steps)-1].aged = true
	}
	chosen, rest := images.choose(younger, func(i Image) bool {
		return p.MinAge == 0 || n.Now.Sub(i.FirstSeen) >= p.MinAge
	}, func(u Usage) bool { return plan.Frees+u.Bytes >= plan.Need })
	for _, i := range chosen {
		plan.remove(i, images.remove(i), fmt.Sprintf("%s; the image file system is filled to %d%%, the limit is %d%%", unusedFor(i, n.Now), plan.Used, p.High))
	}
	for _, i := range rest {
		why := unusedFor(i, n.Now)
		switch {
		case plan.Need == 0:
			why += "; there is room"
		case p.MinAge > 0 && n.Now.Sub(i.FirstSeen) < p.MinAge:
			why = fmt.Sprintf("here for %s; the minimum is %s", n.Now.Sub(i.FirstSeen).Round(time.Second), p.MinAge)
		case plan.Frees < plan.Need:
			why += "; its removal frees nothing, because images that stay have its layers"
		default:
			why += "; others, unused for longer, free enough"
		}
		plan.keep(i, why)
	}
	return plan
}

// Prune plans the removal of every image that has no users and is not pinned. It also removes young
// images, and images that this node could not pull again.
func Prune(n Node) ImagePlan {
	var plan ImagePlan
	images := newImageSet(n.Images)
	for _, i := range images.candidates(removalBlocker, &plan) {
		why := unusedFor(i, n.Now)
		if blocker := pullBlocker(i); blocker != "" {
			why += "; " + blocker
		}
		plan.remove(i, images.remove(i), why)
	}
	return plan
}

// Reason returns the reason of a step for the kubelet's metric of removed images: "age" or
// "space".
func (p ImagePlan) Reason(s Step) string {
	if s.aged {
		return "age"
	}
	return "space"
}

// Insufficient returns the kubelet's message for a collection that has freed only freed bytes.
func (p ImagePlan) Insufficient(freed int64) string {
	return fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
		"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", p.Used, Size(p.Capacity), freed)
}

func (p *ImagePlan) remove(i Image, frees Usage, why string) {
	p.Frees += frees.Bytes
	p.Steps = append(p.Steps, Step{Action: RemoveImage, ID: i.ID, Name: i.Name(), Names: i.Names, Bytes: frees.Bytes, Why: why})
}

func (p *ImagePlan) keep(i Image, why string) {
	p.Kept = append(p.Kept, KeptImage{ID: i.ID, Name: i.Name(), Why: why})
}

// removalBlocker returns why an image must not be removed, "" if it may be.
func removalBlocker(i Image) string {
	switch {
	case len(i.Users) > 0:
		return "used by " + strings.Join(i.Users, ", ")
	case i.Pinned:
		return "pinned by the container runtime"
	}
	return ""
}

// pullBlocker returns why this node could not pull an image again, "" if it could.
func pullBlocker(i Image) string {
	switch {
	case i.Archive:
		return "it came from an archive"
	case i.UnresponsiveRegistry != "":
		return "its registry " + i.UnresponsiveRegistry + " does not answer"
	}
	return ""
}

// idleSince returns since when an image is unused: its last use, or when it was first seen.
func idleSince(i Image) time.Time {
	if i.LastUsed.After(i.FirstSeen) {
		return i.LastUsed
	}
	return i.FirstSeen
}

func unusedFor(i Image, now time.Time) string {
	idle := now.Sub(idleSince(i)).Round(time.Second)
	if i.LastUsed.IsZero() {
		return fmt.Sprintf("not used since it appeared %s ago", idle)
	}
	return fmt.Sprintf("unused for %s", idle)
}

// byLastUse compares images by last use, then by when they were first seen (C-1.33.9). Images
// that were never used come first.
func byLastUse(a, b Image) int {
	return cmp.Or(a.LastUsed.Compare(b.LastUsed), a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.ID, b.ID))
}

// imageSet counts how many images have each layer: that decides how much the removal of an image frees.
type imageSet struct {
	images []Image        // all at first, least recently used first
	refs   map[string]int // by layer ID: how many images that are not removed have it
}

func newImageSet(images []Image) *imageSet {
	s := &imageSet{images: slices.SortedFunc(slices.Values(images), byLastUse), refs: map[string]int{}}
	for _, i := range s.images {
		for _, l := range layers(i) {
			s.refs[l.ID]++
		}
	}
	return s
}

// layers returns the layers of an image without duplicates. An image whose layers are not
// known counts as one layer that no other image has.
func layers(i Image) []Layer {
	if i.Layers == nil {
		return []Layer{{ID: "image " + i.ID, Usage: Usage{Bytes: i.Bytes}}}
	}
	all := slices.Clone(i.Layers)
	slices.SortFunc(all, func(a, b Layer) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b Layer) bool { return a.ID == b.ID })
}

// candidates returns the images for which blocker returns "", least recently used first. It
// adds the others to plan.Kept.
func (s *imageSet) candidates(blocker func(Image) string, plan *ImagePlan) []Image {
	var all []Image
	for _, i := range s.images {
		if why := blocker(i); why != "" {
			plan.keep(i, why)
			continue
		}
		all = append(all, i)
	}
	return all
}

// remove counts an image as removed, and returns how much that frees.
func (s *imageSet) remove(i Image) (frees Usage) {
	for _, l := range layers(i) {
		if s.refs[l.ID]--; s.refs[l.ID] == 0 {
			frees = frees.plus(l.Usage)
		}
	}
	return frees
}

// choose divides images into chosen and rest. It chooses images for which allowed returns true (nil:
// all), in their order, until their removal frees enough. An image is in rest if its removal would
// free nothing, because images that stay have all its layers. choose does not change s.
func (s *imageSet) choose(from []Image, allowed func(Image) bool, enough func(Usage) bool) (chosen, rest []Image) {
	trial := &imageSet{refs: maps.Clone(s.refs)}
	var freed Usage
	for _, i := range from {
		if enough(freed) || allowed != nil && !allowed(i) {
			rest = append(rest, i)
			continue
		}
		freed = freed.plus(trial.remove(i))
		chosen = append(chosen, i)
	}
	chosen = slices.DeleteFunc(chosen, func(i Image) bool {
		if slices.ContainsFunc(layers(i), func(l Layer) bool { return trial.refs[l.ID] == 0 }) {
			return false
		}
		rest = append(rest, i)
		return true
	})
	slices.SortFunc(rest, byLastUse)
	return chosen, rest
}
