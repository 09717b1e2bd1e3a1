package manifest

import "unicode/utf8"

// This file has the methods that move the scanner over the text: to the next token, or to the end of the
// current one.

// byteAt returns the byte at i; after the last byte it returns a line end.
func (s *scanner) byteAt(i int) byte {
	if i < len(s.text) {
		return s.text[i]
	}
	return '\n'
}

// lineEnd returns the length of the line end at i, 0 for none. YAML has six kinds of line ends.
func (s *scanner) lineEnd(i int) int {
	switch c := s.text[i]; {
	case c == '\n':
		return 1
	case c == '\r':
		if s.byteAt(i+1) == '\n' && i+1 < len(s.text) {
			return 2
		}
		return 1
	case c == 0xc2 && s.byteAt(i+1) == 0x85:
		return 2
	case c == 0xe2 && s.byteAt(i+1) == 0x80 && (s.byteAt(i+2) == 0xa8 || s.byteAt(i+2) == 0xa9):
		return 3
	}
	return 0
}

// ends reports whether a blank, a line end or the end of the text is at i.
func (s *scanner) ends(i int) bool {
	return i >= len(s.text) || s.text[i] == ' ' || s.text[i] == '\t' || s.lineEnd(i) > 0
}

// skipHead moves over directives and the marker at the beginning of the document, if there are any.
func (s *scanner) skipHead() {
	for s.skipBlank() {
		switch {
		case s.text[s.at] == '%' && s.at == s.start:
			s.skipLine()
		case s.at == s.start && marker(s.text[s.at:], "---"):
			s.at += len("---")
			return
		default:
			return
		}
	}
}

// skipBlank moves over blanks, line ends and comments to the next token. It returns false at the end of
// the text.
func (s *scanner) skipBlank() bool {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t':
			s.at++
		case '#':
			s.skipLine()
		default:
			n := s.lineEnd(s.at)
			if n == 0 {
				return true
			}
			s.at += n
			s.start = s.at
		}
	}
	return false
}

// skipLine moves to the end of the line.
func (s *scanner) skipLine() {
	for s.at < len(s.text) && (ordinaryByte(s.text[s.at]) || s.lineEnd(s.at) == 0) {
		s.at++
	}
}

// ordinaryByte reports whether a byte is printable ASCII. Such a byte is no part of a line end.
func ordinaryByte(c byte) bool { return c >= ' ' && c < utf8.RuneSelf }

// inBlock scans one token outside brackets.
func (s *scanner) inBlock() {
	col := s.at - s.start
	s.leave(col)
	if c := s.text[s.at]; (c == '-' || c == '?' || c == ':') && s.ends(s.at+1) {
		if c == '-' {
			s.rooted(rootList, nil)
		} else {
			s.rooted(rootObject, nil)
			s.kind = true
		}
		s.enter(col)
		s.count(1)
		s.at++
		return
	}
	line := s.start
	for s.property() {
	}
	from := s.at
	isPlain := false
	switch c := s.byteAt(s.at); {
	case c == '#' || s.at >= len(s.text) || s.lineEnd(s.at) > 0:
		return // the value of the property is on a later line
	case c == '|' || c == '>':
		s.literal()
		return
	case c == '[' || c == '{':
		s.bracket()
		return
	case c == '"' || c == '\'':
		s.quoted()
	default:
		s.plain()
		isPlain = true
	}
	switch {
	case s.start == line && s.key():
		s.rooted(rootObject, s.text[from:s.at])
		s.enter(col)
		s.count(2)
	case isPlain:
		s.skipContinuation()
	}
}

// key moves over the colon after a key. It returns false, and does not move, if there is none.
func (s *scanner) key() bool {
	at := s.at
	for at < len(s.text) && (s.text[at] == ' ' || s.text[at] == '\t') {
		at++
	}
	if at < len(s.text) && s.text[at] == ':' && s.ends(at+1) {
		s.at = at + 1
		return true
	}
	return false
}

// property moves over an anchor or a tag, and the blanks after it. It returns false if there is none.
func (s *scanner) property() bool {
	c := s.byteAt(s.at)
	if c != '&' && c != '!' {
		return false
	}
	s.at++
	for !s.ends(s.at) && (c == '!' || anchorByte(s.text[s.at])) && (s.flow <= 0 || !inBrackets(s.text[s.at])) {
		s.at++
	}
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\t') {
		s.at++
	}
	return true
}

// anchorByte reports whether c is part of an anchor's name. A colon is not.
func anchorByte(c byte) bool { return letter(c) || c >= '0' && c <= '9' || c == '_' || c == '-' }

// plain moves to the end of a plain value on its line: to the colon of a key, a comment, or the
// line end. In brackets, it moves to the end of the entry.
func (s *scanner) plain() {
	for i := s.at; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c >= 'a' && c <= 'z' || c == ' ': // most bytes are of this kind
		case c == ':' && s.ends(i+1),
			c == '#' && i > s.at && (s.text[i-1] == ' ' || s.text[i-1] == '\t'),
			s.flow > 0 && inBrackets(c),
			s.lineEnd(i) > 0:
			s.at = max(i, s.at)
			return
		}
	}
	s.at = len(s.text)
}

// inBrackets reports whether c has a special meaning in brackets.
func inBrackets(c byte) bool {
	return c == ',' || c == '?' || c == '[' || c == ']' || c == '{' || c == '}'
}

// skipContinuation moves over the continuation lines of a plain value. They have more indentation than
// the parent of the value.
func (s *scanner) skipContinuation() {
	for {
		at, start := s.at, s.start
		if !s.skipSpace() || s.start == start || s.at-s.start <= s.indent() || s.text[s.at] == '#' {
			s.at, s.start = at, start
			return
		}
		s.plain()
	}
}

// skipSpace is skipBlank that stops at a comment.
func (s *scanner) skipSpace() bool {
	for s.at < len(s.text) {
		n := s.lineEnd(s.at)
		switch {
		case n > 0:
			s.at += n
			s.start = s.at
		case s.text[s.at] == ' ' || s.text[s.at] == '\t':
			s.at++
		default:
			return true
		}
	}
	return false
}

// quoted moves to the end of a value in quotes.
func (s *scanner) quoted() {
	quote := s.text[s.at]
	if s.flow == 0 {
		s.mark = s.at
	}
	for s.at++; s.at < len(s.text); {
		switch c := s.text[s.at]; {
		case c == '\\' && quote == '"':
			s.at++
			if s.at < len(s.text) && s.lineEnd(s.at) == 0 {
				s.at++
			}
		case c == quote && quote == '\'' && s.byteAt(s.at+1) == '\'':
			s.at += 2
		case c == quote:
			s.at++
			return
		case ordinaryByte(c):
			s.at++
		default:
			n := s.lineEnd(s.at)
			s.at += max(n, 1)
			if n > 0 {
				s.start = s.at
			}
		}
	}
	s.open = true
}

// literal moves to the end of a literal or folded block. Its lines are indented at least as far as the
// first one, or as the header of the block says.
func (s *scanner) literal() {
	indent := 0
	for ; s.at < len(s.text) && s.lineEnd(s.at) == 0; s.at++ {
		if c := s.text[s.at]; c == '#' {
			s.skipLine()
			break
		} else if c >= '1' && c <= '9' {
			indent = max(s.indent(), 0) + int(c-'0')
		}
	}
	for s.at < len(s.text) {
		s.at += s.lineEnd(s.at)
		s.start = s.at
		for s.at < len(s.text) && s.text[s.at] == ' ' && (indent == 0 || s.at-s.start < indent) {
			s.at++
		}
		if s.at < len(s.text) && s.lineEnd(s.at) > 0 {
			continue // an empty line
		}
		if indent == 0 {
			indent = max(s.at-s.start, s.indent()+1, 1)
		}
		if s.at-s.start < indent {
			s.at = s.start
			return
		}
		s.skipLine()
	}
}
