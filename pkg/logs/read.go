package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// File names a log. Path is relative to Dir, the directory of all pods' logs.
type File struct{ Dir, Path string }

// Options select a part of a log (C-1.40.8).
type Options struct {
	Stdout, Stderr bool      // which of the container's streams
	Timestamps     bool      // begin each line with its time
	Tail           int64     // entries from the end; negative means all
	Since          time.Time // leave out entries before it; zero leaves out none
	Limit          int64     // bytes; negative means all
	// Follow continues at the end of the log, also after a rotation.
	Follow bool
	// Ended reports whether the container has ended. With Follow, Read returns when the container
	// has ended and everything is read. nil means that it never ends.
	Ended func() bool
}

// A follower waits at the end of a log before it reads again: minPoll while the container writes, up
// to maxPoll while it does not. It polls instead of using inotify, because a host has few inotify
// instances (128 by default). Followers that use all of them are a known failure of the kubelet. An
// idle follower makes some ten system calls per poll, which takes about 0.01 % of a core.
const (
	minPoll = 25 * time.Millisecond
	maxPoll = 250 * time.Millisecond
)

// Read writes a container's log to w, until the log ends or a limit is reached. With Follow, it
// continues until the container has ended. The end of ctx ends it, and is no error. Read follows no
// link below File.Dir. If the log is not a regular file, the error wraps ErrNotRegular. Read leaves out
// lines that are not in CRI's format.
func Read(ctx context.Context, w io.Writer, f File, o Options) error {
	err := read(ctx, w, f, o)
	if err != nil {
		return fmt.Errorf("read log %s: %w", f.Path, err)
	}
	return nil
}

func read(ctx context.Context, w io.Writer, f File, o Options) error {
	dir, name, err := openDir(f)
	if err != nil {
		return err
	}
	defer dir.Close()
	file, info, err := openLog(dir, name)
	if err != nil {
		return err
	}
	r := &reader{dir: dir, name: name, file: file, info: info, opts: o, lines: lines{opts: o, remain: o.Limit, entries: -1, fresh: true}}
	defer func() { _ = r.file.Close() }()
	if o.Tail >= 0 {
		start, err := tailStart(file, info.Size(), o.Tail)
		if err != nil {
			return err
		}
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if !o.Follow {
			r.lines.entries = o.Tail
		}
	}
	return r.copy(ctx, w)
}

// reader reads one log across its rotations.
type reader struct {
	dir  *os.File
	name string
	file *os.File
	info os.FileInfo
	opts Options

	buf   []byte // read and not processed: the beginning of a line, or nothing
	lines lines
}

// bufferSize is the size of the read buffer, in bytes. A longer line is written in pieces.
const bufferSize = 64 << 10

// copy copies the log to w until the end, see Read.
func (r *reader) copy(ctx context.Context, w io.Writer) error {
	wait := minPoll
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for ctx.Err() == nil && !r.lines.done() {
		ended := r.opts.Follow && r.opts.Ended != nil && r.opts.Ended() // asked before the read, so that the read gets everything
		n, err := r.drain(ctx, w)
		if err != nil || !r.opts.Follow {
			return err
		}
		switch moved, err := r.next(ctx, w); {
		case err != nil:
			return err
		case moved || n > 0:
			wait = minPoll
			if moved {
				continue
			}
		case ended:
			return r.flush(w, true)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		wait = min(wait*2, maxPoll)
	}
	return nil
}

// drain copies the rest of the current file, and returns how many bytes it has read.
func (r *reader) drain(ctx context.Context, w io.Writer) (n int64, err error) {
	if r.buf == nil {
		r.buf = make([]byte, 0, bufferSize)
	}
	for ctx.Err() == nil && !r.lines.done() {
		got, err := r.file.Read(r.buf[len(r.buf):cap(r.buf)])
		n += int64(got)
		r.buf = r.buf[:len(r.buf)+got]
		if err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		end := err != nil || got == 0
		if end && !r.opts.Follow {
			return n, r.flush(w, true)
		}
		if err := r.flush(w, false); err != nil || end {
			return n, err
		}
	}
	return n, nil
}

// flush writes the complete lines in the buffer. With all, it also writes the beginning of a line.
func (r *reader) flush(w io.Writer, all bool) error {
	taken := 0
	for !r.lines.done() {
		rest := r.buf[taken:]
		i := bytes.IndexByte(rest, '\n')
		if i < 0 && (len(rest) == 0 || !all && (taken > 0 || len(rest) < cap(r.buf))) {
			break
		}
		piece := rest
		if i >= 0 {
			piece = rest[:i+1]
		}
		r.lines.add(piece, i >= 0)
		taken += len(piece)
	}
	r.buf = r.buf[:copy(r.buf, r.buf[taken:])]
	out := r.lines.out
	if len(out) == 0 {
		return nil
	}
	r.lines.out = out[:0]
	_, err := w.Write(out)
	return err
}

// next continues with the file that now has the log's name, if that is another one because the log was
// rotated. It reads the rest of the old file first. If the file is the same but shorter, it was
// truncated, and next begins at its start. It ignores a new file that openLog cannot open.
func (r *reader) next(ctx context.Context, w io.Writer) (moved bool, err error) {
	file, info, err := openLog(r.dir, r.name)
	if err != nil {
		return false, nil // it does not exist now, or is no log
	}
	if os.SameFile(info, r.info) {
		defer file.Close()
		at, err := r.file.Seek(0, io.SeekCurrent)
		if err != nil || info.Size() >= at {
			return false, err
		}
		r.buf, r.lines.inside = r.buf[:0], false // drop an incomplete line from before the truncation
		_, err = r.file.Seek(0, io.SeekStart)
		return err == nil, err
	}
	if _, err := r.drain(ctx, w); err != nil {
		_ = file.Close()
		return false, err
	}
	if err := r.flush(w, true); err != nil {
		_ = file.Close()
		return false, err
	}
	_ = r.file.Close()
	r.file, r.info, r.lines.inside = file, info, false
	return true, nil
}

// tailStart returns where the last n entries of a file begin. An incomplete last line is no
// entry.
func tailStart(f io.ReaderAt, size, n int64) (int64, error) {
	block := make([]byte, bufferSize)
	var ends int64
	for at := size; at > 0; {
		from := max(at-int64(len(block)), 0)
		part := block[:at-from]
		if _, err := f.ReadAt(part, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] == '\n' {
				if ends++; ends > n {
					return from + int64(i) + 1, nil
				}
			}
		}
		at = from
	}
	return 0, nil
}
