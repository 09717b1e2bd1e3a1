package manifest

import "bytes"

// flow reads a collection in brackets that ends on its line.
func (p *plainReader) flow(depth int) bool {
	if depth > mostPlainDepth {
		return false
	}
	opened := p.text[p.at]
	closing := opened + 2 // in ASCII
	p.out = append(p.out, opened)
	p.at++
	p.skipSpaces()
	if p.byteAt(p.at) == closing {
		p.at++
		p.out = append(p.out, closing)
		return true
	}
	for {
		if opened == '{' && !p.flowKey() || !p.flowValue(depth) {
			return false
		}
		p.skipSpaces()
		c := p.byteAt(p.at)
		p.at++
		switch c {
		case ',':
			p.out = append(p.out, ',')
			p.skipSpaces()
		case closing:
			p.out = append(p.out, closing)
			return true
		default:
			return false
		}
	}
}

func (p *plainReader) skipSpaces() {
	for p.byteAt(p.at) == ' ' {
		p.at++
	}
}

func (p *plainReader) flowKey() bool {
	k := p.key()
	if k == nil {
		return false
	}
	p.out = append(append(append(p.out, '"'), k...), '"', ':')
	p.at += len(k) + 1
	p.skipSpaces()
	return true
}

func (p *plainReader) flowValue(depth int) bool {
	switch p.byteAt(p.at) {
	case '[', '{':
		return p.flow(depth + 1)
	case '"', '\'':
		return p.quoted()
	}
	end := p.at
	for ; end < len(p.text); end++ {
		c := p.text[end]
		if c == ',' || c == ']' || c == '}' {
			break
		}
		if c == '\n' || c == '#' || c == '[' || c == '{' || c == '?' {
			return false
		}
		if next := p.byteAt(end + 1); c == ':' && !letter(next) && (next < '0' || next > '9') && next != '/' {
			return false
		}
	}
	return p.scalar(bytes.TrimRight(p.text[p.at:end], " "))
}

// What a plain value is in YAML 1.1.
type meaning int

const (
	isUnsure  meaning = iota
	isText            // a string
	isLiteral         // a number, true or false, written as in JSON
)

// resolve says what a plain value is, where that is certain.
func resolve(v []byte) meaning {
	if len(v) == 0 {
		return isUnsure
	}
	next := byte(0)
	if len(v) > 1 {
		next = v[1]
	}
	switch c := v[0]; {
	case letter(c):
		if reserved(v) {
			if s := string(v); s == "true" || s == "false" {
				return isLiteral
			}
			return isUnsure
		}
		return isText
	case c == '/' || c == '$' || c == '(' || c == ')' || c == '_' || c == '^':
		return isText
	case c == '-' && (letter(next) || next == '-' && len(v) > 2 && letter(v[2])):
		return isText
	case c == '.' && (next == '/' || next == '.' && len(v) > 2 && v[2] == '/'):
		return isText
	case c >= '0' && c <= '9':
		return resolveNumber(v)
	}
	return isUnsure
}

// resolveNumber says what a value is that begins with a digit: a whole number,
// a quantity, or an address.
func resolveNumber(v []byte) meaning {
	digits, dots, i := 0, 0, 0
	for ; i < len(v) && (v[i] >= '0' && v[i] <= '9' || v[i] == '.'); i++ {
		if v[i] == '.' {
			dots++
		} else {
			digits++
		}
	}
	switch rest := string(v[i:]); {
	case rest == "" && dots == 0 && digits <= 18 && (v[0] != '0' || digits == 1):
		return isLiteral
	case rest == "" && dots == 3:
		return isText
	case dots == 0 && v[0] != '0' && (rest == "m" || rest == "k" || rest == "M" || rest == "G" || rest == "Ki" || rest == "Mi" || rest == "Gi"):
		return isText
	}
	return isUnsure
}

// reserved reports whether a word is a boolean or nothing in YAML 1.1.
func reserved(v []byte) bool {
	if len(v) > 5 {
		return false
	}
	s := string(v)
	if _, ok := yamlBool(s); ok {
		return true
	}
	return s == "null" || s == "Null" || s == "NULL"
}

func appendQuoted(b, v []byte) []byte {
	return append(appendEscaped(append(b, '"'), v), '"')
}

// appendEscaped appends printable ASCII as the inside of a JSON string.
func appendEscaped(b, v []byte) []byte {
	for _, c := range v {
		if c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return b
}
