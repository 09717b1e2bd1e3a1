package manifest

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/pod"
)

// checkText returns data without a byte order mark, or a problem if data is too large or is not text.
func checkText(data []byte) ([]byte, *pod.Problem) {
	if len(data) > maxBytes {
		return nil, &pod.Problem{Msg: fmt.Sprintf("file is larger than %d MiB", maxBytes>>20), Hint: "split it into several files"}
	}
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return nil, &pod.Problem{Msg: "file is UTF-16", Hint: "save it as UTF-8"}
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	for i := 0; i < len(data); {
		c := data[i]
		switch {
		case c < ' ' && c != '\n' && c != '\r' && c != '\t', c == 0x7f:
			return nil, textProblem(data, i, fmt.Sprintf("control character %#02x: file is not text", c))
		case c < utf8.RuneSelf:
			i++
			continue
		}
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return nil, textProblem(data, i, "file is not UTF-8 text")
		}
		i += n
	}
	return data, nil
}

func textProblem(data []byte, at int, msg string) *pod.Problem {
	line := 1 + bytes.Count(data[:at], []byte("\n"))
	col := at - bytes.LastIndexByte(data[:at], '\n')
	return &pod.Problem{Line: line, Column: col, Msg: msg, Hint: "a manifest is YAML or JSON in UTF-8"}
}

// chunk is the text of one YAML document, or of a run of JSON values.
type chunk struct {
	text []byte
	line int // the number of its first line in the file
	// problem is why it must not be decoded; nil: it may be.
	problem *pod.Problem
}

// scanned returns the chunks of a text, each with the result of its scan. It returns a problem if
// the whole text exceeds a limit.
func scanned(text []byte) ([]chunk, *pod.Problem) {
	const hint = "split it into several files"
	chunks := split(text)
	var total extent
	for i := range chunks {
		var in extent
		in, chunks[i].problem = scan(chunks[i])
		if chunks[i].problem == nil {
			total.values += in.values
		}
		total.documents += in.documents
	}
	switch {
	case total.documents > maxDocuments:
		return nil, &pod.Problem{Msg: fmt.Sprintf("more than %d documents", maxDocuments), Hint: hint}
	case total.values > maxFileNodes:
		return nil, &pod.Problem{Msg: fmt.Sprintf("more than %d values", maxFileNodes), Hint: hint}
	}
	return chunks, nil
}

// split cuts a file at its document markers: a line that begins with "---" or "..." ends a document, also
// in a quoted or literal scalar. It leaves out chunks without content. A marker line with other content
// belongs to the document that it begins. split stops after one chunk more than a file may have.
func split(text []byte) []chunk {
	var out []chunk
	cur, start, line := chunk{line: 1}, 0, 1
	state := blank
	flush := func(end int) {
		cur.text = text[start:end]
		if state == content {
			out = append(out, cur)
		}
	}
	for at := 0; at < len(text) && len(out) <= maxDocuments; line++ {
		end := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		l := text[at:end]
		switch {
		case marker(l, "---"):
			// Directives and comments before the first marker belong to it.
			if state == content || state == opened {
				flush(at)
				start, cur.line = at, line
			}
			state = opened
			if !empty(l[3:]) {
				state = content
			} else if !directives(text[start:at]) {
				// The document begins on the next line, so that JSON after a marker is read as
				// JSON.
				start, cur.line = end, line+1
			}
		case marker(l, "..."):
			flush(at)
			start, cur.line, state = end, line+1, blank
		case !empty(l) && l[0] != '%':
			state = content
		case !empty(l) && state == opened:
			state = content
		}
		at = end
	}
	flush(len(text))
	return out
}

// The state of split in the current chunk.
const (
	blank   = iota // comments, directives and empty lines
	opened         // the same, and a document marker
	content        // other content
)

func marker(line []byte, m string) bool {
	return bytes.HasPrefix(line, []byte(m)) && (len(line) == 3 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r' || line[3] == '\n')
}

// empty reports whether a line has only space and a comment.
func empty(line []byte) bool {
	line = bytes.TrimLeft(line, " \t\r\n")
	return len(line) == 0 || line[0] == '#'
}

func directives(text []byte) bool {
	return bytes.HasPrefix(text, []byte("%")) || bytes.Contains(text, []byte("\n%"))
}
