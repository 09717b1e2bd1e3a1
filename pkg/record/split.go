package record

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Split keeps sets in two places. Files for which apart is true are in memory: in a directory on a file
// system that does not survive a reboot. All others are on the disk.
type Split struct {
	disk, memory *Sets
	apart        func(layer string, s pod.LastGoodSet) bool
}

// NewSplit returns sets in two places. If memory is nil, files for which apart is true are not saved.
func NewSplit(disk, memory *Sets, apart func(layer string, s pod.LastGoodSet) bool) *Split {
	return &Split{disk: disk, memory: memory, apart: apart}
}

// Save is Sets.Save. A file that moves from memory to the disk is always in one of them: Save removes
// it from memory only after the disk has it. A file that moves to memory leaves the disk even if it
// cannot be saved in memory.
func (s *Split) Save(layer string, at time.Time, changed []pod.LastGoodSet) error {
	var disk, memory, moved []pod.LastGoodSet
	for _, c := range changed {
		if s.apart(layer, c) {
			memory, disk = append(memory, c), append(disk, pod.LastGoodSet{File: c.File})
			continue
		}
		disk, moved = append(disk, c), append(moved, pod.LastGoodSet{File: c.File})
	}
	if s.memory == nil || len(memory) == 0 && !s.memory.has(layer) {
		return s.disk.Save(layer, at, disk)
	}
	saved := s.memory.Save(layer, at, memory)
	if err := s.disk.Save(layer, at, disk); err != nil {
		return errors.Join(saved, err)
	}
	return errors.Join(saved, s.memory.Save(layer, at, moved))
}

// has reports whether there is a set of the layer.
func (s *Sets) has(layer string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, hashedName(layer)))
	return err == nil
}

// Forget is Sets.Forget.
func (s *Split) Forget(keep func(layer string) bool) error {
	if s.memory == nil {
		return s.disk.Forget(keep)
	}
	return errors.Join(s.memory.Forget(keep), s.disk.Forget(keep))
}

// Load is Sets.Load.
func (s *Split) Load() (map[string]Set, error) {
	sets, err := s.disk.Load()
	if s.memory == nil {
		return sets, err
	}
	more, worse := s.memory.Load()
	return joined(sets, more), errors.Join(err, worse)
}

// ReadSplit is ReadSets for sets in two places; memory may be "".
func ReadSplit(root, memory string, key *Key) (map[string]Set, error) {
	sets, err := ReadSets(root, key)
	if memory == "" {
		return sets, err
	}
	more, worse := ReadSets(memory, key)
	return joined(sets, more), errors.Join(err, worse)
}

// joined returns sets with the files of more added.
func joined(sets, more map[string]Set) map[string]Set {
	for layer, m := range more {
		set := sets[layer]
		if set.At.Before(m.At) {
			set.At = m.At
		}
		set.Files = append(set.Files, m.Files...)
		slices.SortFunc(set.Files, compareSets)
		if sets == nil {
			sets = map[string]Set{}
		}
		sets[layer] = set
	}
	return sets
}
