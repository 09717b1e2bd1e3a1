package manifest

import (
	"bytes"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/pod"
)

// scan counts the values and documents of a chunk before it is decoded. It returns a problem if the chunk
// is too large to be decoded (F46). scan needs almost no memory. It never counts more values than a
// legal document has: text in quotes or in a literal block is one value. meter counts the expansions of
// aliases later.
//
// scan finds the beginnings and ends of tokens, but no mistakes: the decoder reports those. Only in large
// text scan reports the mistakes that it can find.
func scan(c chunk) (extent, *pod.Problem) {
	s := scanner{text: c.text, extent: extent{documents: 1}, here: 1, first: -1}
	s.run()
	s.values += s.here
	large := len(c.text) > 1<<16
	switch {
	case s.limit != "":
		line, col := c.lineOf(s.mark)
		return s.extent, &pod.Problem{Line: line, Column: col, Msg: s.limit, Hint: splitHint}
	case large && (s.open || s.flow > 0):
		line, col := c.lineOf(s.mark)
		return s.extent, &pod.Problem{Line: line, Column: col, Msg: "not valid YAML: a quote or bracket is opened here and never closed", Hint: "close it"}
	case large && s.root == rootList:
		line, col := c.lineOf(s.first)
		return s.extent, notObject(line, col, "a list")
	case large && s.values == 1 && !s.boxed && s.first >= 0:
		line, col := c.lineOf(s.first)
		return s.extent, notObject(line, col, "plain text")
	case large && s.root == rootObject && !s.kind:
		line, col := c.lineOf(s.first)
		return s.extent, &pod.Problem{Line: line, Column: col, Path: "kind", Msg: "required", Hint: kindsHint}
	}
	return s.extent, nil
}

// root is the kind of a document's root; 0 if it is not known to be an object or a list.
type root int

const (
	rootObject root = iota + 1
	rootList
)

// extent is the size of a chunk.
type extent struct{ values, documents int }

// lineOf returns the line and column in the file of an offset in the chunk.
func (c chunk) lineOf(at int) (line, col int) {
	above := c.text[:at]
	line = c.line + bytes.Count(above, []byte("\n"))
	return line, 1 + utf8.RuneCount(above[bytes.LastIndexByte(above, '\n')+1:])
}

// scanner is the state of a scan. Positions are offsets in text.
type scanner struct {
	extent // of the documents before the current one
	text   []byte
	at     int // the current position
	start  int // the start of the current line
	first  int // the first token; -1 before it
	// here counts the values of the current document: its root, one for each item of a list, and a
	// key and a value for each pair.
	here int
	// indents has the columns of the block collections that contain at.
	indents []int
	flow    int  // how many brackets are open
	fresh   bool // the next value in brackets begins an entry
	boxed   bool // the document has a bracket
	open    bool // the text ended in quotes
	root    root
	kind    bool   // the root may have the key "kind"
	limit   string // names the exceeded limit; "": none
	mark    int    // the position at which the limit is exceeded, else that of the last opened bracket or quote
}

func (s *scanner) run() {
	s.skipHead()
	for s.limit == "" && s.skipBlank() {
		if s.first < 0 {
			s.first = s.at
		}
		if s.flow > 0 {
			s.inFlow()
		} else {
			s.inBlock()
		}
	}
}

// count adds values to the current document.
func (s *scanner) count(n int) {
	s.here += n
	s.checkLimit()
}

// enter begins a block collection at column col, unless col is in the current one.
func (s *scanner) enter(col int) {
	if n := len(s.indents); n == 0 || s.indents[n-1] < col {
		s.indents = append(s.indents, col)
		s.checkLimit()
	}
}

// checkLimit compares the counts so far with the limits.
func (s *scanner) checkLimit() {
	if limit := documentLimit.exceeded(size{nodes: s.here, height: len(s.indents) + s.flow}); limit != "" && s.limit == "" {
		s.limit, s.mark = limit, s.at
	}
}

// leave ends the block collections that begin right of column col.
func (s *scanner) leave(col int) {
	for n := len(s.indents); n > 0 && s.indents[n-1] > col; n-- {
		s.indents = s.indents[:n-1]
	}
}

// indent returns the column of the innermost block collection, -1 if there is none.
func (s *scanner) indent() int {
	if len(s.indents) == 0 {
		return -1
	}
	return s.indents[len(s.indents)-1]
}

// rooted notes the kind of the root if the current token is at the top level. text is a key of the root
// with its colon. rooted also notes whether text may be the key "kind", or merges other values into the
// root, which may have that key.
func (s *scanner) rooted(r root, text []byte) {
	if len(s.indents) > 0 && (s.root != rootObject || len(s.indents) > 1) || s.flow > 1 {
		return
	}
	if s.root == 0 {
		s.root = r
	}
	s.kind = s.kind || bytes.Contains(text, []byte("kind")) || bytes.Contains(text, []byte("<<")) || bytes.ContainsAny(text, `\\*`)
}

// bracket begins a collection in brackets.
func (s *scanner) bracket() {
	if s.flow == 0 {
		if s.boxed && len(s.indents) == 0 {
			// The next value of a run of JSON.
			s.values, s.here, s.documents = s.values+s.here, 1, s.documents+1
		}
		s.boxed, s.mark = true, s.at
		if s.text[s.at] == '[' {
			s.rooted(rootList, nil)
		} else {
			s.rooted(rootObject, nil)
		}
	}
	s.flow++
	s.checkLimit()
	s.fresh = true
	s.at++
}

// inFlow scans one token in brackets.
func (s *scanner) inFlow() {
	c := s.text[s.at]
	switch c {
	case ',':
		s.fresh = true
		s.at++
		return
	case ']', '}':
		s.flow--
		s.fresh = false
		s.at++
		if s.flow == 0 && s.key() {
			s.root, s.kind = rootObject, true
			s.count(2)
		}
		return
	case ':':
		s.count(1)
		s.at++
		return
	case '&', '!':
		s.property()
		return
	}
	from := s.at
	if s.fresh {
		s.count(1)
		s.fresh = false
	}
	switch c {
	case '[', '{':
		s.bracket()
	case '"', '\'':
		s.quoted()
	case '?':
		s.at++
	default:
		at := s.at
		s.plain()
		s.at = max(s.at, at+1)
	}
	if s.flow == 1 && len(s.indents) == 0 {
		s.rooted(rootObject, s.text[from:min(s.at, len(s.text))])
	}
}
