package manifest

import (
	"bytes"
)

// plainJSON turns the YAML that most manifests are written in into JSON, in one
// pass and without a tree: block and flow collections, values on one line,
// literal blocks, comments, ASCII. Anything else, and anything it is not sure
// of, is not ok: the YAML library reads it then. What it does turn into JSON is
// what the library makes of it, key by key in the order of the text (a fuzz test
// holds the two equal); a key written twice is twice in the JSON.
//
// at is where the first key stands.
func plainJSON(text []byte) (js []byte, at int, ok bool) {
	for _, c := range text {
		if c >= 0x7f || c < ' ' && c != '\n' {
			return nil, 0, false
		}
	}
	p := plainReader{text: text, out: make([]byte, 0, len(text)+len(text)/2)}
	if !p.next() {
		return nil, 0, false
	}
	at = p.at
	if k := p.key(); k == nil || !p.mapping(p.col, 0) || p.at < len(text) {
		return nil, 0, false
	}
	return p.out, at, true
}

// plainReader reads from the token at at, which stands in column col.
type plainReader struct {
	text    []byte
	at, col int
	out     []byte
}

// mostPlainDepth is how deep collections may be nested; no pod is deeper.
const mostPlainDepth = 40

// next moves to the first token of the next line that has one. It reports false
// at the end of the text.
func (p *plainReader) next() bool {
	for p.at < len(p.text) {
		start := p.at
		for p.at < len(p.text) && p.text[p.at] == ' ' {
			p.at++
		}
		switch {
		case p.at == len(p.text):
			return false
		case p.text[p.at] == '\n':
			p.at++
		case p.text[p.at] == '#':
			p.skipLine()
		default:
			p.col = p.at - start
			return true
		}
	}
	return false
}

func (p *plainReader) skipLine() {
	i := bytes.IndexByte(p.text[p.at:], '\n')
	if i < 0 {
		p.at = len(p.text)
		return
	}
	p.at += i + 1
}

// byteAt returns the byte at i, a line end past the last one.
func (p *plainReader) byteAt(i int) byte {
	if i < len(p.text) {
		return p.text[i]
	}
	return '\n'
}

func (p *plainReader) blankAt(i int) bool { c := p.byteAt(i); return c == ' ' || c == '\n' }

// endLine moves to the next line when nothing but a comment follows on this one.
func (p *plainReader) endLine() bool {
	at := p.at
	for p.byteAt(p.at) == ' ' {
		p.at++
	}
	switch c := p.byteAt(p.at); {
	case c == '#' && p.at > at, c == '\n':
		p.skipLine()
		return true
	}
	return false
}

// key returns the key that stands at at, nil when none does that is plain.
func (p *plainReader) key() []byte {
	const longest = 100
	i := p.at
	for ; i < len(p.text) && i-p.at <= longest; i++ {
		c := p.text[i]
		if !letter(c) && (i == p.at || (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' && c != '/') {
			break
		}
	}
	if k := p.text[p.at:i]; len(k) > 0 && len(k) <= longest && p.byteAt(i) == ':' && p.blankAt(i+1) && !reserved(k) {
		return k
	}
	return nil
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// dash reports whether the entry of a block sequence begins at at.
func (p *plainReader) dash() bool { return p.byteAt(p.at) == '-' && p.blankAt(p.at+1) }

// mapping reads a block mapping whose keys stand in column col, up to the first
// token that is not one of them.
func (p *plainReader) mapping(col, depth int) bool {
	if depth > mostPlainDepth {
		return false
	}
	p.out = append(p.out, '{')
	for first := true; ; first = false {
		k := p.key()
		if k == nil {
			return false
		}
		if !first {
			p.out = append(p.out, ',')
		}
		p.out = append(append(append(p.out, '"'), k...), '"', ':')
		p.at += len(k) + 1
		more, ok := p.below(col, col, depth)
		if !ok {
			return false
		}
		if !more || p.col < col {
			break
		}
		if p.col > col {
			return false
		}
		if p.dash() {
			// The entries of a sequence this mapping stands in, or a mistake: that
			// is for the one above to see.
			break
		}
	}
	p.out = append(p.out, '}')
	return true
}

// sequence reads a block sequence whose dashes stand in column col. In a
// mapping of the same column, parent is -1 more than its column.
func (p *plainReader) sequence(col, depth int) bool {
	if depth > mostPlainDepth {
		return false
	}
	p.out = append(p.out, '[')
	for first := true; p.at < len(p.text) && p.col == col && p.dash(); first = false {
		if !first {
			p.out = append(p.out, ',')
		}
		dash := p.at
		p.at++
		for p.byteAt(p.at) == ' ' {
			p.at++
		}
		p.col = col + p.at - dash
		switch {
		case p.byteAt(p.at) == '\n' || p.byteAt(p.at) == '#':
			return false
		case p.dash():
			if !p.sequence(p.col, depth+1) {
				return false
			}
		case p.key() != nil:
			if !p.mapping(p.col, depth+1) {
				return false
			}
		default:
			if !p.value(col) {
				return false
			}
			p.next()
		}
		if p.at < len(p.text) && p.col > col {
			return false
		}
	}
	p.out = append(p.out, ']')
	return true
}

// below reads the value of a key, on its line or below it, and moves to the
// next token; more is whether there is one. The key stands in column col.
func (p *plainReader) below(col, indent, depth int) (more, ok bool) {
	for p.byteAt(p.at) == ' ' {
		p.at++
	}
	if c := p.byteAt(p.at); c != '\n' && c != '#' {
		if !p.value(indent) {
			return false, false
		}
		return p.next(), true
	}
	p.skipLine()
	more = p.next()
	switch {
	case more && p.dash() && p.col >= col:
		ok = p.sequence(p.col, depth+1)
	case !more || p.col <= col:
		p.out = append(p.out, "null"...)
		return more, true
	case p.key() != nil:
		ok = p.mapping(p.col, depth+1)
	}
	return p.at < len(p.text), ok
}

// value reads a value that is not a block collection, to the end of its line.
// What it stands in is in column indent.
func (p *plainReader) value(indent int) bool {
	switch c := p.byteAt(p.at); c {
	case '|':
		return p.literal(indent)
	case '[', '{':
		return p.flow(0) && p.endLine()
	case '"', '\'':
		return p.quoted() && p.endLine()
	}
	end := p.at
	for ; end < len(p.text) && p.text[end] != '\n'; end++ {
		switch c := p.text[end]; {
		case c == ':' && p.blankAt(end+1):
			return false
		case c == '#' && p.text[end-1] == ' ':
			return p.scalar(bytes.TrimRight(p.text[p.at:end], " ")) && p.endLine()
		}
	}
	return p.scalar(bytes.TrimRight(p.text[p.at:end], " ")) && p.endLine()
}

// scalar writes a plain value, and moves behind it.
func (p *plainReader) scalar(v []byte) bool {
	p.at += len(v)
	switch resolve(v) {
	case isText:
		p.out = appendQuoted(p.out, v)
	case isLiteral:
		p.out = append(p.out, v...)
	default:
		return false
	}
	return true
}

// quoted reads a value in quotes that ends on its line.
func (p *plainReader) quoted() bool {
	quote := p.text[p.at]
	from := p.at + 1
	for i := from; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '\n':
			return false
		case c == '\\' && quote == '"':
			// These mean the same in JSON.
			if next := p.byteAt(i + 1); next != '"' && next != '\\' && next != 'n' && next != 't' {
				return false
			}
			i++
		case c == quote:
			if p.byteAt(i+1) == quote {
				return false
			}
			if quote == '"' {
				p.out = append(p.out, p.text[from-1:i+1]...)
			} else {
				p.out = appendQuoted(p.out, p.text[from:i])
			}
			p.at = i + 1
			return true
		}
	}
	return false
}

// literal reads a literal block with its last line end or without: "|" or "|-".
func (p *plainReader) literal(indent int) bool {
	p.at++
	strip := p.byteAt(p.at) == '-'
	if strip {
		p.at++
	}
	if p.byteAt(p.at) != '\n' {
		return false
	}
	p.at++
	p.out = append(p.out, '"')
	width, ends := 0, 0 // line ends that only count when text follows
	for p.at < len(p.text) {
		n := 0
		for p.byteAt(p.at+n) == ' ' {
			n++
		}
		if p.byteAt(p.at+n) == '\n' {
			if n > 0 || width == 0 {
				return false
			}
			p.at, ends = p.at+1, ends+1
			continue
		}
		if width == 0 {
			width = n
		}
		if n <= indent || n < width {
			break
		}
		for ; ends > 0; ends-- {
			p.out = append(p.out, `\n`...)
		}
		line := p.text[p.at+width:]
		end := bytes.IndexByte(line, '\n')
		if end < 0 {
			return false
		}
		p.out = appendEscaped(p.out, line[:end])
		p.at, ends = p.at+width+end+1, 1
	}
	if ends == 0 {
		return false
	}
	if !strip {
		p.out = append(p.out, `\n`...)
	}
	p.out = append(p.out, '"')
	return true
}
