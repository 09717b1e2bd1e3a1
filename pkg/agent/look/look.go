// Package look is the half of an agent that changes nothing. It reads the configured
// sources, the container runtime of this machine, and what an agent has written below the
// root directory, for commands that run beside an agent or without one. An agent reads its
// sources by it, too.
//
// The one rule: it imports nothing that acts on pods, and shows the runtime as a
// plan.Observer, which has no method that changes anything.
package look

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Config is what a command line says.
type Config struct {
	config.Config
	// PolicyGiven means that a flag names the source policy, so that an empty name is an
	// error.
	PolicyGiven bool
	Stdin       io.Reader
	// Owners are the users beside root that may own manifests, policies and archives of
	// images.
	Owners []int
	// UserAgent is how requests to servers name this program.
	UserAgent string
	// Notice receives text that concerns the answer and is no error.
	Notice func(text string)
	// Patience is how long a command waits for an answer of the runtime that it can do
	// without.
	Patience time.Duration
	Log      *slog.Logger
	// RuntimeLog receives what the clients of the container runtime log.
	RuntimeLog *slog.Logger
}

// Kind is what went wrong; it decides the exit code of a command.
type Kind int

const (
	Failure Kind = iota // no other kind
	Usage               // the configuration
	Runtime             // the container runtime
)

// Error is an error that ends a command, with hints to its remedy.
type Error struct {
	Kind  Kind
	Err   error // nil if Problems is not empty
	Hints []string
	// Problems are those of a file that the configuration names.
	Problems []pod.Problem
}

// Fail returns err as an *Error; nil stays nil.
func Fail(kind Kind, err error, hints ...string) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: kind, Err: err, Hints: hints}
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns the error without its kind.
func (e *Error) Unwrap() error { return e.Err }

// NeedsLinux returns the error for what works on Linux only.
func NeedsLinux(what string) error { return errors.New(what + " needs Linux") }

// machine is read access to the runtime of this machine.
type machine interface {
	plan.Observer
	Close() error
}

// AsRoot returns the hint for a permission error; "" for any other.
func AsRoot(err error) string {
	// An error from the runtime's client is text only.
	if errors.Is(err, fs.ErrPermission) || strings.HasSuffix(err.Error(), fs.ErrPermission.Error()) {
		return "run this as root"
	}
	return ""
}
