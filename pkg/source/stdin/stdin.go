// Package stdin reads manifests from standard input, once.
//
// It yields one source.File named "-" and ends; its set stays in use. It yields nothing before the end of
// the input, because a part of the input may be valid and mean something else.
package stdin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// DefaultLimit is the default limit of New, in bytes.
const DefaultLimit = 10 << 20

// Parser decodes manifests. The second result has a notice for each part that it ignored on purpose.
type Parser = func(data []byte, file string) (source.File, []pod.Problem)

// Source is the source that reads standard input, or another reader.
type Source struct {
	in    io.Reader
	parse Parser
	limit int64
}

var _ source.Source = (*Source)(nil)

// New returns the source that reads in to its end. Input of more than limit bytes is a problem; a limit of
// 0 is DefaultLimit. The source reads nothing before Sets.
func New(in io.Reader, parse Parser, limit int64) *Source {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Source{in: in, parse: parse, limit: limit}
}

// Name returns "stdin:-".
func (s *Source) Name() string { return "stdin:-" }

// Sets implements source.Source. It yields one set, or one error, and ends. On Linux it stops reading an
// *os.File as soon as ctx is done, even without input. It stops reading any other reader, and any reader
// on other systems, at the next read.
func (s *Source) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		data, err := s.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			yield(source.Snapshot{}, err)
			return
		}
		var set source.Builder
		set.Put(s.decode(data))
		yield(set.Snapshot(), nil)
	}
}

func (s *Source) decode(data []byte) (source.File, []pod.Problem) {
	if int64(len(data)) > s.limit {
		problem := pod.Problem{File: "-", Msg: "is larger than " + size(s.limit) + ", the limit for standard input"}
		return source.File{File: "-", Incomplete: true, Problems: []pod.Problem{problem}}, nil
	}
	f, notices := s.parse(data, "-")
	f.File = "-"
	return f, notices
}

func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// read returns all of the input, but at most one byte more than the limit.
func (s *Source) read(ctx context.Context) ([]byte, error) {
	var data bytes.Buffer
	in, done, err := reader(ctx, s.in)
	if err != nil {
		return nil, cannotRead(err)
	}
	defer done()
	if _, err := io.Copy(&data, io.LimitReader(in, s.limit+1)); err != nil {
		return nil, cannotRead(err)
	}
	return data.Bytes(), nil
}

func cannotRead(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// ctxReader is a reader whose reads fail after the end of ctx.
type ctxReader struct {
	ctx context.Context
	in  io.Reader
}

func (p *ctxReader) Read(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.in.Read(b)
}
