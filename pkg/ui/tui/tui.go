// Package tui shows a stream of updates on a terminal: the sources, the pods,
// and what happened last.
//
// Run takes the documents that watch -o json prints, wherever they come from,
// and derives everything from them; it reads no source and asks no agent. State
// is what the stream says, model what a person does with it, screen how it
// looks. bubbletea runs the loop, lipgloss colours.
//
// The one rule: the terminal is left as it was found, however Run ends.
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
	"github.com/nodectl/nodectl/pkg/ui/tui/hush"
)

// bubbletea has asked what it wanted to know by now; see package hush.
var _ = hush.Over()

// ErrNoTerminal says that there is nobody to show a screen to.
var ErrNoTerminal = errors.New("--tui needs a terminal; use -o json in a pipe")

// Config is what Run shows, and where.
type Config struct {
	// In gives the keys, Out is the screen. Where In is no terminal, as when
	// manifests come by it, keys are read from the controlling terminal.
	In, Out *os.File
	// Updates is the stream. Its context ends when the person leaves, or with
	// Run's own; the sequence must end then, as Run waits for it.
	Updates func(context.Context) iter.Seq[ui.PodUpdate]
	// Title names what is watched, as the layers' names. It need not be clean.
	Title string
	// Color allows colours. Without them nothing is lost.
	Color bool
	// Zone is whose times of day are shown; nil is the local one.
	Zone *time.Location
}

// Check returns ErrNoTerminal where out is not a terminal on which Run can show
// anything.
func Check(out *os.File) error {
	if out == nil || !term.IsTerminal(int(out.Fd())) {
		return ErrNoTerminal
	}
	return nil
}

// Run shows updates until the person leaves or ctx is done, both of which is a
// nil error. A stream that ends earlier stays on the screen. It blocks, and
// none of its goroutines outlives it. It takes no signal: Ctrl-C is a key here,
// and everything else is for whoever made ctx. A panic, also one of Updates,
// goes on after the terminal is as it was.
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

// run is Run with a model. Of its two goroutines, besides bubbletea's own, one
// reads the stream and the other hands what it read to the screen.
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
	whole := false
	defer func() {
		if !whole { // a panic of the model is on its way
			_ = program.ReleaseTerminal()
		}
		cancel()
		program.Kill() // whoever still sends, sends to nobody
		wg.Wait()
		if whole && crash != nil {
			panic(crash)
		}
	}()
	_, err := program.Run()
	whole = true
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	return nil
}

const (
	// frames is how often in a second the screen may change.
	frames = 15
	// largest is how many updates may wait for the next frame. The stream waits
	// beyond that.
	largest = 4096
)

// forward sends the stream, all that a frame's time brings at once, then
// that it ended; or, as soon as ctx is done, that it is time to leave. It
// returns when both the stream has ended and ctx is done; with an error if the
// stream panicked.
//
//	documents  0  stream → the loop below; it stops receiving at largest
func forward(ctx context.Context, updates func(context.Context) iter.Seq[ui.PodUpdate], send func(tea.Msg)) (crash error) {
	documents := make(chan ui.PodUpdate)
	var wg sync.WaitGroup
	var broken error // the reading goroutine's until it has ended
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
		if len(waiting) >= largest {
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
