package podspec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// FieldChange is one field that differs between two versions of a pod. Old is "" where
// the field was added, New where it was taken away; a whole object is compact JSON.
// Values are as in the manifest, control characters included: escape them before
// printing.
type FieldChange struct {
	Path string `json:"path"` // "spec.containers[nginx].image"
	Old  string `json:"old"`
	New  string `json:"new"`
}

// Differences returns every field in which two versions of a pod differ: its labels,
// its annotations except those of the kubelet (C-1.4), its deletion fields and its
// spec. Lists whose elements all have a unique name are compared by name, and a change
// of their order is one change of the list; other lists are compared by index. An empty
// list or map equals an absent one, except for labels, where the kubelet distinguishes
// them (C-1.2.7). Order is labels, annotations, deletion fields, spec, each in the
// order of the API's fields. A pod that is nil has no differences.
func Differences(old, new *v1.Pod) []FieldChange {
	if old == nil || new == nil || old == new {
		return nil
	}
	var d differ
	if len(old.Labels)+len(new.Labels) == 0 && (old.Labels == nil) != (new.Labels == nil) {
		d.add("metadata.labels", reflect.ValueOf(old.Labels), reflect.ValueOf(new.Labels))
	}
	d.compare("metadata.labels", reflect.ValueOf(old.Labels), reflect.ValueOf(new.Labels))
	d.compare("metadata.annotations", reflect.ValueOf(authored(old.Annotations)), reflect.ValueOf(authored(new.Annotations)))
	d.compare("metadata.deletionTimestamp", reflect.ValueOf(old.DeletionTimestamp), reflect.ValueOf(new.DeletionTimestamp))
	d.compare("metadata.deletionGracePeriodSeconds", reflect.ValueOf(old.DeletionGracePeriodSeconds), reflect.ValueOf(new.DeletionGracePeriodSeconds))
	d.compare("spec", reflect.ValueOf(old.Spec), reflect.ValueOf(new.Spec))
	return d.changes
}

// authored returns the annotations without those of the kubelet.
func authored(annotations map[string]string) map[string]string {
	out := make(map[string]string, len(annotations))
	for k, v := range annotations {
		switch k {
		case pod.AnnotationConfigSource, pod.AnnotationConfigSeen, pod.AnnotationConfigHash, pod.AnnotationConfigMirror:
		default:
			out[k] = v
		}
	}
	return out
}

// differ collects differences while it walks two values of one type.
type differ struct{ changes []FieldChange }

var jsonMarshaler = reflect.TypeFor[json.Marshaler]()

// compare walks a and b, which have the same type. The zero Value is an absent one.
func (d *differ) compare(path string, a, b reflect.Value) {
	if !a.IsValid() || !b.IsValid() {
		d.add(path, a, b)
		return
	}
	t := a.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		switch {
		case a.IsNil() && b.IsNil():
		case a.IsNil():
			d.add(path, reflect.Value{}, b)
		case b.IsNil():
			d.add(path, a, reflect.Value{})
		default:
			d.compare(path, a.Elem(), b.Elem())
		}
	case t.Implements(jsonMarshaler) || reflect.PointerTo(t).Implements(jsonMarshaler):
		d.compareText(path, a, b)
	case t.Kind() == reflect.Struct:
		d.compareFields(path, a, b)
	case t.Kind() == reflect.Map:
		d.compareMap(path, a, b)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		d.compareList(path, a, b)
	default:
		d.compareText(path, a, b)
	}
}

// compareText compares values without fields: scalars, quantities, times, ports.
func (d *differ) compareText(path string, a, b reflect.Value) {
	if a.Kind() == reflect.String {
		if a.String() != b.String() {
			d.changes = append(d.changes, FieldChange{Path: path, Old: a.String(), New: b.String()})
		}
		return
	}
	old, new := compactJSON(a), compactJSON(b)
	if old == new {
		return
	}
	if plain(old) == plain(new) { // the port 80 and the port named "80"
		d.changes = append(d.changes, FieldChange{Path: path, Old: old, New: new})
		return
	}
	d.changes = append(d.changes, FieldChange{Path: path, Old: plain(old), New: plain(new)})
}

func (d *differ) compareFields(path string, a, b reflect.Value) {
	t := a.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			d.compare(path, a.Field(i), b.Field(i))
		case name == "":
			d.compare(path+"."+f.Name, a.Field(i), b.Field(i))
		default:
			d.compare(path+"."+name, a.Field(i), b.Field(i))
		}
	}
}

func (d *differ) compareMap(path string, a, b reflect.Value) {
	keys := a.MapKeys()
	for _, k := range b.MapKeys() {
		if !a.MapIndex(k).IsValid() {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
	for _, k := range keys {
		d.compare(path+"["+k.String()+"]", a.MapIndex(k), b.MapIndex(k))
	}
}

func (d *differ) compareList(path string, a, b reflect.Value) {
	olds, oldNamed := elementNames(a)
	news, newNamed := elementNames(b)
	if !oldNamed || !newNamed {
		for i := range max(a.Len(), b.Len()) {
			var x, y reflect.Value
			if i < a.Len() {
				x = a.Index(i)
			}
			if i < b.Len() {
				y = b.Index(i)
			}
			d.compare(path+"["+strconv.Itoa(i)+"]", x, y)
		}
		return
	}
	var stayed, moved []string // names on both sides, in either order
	for i, name := range olds {
		var y reflect.Value
		if j := slices.Index(news, name); j >= 0 {
			y = b.Index(j)
			stayed = append(stayed, name)
		}
		d.compare(path+"["+name+"]", a.Index(i), y)
	}
	for j, name := range news {
		if slices.Contains(olds, name) {
			moved = append(moved, name)
			continue
		}
		d.compare(path+"["+name+"]", reflect.Value{}, b.Index(j))
	}
	if !slices.Equal(stayed, moved) {
		d.add(path, reflect.ValueOf(olds), reflect.ValueOf(news))
	}
}

// elementNames returns the names of a list's elements, and whether they are unique.
func elementNames(list reflect.Value) (names []string, ok bool) {
	elem := list.Type().Elem()
	if elem.Kind() != reflect.Struct {
		return nil, false
	}
	f, has := elem.FieldByName("Name")
	if !has || f.Type.Kind() != reflect.String {
		return nil, false
	}
	seen := make(map[string]bool, list.Len())
	for i := range list.Len() {
		name := list.Index(i).FieldByIndex(f.Index).String()
		if name == "" || seen[name] {
			return nil, false
		}
		seen[name] = true
		names = append(names, name)
	}
	return names, true
}

// add records a whole value that was added, removed or reordered.
func (d *differ) add(path string, a, b reflect.Value) {
	d.changes = append(d.changes, FieldChange{Path: path, Old: wholeText(a), New: wholeText(b)})
}

// wholeText distinguishes an empty text from an absent one.
func wholeText(v reflect.Value) string {
	text := compactJSON(v)
	if text == `""` {
		return text
	}
	return plain(text)
}

// compactJSON returns v as JSON on one line, "" for an absent value.
func compactJSON(v reflect.Value) string {
	if !v.IsValid() || (v.Kind() == reflect.Map || v.Kind() == reflect.Pointer) && v.IsNil() {
		return ""
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v.Interface()); err != nil {
		// Only an invalid quantity or time gets here; its Go text still shows
		// that two of them differ.
		return fmt.Sprintf("%+v", v.Interface())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// plain returns the text of a JSON string, any other JSON as it is.
func plain(text string) string {
	if strings.HasPrefix(text, `"`) {
		var s string
		if err := json.Unmarshal([]byte(text), &s); err == nil {
			return s
		}
	}
	return text
}
