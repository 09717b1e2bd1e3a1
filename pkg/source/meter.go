package source

import (
	"reflect"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The limits of the last good set of a file with a problem. They are several times the content of the
// largest manifest, which has 10 MiB. While a file has a problem, each reading can add names to the set,
// and none removes names. So without limits a source that never sends a complete document would fill the
// memory. On the disk, a set within these limits stays below the limit of a stored set, even if JSON has
// to escape every character.
const (
	maxLastGood       = 50_000   // pods and objects
	maxLastGoodWeight = 32 << 20 // their weight together, see weigh
	// fieldWeight is the weight of each field or element in addition to its text. It stands for its
	// name, a number or a pointer.
	fieldWeight = 16
)

// Meter measures the last good set of one file. The zero value is that of an empty set.
type Meter struct{ items, weight int }

// Pods adds pods, and reports whether the set is within the limits.
func (m *Meter) Pods(pods ...*pod.Spec) bool {
	for _, p := range pods {
		if !m.add(p.Pod) {
			return false
		}
	}
	return true
}

// Objects adds config objects and workloads, and reports whether the set is within the limits.
func (m *Meter) Objects(objects ...*pod.Object) bool {
	for _, o := range objects {
		if !m.add(o.Object) {
			return false
		}
	}
	return true
}

func (m *Meter) add(v any) bool {
	if m.items > maxLastGood || m.weight > maxLastGoodWeight {
		return false
	}
	m.items++
	m.weight += weigh(reflect.ValueOf(v))
	return m.items <= maxLastGood && m.weight <= maxLastGoodWeight
}

// weigh returns roughly how many bytes a value has as text. Its running time depends on the number of values
// in v, not on their sizes.
func weigh(v reflect.Value) int {
	n := 0
	switch v.Kind() {
	case reflect.String:
		n = v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = weigh(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				n += fieldWeight + weigh(f)
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return v.Len()
		}
		for i := range v.Len() {
			n += fieldWeight + weigh(v.Index(i))
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			n += fieldWeight + weigh(i.Key()) + weigh(i.Value())
		}
	}
	return n
}
