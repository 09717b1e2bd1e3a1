package cmd

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// isClosedPipe reports whether a write failed because nobody reads any more.
func isClosedPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}

// untilClosed returns a context that ends with parent: that a reader has gone
// away is found out by writing here.
func untilClosed(parent context.Context, _ *os.File) (ctx context.Context, stop func()) {
	return context.WithCancel(parent)
}
