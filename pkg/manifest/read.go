package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
)

// doc is one decoded document. A nil value is a document that says nothing.
type doc struct {
	value any
	json  []byte // the value as JSON; nil when value is the only form there is
	at    *place
	nodes int
}

// decode reads the documents of a chunk: one of YAML, or a run of JSON values.
// budget is how many nodes the file may still have.
func (c chunk) decode(isJSON bool, budget int) ([]doc, *pod.Problem) {
	if trimmed := bytes.TrimLeft(c.text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		docs, jsonProblem := c.decodeJSON(budget)
		if jsonProblem == nil {
			return docs, nil
		}
		var limit limitError
		if isJSON || errors.As(jsonProblem.err, &limit) {
			return docs, &jsonProblem.Problem
		}
	}
	d, problem := c.decodeYAML(budget)
	if problem != nil {
		return nil, problem
	}
	return []doc{d}, nil
}

// limitError says that a document is too much, whatever its syntax.
type limitError string

func (e limitError) Error() string { return string(e) }

func tooDeep() error {
	return limitError(fmt.Sprintf("nested more than %d levels deep", maxDepth))
}

func tooMany() error {
	return limitError(fmt.Sprintf("more than %d values, aliases counted as what they stand for", maxNodes))
}

// decodeYAML reads one document: its meaning is YAML 1.1 turned into JSON, as
// the kubelet reads it (C-1.5.1), its places come from the nodes.
func (c chunk) decodeYAML(budget int) (d doc, problem *pod.Problem) {
	defer func() {
		// A parser that meets text it was not made for must not end the agent.
		if r := recover(); r != nil {
			d, problem = doc{}, &pod.Problem{Line: c.line, Msg: "cannot be read as YAML"}
		}
	}()
	if moreNodes(c.text, 2*budget) {
		return doc{}, c.yamlProblem(tooMany())
	}
	var root yaml.Node
	if err := yaml.Unmarshal(c.text, &root); err != nil {
		return doc{}, c.yamlProblem(err)
	}
	if len(root.Content) == 0 {
		return doc{}, nil
	}
	m := meter{known: map[*yaml.Node]size{}}
	switch s, err := m.measure(root.Content[0]); {
	case err != nil:
		return doc{}, c.yamlProblem(err)
	case s.height > maxDepth:
		return doc{}, c.yamlProblem(tooDeep())
	case s.nodes > budget:
		return doc{}, c.yamlProblem(tooMany())
	default:
		d.nodes = s.nodes
	}
	js, err := sigsyaml.YAMLToJSON(c.text)
	if err != nil {
		return doc{}, c.yamlProblem(err)
	}
	if d.value, err = decodeValue(js); err != nil {
		return doc{}, c.yamlProblem(err)
	}
	b := placer{above: c.line - 1, known: map[*yaml.Node]*place{}}
	d.json, d.at = js, b.place(root.Content[0])
	return d, nil
}

func decodeValue(js []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(js))
	dec.UseNumber()
	return v, dec.Decode(&v)
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// yamlProblem puts a YAML error into a problem at its line.
func (c chunk) yamlProblem(err error) *pod.Problem {
	msg := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	p := &pod.Problem{Line: c.line}
	m := yamlLine.FindStringSubmatch(msg)
	if n, err := strconv.Atoi(m[1]); err == nil {
		p.Line = c.line + n - 1
	}
	p.Msg = strings.TrimSpace(strings.TrimPrefix(msg, m[0]))
	var limit limitError
	switch {
	case errors.As(err, &limit):
		p.Hint = "split it into several files"
		return p
	case strings.Contains(p.Msg, "cannot start any token") && bytes.Contains(c.text, []byte("\t")):
		p.Hint = "YAML is indented with spaces, not tabs"
	case strings.Contains(p.Msg, "mapping values are not allowed"), strings.Contains(p.Msg, "did not find expected"):
		p.Hint = `look at the indentation, and quote values that hold ": " or begin with a special character`
	}
	if strings.Contains(p.Msg, "unexpected end of stream") {
		p.Hint = "a quote or bracket is not closed"
	}
	p.Msg = "not valid YAML: " + p.Msg
	return p
}

type size struct{ nodes, height int }

// meter measures documents with aliases counted as what they stand for,
// without expanding them (F46).
type meter struct {
	known map[*yaml.Node]size // anchored nodes; a height of -1 is being measured
}

func (m *meter) measure(n *yaml.Node) (size, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Anchor != "" {
		if s, ok := m.known[n]; ok {
			if s.height < 0 {
				return s, fmt.Errorf("anchor %q stands in its own value", n.Anchor)
			}
			return s, nil
		}
		m.known[n] = size{height: -1}
	}
	s := size{nodes: 1}
	for _, c := range n.Content {
		in, err := m.measure(c)
		if err != nil {
			return s, err
		}
		s.nodes = min(s.nodes+in.nodes, 1<<40)
		s.height = max(s.height, in.height)
	}
	if len(n.Content) > 0 {
		s.height++
	}
	if n.Anchor != "" {
		m.known[n] = s
	}
	return s, nil
}

// moreNodes reports whether a large YAML text may have more than limit nodes,
// from above and cheaply: reading text into nodes takes a hundred times its
// size. Literal blocks are text, whatever they look like.
func moreNodes(text []byte, limit int) bool {
	if len(text) < 1<<18 {
		return false
	}
	n, literal := 0, -1
	for line := range bytes.Lines(text) {
		indent := len(line) - len(bytes.TrimLeft(line, " "))
		if literal >= 0 && (indent > literal || len(bytes.TrimSpace(line)) == 0) {
			continue
		}
		literal = -1
		if empty(line) {
			continue
		}
		n += 2
		for _, b := range line {
			if b == ',' || b == '[' || b == '{' {
				n++
			}
		}
		if n > limit {
			return true
		}
		if opensLiteral(line) {
			literal = keyIndent(line)
		}
	}
	return false
}

var literalKey = regexp.MustCompile(`^[ -]*[A-Za-z0-9_./-]+: [|>][-+0-9]*\s*$`)

// opensLiteral reports whether a literal block certainly follows: a plain key
// with nothing but the block's sign.
func opensLiteral(line []byte) bool {
	return bytes.ContainsAny(line, "|>") && literalKey.Match(line)
}

func keyIndent(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " -")) }

// jsonProblem is a problem and the error it was made from.
type jsonProblem struct {
	pod.Problem
	err error
}

// decodeJSON reads the values of a chunk, one after the other.
func (c chunk) decodeJSON(budget int) ([]doc, *jsonProblem) {
	r := &jsonReader{text: c.text, dec: json.NewDecoder(bytes.NewReader(c.text)), line: c.line, col: 1, budget: budget}
	r.dec.UseNumber()
	var out []doc
	for {
		before := r.nodes
		v, at, err := r.value(0)
		if errors.Is(err, io.EOF) && at == nil {
			return out, nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the text ends too early")
			}
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				r.moveTo(int(syntax.Offset) - 1)
			}
			p := &jsonProblem{Problem: pod.Problem{Line: r.line, Column: r.col, Msg: "not valid JSON: " + err.Error()}, err: err}
			var limit limitError
			if errors.As(err, &limit) {
				p.Msg, p.Hint = err.Error(), "split it into several files"
			}
			return out, p
		}
		out = append(out, doc{value: v, at: at, nodes: r.nodes - before})
	}
}

// jsonReader reads JSON values together with their places.
type jsonReader struct {
	text      []byte
	dec       *json.Decoder
	at        int // offset whose place is line, col
	line, col int
	nodes     int
	budget    int
}

// moveTo counts lines and columns up to offset.
func (r *jsonReader) moveTo(offset int) {
	for r.at < min(offset, len(r.text)) {
		c, n := utf8.DecodeRune(r.text[r.at:])
		r.at += n
		r.col++
		if c == '\n' {
			r.line, r.col = r.line+1, 1
		}
	}
}

// next returns the next token and moves to where it begins.
func (r *jsonReader) next() (json.Token, error) {
	off := int(r.dec.InputOffset())
	for off < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[off]) >= 0 {
		off++
	}
	r.moveTo(off)
	return r.dec.Token()
}

// value reads one value. An error before its first token has no place.
func (r *jsonReader) value(depth int) (any, *place, error) {
	tok, err := r.next()
	if err != nil {
		return nil, nil, err
	}
	p := &place{line: r.line, col: r.col}
	r.nodes++
	switch {
	case depth > maxDepth:
		return nil, p, tooDeep()
	case r.nodes > r.budget:
		return nil, p, tooMany()
	}
	switch tok {
	case json.Delim('{'):
		v, err := r.object(p, depth)
		return v, p, err
	case json.Delim('['):
		v := []any{}
		for r.dec.More() {
			item, at, err := r.value(depth + 1)
			if err != nil {
				return nil, p, err
			}
			v, p.items = append(v, item), append(p.items, at)
		}
		_, err := r.next()
		return v, p, err
	}
	_, isText := tok.(string)
	p.scalar, p.plain = true, !isText
	p.text = fmt.Sprint(tok)
	return tok, p, nil
}

func (r *jsonReader) object(p *place, depth int) (map[string]any, error) {
	v := map[string]any{}
	var fields []placeField
	for r.dec.More() {
		tok, err := r.next()
		if err != nil {
			return nil, err
		}
		name, ok := tok.(string)
		if !ok {
			return nil, fmt.Errorf("expected a key, got %v", tok)
		}
		f := placeField{name: name, line: r.line, col: r.col}
		r.nodes++
		item, at, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		f.value = at
		v[name] = item
		fields = append(fields, f)
	}
	p.setFields(fields)
	_, err := r.next()
	return v, err
}
