//go:build unix

package cmd

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// resized calls f at once, and each time the terminal gets another size, until stop.
func resized(f func()) (stop func()) {
	changes := make(chan os.Signal, 1) // the runtime sends, the goroutine below receives; when full, the goroutine is about to read the size anyway
	done := make(chan struct{})
	signal.Notify(changes, syscall.SIGWINCH)
	f()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-changes:
				f()
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(changes)
		close(done)
		wg.Wait()
	}
}
