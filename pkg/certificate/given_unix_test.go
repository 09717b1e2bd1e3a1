//go:build unix

package certificate

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// replaced makes path a file that holds first when it is opened, and second as soon as
// that is so.
func replaced(t testing.TB, path, first, second string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	t.Cleanup(func() {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // if nobody did, the writer waits for it
		writer.Wait()
		if err == nil {
			_ = f.Close() // nothing was written to it
		}
	})
	writer.Go(func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0) // returns once somebody reads
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

// One file that holds certificate and key is replaced while it is read: what is shown
// is one pair, never the certificate of one and the key of the other.
func TestC_1_40_1_PairReplacedWhileItIsRead(t *testing.T) {
	t.Parallel()
	pair := filepath.Join(t.TempDir(), "pair")
	of := func(name string) string {
		cert, key := issue(name, time.Now().Add(time.Hour))
		return string(cert) + string(key)
	}
	replaced(t, pair, of("first"), of("second"))
	s, err := NewServing(ServingConfig{Node: "n1", CertFile: pair, KeyFile: pair})
	if err != nil {
		t.Fatal(err)
	}
	if got := must(s.Certificate(&tls.ClientHelloInfo{})).Leaf.Subject.CommonName; got != "first" && got != "second" {
		t.Errorf("%q is shown", got)
	}
}
