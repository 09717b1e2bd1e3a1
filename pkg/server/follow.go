package server

import (
	"iter"
	"net/http"
	"time"
)

// streamWriter writes a stream and sends each piece at once. A write fails if the caller does
// not read the piece in time.
type streamWriter struct {
	w       http.ResponseWriter
	out     *http.ResponseController
	timeout time.Duration
	began   bool // Write was called: the status code cannot change any more
}

func (s *Server) streamWriter(w http.ResponseWriter) *streamWriter {
	return &streamWriter{w: w, out: http.NewResponseController(w), timeout: s.cfg.WriteTimeout}
}

// Write implements io.Writer.
func (p *streamWriter) Write(b []byte) (int, error) {
	p.began = true
	if err := p.out.SetWriteDeadline(time.Now().Add(p.timeout)); err != nil {
		return 0, err
	}
	n, err := p.w.Write(b)
	if err != nil {
		return n, err
	}
	if err := p.out.Flush(); err != nil {
		return n, err
	}
	return n, p.out.SetWriteDeadline(time.Time{}) // HTTP/2 would end an idle stream at the deadline
}

// end gives the caller time to read the end of the stream.
func (p *streamWriter) end() { _ = p.out.SetWriteDeadline(time.Now().Add(p.timeout)) }

// lines answers with lines. If a line is an error or cannot be sent, it aborts the connection. So
// the caller can distinguish the failure from the end of the stream.
func (s *Server) lines(w http.ResponseWriter, q *request, lines iter.Seq2[[]byte, error]) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := s.streamWriter(w)
	_, err := out.Write(nil) // sends the headers before the first line
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
		s.log.Debug("Aborted stream", "path", q.route.path, "error", err)
		panic(http.ErrAbortHandler)
	}
	out.end()
	return nil
}
