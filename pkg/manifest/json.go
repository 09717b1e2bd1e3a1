package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/pod"
)

// decodeJSON reads the values of a chunk, one after the other.
func (c chunk) decodeJSON() ([]doc, *pod.Problem) {
	r := &jsonReader{text: c.text, dec: json.NewDecoder(bytes.NewReader(c.text)), line: c.line, col: 1}
	r.dec.UseNumber()
	var out []doc
	for {
		v, at, err := r.value()
		if errors.Is(err, io.EOF) && at == nil {
			return out, nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("unexpected end of the text")
			}
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				r.moveTo(int(syntax.Offset) - 1)
			}
			return out, &pod.Problem{Line: r.line, Column: r.col, Msg: "not valid JSON: " + err.Error()}
		}
		out = append(out, doc{value: v, at: at})
	}
}

// jsonReader reads JSON values together with their places.
type jsonReader struct {
	text      []byte
	dec       *json.Decoder
	at        int // the offset at line and col
	line, col int
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

// next returns the next token, and moves to its beginning.
func (r *jsonReader) next() (json.Token, error) {
	off := int(r.dec.InputOffset())
	for off < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[off]) >= 0 {
		off++
	}
	r.moveTo(off)
	return r.dec.Token()
}

// value reads one value. If its first token cannot be read, the place is nil.
func (r *jsonReader) value() (any, *place, error) {
	tok, err := r.next()
	if err != nil {
		return nil, nil, err
	}
	p := &place{line: r.line, col: r.col}
	switch tok {
	case json.Delim('{'):
		v, err := r.object(p)
		return v, p, err
	case json.Delim('['):
		v := []any{}
		for r.dec.More() {
			item, at, err := r.value()
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

func (r *jsonReader) object(p *place) (map[string]any, error) {
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
		item, at, err := r.value()
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
