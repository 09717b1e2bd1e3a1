package manifest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// checker compares a decoded value with its Go type. It finds all unknown fields, repeated fields and
// values of another type. A decoder would stop at the first one.
type checker struct {
	validate string
	secret   bool // problems must not contain values
	o        object
	guesses  *int // how many guesses were made for the file
	problems []pod.Problem
	warnings []pod.Problem
	slow     bool // the object has a quantity that must not be decoded, see slowToParse
	// above has the types of the objects that contain the current one, outermost first. They show
	// where a misplaced field belongs.
	above []level
}

type level struct {
	t    reflect.Type
	path string
}

// field records an unknown or duplicate field as a problem or a warning, by Options.Validate.
func (c *checker) field(p pod.Problem) {
	switch c.validate {
	case Ignore:
	case Warn:
		c.warnings = append(c.warnings, p)
	default:
		c.problems = append(c.problems, p)
	}
}

// check compares the value v with the type t. at is its place, path its field path.
func (c *checker) check(t reflect.Type, v any, at *place, path string) {
	if v == nil {
		return
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if custom(t) {
		c.checkCustom(t, v, at, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		c.checkStruct(t, v, at, path)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			c.mistyped("an object", v, at, path)
			return
		}
		c.duplicates(at, path)
		for _, name := range slices.Sorted(maps.Keys(m)) {
			c.check(t.Elem(), m[name], inner(at, name), path+"["+name+"]")
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			c.checkBytes(v, at, path)
			return
		}
		list, ok := v.([]any)
		if !ok {
			c.mistyped("a list", v, at, path)
			return
		}
		for i, item := range list {
			c.check(t.Elem(), item, innerItem(at, i), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		c.checkScalar(t, v, at, path)
	}
}

func (c *checker) checkStruct(t reflect.Type, v any, at *place, path string) {
	m, ok := v.(map[string]any)
	if !ok {
		c.mistyped("an object", v, at, path)
		return
	}
	c.duplicates(at, path)
	c.above = append(c.above, level{t, path})
	known := structFields()[t]
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if ft, ok := known[name]; ok {
			c.check(ft, m[name], inner(at, name), join(path, name))
			continue
		}
		c.field(c.unknown(at, path, name))
	}
	c.above = c.above[:len(c.above)-1]
}

func (c *checker) unknown(at *place, path, name string) pod.Problem {
	p := pod.Problem{Line: at.line, Column: at.col, Path: c.o.path + join(path, name), Msg: "unknown field " + quote(name)}
	if f := at.field(name); f != nil {
		p.Line, p.Column = f.line, f.col
	}
	here := c.above[len(c.above)-1]
	if best := c.guess(name, fieldNames(here.t)); best != "" {
		p.Msg += fmt.Sprintf(" (did you mean %q?)", best)
		return p
	}
	for _, l := range slices.Backward(c.above[:len(c.above)-1]) {
		if _, ok := structFields()[l.t][name]; ok {
			where := c.o.path + l.path
			if where == "" {
				where = "the object itself"
			}
			p.Hint = fmt.Sprintf("%q belongs to %s: check the indentation", name, where)
			break
		}
	}
	return p
}

// guess is nearest for the first 50 unknown names of a file. A file with only unknown names would take
// minutes otherwise.
func (c *checker) guess(name string, known []string) string {
	const most = 50
	if *c.guesses++; *c.guesses > most {
		return ""
	}
	return nearest(name, known)
}

func (c *checker) duplicates(at *place, path string) {
	for _, d := range at.twice {
		c.field(pod.Problem{Line: d.line, Column: d.col, Path: c.o.path + join(path, d.name),
			Msg: fmt.Sprintf("field %s is written twice, first at line %d", quote(d.name), d.first)})
	}
}

func (c *checker) checkScalar(t reflect.Type, v any, at *place, path string) {
	switch kind := t.Kind(); {
	case kind == reflect.String:
		if _, ok := v.(string); !ok {
			c.mistyped("a string", v, at, path)
		}
	case kind == reflect.Bool:
		if _, ok := v.(bool); !ok {
			c.mistyped("true or false", v, at, path)
		}
	case kind >= reflect.Int && kind <= reflect.Int64:
		n, ok := v.(json.Number)
		if !ok {
			c.mistyped("a whole number", v, at, path)
			return
		}
		if _, err := strconv.ParseInt(n.String(), 10, t.Bits()); err != nil {
			c.bad(fmt.Sprintf("%s is not a whole number between -2^%d and 2^%[2]d-1", c.show(n.String()), t.Bits()-1), "", at, path)
		}
	}
}

func (c *checker) checkBytes(v any, at *place, path string) {
	s, ok := v.(string)
	if !ok {
		c.mistyped("a string in base64", v, at, path)
		return
	}
	if _, err := base64.StdEncoding.DecodeString(strings.NewReplacer("\r", "", "\n", "").Replace(s)); err != nil {
		hint := ""
		if c.secret {
			hint = "plain text belongs under stringData"
		}
		c.bad("not base64", hint, at, path)
	}
}

// checkCustom checks a value with the decoder of its type.
func (c *checker) checkCustom(t reflect.Type, v any, at *place, path string) {
	if t == reflect.TypeFor[resource.Quantity]() && slowToParse(fmt.Sprint(v)) {
		c.slow = true
		c.bad("not a quantity: it has too many digits", fmt.Sprintf("an exponent may have up to %d digits", longestExponent), at, path)
		return
	}
	js, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(js, reflect.New(t).Interface())
	}
	if err == nil {
		return
	}
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		c.bad(fmt.Sprintf("%s is not a quantity", c.show(text(v, at))), `write cpu as "500m" or 2, memory as "64Mi" or "1Gi"`, at, path)
	case reflect.TypeFor[intstr.IntOrString]():
		c.mistyped("a number or a name", v, at, path)
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		c.bad(fmt.Sprintf("%s is not a time", c.show(text(v, at))), "write it as 2006-01-02T15:04:05Z", at, path)
	default:
		c.bad("not valid here", "", at, path)
	}
}

func (c *checker) bad(msg, hint string, at *place, path string) {
	line, col := at.line, at.col
	if !at.scalar {
		if l, k := c.o.at.key(path); l > 0 {
			line, col = l, k
		}
	}
	c.problems = append(c.problems, pod.Problem{Line: line, Column: col, Path: c.o.path + path, Msg: msg, Hint: hint})
}

// mistyped records a value of another type than want. If YAML has read a word as that type, it adds a
// hint.
func (c *checker) mistyped(want string, v any, at *place, path string) {
	got, hint := "", ""
	switch v := v.(type) {
	case bool:
		got = "a boolean"
		if at.plain && at.scalar && strings.HasPrefix(want, "a string") {
			if w := at.text; w != "true" && w != "false" {
				hint = fmt.Sprintf("YAML reads %s as %t: ", w, v)
			}
			hint += "quote it: " + quote(at.text)
		}
	case json.Number:
		got = "a number"
		if at.plain && at.scalar && strings.HasPrefix(want, "a string") {
			hint = "quote it: " + quote(at.text)
		}
	case string:
		got = "a string"
		if _, isBool := yamlBool(v); want == "true or false" && isBool {
			hint = "write it without quotes"
		} else if _, err := strconv.Atoi(v); want == "a whole number" && err == nil {
			hint = "write it without quotes"
		}
	case []any:
		got = "a list"
	case map[string]any:
		got = "an object"
	}
	if c.secret {
		hint = ""
	}
	c.bad(fmt.Sprintf("expected %s, got %s", want, got), hint, at, path)
}

// show returns a value in quotes for a message; "the value" for that of a Secret.
func (c *checker) show(s string) string {
	if c.secret {
		return "the value"
	}
	return quote(s)
}

// text returns a value as text: that in the file for a scalar, else JSON.
func text(v any, at *place) string {
	if at.scalar {
		return at.text
	}
	js, _ := json.Marshal(v)
	return string(js)
}

// inner returns the place of a field, or that of the object if the field has none.
func inner(at *place, name string) *place {
	if f := at.field(name); f != nil {
		return f.value
	}
	return at
}

func innerItem(at *place, i int) *place {
	if i < len(at.items) {
		return at.items[i]
	}
	return at
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// structFields returns the types of the fields by their JSON names, for each struct type in the objects
// that the package reads. It is made once and does not change.
var structFields = sync.OnceValue(func() map[reflect.Type]map[string]reflect.Type {
	all := map[reflect.Type]map[string]reflect.Type{}
	for _, t := range []reflect.Type{reflect.TypeFor[v1.Pod](), reflect.TypeFor[v1.ConfigMap](), reflect.TypeFor[v1.Secret](), reflect.TypeFor[v1.PersistentVolumeClaim](), reflect.TypeFor[v1.Service]()} {
		collect(t, all)
	}
	for _, kind := range pod.WorkloadKinds() {
		collect(typeOf(pod.NewWorkload(kind)), all)
	}
	return all
})

func collect(t reflect.Type, all map[reflect.Type]map[string]reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || all[t] != nil || custom(t) {
		return
	}
	fields := map[string]reflect.Type{}
	all[t] = fields
	var open func(reflect.Type)
	open = func(t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-":
			case name == "" && f.Anonymous:
				open(f.Type)
			case name != "":
				fields[name] = f.Type
				collect(f.Type, all)
			}
		}
	}
	open(t)
}

// custom reports whether a type has its own JSON decoder.
func custom(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

func fieldNames(t reflect.Type) []string {
	var out []string
	for name := range structFields()[t] {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
