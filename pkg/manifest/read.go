package manifest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
)

// doc is one decoded document. The value of an empty document is nil.
type doc struct {
	value any
	json  []byte // the value as JSON; nil: made from value when needed
	at    *place
}

// decode reads the documents of a chunk: one YAML document, or a sequence of JSON values.
func (c chunk) decode(isJSON bool) ([]doc, *pod.Problem) {
	if trimmed := bytes.TrimLeft(c.text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		docs, jsonProblem := c.decodeJSON()
		if jsonProblem == nil {
			return docs, nil
		}
		if isJSON {
			return docs, jsonProblem
		}
	}
	d, problem := c.decodeYAML()
	if problem != nil {
		return nil, problem
	}
	return []doc{d}, nil
}

// decodeYAML reads one document. Like the kubelet, it reads the value as YAML 1.1 and converts it to JSON
// (C-1.5.1). The places come from the YAML nodes.
func (c chunk) decodeYAML() (d doc, problem *pod.Problem) {
	defer func() {
		// A panic of the parser must not end the agent.
		if r := recover(); r != nil {
			d, problem = doc{}, &pod.Problem{Line: c.line, Msg: "cannot be read as YAML"}
		}
	}()
	var root yaml.Node
	if err := yaml.Unmarshal(c.text, &root); err != nil {
		return doc{}, c.yamlProblem(err)
	}
	if len(root.Content) == 0 {
		return doc{}, nil
	}
	m := meter{known: map[*yaml.Node]size{}}
	total, err := m.measure(root.Content[0])
	if err != nil {
		return doc{}, c.yamlProblem(err)
	}
	if limit := documentLimit.exceeded(total); limit != "" {
		at := m.over(root.Content[0])
		return doc{}, &pod.Problem{Line: c.line - 1 + at.Line, Column: at.Column, Msg: limit, Hint: splitHint}
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

// yamlProblem converts an error of the YAML parser to a problem at its line.
func (c chunk) yamlProblem(err error) *pod.Problem {
	msg := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	p := &pod.Problem{Line: c.line}
	m := yamlLine.FindStringSubmatch(msg)
	if n, err := strconv.Atoi(m[1]); err == nil {
		p.Line = c.line + n - 1
	}
	p.Msg = strings.TrimSpace(strings.TrimPrefix(msg, m[0]))
	switch {
	case strings.Contains(p.Msg, "cannot start any token") && bytes.Contains(c.text, []byte("\t")):
		p.Hint = "YAML is indented with spaces, not tabs"
	case strings.Contains(p.Msg, "mapping values are not allowed"), strings.Contains(p.Msg, "did not find expected"):
		p.Hint = `check the indentation, and quote values that contain ": " or begin with a special character`
	}
	// These errors contain parts of the document, which may be secret.
	if name, ok := strings.CutPrefix(p.Msg, "unknown anchor '"); ok {
		name, _, _ = strings.Cut(name, "'")
		if i := bytes.Index(c.text, []byte("*"+name)); i >= 0 {
			p.Line, _ = c.lineOf(i)
		}
		p.Msg, p.Hint = "an alias of an unknown anchor", `quote values that begin with "*"`
	}
	if strings.HasPrefix(p.Msg, "invalid map key") {
		p.Msg, p.Hint = "an object or a list where a key is expected", `quote values that begin with "{", and render a template first`
	}
	if strings.HasPrefix(p.Msg, "cannot decode") {
		p.Msg = "a value does not match its tag"
	}
	if strings.Contains(p.Msg, "unexpected end of stream") {
		p.Hint = "a quote or bracket is not closed"
	}
	p.Msg = "not valid YAML: " + p.Msg
	return p
}
