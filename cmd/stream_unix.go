//go:build unix

package cmd

import (
	"context"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// isClosedPipe reports whether a write failed because the reader is gone.
func isClosedPipe(err error) bool { return errors.Is(err, unix.EPIPE) }

// untilClosed returns a context that ends when the reader of standard output
// goes away, even while nothing is written. stop waits for the goroutine that watches it.
func untilClosed(parent context.Context, out *os.File) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	wakeR, wakeW, err := os.Pipe()
	if err != nil {
		return ctx, func() { cancel(nil) }
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		fds := []unix.PollFd{{Fd: int32(out.Fd())}, {Fd: int32(wakeR.Fd()), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(fds, -1)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err == nil && fds[1].Revents == 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0:
				cancel(errClosed)
			}
			return
		}
	})
	return ctx, func() {
		_ = wakeW.Close()
		wg.Wait()
		_ = wakeR.Close()
		cancel(nil)
	}
}
