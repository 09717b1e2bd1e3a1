package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A Thing is an entry of a case's directory; exactly one of its kind fields is set.
type Thing struct {
	Dir    string `json:"dir"`
	File   string `json:"file"`
	Socket string `json:"socket"`
	Pipe   string `json:"pipe"`
	Char   string `json:"char"`  // the null device
	Block  string `json:"block"` // the first loop device
	Mount  string `json:"mount"` // a directory with a mount of its own that is shared
	Link   string `json:"link"`
	To     string `json:"to"`    // of a link
	Text   string `json:"text"`  // of a file
	Mode   uint32 `json:"mode"`  // 0 is the default
	Owner  int    `json:"owner"` // and group
}

// prepare makes the entries of the case's directory.
func (c *Case) prepare(dir string) error {
	for _, t := range c.Prepare {
		if err := t.make(dir); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	return nil
}

func (t Thing) make(dir string) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	var name string
	var err error
	switch {
	case t.Dir != "":
		name, err = t.Dir, os.MkdirAll(in(t.Dir), 0o755)
	case t.Mount != "":
		name = t.Mount
		err = errors.Join(os.MkdirAll(in(name), 0o755), unix.Mount("tmpfs", in(name), "tmpfs", 0, "size=1m,mode=0755"), unix.Mount("", in(name), "", unix.MS_SHARED, ""))
	case t.File != "":
		name, err = t.File, os.WriteFile(in(t.File), []byte(t.Text), 0o644)
	case t.Socket != "":
		name, err = t.Socket, unix.Mknod(in(t.Socket), unix.S_IFSOCK|0o755, 0)
	case t.Pipe != "":
		name, err = t.Pipe, unix.Mkfifo(in(t.Pipe), 0o644)
	case t.Char != "":
		name, err = t.Char, unix.Mknod(in(t.Char), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	case t.Block != "":
		name, err = t.Block, unix.Mknod(in(t.Block), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 0)))
	case t.Link != "":
		return os.Symlink(t.To, in(t.Link))
	default:
		return errors.New("a thing without a name")
	}
	if err == nil && t.Mode != 0 {
		err = unix.Chmod(in(name), t.Mode)
	}
	if err == nil && t.Owner != 0 {
		err = os.Chown(in(name), t.Owner, t.Owner)
		if t.Mode != 0 {
			err = errors.Join(err, unix.Chmod(in(name), t.Mode))
		}
	}
	return err
}
