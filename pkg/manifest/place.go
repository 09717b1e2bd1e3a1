package manifest

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// place is the place of a value in the file, with those of the values in it. All aliases of a value share
// its place.
type place struct {
	line, col int
	// text is the text of a scalar in the file. plain says that it is not quoted.
	text   string
	plain  bool
	scalar bool
	fields []placeField
	items  []*place
	// twice has the repeated keys.
	twice []duplicate
	// index has the indexes of the fields of a large object, by name; field makes it.
	index map[string]int
}

type placeField struct {
	name      string
	line, col int // of the key
	value     *place
}

type duplicate struct {
	name      string
	line, col int // of the repeated key
	first     int // the line of the first one
}

// field returns the last field with this name, since decoders use that one; nil for none.
func (p *place) field(name string) *placeField {
	if p.index == nil && len(p.fields) > 16 {
		p.index = make(map[string]int, len(p.fields))
		for i := range p.fields {
			p.index[p.fields[i].name] = i
		}
	}
	if p.index != nil {
		if i, ok := p.index[name]; ok {
			return &p.fields[i]
		}
		return nil
	}
	for i := len(p.fields) - 1; i >= 0; i-- {
		if p.fields[i].name == name {
			return &p.fields[i]
		}
	}
	return nil
}

// setFields sets the fields, and notes the repeated names.
func (p *place) setFields(fs []placeField) {
	first := make(map[string]int, len(fs))
	for _, f := range fs {
		if line, twice := first[f.name]; twice {
			p.twice = append(p.twice, duplicate{name: f.name, line: f.line, col: f.col, first: line})
		} else {
			first[f.name] = f.line
		}
	}
	p.fields = fs
}

// find returns the line and column of a field path. For a scalar it is the place of the value, for
// other fields the place of the key. For a field that is not in the document, it is the place of
// the nearest parent.
func (p *place) find(path string) (line, col int) {
	line, col = p.line, p.col
	for _, step := range steps(path) {
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(p.items) {
			p = p.items[i]
			line, col = p.line, p.col
			continue
		}
		f := p.field(step)
		if f == nil {
			break
		}
		p = f.value
		line, col = f.line, f.col
		if p.scalar {
			line, col = p.line, p.col
		}
	}
	return line, col
}

// key returns the line and column of the key of a field path's last step.
func (p *place) key(path string) (line, col int) {
	s := steps(path)
	if len(s) == 0 {
		return p.line, p.col
	}
	for _, step := range s[:len(s)-1] {
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(p.items) {
			p = p.items[i]
		} else if f := p.field(step); f != nil {
			p = f.value
		} else {
			return p.line, p.col
		}
	}
	if f := p.field(s[len(s)-1]); f != nil {
		return f.line, f.col
	}
	return p.line, p.col
}

// written reports whether the file has a value at a field path.
func (p *place) written(path string) bool {
	for _, step := range steps(path) {
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(p.items) {
			p = p.items[i]
		} else if f := p.field(step); f != nil {
			p = f.value
		} else {
			return false
		}
	}
	return true
}

// steps cuts a field path: "a.b[0][c.d]" has the steps a, b, 0 and c.d.
func steps(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			in, rest, _ := strings.Cut(path[1:], "]")
			out = append(out, in)
			path = rest
		default:
			i := strings.IndexAny(path, ".[")
			if i < 0 {
				i = len(path)
			}
			out = append(out, path[:i])
			path = path[i:]
		}
	}
	return out
}

// placer converts YAML nodes to places.
type placer struct {
	above int // how many lines of the file precede the text of the nodes
	known map[*yaml.Node]*place
}

func (b *placer) place(n *yaml.Node) *place {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Anchor != "" {
		if p, ok := b.known[n]; ok {
			return p
		}
	}
	p := &place{line: n.Line + b.above, col: n.Column}
	switch n.Kind {
	case yaml.ScalarNode:
		p.scalar, p.text, p.plain = true, n.Value, n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	case yaml.SequenceNode:
		for _, c := range n.Content {
			p.items = append(p.items, b.place(c))
		}
	case yaml.MappingNode:
		b.mapping(p, n)
	}
	if n.Anchor != "" {
		b.known[n] = p
	}
	return p
}

func (b *placer) mapping(p *place, n *yaml.Node) {
	var fields []placeField
	var merged []*place
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.Tag == "!!merge" {
			m := b.place(v)
			merged = append(append(merged, m), m.items...)
			continue
		}
		fields = append(fields, placeField{name: keyName(k), line: k.Line + b.above, col: k.Column, value: b.place(v)})
	}
	p.setFields(fields)
	if len(merged) == 0 {
		return
	}
	known := make(map[string]bool, len(p.fields))
	for _, f := range p.fields {
		known[f.name] = true
	}
	for _, m := range merged {
		for _, f := range m.fields {
			if !known[f.name] {
				known[f.name] = true
				p.fields = append(p.fields, f)
			}
		}
	}
}

// keyName returns the name of a key in JSON. YAML 1.1 reads y, no or on without quotes as a boolean.
func keyName(k *yaml.Node) string {
	if k.Kind == yaml.AliasNode {
		k = k.Alias
	}
	if k.Style == 0 {
		if b, ok := yamlBool(k.Value); ok {
			return strconv.FormatBool(b)
		}
	}
	return k.Value
}

// yamlBool returns the value of a word that YAML 1.1 reads as a boolean; ok is false for others.
func yamlBool(s string) (value, ok bool) {
	switch s {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}
