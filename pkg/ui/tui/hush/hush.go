// Package hush keeps the TUI's library from asking the terminal for its colours
// while a program that links it starts.
//
// bubbletea v1 does that in an init function of its own: every command, even
// version, would write a query to its terminal, take what was typed meanwhile
// for the answer, and wait five seconds for a terminal that does not answer. A
// terminal of type dumb is asked nothing. So this package, which needs nothing
// but os and therefore comes before bubbletea in the order in which Go
// initializes packages (dependencies first, then by import path), lends TERM
// that value, and package tui, which imports bubbletea and therefore comes
// after it, calls Over, which gives TERM back. A test of package tui holds both
// ends.
//
// The one rule: nothing but bubbletea's own start lies between the two, and no
// third package imports this one.
package hush

import "os"

var (
	term, given = os.LookupEnv("TERM")
	_           = os.Setenv("TERM", "dumb")
)

// Over gives TERM back the value the program was started with. It returns
// os.Setenv's error, so that a package variable can call it.
func Over() error {
	if !given {
		return os.Unsetenv("TERM")
	}
	return os.Setenv("TERM", term)
}
