package cmd

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/nodectl/nodectl/pkg/client"
)

// terminal is this process's terminal while a command in a container uses it.
type terminal struct {
	in    *os.File
	state *term.State
	sizes chan client.Size // cap 1: the goroutine below sends, the stream receives; an unread size is replaced
	stop  func()
	once  sync.Once
}

// openTerminal puts the terminal of in into raw mode until close is called. It returns nil if in
// is not a terminal.
func openTerminal(in, out *os.File) (*terminal, error) {
	if !term.IsTerminal(int(in.Fd())) {
		return nil, nil
	}
	state, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	t := &terminal{in: in, state: state, sizes: make(chan client.Size, 1)}
	of := in
	if term.IsTerminal(int(out.Fd())) {
		of = out
	}
	t.stop = resized(func() {
		if w, h, err := term.GetSize(int(of.Fd())); err == nil && w > 0 && h > 0 {
			t.resize(client.Size{Width: uint16(min(w, 1<<15)), Height: uint16(min(h, 1<<15))})
		}
	})
	return t, nil
}

// resize sends a size and replaces an unread one. Only one goroutine calls it.
func (t *terminal) resize(s client.Size) {
	select {
	case <-t.sizes:
	default:
	}
	t.sizes <- s
}

// close restores the terminal. It may be called more than once.
func (t *terminal) close() {
	t.once.Do(func() {
		t.stop()
		close(t.sizes)
		_ = term.Restore(int(t.in.Fd()), t.state)
	})
}
