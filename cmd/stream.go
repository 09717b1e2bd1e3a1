package cmd

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/nodectl/nodectl/pkg/ui"
)

// errClosed means that the reader of standard output is gone. A command that returns it ends with
// exit code 0.
var errClosed = errors.New("standard output is closed")

// output is one of the program's two streams, with its display features.
type output struct {
	*ui.View
	file   *os.File
	buffer *textBuffer // receives the text while a screen is shown; else nil
	live   *liveLines  // lines below all text, on a terminal; else nil
}

func newOutput(f *os.File) *output {
	return &output{file: f, View: ui.New(f, ui.Screen{})}
}

// detect sets the width and colours that the stream can show. mode is --color.
func (o *output) detect(mode string, env func(string) string) {
	screen := ui.Screen{}
	terminal := term.IsTerminal(int(o.file.Fd()))
	if terminal {
		screen.Width = 80
		if w, _, err := term.GetSize(int(o.file.Fd())); err == nil && w > 0 {
			screen.Width = w
		}
	}
	screen.Color = ui.Colored(mode, terminal, env)
	o.View = ui.New(o.file, screen)
}

// terminal reports whether the stream is a terminal.
func (o *output) terminal() bool { return term.IsTerminal(int(o.file.Fd())) }

// Write implements io.Writer. It returns errClosed if the reader is gone.
func (o *output) Write(b []byte) (int, error) {
	if o.buffer != nil {
		return o.buffer.Write(b)
	}
	if o.live != nil {
		return o.live.Write(b)
	}
	return o.write(b)
}

// write writes to the stream itself.
func (o *output) write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if isClosedPipe(err) {
		return n, errClosed
	}
	return n, err
}

// print writes the answer, or a piece of it.
func (o *output) print(text string) error {
	_, err := o.Write([]byte(text))
	return err
}

// say writes to standard error, and ignores errors.
func (p *program) say(text string) { _ = p.err.print(text) }

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal os.Signal }

func (i interrupted) Error() string { return "interrupted by " + i.signal.String() }

// code returns the exit code that shells use for a program that a signal ended.
func (i interrupted) code() int {
	if s, ok := i.signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return exitFailure
}

// withSignals returns a context that ends at the first SIGINT or SIGTERM, with interrupted as its
// cause. A second signal ends the program at once. A write to a closed pipe returns an error and
// sends no signal. SIGPIPE is caught, not ignored, so programs that nodectl starts still get it.
func withSignals(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1) // the runtime sends, the goroutine below receives; when full, one signal has been enough
	pipes := make(chan os.Signal, 1)   // never received: write returns the error
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	signal.Notify(pipes, syscall.SIGPIPE)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(interrupted{s})
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
		signal.Stop(signals)
		signal.Stop(pipes)
	}
}
