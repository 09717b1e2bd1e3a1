package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"text/tabwriter"

	"k8s.io/client-go/util/jsonpath"
)

// Format is the value of -o.
type Format struct {
	// Kind is text, wide, json, yaml, name, or one that takes an argument: jsonpath,
	// custom-columns.
	Kind     string
	template string
}

// ParseFormat reads a value of -o as kubectl does: a word, or jsonpath=TEMPLATE,
// jsonpath-file=FILE, custom-columns=…, custom-columns-file=….
func ParseFormat(text string) (Format, error) {
	switch text {
	case "text", "wide", "json", "yaml", "name":
		return Format{Kind: text}, nil
	}
	kind, argument, given := strings.Cut(text, "=")
	kind, fromFile := strings.CutSuffix(kind, "-file")
	switch kind {
	case "jsonpath", "custom-columns":
	case "go-template", "template", "templatefile":
		// Go templates call methods by name, for which the linker keeps every exported method
		// of every type: 20 MB.
		return Format{}, errors.New("Go templates are not supported; use jsonpath=… or custom-columns=…") //nolint:staticcheck // Go is a name
	default:
		return Format{}, errors.New("not one of text, wide, json, yaml, name, jsonpath=…, custom-columns=…")
	}
	if !given || argument == "" {
		return Format{}, fmt.Errorf("%s needs a template: %s=…", kind, kind)
	}
	if fromFile {
		data, err := os.ReadFile(argument)
		if err != nil {
			return Format{}, err
		}
		argument = string(data)
	}
	f := Format{Kind: kind, template: argument}
	if kind == "custom-columns" && fromFile {
		var err error
		if f.template, err = columnsOfFile(argument); err != nil {
			return Format{}, err
		}
	}
	_, err := f.render(map[string]any{"items": []any{}}, true)
	return f, err
}

// Table reports whether the format is a table.
func (f Format) Table() bool { return f.Kind == "text" || f.Kind == "wide" }

// Template reports whether the format is the user's template.
func (f Format) Template() bool { return f.template != "" }

// Render applies the format's template to a document: a Go value with JSON tags, which is an object
// or a List.
func (f Format) Render(document any) (string, error) {
	object, err := generic(document)
	if err != nil {
		return "", err
	}
	text, err := f.render(object, false)
	return cleanLines(text), err
}

// render writes an object; with check it only parses the template.
func (f Format) render(object map[string]any, check bool) (string, error) {
	var b bytes.Buffer
	switch f.Kind {
	case "jsonpath":
		p, err := parseJSONPath(f.template)
		if err != nil || check {
			return "", err
		}
		if err := p.Execute(&b, object); err != nil {
			return "", fmt.Errorf("jsonpath %s: %w", f.template, err)
		}
	case "custom-columns":
		return customColumns(f.template, object)
	}
	return b.String(), nil
}

// customColumns returns the table of HEADER:PATH,… over an object, or the items
// of a list.
func customColumns(spec string, object map[string]any) (string, error) {
	var paths []*jsonpath.JSONPath
	var header []string
	for part := range strings.SplitSeq(spec, ",") {
		name, path, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok || name == "" || path == "" {
			return "", fmt.Errorf("custom-columns: %q is not HEADER:PATH, as NAME:.metadata.name", part)
		}
		p, err := parseJSONPath(path)
		if err != nil {
			return "", fmt.Errorf("custom-columns: %s: %w", path, err)
		}
		header, paths = append(header, name), append(paths, p)
	}
	objects := []any{object}
	if items, ok := object["items"].([]any); ok {
		objects = items
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, o := range objects {
		var row []string
		for _, p := range paths {
			row = append(row, oneCell(found(p, o)))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	return trimLines(b.String()), nil
}

func oneCell(values []any) string {
	var all []string
	for _, v := range values {
		all = append(all, Clean(fmt.Sprint(v)))
	}
	if len(all) == 0 {
		return "<none>"
	}
	return strings.Join(all, ",")
}

// found returns the values of an object at a path, if any.
func found(p *jsonpath.JSONPath, object any) (values []any) {
	results, err := p.FindResults(object)
	if err != nil {
		return nil // an object of another form does not have the field either
	}
	for _, list := range results {
		for _, v := range list {
			if !v.IsValid() || (v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer) && v.IsNil() {
				continue
			}
			values = append(values, v.Interface())
		}
	}
	return values
}

// columnsOfFile reads a template of two lines, headers and paths.
func columnsOfFile(text string) (string, error) {
	rows := strings.Split(strings.TrimSpace(text), "\n")
	if len(rows) != 2 {
		return "", errors.New("custom-columns-file: want two lines: headers, then paths")
	}
	names, paths := strings.Fields(rows[0]), strings.Fields(rows[1])
	if len(names) != len(paths) {
		return "", fmt.Errorf("custom-columns-file: has %d headers but %d paths", len(names), len(paths))
	}
	var all []string
	for i := range names {
		all = append(all, names[i]+":"+paths[i])
	}
	return strings.Join(all, ","), nil
}

// parseJSONPath reads a template. Fields that an object does not have are no error.
func parseJSONPath(template string) (*jsonpath.JSONPath, error) {
	p := jsonpath.New("").AllowMissingKeys(true)
	return p, p.Parse(relaxed(template))
}

// relaxed puts braces around a path that has none, as kubectl does.
func relaxed(path string) string {
	if strings.Contains(path, "{") {
		return path
	}
	return "{." + strings.TrimPrefix(path, ".") + "}"
}

// generic returns a value as decoded JSON.
func generic(v any) (map[string]any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	in := json.NewDecoder(bytes.NewReader(data))
	err = in.Decode(&object)
	return object, err
}

// cleanLines returns several lines of text safe for a terminal.
func cleanLines(text string) string {
	if clean(strings.NewReplacer("\n", "", "\t", "").Replace(text)) {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body, end := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(body, "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(Clean(part))
		}
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}
