package manifest

import (
	"bytes"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/pod"
)

// scan reads a chunk's text before anything decodes it, and returns its size, or why it is too
// large to be decoded (F46). It costs no memory, and never counts a legal document higher than it
// is: text in quotes and in literal blocks is one value. The expansion of an alias is counted
// later.
//
// It knows where tokens begin and end, but does not find mistakes: text that is not
// YAML passes, and the decoder reports its mistakes. Only for large text scan reports
// those that need no decoding.
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

// root is the kind of a document's root; 0 for neither.
type root int

const (
	rootObject root = iota + 1
	rootList
)

// extent is how much a chunk holds.
type extent struct{ values, documents int }

// lineOf returns the line and column in the file of an offset in the chunk.
func (c chunk) lineOf(at int) (line, col int) {
	above := c.text[:at]
	line = c.line + bytes.Count(above, []byte("\n"))
	return line, 1 + utf8.RuneCount(above[bytes.LastIndexByte(above, '\n')+1:])
}

type scanner struct {
	extent // of the documents before the current one
	text   []byte
	at     int
	start  int // of the current line
	first  int // of the first token; -1 before it
	// here counts the values of the current document: its root, an item of each
	// entry, a key and a value of each pair.
	here int
	// indents holds the columns of the block collections around at.
	indents []int
	flow    int  // how many brackets are open
	fresh   bool // the next value in brackets begins an entry
	boxed   bool // a bracket was opened outside of all others
	open    bool // the text ended in quotes
	root    root
	kind    bool   // the root may say of which kind it is
	limit   string // the limit that is exceeded
	mark    int    // of that, or of the last bracket or quote that was opened
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
	s.hold()
}

// enter begins a block collection at column col, when it is one.
func (s *scanner) enter(col int) {
	if n := len(s.indents); n == 0 || s.indents[n-1] < col {
		s.indents = append(s.indents, col)
		s.hold()
	}
}

// hold checks the counts so far against the limits.
func (s *scanner) hold() {
	if limit := whole.exceeded(size{nodes: s.here, height: len(s.indents) + s.flow}); limit != "" && s.limit == "" {
		s.limit, s.mark = limit, s.at
	}
}

// leave ends the block collections right of column col.
func (s *scanner) leave(col int) {
	for n := len(s.indents); n > 0 && s.indents[n-1] > col; n-- {
		s.indents = s.indents[:n-1]
	}
}

// indent is the column of the innermost block collection, -1 outside of any.
func (s *scanner) indent() int {
	if len(s.indents) == 0 {
		return -1
	}
	return s.indents[len(s.indents)-1]
}

// rooted notes the kind of the root if the current token is at the top level. It also notes whether
// text, a key of the root with its colon, is the key "kind". Where the root merges other values,
// the kind is unknown until they are read.
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
	s.hold()
	s.fresh = true
	s.at++
}

// inFlow reads one token in brackets.
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
