package event

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

const (
	// gather is how long events are collected before a write: a storm of events costs a few
	// writes a second.
	gather = 200 * time.Millisecond
	// again is the time until the next try after a failed write.
	again = 10 * time.Second
)

// Run writes events to the file as they happen, until ctx is done, and then the rest. It
// logs a failure once, and tries again while there are events to write.
func (s *Store) Run(ctx context.Context) {
	if s.cfg.Path == "" {
		<-ctx.Done()
		return
	}
	f := file{path: s.cfg.Path}
	defer f.close()
	logged := false
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			if err := s.write(&f); err != nil && !logged {
				s.cfg.Log.Warn("Failed to write events", "path", s.cfg.Path, "error", err)
			}
			return
		}
		pause := gather
		err := s.write(&f)
		switch {
		case err != nil && !logged:
			s.cfg.Log.Warn("Failed to write events; keeping them in memory", "path", s.cfg.Path, "error", err)
		case err == nil && logged:
			s.cfg.Log.Info("Writing events succeeds again", "path", s.cfg.Path)
		}
		if logged = err != nil; logged {
			pause = again
			s.wake.Send()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// write updates the file: it appends the new events, or rewrites all of it if the file has
// grown too large.
func (s *Store) write(f *file) error {
	fresh := f.open()
	s.mu.Lock()
	var lines []byte
	var wrote []*kept
	whole := fresh != nil || f.size > maxBytes*3/4 && f.size > int64(2*s.bytes) || f.size > maxBytes*7/8
	for el := s.order.Front(); el != nil; el = el.Next() {
		k := el.Value.(*kept)
		if !whole && !s.dirty[k] {
			continue
		}
		line := encode(&k.event)
		s.bytes += len(line) - k.bytes
		k.bytes = len(line)
		lines = append(lines, line...)
		wrote = append(wrote, k)
	}
	before := s.dirty
	s.dirty = make(map[*kept]bool)
	s.mu.Unlock()
	if len(before) == 0 {
		return nil
	}
	var err error
	if whole {
		err = f.replace(lines)
	} else {
		err = f.append(lines)
	}
	if err != nil {
		s.mu.Lock()
		for _, k := range wrote {
			if el := s.byIdentity[k.identity]; el != nil && el.Value == k {
				s.dirty[k] = true
			}
		}
		s.mu.Unlock()
	}
	return err
}

// file is events.jsonl, open for writing.
type file struct {
	path string
	f    *os.File
	size int64
	torn bool // the last line is incomplete
}

// open opens the file if it is not open, or if its path has another file by now.
func (f *file) open() error {
	if f.f != nil {
		here, err := f.f.Stat()
		there, lost := os.Lstat(f.path)
		if err == nil && lost == nil && os.SameFile(here, there) {
			f.size = here.Size()
			return nil
		}
		f.close()
	}
	opened, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	info, err := opened.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		err = opened.Chmod(0o600)
	}
	if err != nil {
		opened.Close()
		return err
	}
	f.f, f.size, f.torn = opened, info.Size(), false
	if last := make([]byte, 1); f.size > 0 {
		if _, err := opened.ReadAt(last, f.size-1); err != nil || last[0] != '\n' {
			f.torn = true
		}
	}
	return nil
}

func (f *file) append(lines []byte) error {
	if f.torn {
		lines = append([]byte("\n"), lines...)
	}
	n, err := f.f.Write(lines)
	if f.torn = err != nil && n > 0; err == nil {
		f.size += int64(n)
	} else if n > 0 && f.f.Truncate(f.size) == nil {
		f.torn = false
	}
	return err
}

// replace replaces the whole content with lines, atomically.
func (f *file) replace(lines []byte) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	next, err := atomicfile.Rewrite(f.path, atomicfile.Options{Temp: ".tmp"}, func(w io.Writer) error {
		_, err := w.Write(lines)
		return err
	})
	if err != nil {
		return err
	}
	f.close()
	f.f, f.size, f.torn = next, int64(len(lines)), false
	return nil
}

func (f *file) close() {
	if f.f != nil {
		f.f.Close()
		f.f = nil
	}
}

func encode(e *v1.Event) []byte {
	line, err := json.Marshal(e)
	if err != nil {
		return nil // an Event can always be encoded
	}
	return append(line, '\n')
}

// Read returns the events of the file at path, the one that happened last at the end; none
// if there is no file. It works while an agent writes, and skips incomplete lines.
func Read(path string) ([]v1.Event, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4*maxBytes))
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	var all []v1.Event
	newest := make(map[string]int) // index in all, by name
	for line := range bytes.Lines(data) {
		var e v1.Event
		if json.Unmarshal(line, &e) == nil && e.Name != "" {
			newest[e.Namespace+"/"+e.Name] = len(all)
			all = append(all, e)
		}
	}
	kept := all[:0]
	for i, e := range all { // lines are in the order of the events, whatever the clock said
		if newest[e.Namespace+"/"+e.Name] == i {
			kept = append(kept, e)
		}
	}
	return kept[max(0, len(kept)-maxEvents):], nil
}
