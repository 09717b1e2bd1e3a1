package podspec

import (
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Ignored returns a problem for everything in p's spec that its author has set and that
// changes nothing, at the field's path, with the reason in its message. p is the pod as
// its author set it. It skips empty values and those that an API server writes by
// itself: a manifest taken from a server is full of them.
func Ignored(p *v1.Pod) []pod.Problem {
	var out []pod.Problem
	spec := fieldTree().kid("spec")
	spec.ignored(reflect.ValueOf(&p.Spec).Elem(), nil, &out)
	return out
}

// ignored appends a problem for every Inert field that is set in v.
func (n *fieldNode) ignored(v reflect.Value, above *step, out *[]pod.Problem) {
	if !n.inert {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	} else if hasNone(v) || v.IsZero() {
		return
	}
	here := step{above: above, name: n.name, index: -1}
	switch {
	case n.row != nil && n.row.Support == Inert:
		if n.asks(v) && fmt.Sprint(v.Interface()) != n.row.Served {
			path := here.path()
			*out = append(*out, pod.Problem{Path: path, Msg: "is ignored: " + n.row.Note})
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			here.index = i
			for _, kid := range n.kids {
				kid.ignored(kid.of(v.Index(i)), &here, out)
			}
		}
	default:
		for _, kid := range n.kids {
			kid.ignored(kid.of(v), &here, out)
		}
	}
}
