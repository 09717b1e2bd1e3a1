package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/util/jsonpath"
)

// Sort sorts objects by the value at a path, as kubectl's --sort-by does: numbers, times and
// quantities by value, anything else as text. Objects without the value come first.
func Sort[T any](items []T, path string) error {
	p, err := parseJSONPath(path)
	if err != nil {
		return fmt.Errorf("--sort-by %s: %w", path, err)
	}
	type keyed struct {
		item  T
		value any
	}
	all := make([]keyed, len(items))
	some := len(items) == 0
	for i, it := range items {
		object, err := generic(it)
		if err != nil {
			return err
		}
		all[i].item = it
		if values := found(p, object); len(values) > 0 {
			all[i].value, some = values[0], true
		}
	}
	if !some {
		return fmt.Errorf("--sort-by %s: no object in the list has this field", path)
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return compare(a.value, b.value) })
	for i := range all {
		items[i] = all[i].item
	}
	return nil
}

func compare(a, b any) int {
	switch {
	case a == nil || b == nil:
		return cmp.Compare(btoi(a != nil), btoi(b != nil))
	}
	if x, ok := a.(float64); ok {
		if y, ok := b.(float64); ok {
			return cmp.Compare(x, y)
		}
	}
	s, t := fmt.Sprint(a), fmt.Sprint(b)
	if x, err := time.Parse(time.RFC3339, s); err == nil {
		if y, err := time.Parse(time.RFC3339, t); err == nil {
			return x.Compare(y)
		}
	}
	if x, err := resource.ParseQuantity(s); err == nil {
		if y, err := resource.ParseQuantity(t); err == nil {
			return x.Cmp(y)
		}
	}
	return strings.Compare(s, t)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Path is one field of an object, as jsonpath names it.
type Path struct{ path *jsonpath.JSONPath }

// ParsePath reads a path, with or without its braces.
func ParsePath(text string) (*Path, error) {
	p, err := parseJSONPath(text)
	if err != nil {
		return nil, fmt.Errorf("jsonpath %s: %w", text, err)
	}
	return &Path{p}, nil
}

// Of returns the field of an object as text, and whether it has one.
func (p *Path) Of(object any) (string, bool) {
	o, err := generic(object)
	if err != nil {
		return "", false
	}
	values := found(p.path, o)
	if len(values) == 0 {
		return "", false
	}
	var all []string
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return strings.Join(all, " "), true
}
