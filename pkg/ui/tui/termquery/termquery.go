// Package termquery is the terminal query workaround: it keeps bubbletea from asking the
// terminal for its colours when a program that links it starts.
//
// bubbletea v1 asks in an init function. Every command, even version, would write a
// query to its terminal, take typed input for the answer, and wait five seconds for a
// terminal that does not answer. bubbletea asks nothing if TERM is dumb. So this
// package sets TERM to dumb, and package tui calls Restore, which restores TERM. Go
// initializes packages by dependencies first, then by import path: this package, which
// imports only os, comes before bubbletea, and package tui, which imports bubbletea,
// after it. A test of package tui checks both.
//
// Between the two, only bubbletea's init runs. Only package tui imports this package.
package termquery

import "os"

var (
	term, given = os.LookupEnv("TERM")
	_           = os.Setenv("TERM", "dumb")
)

// Restore restores the value that TERM had when the program started. It returns
// os.Setenv's error, so that a package variable can call it.
func Restore() error {
	if !given {
		return os.Unsetenv("TERM")
	}
	return os.Setenv("TERM", term)
}
