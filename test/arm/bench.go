package arm

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// A Bench stands in for the testing.TB of package cluster, in a program. Its Fatal panics.
type Bench struct {
	testing.TB // nil: what is not below is not called
	ctx        context.Context
	dir        string
	undo       []func()
}

// NewBench returns one whose files go below dir. The caller ends it.
func NewBench(ctx context.Context, dir string) *Bench { return &Bench{ctx: ctx, dir: dir} }

func (b *Bench) Helper()                        {}
func (b *Bench) Context() context.Context       { return b.ctx }
func (b *Bench) Failed() bool                   { return false }
func (b *Bench) Logf(format string, a ...any)   { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (b *Bench) Errorf(format string, a ...any) { b.Logf(format, a...) }
func (b *Bench) Error(a ...any)                 { b.Logf("%s", fmt.Sprint(a...)) }
func (b *Bench) Fatal(a ...any)                 { panic(fmt.Sprint(a...)) }
func (b *Bench) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (b *Bench) Cleanup(f func())               { b.undo = append(b.undo, f) }

func (b *Bench) TempDir() string {
	dir, err := os.MkdirTemp(b.dir, "cluster")
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

// End ends all that was started with it, the newest first.
func (b *Bench) End() {
	for _, f := range slices.Backward(b.undo) {
		f()
	}
}
