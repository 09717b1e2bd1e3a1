package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	stamp        = "20060102-150405" // the format of the time of a rotation; texts of it sort by time
	packedSuffix = ".gz"
	tmpSuffix    = ".tmp"
)

// tidy cleans up the rotated files of one log (C-1.43.1, C-1.43.2). It removes files that a killed
// agent left incomplete, and the oldest files above the limit, and compresses all but the newest.
// After a failure it continues with the other files.
func (r *Rotator) tidy(ctx context.Context, dir *os.Root, name string) error {
	plain, packed, failed := r.rotated(dir, name)
	doomed := func(file string) { failed = append(failed, remove(dir, file)) }

	for at := range packed { // a compressed file gets its name when it is complete
		if plain[at] {
			doomed(name + "." + at)
			delete(plain, at)
		}
	}
	moments := slices.Sorted(maps.Keys(plain))
	moments = slices.AppendSeq(moments, maps.Keys(packed))
	slices.Sort(moments)
	for len(moments) > r.cfg.MaxFiles-1 {
		at := moments[0]
		moments = moments[1:]
		if plain[at] {
			doomed(name + "." + at)
		} else {
			doomed(name + "." + at + packedSuffix)
		}
	}
	if !r.cfg.Plain && len(moments) > 0 {
		for _, at := range moments[:len(moments)-1] {
			if plain[at] {
				failed = append(failed, pack(ctx, dir, name+"."+at))
			}
		}
	}
	return errors.Join(failed...)
}

// rotated returns the times of the rotated logs, uncompressed and compressed, and removes
// incomplete ones.
func (r *Rotator) rotated(dir *os.Root, name string) (plain, packed map[string]bool, failed []error) {
	plain, packed = map[string]bool{}, map[string]bool{}
	d, err := dir.Open(".")
	if gone(err) {
		return plain, packed, nil
	}
	if err != nil {
		return plain, packed, []error{err}
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if !gone(err) {
		failed = append(failed, err)
	}
	for _, e := range entries {
		file := e.Name()
		at, ok := stampOf(strings.TrimSuffix(file, tmpSuffix), name+".")
		switch {
		case !ok || !e.Type().IsRegular():
		case strings.HasSuffix(file, tmpSuffix):
			failed = append(failed, remove(dir, file))
		case strings.HasSuffix(file, packedSuffix):
			packed[at] = true
		default:
			plain[at] = true
		}
	}
	return plain, packed, failed
}

func remove(dir *os.Root, file string) error {
	if err := dir.Remove(file); !gone(err) {
		return err
	}
	return nil
}

// pack compresses one file. It gives the compressed file its name when that is complete and synced,
// and removes the other file only after that.
func pack(ctx context.Context, dir *os.Root, file string) error {
	from, err := dir.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", file, ErrNotRegular)
	}
	to, err := dir.OpenFile(file+tmpSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	if err := errors.Join(compress(ctx, to, from), to.Close()); err != nil {
		return errors.Join(fmt.Errorf("compress %s: %w", file, err), remove(dir, file+tmpSuffix))
	}
	if err := dir.Rename(file+tmpSuffix, file+packedSuffix); gone(err) {
		return nil // removed with its container
	} else if err != nil {
		return errors.Join(err, remove(dir, file+tmpSuffix))
	}
	return remove(dir, file)
}

// compress copies from to to, compressed, and syncs to.
func compress(ctx context.Context, to *os.File, from io.Reader) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestSpeed) // better levels save little space and take three times as long
	if err != nil {
		return err
	}
	if _, err := io.Copy(z, bounded{ctx, from}); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return to.Sync()
}

// bounded is a reader that returns the error of its context when that ends.
type bounded struct {
	ctx context.Context
	io.Reader
}

func (b bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}
