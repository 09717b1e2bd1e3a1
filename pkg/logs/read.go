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

// File names a log: Path is relative to Dir.
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
	// Ended reports whether the container has ended: with Follow, reading ends when it has
	// and all is read. nil means never.
	Ended func() bool
}

// How long a follower waits at the end of a log before it reads again: the first while the
// container writes, up to the second when it does not. It polls instead of using inotify: a
// host has few instances (128 by default), and followers that use them all are a known
// failure of the kubelet's. An idle follower costs some ten system calls per poll: about
// 0.01 % of a core.
const (
	firstLook = 25 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// Read writes a container's log to w until the log ends, Limit is reached, or, with Follow,
// ctx is done (which is no error) or the container has ended. It opens the log below its
// directory, and only if it is a regular file (else ErrNotRegular). Lines that are not in
// CRI's format are left out.
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

	buf   []byte // read and not processed: the beginning of a line, if anything
	lines lines
}

// longest is the longest part of a line that is buffered. A longer line is written in
// pieces.
const longest = 64 << 10

// copy copies to w until the end.
func (r *reader) copy(ctx context.Context, w io.Writer) error {
	wait := firstLook
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for ctx.Err() == nil && !r.lines.done() {
		ended := r.opts.Follow && r.opts.Ended != nil && r.opts.Ended() // before the last read
		n, err := r.drain(ctx, w)
		if err != nil || !r.opts.Follow {
			return err
		}
		switch moved, err := r.next(ctx, w); {
		case err != nil:
			return err
		case moved || n > 0:
			wait = firstLook
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
		wait = min(wait*2, lastLook)
	}
	return nil
}

// drain copies the rest of the current file, and returns its size.
func (r *reader) drain(ctx context.Context, w io.Writer) (n int64, err error) {
	if r.buf == nil {
		r.buf = make([]byte, 0, longest)
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

// flush writes the whole lines in the buffer; with all, also the beginning of one.
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

// next continues with the file that has the name now, if that is another one: the log was
// rotated. It reads the rest of the old file first. It ignores a new file that is not a
// regular log.
func (r *reader) next(ctx context.Context, w io.Writer) (moved bool, err error) {
	file, info, err := openLog(r.dir, r.name)
	if err != nil {
		return false, nil // missing for now, or nothing to read
	}
	if os.SameFile(info, r.info) {
		defer file.Close()
		at, err := r.file.Seek(0, io.SeekCurrent)
		if err != nil || info.Size() >= at {
			return false, err
		}
		r.buf, r.lines.inside = r.buf[:0], false // the old file ends within a line
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
	block := make([]byte, longest)
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
