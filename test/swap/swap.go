//go:build unix

// Package swap replaces files at the worst moment.
package swap

import (
	"os"
	"sync"
	"syscall"
	"testing"
)

// WhileRead makes path a file that contains first when it is opened, and second right after
// that.
func WhileRead(t testing.TB, path, first, second string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	t.Cleanup(func() {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // if not yet opened, the writer waits for it
		writer.Wait()
		if err == nil {
			_ = f.Close() // nothing was written to it
		}
	})
	writer.Go(func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0) // returns once there is a reader
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if err := os.Rename(path+".new", path); err != nil {
			t.Error(err)
		}
		if _, err := f.WriteString(first); err != nil {
			t.Error(err)
		}
	})
}
