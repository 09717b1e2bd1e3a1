// Package tui shows a stream of updates on a terminal: the sources, the pods, and
// the latest updates.
//
// Run takes the documents that watch -o json prints, from any origin; it reads no
// source and asks no agent. state holds the content of the stream, model handles
// the user's input, screen draws. bubbletea runs the loop, lipgloss colours.
//
// Run restores the terminal, however it ends.
package tui

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime/debug"
	"sync"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"golang.org/x/term"

	"github.com/nodectl/nodectl/pkg/ui"
	"github.com/nodectl/nodectl/pkg/ui/tui/termquery"
)

// bubbletea has sent its terminal queries by now; see package termquery.
var _ = termquery.Restore()

// ErrNoTerminal is the error if the output is no terminal.
var ErrNoTerminal = errors.New("--tui needs a terminal; use -o json in a pipe")

// Config configures Run.
type Config struct {
	// In is the keyboard, Out the screen. If In is not a terminal, for example a pipe with
	// manifests, Run reads keys from the controlling terminal.
	In, Out *os.File
	// Updates is the stream. Its context ends when the user quits, or with Run's own. The
	// sequence must end then, since Run waits for it.
	Updates func(context.Context) iter.Seq[ui.PodUpdate]
	// Title is the title, such as the names of the layers. It need not be clean.
	Title string
	// Color allows colours. The screen has the same content without them.
	Color bool
	// Zone is the time zone of the times shown; nil is the local one.
	Zone *time.Location
}

// Check returns ErrNoTerminal if out is not a terminal that Run can use.
func Check(out *os.File) error {
	if out == nil || !term.IsTerminal(int(out.Fd())) {
		return ErrNoTerminal
	}
	return nil
}

// Run shows updates until the user quits or ctx is done; it returns nil for both. If the stream ends
// earlier, its last state stays on the screen. Run blocks, and none of its goroutines outlives it.
// It handles no signal: Ctrl-C is a key here, and the caller ends ctx for a signal. A panic, also one
// of Updates, continues after Run has restored the terminal.
func Run(ctx context.Context, c Config) error {
	if err := Check(c.Out); err != nil {
		return err
	}
	options := []tea.ProgramOption{
		tea.WithOutput(c.Out), tea.WithAltScreen(), tea.WithFPS(frames),
		tea.WithoutSignalHandler(), tea.WithoutCatchPanics(),
	}
	if c.In != nil && term.IsTerminal(int(c.In.Fd())) {
		options = append(options, tea.WithInput(c.In))
	} else {
		options = append(options, tea.WithInputTTY())
	}
	return run(ctx, c, newModel(c), options)
}

// run shows the model m until it quits. It has two goroutines besides bubbletea's: one reads the
// stream, the other sends batches of updates to the screen.
func run(ctx context.Context, c Config, m tea.Model, options []tea.ProgramOption) error {
	program := tea.NewProgram(m, options...)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var crash error // of the stream; written before wg.Wait returns, read after
	wg.Go(func() {
		crash = forward(ctx, c.Updates, program.Send)
		if crash != nil {
			program.Send(leave{})
		}
	})
	returned := false
	defer func() {
		if !returned { // the model panics
			_ = program.ReleaseTerminal()
		}
		cancel()
		program.Kill() // the program drops later messages
		wg.Wait()
		if returned && crash != nil {
			panic(crash)
		}
	}()
	_, err := program.Run()
	returned = true
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	return nil
}

const (
	// frames is the maximum number of frames per second.
	frames = 15
	// maxBatch is how many updates may wait for the next frame. Then the stream blocks.
	maxBatch = 4096
)

// forward sends the updates of the stream, one batch per frame, and then ended. As soon as ctx is
// done, it sends leave. It returns when the stream has ended and ctx is done, or with an error when
// the stream has panicked.
//
//	documents  0  stream → the loop below; it stops receiving at maxBatch
func forward(ctx context.Context, updates func(context.Context) iter.Seq[ui.PodUpdate], send func(tea.Msg)) (crash error) {
	documents := make(chan ui.PodUpdate)
	var wg sync.WaitGroup
	var broken error // owned by the reading goroutine until it has ended
	defer func() {
		wg.Wait()
		crash = broken
	}()
	wg.Go(func() {
		defer close(documents)
		defer func() {
			if r := recover(); r != nil {
				broken = fmt.Errorf("%v\n\n%s", r, debug.Stack())
			}
		}()
		for u := range updates(ctx) {
			select {
			case documents <- u:
			case <-ctx.Done():
				return
			}
		}
	})
	frame := time.NewTimer(0)
	defer frame.Stop()
	var waiting batch
	var due <-chan time.Time
	for in := documents; ; {
		more := in
		if len(waiting) >= maxBatch {
			more = nil
		}
		select {
		case u, ok := <-more:
			if !ok {
				if len(waiting) > 0 {
					send(waiting)
				}
				if broken != nil {
					return nil
				}
				send(ended{})
				in, waiting, due = nil, nil, nil
				continue
			}
			if waiting = append(waiting, u); due == nil {
				frame.Reset(time.Second / frames)
				due = frame.C
			}
		case <-due:
			send(waiting)
			waiting, due = nil, nil
		case <-ctx.Done():
			send(leave{})
			return nil
		}
	}
}
