package cmd

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// isClosedPipe reports whether a write failed because the reader is gone.
func isClosedPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}

// untilClosed returns a context that ends with parent: on Windows only a write shows that
// a reader is gone.
func untilClosed(parent context.Context, _ *os.File) (ctx context.Context, stop func()) {
	return context.WithCancel(parent)
}
