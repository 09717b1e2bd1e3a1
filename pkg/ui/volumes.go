package ui

import (
	"cmp"
	"strings"
	"time"
)

// VolumeList is the answer of get volumes.
type VolumeList struct {
	Document
	Items []VolumeItem `json:"items"`
}

// VolumeItem is a directory of the node that a claim is bound to.
type VolumeItem struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Path      string   `json:"path"`
	Created   string   `json:"created"` // RFC 3339; "" if unknown
	UsedBy    []string `json:"usedBy"`  // names of pods of the namespace
}

// NewVolumeList puts the volumes of a node into their document.
func NewVolumeList(items []VolumeItem) VolumeList {
	return VolumeList{Document: Document{APIVersion, "VolumeList"}, Items: append([]VolumeItem{}, items...)}
}

// Volumes returns the table of get volumes, or "" without volumes.
func (v *View) Volumes(d VolumeList, wide bool, now time.Time) string {
	if len(d.Items) == 0 {
		return ""
	}
	header := []cell{{text: "NAMESPACE"}, {text: "NAME"}, {text: "CREATED"}, {text: "USED BY"}}
	if wide {
		header = append(header, cell{text: "PATH"})
	}
	rows := [][]cell{header}
	for _, it := range d.Items {
		row := []cell{{text: it.Namespace}, {text: it.Name}, {text: ago(it.Created, now)}, {text: cmp.Or(strings.Join(it.UsedBy, ","), "-")}}
		if wide {
			row = append(row, cell{text: it.Path})
		}
		for i := range row {
			row[i].text = cmp.Or(Clean(row[i].text), "-")
		}
		rows = append(rows, row)
	}
	return lines(v.columns("", []int{3}, rows))
}

// VolumeNames returns volume/NAME of every volume, a line each.
func VolumeNames(d VolumeList) string {
	var all []string
	for _, it := range d.Items {
		all = append(all, "volume/"+Clean(it.Name))
	}
	return lines(all)
}
