package reclaim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ImagePolicy says when images are removed.
type ImagePolicy struct {
	// High is the used percentage of the image file system from which on images are removed,
	// until Low is reached. 100 is never.
	High, Low int
	// MinAge keeps images that the node has for less, MaxAge removes those that were not in
	// use for longer, however full the disk is; zero is never.
	MinAge, MaxAge time.Duration
}

// ImagePlan is the result of Images or Prune.
type ImagePlan struct {
	Steps []Step // in the order of removal
	Kept  []Kept // every other image, in the same order
	// Need is how many bytes are above the low threshold, zero below the high one. Frees is
	// what the steps free.
	Need, Frees int64
	// Used is the used percentage of the image file system of Capacity bytes.
	Used     int
	Capacity int64
}

// Kept is an image that stays, and why.
type Kept struct {
	ID, Name, Why string
}

// String returns one line a step, then one a kept image.
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

// Images plans the garbage collection of images (C-1.33.8 to C-1.33.11): those that were not
// in use for MaxAge, then, while the image file system is filled to High or more, the least
// recently used ones until it is down to Low. An image with users or a pin stays. So does one
// that this node could not get again, because it came from an archive or its registry does
// not answer.
//
// Sizes count what removal frees: a layer is free when no image has it any more.
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
	shelf := newShelf(n.Images)
	unused := shelf.candidates(func(i Image) string { return cmp.Or(inUse(i), notToBeHadAgain(i)) }, &plan)
	var left []Image
	for _, i := range unused {
		idle := n.Now.Sub(latest(i))
		if p.MaxAge == 0 || idle <= p.MaxAge {
			left = append(left, i)
			continue
		}
		plan.remove(i, shelf.take(i), fmt.Sprintf("%s; the limit is %s", unusedFor(i, n.Now), p.MaxAge))
		plan.Steps[len(plan.Steps)-1].aged = true
	}
	chosen, rest := shelf.choose(left, func(i Image) bool {
		return p.MinAge == 0 || n.Now.Sub(i.FirstSeen) >= p.MinAge
	}, func(u Usage) bool { return plan.Frees+u.Bytes >= plan.Need })
	for _, i := range chosen {
		plan.remove(i, shelf.take(i), fmt.Sprintf("%s; the image file system is filled to %d%%, the limit is %d%%", unusedFor(i, n.Now), plan.Used, p.High))
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

// Prune plans the removal of every image that no container, desired pod or pin uses, whatever
// its age, and whether or not this node can get it again: a person asked.
func Prune(n Node) ImagePlan {
	var plan ImagePlan
	shelf := newShelf(n.Images)
	for _, i := range shelf.candidates(inUse, &plan) {
		why := unusedFor(i, n.Now)
		if lost := notToBeHadAgain(i); lost != "" {
			why += "; " + lost
		}
		plan.remove(i, shelf.take(i), why)
	}
	return plan
}

// Reason returns the kubelet's reason of a step for its metric: "age" or "space".
func (p ImagePlan) Reason(s Step) string {
	if s.aged {
		return "age"
	}
	return "space"
}

// Insufficient is the kubelet's message if collecting garbage has freed too little.
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
	p.Kept = append(p.Kept, Kept{ID: i.ID, Name: i.Name(), Why: why})
}

// inUse returns why an image must not be removed, "" if it is unused.
func inUse(i Image) string {
	switch {
	case len(i.Users) > 0:
		return "used by " + strings.Join(i.Users, ", ")
	case i.Pinned:
		return "pinned by the container runtime"
	}
	return ""
}

// notToBeHadAgain returns why this node could not get an image again, "" if it could.
func notToBeHadAgain(i Image) string {
	switch {
	case i.Archive:
		return "it came from an archive"
	case i.Silent != "":
		return "its registry " + i.Silent + " does not answer"
	}
	return ""
}

// latest returns when an image was last of use to the node.
func latest(i Image) time.Time {
	if i.LastUsed.After(i.FirstSeen) {
		return i.LastUsed
	}
	return i.FirstSeen
}

func unusedFor(i Image, now time.Time) string {
	idle := now.Sub(latest(i)).Round(time.Second)
	if i.LastUsed.IsZero() {
		return fmt.Sprintf("not used since it appeared %s ago", idle)
	}
	return fmt.Sprintf("unused for %s", idle)
}

// byUse orders images by last use, those that never were in use first, then by when they
// appeared (C-1.33.9).
func byUse(a, b Image) int {
	return cmp.Or(a.LastUsed.Compare(b.LastUsed), a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.ID, b.ID))
}

// shelf counts how many images have each layer, so that a removal counts what it frees.
type shelf struct {
	images []Image // by last use
	has    map[string]int
}

func newShelf(images []Image) *shelf {
	s := &shelf{images: slices.SortedFunc(slices.Values(images), byUse), has: map[string]int{}}
	for _, i := range s.images {
		for _, l := range layers(i) {
			s.has[l.ID]++
		}
	}
	return s
}

// layers returns the layers of an image, each once. An image whose layers are not known is
// one layer of its own.
func layers(i Image) []Layer {
	if i.Layers == nil {
		return []Layer{{ID: "image " + i.ID, Usage: Usage{Bytes: i.Bytes}}}
	}
	all := slices.Clone(i.Layers)
	slices.SortFunc(all, func(a, b Layer) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b Layer) bool { return a.ID == b.ID })
}

// candidates returns the images that keep allows to remove, by last use; plan keeps the
// others.
func (s *shelf) candidates(keep func(Image) string, plan *ImagePlan) []Image {
	var all []Image
	for _, i := range s.images {
		if why := keep(i); why != "" {
			plan.keep(i, why)
			continue
		}
		all = append(all, i)
	}
	return all
}

// take removes an image and returns what that frees.
func (s *shelf) take(i Image) (frees Usage) {
	for _, l := range layers(i) {
		if s.has[l.ID]--; s.has[l.ID] == 0 {
			frees = frees.plus(l.Usage)
		}
	}
	return frees
}

// choose returns the first of some images whose removal frees enough; all of them if that is
// never enough. may, unless nil, says which it may choose. It leaves out images whose removal frees nothing, because
// others that stay have their layers. It takes none off the shelf.
func (s *shelf) choose(from []Image, may func(Image) bool, enough func(Usage) bool) (chosen, rest []Image) {
	trial := &shelf{has: map[string]int{}}
	for id, n := range s.has {
		trial.has[id] = n
	}
	var freed Usage
	for _, i := range from {
		if enough(freed) || may != nil && !may(i) {
			rest = append(rest, i)
			continue
		}
		freed = freed.plus(trial.take(i))
		chosen = append(chosen, i)
	}
	needed := func(i Image) bool {
		return slices.ContainsFunc(layers(i), func(l Layer) bool { return trial.has[l.ID] == 0 })
	}
	chosen = slices.DeleteFunc(chosen, func(i Image) bool {
		if needed(i) {
			return false
		}
		rest = append(rest, i)
		return true
	})
	slices.SortFunc(rest, byUse)
	return chosen, rest
}
