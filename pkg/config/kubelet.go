package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Document is the content of one file.
type Document struct {
	File string
	Data []byte
}

// Layer has the settings of a KubeletConfiguration and its drop-ins.
type Layer struct {
	// Values holds the values by setting, in the form of nodectl's own configuration file: a text,
	// or a list of texts.
	Values map[string]any
	// Places holds the place of each value, as file:line.
	Places map[string]string
	// Unknown names fields that a KubeletConfiguration does not have, each with its place
	// (C-1.44.1).
	Unknown []string
	// Ignored names unsupported fields whose values differ from nodectl's behaviour,
	// each with its place.
	Ignored []string
}

// The group, version and kind of a KubeletConfiguration.
const (
	kubeletVersion = "kubelet.config.k8s.io/v1beta1"
	kubeletKind    = "KubeletConfiguration"
)

// IsKubelet reports whether data has the kind of a KubeletConfiguration. It is false for data that
// is not YAML.
func IsKubelet(data []byte) bool {
	var head struct {
		Kind string `yaml:"kind"`
	}
	return yaml.Unmarshal(data, &head) == nil && head.Kind == kubeletKind
}

// Given is a field that a flag of the kubelet sets.
type Given struct {
	Path string // authentication.anonymous.enabled
	Text string // "a,b" for a list, "a=b,c=d" for a map
	By   string // --anonymous-auth
}

// ReadKubelet merges a KubeletConfiguration, its drop-ins and fields set by flags. A later value
// wins, lists are replaced, maps are merged key by key, null resets a field (C-1.44.1). Each field
// is honoured, or listed in Ignored, or rejected. The error names each rejected field and its
// place.
func ReadKubelet(docs []Document, given []Given) (Layer, error) {
	r := kubeletReader{rows: kubeletRows(), leaves: map[string]leaf{}}
	for _, d := range docs {
		if err := r.document(d); err != nil {
			return Layer{}, err
		}
	}
	for _, g := range given {
		row := r.rows[g.Path]
		if err := r.put(row, row.kind.node(g.Text), leaf{where: g.By}); err != nil {
			return Layer{}, fmt.Errorf("%s %w", g.By, err)
		}
	}
	return r.layer()
}

// leaf is the value of one field.
type leaf struct {
	texts []string            // the items of a list; one for a scalar
	pairs map[string][]string // of a map
	where string              // file:line
	file  string
}

func (l leaf) text() string {
	if len(l.texts) == 0 {
		return ""
	}
	return l.texts[0]
}

// kubeletReader merges documents.
type kubeletReader struct {
	rows    map[string]kubeletRow
	leaves  map[string]leaf
	unknown []string
}

func (r *kubeletReader) document(d Document) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(d.Data, &doc); err != nil {
		return fmt.Errorf("%s: %s", d.File, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return fmt.Errorf("%s: is not a %s", d.File, kubeletKind)
	}
	var head struct {
		Version string `yaml:"apiVersion"`
		Kind    string `yaml:"kind"`
	}
	if err := doc.Decode(&head); err != nil || head.Kind != kubeletKind || head.Version != kubeletVersion {
		return fmt.Errorf("%s: expected kind %s of %s, got kind %q of %q", d.File, kubeletKind, kubeletVersion, head.Kind, head.Version)
	}
	return r.walk(d.File, "", doc.Content[0])
}

// walk reads the fields of one object of the configuration.
func (r *kubeletReader) walk(file, above string, object *yaml.Node) error {
	seen := map[string]bool{}
	for i := 0; i < len(object.Content); i += 2 {
		key, n := object.Content[i], resolved(object.Content[i+1])
		where := fmt.Sprintf("%s:%d", file, key.Line)
		path := above + key.Value
		row, known := r.rows[path]
		switch {
		case above == "" && (key.Value == "apiVersion" || key.Value == "kind"):
			continue
		case !known && !r.holds(path):
			r.unknown = append(r.unknown, path+" ("+where+")")
			continue
		case seen[path]:
			r.unknown = append(r.unknown, path+" (repeated, "+where+")")
		}
		seen[path] = true
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			r.forget(path)
			continue
		}
		if !known {
			if n.Kind != yaml.MappingNode {
				return fmt.Errorf("%s: %s takes fields, not a value", where, path)
			}
			if err := r.walk(file, path+".", n); err != nil {
				return err
			}
			continue
		}
		if err := r.put(row, n, leaf{where: where, file: file}); err != nil {
			return fmt.Errorf("%s: %s %w", where, path, err)
		}
	}
	return nil
}

// resolved returns the target of an alias.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// holds reports whether there are fields below path.
func (r *kubeletReader) holds(path string) bool {
	for p := range r.rows {
		if strings.HasPrefix(p, path+".") {
			return true
		}
	}
	return false
}

func (r *kubeletReader) forget(path string) {
	for p := range r.leaves {
		if p == path || strings.HasPrefix(p, path+".") {
			delete(r.leaves, p)
		}
	}
}

// put sets a field to the value of n. A zero counts as "not set" if the type cannot distinguish the
// two.
func (r *kubeletReader) put(row kubeletRow, n *yaml.Node, l leaf) (err error) {
	if l.texts, l.pairs, err = row.kind.read(n); err != nil {
		return err
	}
	if old := r.leaves[row.path].pairs; l.pairs != nil && old != nil {
		merged := map[string][]string{}
		for _, m := range []map[string][]string{old, l.pairs} {
			for k, v := range m {
				if merged[k] = v; v == nil { // null removes a key
					delete(merged, k)
				}
			}
		}
		l.pairs = merged
	}
	if row.zero && slices.Contains(row.kind.zeros(), l.text()) && l.pairs == nil && len(l.texts) < 2 {
		delete(r.leaves, row.path)
		return nil
	}
	r.leaves[row.path] = l
	return nil
}

// layer turns the fields into settings.
func (r *kubeletReader) layer() (Layer, error) {
	out := Layer{Values: map[string]any{}, Places: map[string]string{}, Unknown: r.unknown}
	var refused []error
	for _, row := range kubeletTable() {
		l, set := r.leaves[row.path]
		if !set {
			continue
		}
		if row.refuse != nil {
			if msg := row.refuse(l); msg != "" {
				refused = append(refused, fmt.Errorf("%s: %s: %s", l.where, row.path, msg))
				continue
			}
		}
		if row.conflict != nil {
			if msg := row.conflict(l, r.leaves); msg != "" {
				refused = append(refused, fmt.Errorf("%s: %s: %s", l.where, row.path, msg))
				continue
			}
		}
		if row.setting != "" {
			if value := row.value(l, r.leaves); value != nil {
				out.set(row.setting, value, l.where)
			}
		}
		for gate, setting := range row.gates {
			if value := l.gate(gate); value != "" {
				out.set(setting, value, l.where)
			}
		}
		for gate, off := range row.off {
			if l.gate(gate) == "false" {
				out.set(off.setting, off.value, l.where)
			}
		}
		if name := row.ignored(l); name != "" {
			out.Ignored = append(out.Ignored, name+" ("+l.where+")")
		}
	}
	return out, errors.Join(refused...)
}

// set sets a setting to the value of a field.
func (l *Layer) set(setting string, value any, where string) {
	l.Values[setting] = value
	if !strings.HasPrefix(l.Places[setting], "--") { // a flag's place wins over a field's
		l.Places[setting] = where
	}
}

// ignored names an unsupported field whose value differs from nodectl's behaviour; "" for
// any other.
func (row kubeletRow) ignored(l leaf) string {
	if row.warning != nil {
		return row.warning(l)
	}
	if row.any || row.outcome == honoured && row.matching == nil {
		return ""
	}
	if l.pairs == nil && slices.Contains(row.matching, strings.Join(l.texts, ",")) || len(l.texts)+len(l.pairs) == 0 {
		return ""
	}
	return row.path
}
