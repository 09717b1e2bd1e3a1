package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// ImageList is the answer of get images.
type ImageList struct {
	Document
	Items []ImageItem `json:"items"`
}

// ImageItem is an image of the container runtime.
type ImageItem struct {
	ID    string   `json:"id"`
	Names []string `json:"names"` // tags and digests
	Size  int64    `json:"size"`  // bytes
	// FirstSeen is when the agent first listed it. LastUsed is when it was last in use, zero for
	// never. UsedBy names the pods and containers that need it now.
	FirstSeen time.Time `json:"firstSeen,omitzero"`
	LastUsed  time.Time `json:"lastUsed,omitzero"`
	UsedBy    []string  `json:"usedBy,omitempty"`
	Pinned    bool      `json:"pinned,omitempty"`  // the runtime must keep it
	Archive   bool      `json:"archive,omitempty"` // it was imported from a file
}

// lastUsed returns when the image was last in use, as an age.
func (it ImageItem) lastUsed(now time.Time) string {
	switch {
	case len(it.UsedBy) > 0:
		return "now"
	case it.LastUsed.IsZero():
		return "never"
	}
	return ageOf(it.LastUsed, now)
}

// usedBy names the users. If an unused image is pinned, the user is the container runtime.
func (it ImageItem) usedBy(wide bool) string {
	switch {
	case len(it.UsedBy) == 0 && it.Pinned:
		return "the container runtime"
	case len(it.UsedBy) > 1 && !wide:
		return fmt.Sprintf("%s and %d more", it.UsedBy[0], len(it.UsedBy)-1)
	}
	return strings.Join(it.UsedBy, ",")
}

// NewImageList puts images into their document, sorted by name.
func NewImageList(items []ImageItem) ImageList {
	d := ImageList{Document: Document{APIVersion, "ImageList"}, Items: []ImageItem{}}
	for _, it := range items {
		it.Names = append([]string{}, it.Names...)
		d.Items = append(d.Items, it)
	}
	slices.SortStableFunc(d.Items, func(a, b ImageItem) int { return cmp.Or(cmp.Compare(a.name(), b.name()), cmp.Compare(a.ID, b.ID)) })
	return d
}

// name returns the first tag, without tags the first digest, or "".
func (it ImageItem) name() string {
	for _, n := range it.Names {
		if !strings.Contains(n, "@") {
			return n
		}
	}
	if len(it.Names) > 0 {
		return it.Names[0]
	}
	return ""
}

// Called reports whether a name matches the image: one of its names, with or without the
// tag, or the beginning of its ID.
func (it ImageItem) Called(name string) bool {
	for _, n := range it.Names {
		if n == name || strings.HasSuffix(n, "/"+name) || strings.HasPrefix(n, name+":") || strings.Contains(n, "/"+name+":") {
			return true
		}
	}
	return len(name) >= 4 && strings.HasPrefix(strings.TrimPrefix(it.ID, "sha256:"), strings.TrimPrefix(name, "sha256:"))
}

// ImageGrid returns the table of get images; wide adds whole IDs, all users, digests, and
// where images came from.
func ImageGrid(d ImageList, c Columns, now time.Time) Grid {
	header := []string{"IMAGE", "ID", "SIZE", "LAST USED", "USED BY"}
	if c.Wide {
		header = append(header, "FROM", "OTHER NAMES")
	}
	g := grid(c, header...)
	for _, it := range d.Items {
		id := strings.TrimPrefix(it.ID, "sha256:")
		if !c.Wide {
			id = id[:min(len(id), 12)]
		}
		row := []cell{{text: it.name()}, {text: id}, {text: size(it.Size)}, {text: it.lastUsed(now)}, {text: it.usedBy(c.Wide)}}
		if c.Wide {
			from := "registry"
			if it.Archive {
				from = "archive"
			}
			row = append(row, cell{text: from})
			others := slices.DeleteFunc(slices.Clone(it.Names), func(n string) bool { return n == it.name() })
			row = append(row, cell{text: strings.Join(others, ",")})
		}
		g.add(c, nil, row...)
	}
	return g
}

// ImagePrune is the answer of image prune.
type ImagePrune struct {
	Document
	DryRun  bool           `json:"dryRun"`
	Removed []ImageRemoval `json:"removed"` // in the order of their removal
	Kept    []ImageRemoval `json:"kept"`
	Bytes   int64          `json:"bytes"` // that the removals free
}

// ImageRemoval is an image that is removed or kept, with the reason.
type ImageRemoval struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"` // that its removal frees
	Why   string `json:"why"`
}

// NewImagePrune returns an empty answer.
func NewImagePrune(dry bool) ImagePrune {
	return ImagePrune{Document: Document{APIVersion, "ImagePrune"}, DryRun: dry, Removed: []ImageRemoval{}, Kept: []ImageRemoval{}}
}

// ImagePruneText returns a line for each removed image, and the sum. wide adds a line for each kept
// image.
func ImagePruneText(d ImagePrune, wide bool) string {
	done, sum := "removed", "freed"
	if d.DryRun {
		done, sum = "would be removed", "would be freed"
	}
	var all []string
	total := int64(0)
	for _, r := range d.Removed {
		all = append(all, fmt.Sprintf("image/%s %s, %s: %s", Clean(r.Name), done, size(r.Bytes), Clean(r.Why)))
		total += r.Bytes
	}
	if wide {
		for _, k := range d.Kept {
			all = append(all, fmt.Sprintf("image/%s stays: %s", Clean(k.Name), Clean(k.Why)))
		}
	}
	return lines(append(all, fmt.Sprintf("%d of %d images, %s %s", len(d.Removed), len(d.Removed)+len(d.Kept), size(total), sum)))
}

// ImageNames returns image/NAME, one a line.
func ImageNames(d ImageList) string {
	var all []string
	for _, it := range d.Items {
		all = append(all, "image/"+Clean(cmp.Or(it.name(), it.ID)))
	}
	return lines(all)
}

// size returns bytes as registries and crictl count them.
func size(n int64) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB"} {
		if f < 1000 {
			break
		}
		f, unit = f/1000, u
	}
	if unit == "B" {
		return strconv.FormatInt(n, 10) + "B"
	}
	return fmt.Sprintf("%.1f%s", f, unit)
}

// eventCount returns how often an event was seen.
func eventCount(e v1.Event) string {
	n := e.Count
	if e.Series != nil {
		n = e.Series.Count
	}
	return strconv.Itoa(int(max(n, 1)))
}
