package stage

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// A bench is what package cluster takes for a test. What a test calls Fatal is a
// panic here, which Open returns as an error.
type bench struct {
	testing.TB // nil: what is not below is not called
	ctx        context.Context
	dir        string
	undo       []func()
}

func (b *bench) Helper()                        {}
func (b *bench) Context() context.Context       { return b.ctx }
func (b *bench) Failed() bool                   { return false }
func (b *bench) Logf(format string, a ...any)   { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (b *bench) Errorf(format string, a ...any) { b.Logf(format, a...) }
func (b *bench) Error(a ...any)                 { b.Logf("%s", fmt.Sprint(a...)) }
func (b *bench) Fatal(a ...any)                 { panic(fmt.Sprint(a...)) }
func (b *bench) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (b *bench) Cleanup(f func())               { b.undo = append(b.undo, f) }

func (b *bench) TempDir() string {
	dir, err := os.MkdirTemp(b.dir, "cluster")
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

func (b *bench) end() {
	for _, f := range slices.Backward(b.undo) {
		f()
	}
}
