package pod

import (
	"maps"
	"slices"
)

// ObjectSum is a checksum of the content of a config object.
type ObjectSum struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Hash covers the parts of the object that a pod sees; not its labels.
	Hash string            `json:"hash"`
	Keys map[string]KeySum `json:"keys,omitempty"`
}

// KeySum is the size of one value and its checksum, "" where only the size is known.
type KeySum struct {
	Bytes int    `json:"bytes"`
	Sum   string `json:"sum"`
}

// Same reports whether two sums are of one value, as far as they know.
func (k KeySum) Same(o KeySum) bool {
	return k.Bytes == o.Bytes && (k.Sum == o.Sum || k.Sum == "" || o.Sum == "")
}

// ID returns the name of the object.
func (s ObjectSum) ID() ObjectID { return ObjectID{s.Kind, s.Name} }

// Same reports whether two sums are of one content, as far as they know.
func (s ObjectSum) Same(o ObjectSum) bool {
	if s.ID() != o.ID() || s.Hash != "" && o.Hash != "" {
		return s.ID() == o.ID() && s.Hash == o.Hash
	}
	return maps.EqualFunc(s.Keys, o.Keys, KeySum.Same)
}

// Same reports whether two pods are bound to the same content.
func (d *Data) Same(o *Data) bool {
	return d == o || slices.EqualFunc(d.sums(), o.sums(), ObjectSum.Same)
}

func (d *Data) sums() []ObjectSum {
	if d == nil {
		return nil
	}
	return d.Sums
}

// Sum returns the checksum of an object; found is false where the pod is not bound to it.
func (d *Data) Sum(id ObjectID) (sum ObjectSum, found bool) {
	sums := d.sums()
	i, found := slices.BinarySearchFunc(sums, id, func(s ObjectSum, id ObjectID) int { return s.ID().Compare(id) })
	if !found {
		return ObjectSum{}, false
	}
	return sums[i], true
}
