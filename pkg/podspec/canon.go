package podspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
)

// The canonical form of a value is JSON: only the fields that are set, objects by
// sorted keys, lists without an order sorted. Hashes are computed from it: no byte of
// it may change within one hash version. It is written directly from the value, because
// every pod that is read needs several.

// keep reports, by its row, whether a plain value is part of a canonical form.
type keep func(*Field) bool

func everything(*Field) bool    { return true }
func replacesPod(f *Field) bool { return f != nil && f.Restart == RestartPod }
func replacesContainer(f *Field) bool {
	return f != nil && f.Restart == RestartContainer
}

// replacedV1 is replacesContainer of hash version v1, where a change of resources
// replaced the container.
func replacedV1(f *Field) bool {
	return f != nil && (f.Restart == RestartContainer || f.Restart == Resize)
}

// replacesInit keeps everything of an init container that matters at all.
func replacesInit(f *Field) bool { return f != nil && f.Restart != RestartNone }

// appendCanon appends the canonical form of v. It appends nothing and reports
// false when nothing is set in v.
func (n *fieldNode) appendCanon(b []byte, v reflect.Value, k keep) ([]byte, bool) {
	pointer := v.Kind() == reflect.Pointer
	if pointer {
		if v.IsNil() {
			return b, false
		}
		v = v.Elem()
	}
	switch {
	case n.plain:
		return n.appendPlain(b, v, pointer, k)
	case v.Kind() == reflect.Slice:
		return n.appendList(b, v, k)
	}
	out, set := n.appendStruct(b, v, k)
	if !set && (!n.presence || !pointer || !k(n.row)) {
		return b, false
	}
	return out, true
}

func (n *fieldNode) appendPlain(b []byte, v reflect.Value, pointer bool, k keep) ([]byte, bool) {
	if !k(n.row) || !pointer && v.IsZero() || hasNone(v) || n.isDefault(v) {
		return b, false
	}
	switch kind := v.Kind(); {
	case kind == reflect.String:
		return appendText(b, v.String()), true
	case kind == reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), true
	case kind >= reflect.Int && kind <= reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10), true
	}
	return appendJSON(b, v.Interface()), true
}

// isDefault reports whether v is the default value, which equals an absent one.
func (n *fieldNode) isDefault(v reflect.Value) bool {
	if n.row == nil || n.row.Default == nil {
		return false
	}
	if text, ok := n.row.Default.(string); ok && v.Kind() == reflect.String {
		return text == v.String()
	}
	return fmt.Sprint(n.row.Default) == fmt.Sprint(v.Interface())
}

func (n *fieldNode) appendList(b []byte, v reflect.Value, k keep) ([]byte, bool) {
	// An element of a list counts even if k leaves out all of its fields; only the whole form keeps
	// empty elements in their places.
	whole := k(nil)
	start := len(b)
	var ends []int
	b = append(b, '[')
	for i := range v.Len() {
		if n.row != nil && n.row.Counts != nil && !whole && !n.row.Counts(v.Index(i).Interface()) {
			continue
		}
		item, set := n.appendStruct(b, v.Index(i), k)
		if set || whole {
			b = item
			b = append(b, ',')
			ends = append(ends, len(b))
		}
	}
	if len(ends) == 0 {
		return b[:start], false
	}
	if n.row != nil && n.row.Unordered && len(ends) > 1 {
		sortItems(b, start+1, ends)
	}
	b[len(b)-1] = ']'
	return b, true
}

// sortItems sorts the items of a list, each with its comma, that stand in b
// from start to each of ends.
func sortItems(b []byte, start int, ends []int) {
	text := bytes.Clone(b[start:])
	items := make([][]byte, len(ends))
	at := 0
	for i, end := range ends {
		items[i], at = text[at:end-start-1], end-start
	}
	slices.SortStableFunc(items, bytes.Compare)
	out := b[:start]
	for _, item := range items {
		out = append(append(out, item...), ',')
	}
}

// appendStruct appends an object of the fields that are set in struct v, and reports whether any
// is.
func (n *fieldNode) appendStruct(b []byte, v reflect.Value, k keep) ([]byte, bool) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	b = append(b, '{')
	set := false
	for _, kid := range n.sorted {
		start := len(b)
		if set {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), kid.name...), '"', ':')
		out, has := kid.appendCanon(b, kid.of(v), k)
		if !has {
			b = b[:start]
			continue
		}
		b, set = out, true
	}
	return append(b, '}'), set
}

// forms returns the canonical form of each field that is set in struct v.
func (n *fieldNode) forms(v reflect.Value, k keep) map[string]string {
	out := map[string]string{}
	for _, kid := range n.kids {
		if b, set := kid.appendCanon(nil, kid.of(v), k); set {
			out[kid.name] = string(b)
		}
	}
	return out
}

// of returns the node's field of struct v.
func (n *fieldNode) of(v reflect.Value) reflect.Value {
	if len(n.index) == 1 {
		return v.Field(n.index[0])
	}
	return v.FieldByIndex(n.index)
}

// appendText appends s as encoding/json writes it.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			return appendJSON(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendJSON(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		// A canonical value holds maps, lists, strings, numbers and booleans.
		panic("pod: encode canonical form: " + err.Error())
	}
	return append(b, text...)
}
