package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Copier copies between this machine and a container, which needs tar.
type Copier struct {
	Client     *Client
	Pod        *v1.Pod
	Container  string
	NoPreserve bool              // leave owners and modes as tar in the container makes them
	MaxSize    int64             // of the files copied from the container
	Note       func(text string) // receives each skipped file with the reason
}

// LocalError is the error for a file of this machine that cannot be read.
type LocalError struct{ err error }

func (e *LocalError) Error() string { return e.err.Error() }

// Unwrap returns the file's error.
func (e *LocalError) Unwrap() error { return e.err }

// run runs a command in the container; the command's standard error is the error's text.
func (k Copier) run(ctx context.Context, in io.Reader, out io.Writer, command ...string) error {
	var said firstBytes
	err := k.Client.Exec(ctx, k.Pod.Namespace, k.Pod.Name, k.Container, command, Streams{Stdin: in, Stdout: out, Stderr: &said})
	if ended, ok := errors.AsType[*ExitError](err); ok {
		text := strings.TrimSpace(string(said.kept))
		if text == "" {
			text = fmt.Sprintf("%s in the container ended with %d", command[0], ended.Code)
		}
		return &inContainer{text, ended}
	}
	return err
}

// inContainer is the failure of a command, with its standard error as the message.
type inContainer struct {
	text string
	end  *ExitError
}

func (e *inContainer) Error() string { return e.text }
func (e *inContainer) Unwrap() error { return e.end }

// firstBytes keeps the first written bytes.
type firstBytes struct{ kept []byte }

func (f *firstBytes) Write(b []byte) (int, error) {
	f.kept = append(f.kept, b[:min(len(b), max(0, 4096-len(f.kept)))]...)
	return len(b), nil
}

// Upload copies to the container.
func (k Copier) Upload(ctx context.Context, from, to string) error {
	info, err := os.Lstat(from)
	if err == nil && info.Mode()&os.ModeSymlink != 0 { // follow a link that is named itself
		if from, err = filepath.EvalSymlinks(from); err == nil {
			info, err = os.Lstat(from)
		}
	}
	if err != nil {
		return &LocalError{err}
	}
	target := path.Clean(to)
	if err := k.run(ctx, nil, io.Discard, "test", "-d", target); err == nil {
		target = path.Join(target, filepath.Base(absolutePath(from)))
	} else if ctx.Err() != nil || IsAbsent(err) {
		return err
	} else if strings.HasSuffix(to, "/") && !info.IsDir() {
		return errors.New(to + " is no directory of the container")
	}
	command := []string{"tar", "-xmf", "-", "-C", path.Dir(target)}
	if k.NoPreserve {
		command = []string{"tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-", "-C", path.Dir(target)}
	}
	r, w := io.Pipe()
	var wg sync.WaitGroup
	var packed error
	wg.Go(func() {
		packed = Pack(w, from, path.Base(target), k.Note)
		_ = w.CloseWithError(packed)
	})
	err = k.run(ctx, r, io.Discard, command...)
	_ = r.Close() // so that packing ends where tar did
	wg.Wait()
	if packed != nil && !errors.Is(packed, io.ErrClosedPipe) {
		return &LocalError{packed}
	}
	return err
}

// Download copies from the container.
func (k Copier) Download(ctx context.Context, from, to string) error {
	dir, base := path.Split(path.Clean(from))
	if base == "" || base == "." || base == ".." {
		dir, base = path.Clean(from), "."
	}
	target := to
	if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
		target = filepath.Join(to, filepath.FromSlash(base))
	}
	if base == "." && filepath.Base(target) == ".." {
		target = absolutePath(target)
	}
	command := []string{"tar", "cf", "-", "-C", dir, "./" + base}
	if dir == "" {
		command = []string{"tar", "cf", "-", "./" + base}
	}
	r, w := io.Pipe()
	var wg sync.WaitGroup
	var unpacked error
	wg.Go(func() {
		unpacked = Unpack(r, base, absolutePath(target), k.MaxSize, k.Note)
		_ = r.CloseWithError(unpacked)
	})
	err := k.run(ctx, nil, w, command...)
	_ = w.CloseWithError(err) // nil is the end
	wg.Wait()
	if large, ok := errors.AsType[*TooLargeError](unpacked); ok { // and not that the stream was cut
		return large
	}
	if err != nil {
		return err
	}
	return unpacked
}

func absolutePath(at string) string {
	if abs, err := filepath.Abs(at); err == nil {
		return abs
	}
	return at
}
