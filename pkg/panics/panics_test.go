package panics

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Shows: F8
func TestToError_FunctionPanics_ErrorHasValueAndStack(t *testing.T) {
	t.Parallel()
	err := ToError(func() error { panic("bug") })
	p, ok := Of(fmt.Errorf("probe: %w", err))
	if !ok || p.Value != "bug" || p.Error() != "panic: bug" || !strings.Contains(string(p.Stack), "TestToError") {
		t.Errorf("got %v, %v", p, ok)
	}
}

func TestToError_FunctionReturnsAnError_IsReturned(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	if err := ToError(func() error { return broken }); err != broken {
		t.Errorf("got %v", err)
	}
	if p, ok := Of(broken); ok || p != nil {
		t.Errorf("%v is no panic", p)
	}
}

func TestRepanic_PanicOfAnotherGoroutine_KeepsTheFirstStack(t *testing.T) {
	t.Parallel()
	first := ToError(func() error { panic("bug") })
	p, ok := Of(ToError(func() error { Repanic(first); return nil }))
	if !ok || error(p) != first {
		t.Errorf("got %v, want the first panic", p)
	}
	Repanic(nil)
	Repanic(errors.New("no panic"))
}
