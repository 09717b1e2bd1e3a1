// Package panics turns a panic into an error and back.
//
// A goroutine that panics ends the process. A goroutine that works for another one
// returns its panic as an error instead, with the stack it happened at; the other
// one panics again or handles it, so that a panic costs one pod or one probe.
//
// A caller of ToError handles the panic or calls Repanic.
package panics

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Error is a panic that ToError recovered.
type Error struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

func (e *Error) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// ToError runs f. It returns the error of f, or an *Error if f panics.
func ToError(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// Repanic panics with the *Error in the chain of err. It returns if there is none.
func Repanic(err error) {
	if p, ok := errors.AsType[*Error](err); ok {
		panic(p)
	}
}

// Of returns the panic in the chain of err; ok is false if there is none. For a panic that
// Repanic raised again it returns the first one: its stack shows the cause.
func Of(err error) (p *Error, ok bool) {
	p, ok = errors.AsType[*Error](err)
	if !ok {
		return nil, false
	}
	if inner, again := p.Value.(*Error); again {
		p = inner
	}
	return p, true
}
