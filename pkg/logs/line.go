package logs

import (
	"bytes"
	"time"
)

// timeFormat is the format of an entry's time. It has all nine digits of the fraction, so that lines
// can be sorted as text.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// entry is one line of a log in CRI's format: "<time> <stream> P|F[:tag…] <text>", where P
// says that the text continues in the next line (C-1.22.10).
type entry struct {
	at      time.Time
	stderr  bool
	partial bool
	text    []byte // with its line break, if there is one and the text ends here
}

// parse parses a line, or the beginning of one that has at least the time, stream and tag. ok is false
// if the line is not in CRI's format.
func parse(line []byte) (e entry, ok bool) {
	stamp, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(stamp) > len(timeFormat)+8 {
		return entry{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return entry{}, false
	}
	stream, rest, ok := bytes.Cut(rest, []byte(" "))
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return entry{}, false
	}
	tags, text, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return entry{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	return entry{at: at, stderr: string(stream) == "stderr", partial: string(tag) == "P", text: text}, true
}

// lines converts lines of a log to its reader's output.
type lines struct {
	opts    Options
	remain  int64 // how many bytes may still follow; negative means all
	entries int64 // how many entries may still follow; negative means all

	out   []byte // to be written
	fresh bool   // the next output begins a line

	// The state of a line that comes in pieces: inside says that the next piece continues it, wanted
	// that its text is output, partial that the text continues in the next line.
	inside  bool
	wanted  bool
	partial bool
}

// done reports whether a limit is reached.
func (l *lines) done() bool { return l.remain == 0 || l.entries == 0 }

// add adds a line, or a piece of one that is too long for the buffer. ends says that the line ends
// with this piece.
func (l *lines) add(piece []byte, ends bool) {
	text := piece
	if !l.inside {
		e, ok := parse(piece)
		l.wanted = ok && !e.at.Before(l.opts.Since) && (e.stderr && l.opts.Stderr || !e.stderr && l.opts.Stdout)
		l.partial, text = e.partial, e.text
		if l.wanted && l.opts.Timestamps && l.fresh {
			var stamp [len(timeFormat) + 1]byte
			l.write(append(e.at.AppendFormat(stamp[:0], timeFormat), ' '))
		}
		if ok && l.entries > 0 && ends {
			l.entries--
		}
	} else if l.entries > 0 && ends {
		l.entries--
	}
	l.inside = !ends
	if !l.wanted {
		return
	}
	if ends && l.partial {
		text = bytes.TrimSuffix(text, []byte("\n"))
	}
	l.write(text)
}

// write adds text to the output, up to the limit.
func (l *lines) write(text []byte) {
	if l.remain >= 0 {
		text = text[:min(int64(len(text)), l.remain)]
		l.remain -= int64(len(text))
	}
	if len(text) > 0 {
		l.out = append(l.out, text...)
		l.fresh = text[len(text)-1] == '\n'
	}
}
