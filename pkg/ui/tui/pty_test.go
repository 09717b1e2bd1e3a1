//go:build linux

package tui

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/ui"
	"github.com/nodectl/nodectl/test/wait"
)

// child is the environment variable with the action of this test binary, when a test starts
// it on a pseudo-terminal.
const child = "NODECTL_TUI_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(child); what != "" {
		os.Exit(inTerminal(what))
	}
	os.Exit(m.Run())
}

// crashing is a model that panics at a key.
type crashing struct{ tea.Model }

func (c crashing) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	if k, ok := msg.(tea.KeyMsg); ok && k.String() == "x" {
		panic("the model broke")
	}
	next, cmd := c.Model.Update(msg)
	return crashing{next}, cmd
}

// inTerminal is the child: it shows the story, and then does the action.
func inTerminal(what string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := Config{In: os.Stdin, Out: os.Stdout, Title: "a/", Color: true, Zone: time.UTC}
	c.Updates = func(ctx context.Context) iter.Seq[ui.PodUpdate] {
		return func(yield func(ui.PodUpdate) bool) {
			for _, u := range story() {
				if !yield(u) {
					return
				}
			}
			switch what {
			case "stream ends":
				return
			case "stream panics":
				panic("the stream broke")
			}
			<-ctx.Done()
		}
	}
	var err error
	switch what {
	case "nothing":
		fmt.Print("TERM is " + os.Getenv("TERM"))
	case "model panics":
		err = run(ctx, c, crashing{newModel(c)}, []tea.ProgramOption{tea.WithInput(c.In), tea.WithOutput(c.Out), tea.WithAltScreen(), tea.WithoutSignalHandler(), tea.WithoutCatchPanics()})
	default:
		err = Run(ctx, c)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// terminal is a pseudo-terminal with a child, and the child's output.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	before unix.Termios
	cmd    *exec.Cmd
	exited chan error // cap 1: the waiter sends, end receives; never full

	news    chan struct{} // cap 1: the reader sends, await receives; when full, there is news already
	mu      sync.Mutex    // output: the reader appends, the test reads
	output  bytes.Buffer
	readers sync.WaitGroup
}

// openTerminal starts the child on its own terminal of 80x24, which answers no query.
func openTerminal(t *testing.T, what string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, master: master, slave: slave, exited: make(chan error, 1), news: make(chan struct{}, 1)}
	x.resize(80, 24)
	x.before = x.modes()
	x.cmd = exec.Command(os.Args[0])
	x.cmd.Env = append(os.Environ(), child+"="+what, "TERM=xterm", "CI=")
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x.readers.Go(func() { x.exited <- x.cmd.Wait() })
	x.readers.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			x.mu.Lock()
			x.output.Write(buf[:n])
			x.mu.Unlock()
			select {
			case x.news <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		_ = slave.Close() // the last one: the reader gets EIO
		x.readers.Wait()
		_ = master.Close()
	})
	return x
}

func (x *terminal) resize(width, height uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(int(x.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) modes() unix.Termios {
	x.t.Helper()
	modes, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return *modes
}

func (x *terminal) written() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.output.String()
}

// await waits until the child has written text after the byte from, and returns
// the byte after it. One goroutine calls it.
func (x *terminal) await(text string, from int) int {
	x.t.Helper()
	deadline := time.After(wait.Limit)
	for {
		if out := x.written(); len(out) >= from {
			if i := strings.Index(out[from:], text); i >= 0 {
				return from + i + len(text)
			}
		}
		select {
		case <-x.news:
		case <-deadline:
			x.t.Fatalf("%q is not written in %q", text, x.written())
		}
	}
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.master, keys); err != nil {
		x.t.Fatal(err)
	}
}

// clean waits for the child's end and fails unless it has code and has restored the
// terminal: modes, screen, cursor, bracketed paste.
func (x *terminal) clean(code int) {
	x.t.Helper()
	select {
	case <-x.exited:
	case <-time.After(wait.Limit):
		x.t.Fatalf("the child does not end; it wrote %q", x.written())
	}
	if got := x.cmd.ProcessState.ExitCode(); got != code {
		x.t.Errorf("exit code %d, not %d; it wrote %q", got, code, x.written())
	}
	if diff := cmp.Diff(x.before, x.modes()); diff != "" {
		x.t.Errorf("the terminal's modes (-before +after):\n%s", diff)
	}
	x.await("\x1b[?1049l", 0)
	out := x.written()
	for _, pair := range [][2]string{{"\x1b[?1049h", "\x1b[?1049l"}, {"\x1b[?25l", "\x1b[?25h"}, {"\x1b[?2004h", "\x1b[?2004l"}} {
		if on, off := strings.LastIndex(out, pair[0]), strings.LastIndex(out, pair[1]); on < 0 || off < on {
			x.t.Errorf("%q is not undone: it was last written at %d, its contrary at %d", pair[0], on, off)
		}
	}
	if n := strings.Count(out, "\x1b[?1049l"); n != 1 {
		x.t.Errorf("the screen is given back %d times", n)
	}
}

// TestTerminalIsLeftClean: Run restores the terminal, however it ends.
func TestTerminalIsLeftClean(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		what string
		do   func(*terminal)
		code int
		says string
	}{
		"q":             {"follow", func(x *terminal) { x.press("q") }, 0, ""},
		"Ctrl-C":        {"follow", func(x *terminal) { x.press("\x03") }, 0, ""},
		"Esc":           {"follow", func(x *terminal) { x.press("\x1b") }, 0, ""},
		"SIGTERM":       {"follow", func(x *terminal) { _ = x.cmd.Process.Signal(syscall.SIGTERM) }, 0, ""},
		"stream ends":   {"stream ends", func(x *terminal) { x.await("The updates have ended", 0); x.press("q") }, 0, ""},
		"model panics":  {"model panics", func(x *terminal) { x.press("x") }, 2, "the model broke"},
		"stream panics": {"stream panics", func(*terminal) {}, 2, "the stream broke"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := openTerminal(t, end.what)
			if end.what != "stream panics" {
				x.await("default/metrics-n1", 0)
				if x.modes() == x.before {
					t.Error("the terminal is not in raw mode while the screen is shown")
				}
			}
			end.do(x)
			x.clean(end.code)
			if end.says != "" { // after the screen is gone, so that the user sees it
				x.await(end.says, x.await("\x1b[?1049l", 0))
			}
		})
	}
}

// TestResizedTerminal: the screen follows its window.
func TestResizedTerminal(t *testing.T) {
	t.Parallel()
	x := openTerminal(t, "follow")
	at := x.await("-- SOURCES 4 "+strings.Repeat("-", 80-len("-- SOURCES 4 ")), 0)
	x.resize(40, 10)
	x.await("-- SOURCES 4  1-1 of 4 "+strings.Repeat("-", 40-len("-- SOURCES 4  1-1 of 4 "))+"\x1b", at)
	x.press("q")
	x.clean(0)
}

// TestLinkingAsksTheTerminalNothing: a program that links the screen and does not show it
// writes nothing to the terminal, waits for no answer, and finds TERM unchanged. bubbletea
// alone would ask for the background colour and wait five seconds for an answer.
func TestLinkingAsksTheTerminalNothing(t *testing.T) {
	t.Parallel()
	x := openTerminal(t, "nothing")
	x.await("TERM is xterm", 0)
	if err := <-x.exited; err != nil {
		t.Error(err)
	}
	if out := x.written(); out != "TERM is xterm" {
		t.Errorf("it wrote %q", out)
	}
}

func TestNoTerminal(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := Check(w); err != ErrNoTerminal {
		t.Errorf("Check of a pipe: %v", err)
	}
	if err := Run(t.Context(), Config{In: r, Out: w}); err != ErrNoTerminal {
		t.Errorf("Run in a pipe: %v", err)
	}
}
