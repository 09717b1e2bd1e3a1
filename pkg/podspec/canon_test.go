package podspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// The canonical form as values, by the rules of hash version v1: the reference for the writer of
// bytes.

// ref returns the set fields of v as maps, lists and plain values, nil if there are none. Lists
// without an order come back sorted.
func (n *fieldNode) ref(v reflect.Value, k keep) any {
	pointer := v.Kind() == reflect.Pointer
	if pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch {
	case n.plain:
		return n.refPlain(v, pointer, k)
	case v.Kind() == reflect.Slice:
		return n.refList(v, k)
	}
	out := n.refStruct(v, k)
	if len(out) == 0 && (!n.presence || !pointer || !k(n.row)) {
		return nil
	}
	return out
}

func (n *fieldNode) refPlain(v reflect.Value, pointer bool, k keep) any {
	if !k(n.row) || !pointer && v.IsZero() || hasNone(v) {
		return nil
	}
	if n.row != nil && n.row.Default != nil && fmt.Sprint(n.row.Default) == fmt.Sprint(v.Interface()) {
		return nil
	}
	return v.Interface()
}

func (n *fieldNode) refList(v reflect.Value, k keep) any {
	// An element of a list counts even if k leaves out all of its fields; only the whole form keeps
	// empty elements in their places.
	whole := k(nil)
	var out []any
	for i := range v.Len() {
		if n.row != nil && n.row.Counts != nil && !whole && !n.row.Counts(v.Index(i).Interface()) {
			continue
		}
		if e := n.refStruct(v.Index(i), k); len(e) > 0 || whole {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil
	}
	if n.row != nil && n.row.Unordered {
		slices.SortStableFunc(out, func(a, b any) int { return bytes.Compare(mustJSON(a), mustJSON(b)) })
	}
	return out
}

func (n *fieldNode) refStruct(v reflect.Value, k keep) map[string]any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	out := map[string]any{}
	for _, kid := range n.kids {
		if c := kid.ref(v.FieldByIndex(kid.index), k); c != nil {
			out[kid.name] = c
		}
	}
	return out
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("pod: encode canonical form: " + err.Error())
	}
	return b
}

// drawn sets v, or leaves it as it is.
func drawn(t *rapid.T, v reflect.Value, depth int) {
	if rapid.IntRange(0, 2).Draw(t, "set") == 0 {
		return
	}
	switch v.Interface().(type) {
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(rapid.SampledFrom([]string{"0", "1", "500m", "1Gi"}).Draw(t, "quantity"))))
		return
	case intstr.IntOrString:
		v.Set(reflect.ValueOf(intstr.Parse(rapid.SampledFrom([]string{"80", "http", "<"}).Draw(t, "port"))))
		return
	}
	if _, plain := elem(v.Type()); plain && v.Kind() == reflect.Struct {
		return // times: no field of the table that is honoured has one
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.SampledFrom([]string{"", "a", "b", "TCP", "None", "ClusterFirst", "<&>\"\\", "\u2028é"}).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64Range(-2, 3).Draw(t, "number"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if depth > 0 {
			drawn(t, v.Elem(), depth-1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(0, 3).Draw(t, "length"), 3))
		for i := range v.Len() {
			drawn(t, v.Index(i), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range rapid.IntRange(0, 2).Draw(t, "entries") {
			key := reflect.New(v.Type().Key()).Elem()
			key.SetString(rapid.SampledFrom([]string{"cpu", "memory", "<"}).Draw(t, "key"))
			item := reflect.New(v.Type().Elem()).Elem()
			drawn(t, item, depth-1)
			v.SetMapIndex(key, item)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if depth > 0 && v.Field(i).CanSet() {
				drawn(t, v.Field(i), depth-1)
			}
		}
	}
}

// TestF16_CanonicalFormIsWhatItWas draws pods and compares every form that a
// hash is made of with the form as values.
//
// Shows: F16
func TestF16_CanonicalFormIsWhatItWas(t *testing.T) {
	t.Parallel()
	spec := fieldTree().kid("spec")
	rapid.Check(t, func(t *rapid.T) {
		var p v1.Pod
		drawn(t, reflect.ValueOf(&p.Spec).Elem(), 6)
		v := reflect.ValueOf(&p.Spec)
		for i, k := range []keep{everything, replacesPod, replacesContainer, replacesInit} {
			want := mustJSON(spec.ref(v, k))
			got, set := spec.appendCanon(nil, v, k)
			if !set {
				got = []byte("null")
			}
			if !bytes.Equal(want, got) {
				t.Fatalf("%d: want %s\ngot  %s", i, want, got)
			}
			for j := range p.Spec.Containers {
				c := reflect.ValueOf(&p.Spec.Containers[j]).Elem()
				want := mustJSON(spec.kid("containers").refStruct(c, k))
				if got, _ := spec.kid("containers").appendStruct(nil, c, k); !bytes.Equal(want, got) {
					t.Fatalf("container, %d: want %s\ngot  %s", i, want, got)
				}
			}
		}
	})
}
