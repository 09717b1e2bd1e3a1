// Package program is the frame of the programs that compare, measure and soak: their arguments,
// signals and exit codes, and the course of a benchmark, are the same.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main parses the program's arguments and runs work until it is done, or until SIGINT or
// SIGTERM ends its context. It never returns: it exits with 0, with 1 when work failed or
// found something wrong, with 2 for wrong arguments.
//
// A second signal changes nothing: cleaning up has its own deadlines, and some senders signal
// the process and then its group.
func Main[O any](parse func(args []string) (O, error), work func(context.Context, O) (fine bool, err error)) {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	fine, err := work(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	if !fine {
		os.Exit(1)
	}
	os.Exit(0)
}

// Flags parses flags for a program that takes nothing else.
func Flags(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	return nil
}
