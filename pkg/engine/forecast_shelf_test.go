package engine

import (
	"context"
	"iter"
	"maps"
	"sync"

	"github.com/nodectl/nodectl/pkg/source"
)

// shelf is a layer whose files a test writes. An agent that reads it gets each change; a
// preview reads it once.
type shelf struct {
	name string

	mu    sync.Mutex
	files map[string]source.File
	held  map[string]source.File // gone a moment ago: the file source waits before it reports that
	err   error
	tell  chan struct{}
}

func newShelf(name string) *shelf {
	return &shelf{name: name, files: map[string]source.File{}, held: map[string]source.File{}, tell: make(chan struct{}, 1)}
}

func (s *shelf) Name() string { return s.name }

// now returns the content of the shelf, for one read.
func (s *shelf) now() (source.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return shelved(s.files), s.err
}

// shown returns the content that the agent sees.
func (s *shelf) shown() (source.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.held)
	maps.Copy(all, s.files)
	return shelved(all), s.err
}

func shelved(files map[string]source.File) source.Snapshot {
	var b source.Builder
	for _, f := range files {
		b.Put(f, nil)
	}
	return b.Snapshot()
}

func (s *shelf) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		for rev := uint64(1); ; rev++ {
			snap, err := s.shown()
			snap.Revision = rev
			if err != nil {
				snap = source.Snapshot{}
			}
			if !yield(snap, err) {
				return
			}
			select {
			case <-s.tell:
			case <-ctx.Done():
				return
			}
		}
	}
}

// once returns a source of the shelf's current content, for one read.
func (s *shelf) once() source.Source {
	return onceReader{s.name, s.now}
}

type onceReader struct {
	name string
	now  func() (source.Snapshot, error)
}

func (o onceReader) Name() string { return o.name }
func (o onceReader) Sets(context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) { yield(o.now()) }
}
