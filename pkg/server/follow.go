package server

import (
	"iter"
	"net/http"
	"time"
)

// patient writes what has no end of its own, each piece sent at once. A reader that
// does not take one in time is cut off.
type patient struct {
	w        http.ResponseWriter
	out      *http.ResponseController
	patience time.Duration
	began    bool // something was sent: the answer has its code
}

func (s *Server) patient(w http.ResponseWriter) *patient {
	return &patient{w: w, out: http.NewResponseController(w), patience: s.cfg.Patience}
}

// Write implements io.Writer.
func (p *patient) Write(b []byte) (int, error) {
	p.began = true
	if err := p.out.SetWriteDeadline(time.Now().Add(p.patience)); err != nil {
		return 0, err
	}
	n, err := p.w.Write(b)
	if err != nil {
		return n, err
	}
	if err := p.out.Flush(); err != nil {
		return n, err
	}
	return n, p.out.SetWriteDeadline(time.Time{}) // HTTP/2 would end a stream that says nothing for so long
}

// end leaves the reader a moment for the end itself.
func (p *patient) end() { _ = p.out.SetWriteDeadline(time.Now().Add(p.patience)) }

// lines answers with lines. A reader whose stream breaks here is cut off as well, so
// that it can tell that from the end.
func (s *Server) lines(w http.ResponseWriter, q *request, lines iter.Seq2[[]byte, error]) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := s.patient(w)
	_, err := out.Write(nil) // the reader knows that it follows
	if err == nil {
		for line, broken := range lines {
			if err = broken; err == nil {
				_, err = out.Write(line)
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		s.log.Debug("Reader cut off", "path", q.route.path, "error", err)
		panic(http.ErrAbortHandler)
	}
	out.end()
	return nil
}
