package stdin_test

import (
	"io"
	"os"
	"testing"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/pkg/source/stdin"
)

// The pipe's writer stays open and sends nothing more.
func TestEndsWithTheContextWhileWaitingForInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := io.WriteString(w, "pod one x\n"); err != nil {
		t.Fatal(err)
	}
	l := sourcetest.Listen(t, stdin.New(r, parse, 0))
	l.Leave()
	l.Ended()
}
