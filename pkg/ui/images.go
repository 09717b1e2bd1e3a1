package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

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

// name returns the tag, the digest where there is none, or nothing.
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

// ImageGrid returns the table of get images; wide adds whole IDs and digests.
func ImageGrid(d ImageList, c Columns) Grid {
	header := []string{"IMAGE", "ID", "SIZE"}
	if c.Wide {
		header = append(header, "OTHER NAMES")
	}
	g := grid(c, header...)
	for _, it := range d.Items {
		id := strings.TrimPrefix(it.ID, "sha256:")
		if !c.Wide {
			id = id[:min(len(id), 12)]
		}
		row := []cell{{text: it.name()}, {text: id}, {text: size(it.Size)}}
		if c.Wide {
			others := slices.DeleteFunc(slices.Clone(it.Names), func(n string) bool { return n == it.name() })
			row = append(row, cell{text: strings.Join(others, ",")})
		}
		g.add(c, nil, row...)
	}
	return g
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
