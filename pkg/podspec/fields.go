// Package podspec has the table of the fields of a pod, the hashes of specs and config objects, and
// the effects of an edit.
//
// Sources make specs with it; plan, feed and forecast compare them with it.
//
// The package has no I/O, no clock and no goroutine. Within one hash version, no hash of an
// unedited pod changes.
package podspec

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Support is the treatment of a field of a Pod by this version of nodectl.
type Support int

const (
	// Honoured fields take effect; with a Check only for some values.
	Honoured Support = iota
	// Rejected fields reject the pod when they are set, with the field's name in the
	// message.
	Rejected
	// Inert fields are accepted and change nothing; Field.Note says why that is correct
	// on a single node.
	Inert
)

func (s Support) String() string { return [...]string{"honoured", "rejected", "inert"}[s] }

// RestartScope is the part of a pod that a change of a field restarts.
type RestartScope int

const (
	// RestartNone changes take effect in the running pod, or have no effect.
	RestartNone RestartScope = iota
	// RestartContainer changes replace their container.
	RestartContainer
	// RestartPod changes replace the whole pod: a new instance.
	RestartPod
	// Resize changes are made in the running container, or restart it where its
	// resizePolicy says so, or replace the pod where they change its QoS class
	// (C-1.34).
	Resize
)

func (r RestartScope) String() string { return [...]string{"none", "container", "pod", "resize"}[r] }

// Field is one row of the table of Pod fields: the treatment of the field, and the effect of an
// edit of it. A Rejected or Inert row also covers everything below it.
type Field struct {
	// Path is the field's place, as "spec.containers[].image".
	Path    string
	Support Support
	Restart RestartScope
	// Why is the message when a Rejected field is set; "" means NotYet.
	Why string
	// Note is a hint for the author (Rejected), the reason why ignoring the
	// field is harmless (Inert), or the condition in words (Honoured).
	Note string
	// Check returns why a value of an Honoured field is not supported, "" when
	// it is. It gets the value without its pointer; for a map, every key as a
	// string.
	Check func(value any) string
	// Keys names the keys of a map of resources that take effect, one for each family
	// (hugepages-2Mi stands for all sizes, example/gpu for all extended resources). Each has a
	// proof in test/support.
	Keys []string
	// Default is the value that equals an absent field; writing it is no change. nil
	// when there is none.
	Default any
	// Served is the value of an Inert field that an API server writes by itself, as
	// text: there is no notice that it is ignored.
	Served string
	// Unordered says that the order of the list's elements has no meaning.
	Unordered bool
	// Counts says whether a change of a list's element restarts anything; nil means
	// that each does.
	Counts func(element any) bool
}

// NotYet is the message of a Rejected field that has no better one.
const NotYet = "not supported yet by this version of nodectl"

// Fields returns the table: one row for every field of a Pod's metadata and
// spec, down to a Rejected or Inert row or a plain value, in the order of the
// API type. The result is the caller's.
func Fields() []Field { return fieldRows() }

// Unsupported returns a problem for every field in p that this version does not
// support. p is the pod as its author set it, before defaulting: an empty value counts
// as unset. The problems have a path, a message and a hint, and no place.
func Unsupported(p *v1.Pod) []pod.Problem {
	var out []pod.Problem
	fieldTree().unsupported(reflect.ValueOf(p).Elem(), nil, &out)
	return out
}

// UnsupportedAPI is Unsupported for a pod that an API server has defaulted, admitted
// and bound to this node: the rows of APIFields apply. The problems say that the node lacks
// something (Problem.Lacking).
func UnsupportedAPI(p *v1.Pod) []pod.Problem {
	var out []pod.Problem
	apiFieldTree().unsupported(reflect.ValueOf(p).Elem(), nil, &out)
	for i := range out {
		out[i].Lacking = true
	}
	return out
}

// unsupported appends a problem for every unsupported field in v. above is the path of
// n's struct: paths become text only where there is a problem.
func (n *fieldNode) unsupported(v reflect.Value, above *step, out *[]pod.Problem) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	} else if hasNone(v) || v.IsZero() {
		return
	}
	here := step{above: above, name: n.name, index: -1}
	if n.row != nil {
		switch n.row.Support {
		case Inert:
			return
		case Rejected:
			if n.asks(v) {
				*out = append(*out, pod.Problem{Path: here.path(), Msg: n.row.why(), Hint: n.row.Note})
			}
			return
		case Honoured:
			n.check(v, &here, out)
		}
	}
	switch {
	case n.plain:
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			here.index = i
			n.each(v.Index(i), &here, out)
		}
	default:
		n.each(v, &here, out)
	}
}

// step is a field path, from its end.
type step struct {
	above *step
	name  string
	index int // of the list's element; -1 for the field itself
}

func (s *step) path() string {
	if s == nil || s.name == "" {
		return ""
	}
	text := s.name
	if above := s.above.path(); above != "" {
		text = above + "." + text
	}
	if s.index >= 0 {
		text = fmt.Sprintf("%s[%d]", text, s.index)
	}
	return text
}

// hasNone reports whether v is an empty list or map.
func hasNone(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

func (n *fieldNode) each(v reflect.Value, here *step, out *[]pod.Problem) {
	for _, kid := range n.kids {
		kid.unsupported(kid.of(v), here, out)
	}
}

// asks reports whether v, behind its pointer, is set: a pointer to a plain value is, a
// pointer to a struct only when a field in it is, or where its presence is itself the
// choice.
func (n *fieldNode) asks(v reflect.Value) bool {
	if n.plain || n.presence {
		return true
	}
	_, set := n.appendCanon(nil, v, everything)
	return set
}

func (n *fieldNode) check(v reflect.Value, here *step, out *[]pod.Problem) {
	if n.row.Check == nil {
		return
	}
	if v.Kind() != reflect.Map {
		if why := n.row.Check(v.Interface()); why != "" {
			*out = append(*out, pod.Problem{Path: here.path(), Msg: why, Hint: n.row.Note})
		}
		return
	}
	keys := v.MapKeys()
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	for _, k := range keys {
		if why := n.row.Check(k.String()); why != "" {
			*out = append(*out, pod.Problem{Path: here.path() + "[" + k.String() + "]", Msg: why, Hint: n.row.Note})
		}
	}
}

func (f *Field) why() string {
	if f.Why != "" {
		return f.Why
	}
	return NotYet
}

// fieldNode is one field of the API types with the row that covers it: its own, or the
// Rejected or Inert row above it.
type fieldNode struct {
	name  string // as in JSON
	path  string
	index []int // of the field in its struct, through inlined structs
	row   *Field
	// plain values have no fields of their own.
	plain bool
	// presence: a non-nil pointer has a meaning even to an empty struct, as in
	// "emptyDir: {}".
	presence bool
	inert    bool         // it is Inert, or something below it is
	kids     []*fieldNode // in the order of the API type
	sorted   []*fieldNode // by name
}

// kid returns the field called name, nil when there is none.
func (n *fieldNode) kid(name string) *fieldNode {
	for _, k := range n.kids {
		if k.name == name {
			return k
		}
	}
	return nil
}

// fieldTree is the table laid over the API types. It is built once, at first
// use, and never written to afterwards.
var fieldTree = sync.OnceValue(func() *fieldNode { return newFieldTree(reflect.TypeFor[v1.Pod](), fieldRows(), nil) })

// apiFieldTree is fieldTree with the rows for pods from an API server.
var apiFieldTree = sync.OnceValue(func() *fieldNode {
	return newFieldTree(reflect.TypeFor[v1.Pod](), append(fieldRows(), apiRows()...), nil)
})

// newFieldTree lays rows over an API type; of two rows of one path the later
// one counts. A pod template in the type shares the fields of template, if that is not nil.
func newFieldTree(t reflect.Type, all []Field, template *fieldNode) *fieldNode {
	rows := map[string]*Field{}
	for _, f := range all {
		rows[f.Path] = &f
	}
	root := &fieldNode{}
	root.grow(t, rows, template)
	return root
}

// grow adds a node for every field of t.
func (n *fieldNode) grow(t reflect.Type, rows map[string]*Field, template *fieldNode) {
	t, n.plain = elem(t)
	if n.plain {
		return
	}
	if template != nil && t == reflect.TypeFor[v1.PodTemplateSpec]() {
		n.kids, n.sorted, n.inert = template.kids, template.sorted, template.inert
		return
	}
	inner := n.path
	if inner != "" {
		inner += "."
	}
	for _, f := range jsonFields(t, nil) {
		kid := &fieldNode{name: f.name, path: inner + f.name, index: f.index, presence: f.owner == reflect.TypeFor[v1.VolumeSource]()}
		ft := f.typ
		for ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		kid.row = rows[kid.path]
		if kid.row == nil && n.row != nil && n.row.Support != Honoured {
			kid.row = n.row
		}
		own := kid.path
		if ft.Kind() == reflect.Slice {
			kid.path += "[]"
		}
		kid.grow(ft, rows, template)
		kid.path = own
		kid.inert = kid.inert || kid.row != nil && kid.row.Support == Inert
		n.inert = n.inert || kid.inert
		n.kids = append(n.kids, kid)
	}
	n.sorted = slices.SortedFunc(slices.Values(n.kids), func(a, b *fieldNode) int { return strings.Compare(a.name, b.name) })
}

// elem returns the type that a pointer or list leads to, and whether values of
// it are plain: they have no fields with a meaning of their own.
func elem(t reflect.Type) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return t, true
	}
	_, marshals := reflect.PointerTo(t).MethodByName("MarshalJSON")
	return t, marshals
}

type jsonField struct {
	name  string
	index []int
	typ   reflect.Type
	owner reflect.Type // the struct it is written in
}

// jsonFields returns the fields of struct t as JSON sees them, inlined structs
// opened.
func jsonFields(t reflect.Type, at []int) []jsonField {
	var out []jsonField
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(append([]int(nil), at...), i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			out = append(out, jsonFields(f.Type, index)...)
		case name != "":
			out = append(out, jsonField{name: name, index: index, typ: f.Type, owner: t})
		}
	}
	return out
}
