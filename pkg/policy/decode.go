package policy

import (
	"fmt"
	"iter"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nodectl/nodectl/pkg/pod"
)

// text is a string and where it is written; line 0 is nowhere.
type text struct {
	value        string
	line, column int
	path         string
}

// number is a whole number.
type number struct{ value int64 }

// decoder reads YAML strictly into structs of text, number, bool, slices and pointers: every key is
// known and occurs once, and every value has its type. A key without a value is a mistake, because
// its meaning is open. It finds all mistakes.
type decoder struct {
	file     string
	similar  func(word string, known []string) string
	problems []pod.Problem
}

func (d *decoder) problem(at text, msg, hint string) {
	d.problems = append(d.problems, pod.Problem{File: d.file, Line: at.line, Column: at.column, Path: at.path, Msg: msg, Hint: hint})
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// broken records that the file is no YAML.
func (d *decoder) broken(err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(m[1])
	d.problem(text{line: max(line, 1)}, "not valid YAML: "+strings.TrimPrefix(err.Error(), m[0]), "")
}

// oneOf reports a word that is written and is none of those that are known.
func (d *decoder) oneOf(t text, known []string) {
	if t.line == 0 || slices.Contains(known, t.value) {
		return
	}
	d.problem(t, fmt.Sprintf("%s is not one of %s%s", quote(t.value), strings.Join(known, ", "), d.meant(t.value, known)), "")
}

func (d *decoder) meant(word string, known []string) string {
	if like := d.similar(word, known); like != "" {
		return fmt.Sprintf(" (did you mean %q?)", like)
	}
	return ""
}

// decode reads a node into the target of a pointer.
func (d *decoder) decode(n *yaml.Node, into any) {
	d.value(n, reflect.ValueOf(into).Elem(), "")
}

func (d *decoder) value(n *yaml.Node, into reflect.Value, path string) {
	at := text{line: n.Line, column: n.Column, path: path}
	switch {
	case n.Kind == yaml.AliasNode:
		d.problem(at, "a policy must not contain YAML aliases", "write the value itself")
		return
	case n.Tag == "!!null":
		d.problem(at, "has no value", "remove the key, or write [] for an empty list")
		return
	}
	switch kind := into.Kind(); {
	case into.Type() == reflect.TypeFor[text]():
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			d.problem(at, "expected a string, got "+kindOf(n), quoted(n))
			return
		}
		at.value = n.Value
		into.Set(reflect.ValueOf(at))
	case into.Type() == reflect.TypeFor[number]():
		value, err := strconv.ParseInt(n.Value, 10, 32)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil {
			d.problem(at, "expected a whole number of 32 bits, got "+kindOf(n), "")
			return
		}
		into.Set(reflect.ValueOf(number{value}))
	case kind == reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
			d.problem(at, "expected true or false, got "+kindOf(n), "")
			return
		}
		into.SetBool(strings.EqualFold(n.Value, "true"))
	case kind == reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.value(n, into.Elem(), path)
	case kind == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.problem(at, "expected a list, got "+kindOf(n), "")
			return
		}
		into.Set(reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.value(item, into.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		d.object(n, into, at)
	}
}

func (d *decoder) object(n *yaml.Node, into reflect.Value, at text) {
	if n.Kind != yaml.MappingNode {
		d.problem(at, "expected an object, got "+kindOf(n), "")
		return
	}
	fields := map[string]reflect.Value{}
	var known []string
	for field, value := range fieldsOf(into) {
		fields[field], known = value, append(known, field)
	}
	slices.Sort(known)
	if field := into.FieldByName("At"); field.IsValid() {
		field.Set(reflect.ValueOf(at))
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		here := text{line: key.Line, column: key.Column, path: strings.TrimPrefix(at.path+"."+key.Value, ".")}
		field, ok := fields[key.Value]
		switch {
		case !ok:
			d.problem(here, fmt.Sprintf("unknown field %s%s", quote(key.Value), d.meant(key.Value, known)), "")
		case first[key.Value] > 0:
			d.problem(here, fmt.Sprintf("field %q is written twice, first at line %d", key.Value, first[key.Value]), "")
		default:
			first[key.Value] = key.Line
			d.value(n.Content[i+1], field, here.path)
		}
	}
}

// fieldsOf yields the fields of a struct by their keys, those of embedded ones
// included.
func fieldsOf(v reflect.Value) iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case f.Anonymous:
				fieldsOf(v.Field(i))(yield)
			case f.Tag.Get("yaml") == "-":
			case !yield(f.Tag.Get("yaml"), v.Field(i)):
				return
			}
		}
	}
}

func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "an object"
	case n.Tag == "!!bool":
		return "a boolean"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	case n.Tag == "!!str":
		return "a string"
	}
	return "something else"
}

// quoted is the hint to a plain value that YAML takes for something else.
func quoted(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return ""
	}
	return "quote it: " + quote(n.Value)
}
