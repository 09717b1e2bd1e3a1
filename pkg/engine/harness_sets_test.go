package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// keepSets makes the disk keep the last good sets.
func (d *disk) keepSets() { d.sets = map[string]map[string]pod.LastGoodSet{} }

func (d *disk) setsOrNil() Sets {
	if d.sets == nil {
		return nil
	}
	return setsOf{d}
}

type setsOf struct{ *disk }

func (s setsOf) Forget(keep func(string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.sets, func(layer string, _ map[string]pod.LastGoodSet) bool { return !keep(layer) })
	return nil
}

// restored returns the sets that an agent finds on the disk.
func (d *disk) restored() map[string]podconfig.Restored {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]podconfig.Restored{}
	for layer, files := range d.sets {
		r := podconfig.Restored{At: time.Unix(1, 0)}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			r.Files = append(r.Files, files[name])
		}
		out[layer] = r
	}
	return out
}
