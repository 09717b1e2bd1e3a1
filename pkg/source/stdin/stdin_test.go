package stdin_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/pkg/source/stdin"
)

var parse = sourcetest.Parse("stdin", "-")

// late is a reader that is made when it is first read.
type late struct {
	make func() io.Reader
	in   io.Reader
}

func (l *late) Read(b []byte) (int, error) {
	if l.in == nil {
		l.in = l.make()
	}
	return l.in.Read(b)
}

func TestStandardInputConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		doc := sourcetest.Document{}
		open := func() io.Reader { return strings.NewReader(doc.Text()) }
		in := &late{make: func() io.Reader { return open() }}
		return sourcetest.Fixture{
			Once:   true,
			Source: stdin.New(in, parse, 0),
			Put:    func(name, text string) { doc[name] = text },
			Remove: func(name string) { delete(doc, name) },
			Break:  func() { open = func() io.Reader { return iotest.ErrReader(errors.New("input/output error")) } },
			Mend:   func() {},
		}
	})
}

func TestPipeConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		doc := sourcetest.Document{}
		return sourcetest.Fixture{
			Once: true,
			Source: stdin.New(&late{make: func() io.Reader {
				_, _ = io.WriteString(w, doc.Text())
				_ = w.Close()
				return r
			}}, parse, 0),
			Put:    func(name, text string) { doc[name] = text },
			Remove: func(name string) { delete(doc, name) },
			Break:  func() { _ = r.Close() },
			Mend:   func() {},
		}
	})
}

// Shows: I9
func TestI9_InputCutByTheLimitIsAProblem(t *testing.T) {
	l := sourcetest.Listen(t, stdin.New(strings.NewReader("pod one x\npod two x\n"), parse, 10))
	w := l.Set()
	w.Holds(t, "!")
	if got, want := w.Files.At(0).Problems[0].Error(), "-: is larger than 10 bytes, the limit for standard input"; got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	l.Ended()
}

// Shows: F45
func TestF45_InputOverTenMiBIsAProblem(t *testing.T) {
	big := io.MultiReader(strings.NewReader("pod one x\n"), strings.NewReader(strings.Repeat("#\n", 5<<20)))
	l := sourcetest.Listen(t, stdin.New(big, parse, 0))
	w := l.Set()
	w.Holds(t, "!")
	if got := w.Files.At(0).Problems[0].Msg; !strings.Contains(got, "10 MiB") {
		t.Errorf("problem %q does not name the limit", got)
	}
	l.Ended()
}

func TestEmptyInputIsAProblem(t *testing.T) {
	l := sourcetest.Listen(t, stdin.New(strings.NewReader(""), parse, 0))
	l.Set().Holds(t, "!")
	l.Ended()
}

// Half of the input is a valid manifest; the source yields only the whole.
//
// Shows: F40
func TestF40_NothingIsYieldedBeforeTheEnd(t *testing.T) {
	r, w := io.Pipe()
	l := sourcetest.Listen(t, stdin.New(r, parse, 0))
	for _, part := range []string{"pod one x\n", "pod t", "wo x\n"} {
		if _, err := io.WriteString(w, part); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	l.Set().Holds(t, "one", "two")
	l.Ended()
}
