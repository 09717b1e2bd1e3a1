package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/ui"
)

// schema is the part of JSON Schema that docs/schemas uses. Reading a schema with another
// keyword fails, so that every keyword is checked.
type schema struct {
	Dialect     string             `json:"$schema"`
	ID          string             `json:"$id"`
	Title       string             `json:"title"`
	Description string             `json:"description"`
	Ref         string             `json:"$ref"`
	Defs        map[string]*schema `json:"$defs"`
	Type        string             `json:"type"`
	Const       any                `json:"const"`
	Enum        []any              `json:"enum"`
	Minimum     *float64           `json:"minimum"`
	Properties  map[string]*schema `json:"properties"`
	Required    []string           `json:"required"`
	Additional  *bool              `json:"additionalProperties"`
	Items       *schema            `json:"items"`
}

// checkSchema checks every document in text against a schema file, and counts them.
func checkSchema(file, text string) (problems []string, documents int) {
	s, err := readSchema(file)
	if err != nil {
		return []string{err.Error()}, 0
	}
	for dec := json.NewDecoder(strings.NewReader(text)); ; documents++ {
		var doc any
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			return problems, documents
		} else if err != nil {
			return append(problems, err.Error()), documents
		}
		problems = append(problems, s.check(s, fmt.Sprintf("document %d: $", documents+1), doc)...)
	}
}

func readSchema(file string) (*schema, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	s := &schema{}
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func (s *schema) check(root *schema, path string, v any) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, path+": "+fmt.Sprintf(format, args...))
	}
	if s.Ref != "" {
		def := root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
		if def == nil {
			bad("no definition %s", s.Ref)
			return problems
		}
		return def.check(root, path, v)
	}
	if s.Const != nil && s.Const != v {
		bad("%v is not %v", v, s.Const)
	}
	if s.Enum != nil && !slices.Contains(s.Enum, v) {
		bad("%v is none of %v", v, s.Enum)
	}
	if s.Type == "" {
		return problems // anything
	}
	switch v := v.(type) {
	case map[string]any:
		if s.Type != "object" {
			bad("an object, not %s", s.Type)
		}
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				bad("%s is missing", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			switch p := s.Properties[name]; {
			case p != nil:
				problems = append(problems, p.check(root, path+"."+name, v[name])...)
			case s.Additional != nil && !*s.Additional:
				bad("%s is not in the schema", name)
			}
		}
	case []any:
		if s.Type != "array" {
			bad("a list, not %s", s.Type)
		} else if s.Items != nil {
			for i, item := range v {
				problems = append(problems, s.Items.check(root, fmt.Sprintf("%s[%d]", path, i), item)...)
			}
		}
	case string:
		if s.Type != "string" {
			bad("text, not %s", s.Type)
		}
	case bool:
		if s.Type != "boolean" {
			bad("a boolean, not %s", s.Type)
		}
	case float64:
		if s.Type != "number" && (s.Type != "integer" || v != math.Trunc(v)) {
			bad("a number, not %s", s.Type)
		}
		if s.Minimum != nil && v < *s.Minimum {
			bad("%v is less than %v", v, *s.Minimum)
		}
	case nil:
		bad("null")
	}
	return problems
}

// TestSchemas_GoldenDocuments_AreValid checks the golden documents of package ui against the
// schemas, and that each schema refuses an invalid document.
func TestSchemas_GoldenDocuments_AreValid(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{"mergeplan": "plan.json", "podupdate": "updates.jsonl", "runreport": "report.json", "sourcelist": "sources.json"} {
		data, err := os.ReadFile(filepath.Join("../pkg/ui/testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("../docs/schemas", name+".json")
		if problems, n := checkSchema(path, string(data)); len(problems) > 0 || n == 0 {
			t.Errorf("%s: %d documents, %s", name, n, strings.Join(problems, "\n"))
		}
		s, err := readSchema(path)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := json.NewDecoder(strings.NewReader(string(data))).Decode(&doc); err != nil {
			t.Fatal(err)
		}
		for field := range doc {
			less := maps.Clone(doc)
			delete(less, field)
			if len(s.check(s, "$", less)) == 0 {
				t.Errorf("%s: the schema does not miss %s", name, field)
			}
		}
	}
}

// TestSchemas_OptionalFields_AreThoseOfTheDocument: these documents leave out most fields most of
// the time, so that no example shows all of them.
func TestSchemas_OptionalFields_AreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]reflect.Type{"whyreport": reflect.TypeFor[ui.WhyReport](), "deviceresourcelist": reflect.TypeFor[ui.DeviceList](), "allocationlist": reflect.TypeFor[ui.AllocationList]()} {
		s, err := readSchema("../docs/schemas/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range s.compare(s, "$", of) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// compare returns how a schema differs from the JSON of a type: in types, in fields, and in which of
// them are always present.
func (s *schema) compare(root *schema, path string, of reflect.Type) (problems []string) {
	if s != nil && s.Ref != "" {
		s = root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
	}
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	types := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Slice: "array", reflect.Struct: "object"}
	want := types[of.Kind()]
	if of == reflect.TypeFor[time.Time]() {
		want = "string"
	}
	if s == nil || s.Type != want {
		return []string{path + ": not the schema of " + of.String()}
	}
	switch want {
	case "array":
		return s.Items.compare(root, path+"[]", of.Elem())
	case "object":
	default:
		return nil
	}
	var fields, required []string
	for _, f := range reflect.VisibleFields(of) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields = append(fields, name)
		if options == "" {
			required = append(required, name)
		}
		problems = append(problems, s.Properties[name].compare(root, path+"."+name, f.Type)...)
	}
	slices.Sort(fields)
	if has := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(has, fields) {
		problems = append(problems, fmt.Sprintf("%s: the schema has the fields %q, the document %q", path, has, fields))
	}
	if !slices.Equal(s.Required, required) {
		problems = append(problems, fmt.Sprintf("%s: the schema requires %q, the document always has %q", path, s.Required, required))
	}
	return problems
}
