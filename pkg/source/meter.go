package source

import (
	"reflect"

	"github.com/nodectl/nodectl/pkg/pod"
)

// What may stand behind a file with which anything is wrong: what the largest manifest, of
// 10 MiB, becomes, several times over. Each reading can add names to it and takes none away,
// so without a bound a source that never sends a whole document fills the memory. Written to
// the disk it is smaller than a last good set may be, even where JSON has to escape all.
const (
	mostStanding       = 50_000   // pods and objects
	mostStandingWeight = 32 << 20 // of them together
	// fieldWeight stands for what is no text: the field's name, a number, a pointer.
	fieldWeight = 16
)

// Meter weighs what stands behind one file. The zero value has weighed nothing.
type Meter struct{ items, weight int }

// Pods adds pods, and reports whether all that was added may stand behind a file.
func (m *Meter) Pods(pods ...*pod.Spec) bool {
	for _, p := range pods {
		if !m.add(p.Pod) {
			return false
		}
	}
	return true
}

// Objects adds config objects, and reports whether all that was added may stand behind a
// file.
func (m *Meter) Objects(objects ...*pod.Object) bool {
	for _, o := range objects {
		if !m.add(o.Object) {
			return false
		}
	}
	return true
}

func (m *Meter) add(v any) bool {
	if m.items > mostStanding || m.weight > mostStandingWeight {
		return false
	}
	m.items++
	m.weight += weigh(reflect.ValueOf(v))
	return m.items <= mostStanding && m.weight <= mostStandingWeight
}

// weigh returns roughly how many bytes a value takes as text. Its cost is that of the values
// in it, not of their bytes.
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
