// Package journal writes the status of pods to a file, one JSON object a line,
// and reads it. Every agent has one, also in a cluster.
//
// The engine's reporter writes it. "get pods" reads it without a lock, while an agent
// runs or later.
//
// The newest line of a pod is its status. Other lines may be lost. Pods may have secrets in their
// environment: the file has mode 0600, and logs and errors never contain its content.
package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

// maxSize is the size above which the journal is compacted, if more than half of it
// is out of date.
const maxSize = 4 << 20

// Entry is the newest status of one pod that is not gone.
type Entry struct {
	Time   time.Time
	Origin pod.Origin
	Pod    *v1.Pod // with its status
}

// place is the newest line of one pod.
type place struct {
	off int64
	len int64
	sum [sha256.Size]byte // of the line without its time
}

// Journal writes one journal. It belongs to one goroutine; the lock of the root
// directory protects it on the disk.
type Journal struct {
	path string
	log  *slog.Logger
	max  int64

	file *os.File // nil until the first Report and after a failure to open
	end  int64    // size of the file
	torn bool     // the file does not end with a whole line
	live map[pod.Key]place
	kept int64 // bytes in live
	// retry is the size above which the journal is compacted again after a failure.
	retry int64
}

// New returns the journal at path. It does no I/O: the first Report opens the file, and
// compacts it if a line is out of date.
func New(path string, log *slog.Logger) *Journal {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Journal{path: path, log: log, max: maxSize}
}

// Report appends a line with the pod and its status, unless the pod's last line is the same. If
// r.Gone, nothing is left of the pod. After an error (the disk is full or read-only) the journal is
// unchanged, and the next Report of the pod writes its status.
func (j *Journal) Report(r pod.StatusReport) error {
	p, gone := r.Pod, r.Gone
	if err := j.open(); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	line, err := encode(p, r.Origin, gone, r.At)
	if err != nil {
		return fmt.Errorf("encode status of pod %s: %w", pod.KeyOf(p), err)
	}
	key := pod.KeyOf(p)
	sum := sumOf(line)
	last, known := j.live[key]
	if known && last.sum == sum || gone && !known {
		return nil
	}
	off, err := j.append(line)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	j.note(key, gone, place{off, int64(len(line)), sum})
	if j.end > j.max && j.end > 2*j.kept && j.end >= j.retry {
		j.compact()
	}
	return nil
}

// Close closes the file. A later Report opens it again.
func (j *Journal) Close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// note remembers a pod's newest line.
func (j *Journal) note(key pod.Key, gone bool, p place) {
	j.kept -= j.live[key].len
	delete(j.live, key)
	if !gone {
		j.live[key] = p
		j.kept += p.len
	}
}

// open opens the journal and reads where each pod's newest line is. It opens the path
// again when the file was removed or replaced.
func (j *Journal) open() error {
	if j.file != nil {
		if here, err := j.file.Stat(); err == nil {
			if there, err := os.Lstat(j.path); err == nil && os.SameFile(here, there) && there.Size() == j.end {
				return nil
			}
		}
		_ = j.Close() // nothing is buffered
	}
	if err := os.MkdirAll(filepath.Dir(j.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := f.Chmod(0o600); err != nil {
		f.Close()
		return err
	}
	j.file, j.end, j.torn, j.retry = f, 0, false, 0
	j.live, j.kept = make(map[pod.Key]place), 0
	end, err := scan(f, func(off int64, line []byte) {
		if l, err := decodeLine(line); err == nil {
			j.note(l.key(), l.Gone, place{off, int64(len(line)), sumOf(line)})
		}
	})
	if err != nil {
		_ = j.Close() // nothing is buffered
		return err
	}
	j.end, j.torn = end.size, end.torn
	if j.end > j.kept {
		j.compact()
	}
	return nil
}

// append writes one line at the end, and returns its offset. If the write fails, append truncates
// the file to its old length. If that fails, too, the next entry begins on a new line.
func (j *Journal) append(line []byte) (off int64, err error) {
	if j.torn {
		line = append([]byte("\n"), line...)
	}
	n, err := j.file.Write(line)
	if err == nil {
		off = j.end
		if j.torn {
			off++
		}
		j.end += int64(n)
		j.torn = false
		return off, nil
	}
	if n > 0 && j.file.Truncate(j.end) != nil {
		j.end += int64(n)
		j.torn = true
	}
	return 0, err
}

// compact rewrites the journal with the newest line of each pod. It replaces the old file
// atomically: a reader sees all of the old file, or all of the new one. A failure costs only
// disk space.
func (j *Journal) compact() {
	before := j.end
	if err := j.rewrite(); err != nil {
		j.retry = j.end + j.max/4
		j.log.Warn("Failed to compact journal", "path", j.path, "bytes", j.end, "error", err)
		return
	}
	j.retry = 0
	j.log.Debug("Compacted journal", "path", j.path, "before", before, "after", j.end)
}

// rewrite does not sync the file: after a loss of power the engine reports every pod
// again.
func (j *Journal) rewrite() error {
	var live map[pod.Key]place
	var end int64
	f, err := atomicfile.Rewrite(j.path, atomicfile.Options{Temp: ".tmp"}, func(w io.Writer) (err error) {
		live, end, err = copyLines(w, j.file, j.live)
		return err
	})
	if err != nil {
		return err
	}
	j.file.Close()
	j.file, j.live, j.end, j.kept, j.torn = f, live, end, end, false
	return nil
}

// copyLines copies lines from one journal to another, in their order. It returns their new places,
// and the size of the new journal.
func copyLines(to io.Writer, from io.ReaderAt, lines map[pod.Key]place) (map[pod.Key]place, int64, error) {
	moved := make(map[pod.Key]place, len(lines))
	var end int64
	for _, key := range inOrder(lines) {
		p := lines[key]
		n, err := io.Copy(to, io.NewSectionReader(from, p.off, p.len))
		if err == nil && n < p.len {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, 0, err
		}
		p.off = end
		end += p.len
		moved[key] = p
	}
	return moved, end, nil
}

// Read returns the newest entry of every pod that is not gone. It may run while an
// agent writes, and skips incomplete lines. Without a journal there are no entries.
func Read(path string) (map[pod.Key]Entry, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[pod.Key]Entry{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	defer f.Close()
	newest := make(map[pod.Key][]byte)
	_, err = scan(f, func(_ int64, line []byte) {
		l, err := decodeLine(line)
		switch {
		case err != nil:
		case l.Gone:
			delete(newest, l.key())
		default:
			newest[l.key()] = bytes.Clone(line)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	entries := make(map[pod.Key]Entry, len(newest))
	for key, text := range newest {
		var l fullLine
		if json.Unmarshal(text, &l) == nil && l.Pod != nil {
			entries[key] = Entry{Time: l.Time, Origin: pod.Origin(l.Origin), Pod: l.Pod}
		}
	}
	return entries, nil
}
