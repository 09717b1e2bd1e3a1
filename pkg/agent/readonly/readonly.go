// Package readonly is the half of an agent that changes nothing. It reads the configured sources, the
// container runtime of this machine, and an agent's files below the root directory. Commands that
// run beside an agent or without one use it. An agent reads its sources with it, too.
//
// The package uses the runtime as a plan.Observer, which has no method that changes anything. Only
// Config.Connect returns a client that can change the runtime, for package agent.
package readonly

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

// Config is the configuration of a command.
type Config struct {
	config.Config
	// PolicyGiven says that --source-policy is set. An empty name is then an error.
	PolicyGiven bool
	Stdin       io.Reader
	// Owners are the users other than root that may own manifests, policies and image archives.
	Owners []int
	// UserAgent is the user agent of requests to servers.
	UserAgent string
	// Notice receives notices about the result that are not errors.
	Notice func(text string)
	// RuntimeTimeout is how long a command waits for an optional answer of the runtime.
	RuntimeTimeout time.Duration
	Log            *slog.Logger
	// RuntimeLog is the logger of the container runtime's clients.
	RuntimeLog *slog.Logger
}

// Kind is the kind of an error; it decides the exit code of a command.
type Kind int

const (
	Failure Kind = iota // any other kind
	Usage               // the configuration
	Runtime             // the container runtime
)

// Error is an error that ends a command, with hints to its remedy.
type Error struct {
	Kind  Kind
	Err   error // nil if Problems is not empty
	Hints []string
	// Problems are the problems of a file that the configuration names.
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

// NeedsLinux returns the error of a feature that works on Linux only.
func NeedsLinux(what string) error { return errors.New(what + " needs Linux") }

// machine is read access to the runtime of this machine.
type machine interface {
	plan.Observer
	Close() error
}

// AsRoot returns the hint for a permission error; "" for any other.
func AsRoot(err error) string {
	// An error from the runtime's client contains only the text.
	if errors.Is(err, fs.ErrPermission) || strings.HasSuffix(err.Error(), fs.ErrPermission.Error()) {
		return "run this as root"
	}
	return ""
}
