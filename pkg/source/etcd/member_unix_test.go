//go:build unix

package etcd

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/nodectl/nodectl/test/authority"
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
func TestF72_PairReplacedWhileItIsRead(t *testing.T) {
	pair := filepath.Join(t.TempDir(), "pair")
	a := authority.New()
	of := func(name string) string { cert, key := a.Issue(name); return cert + key }
	replaced(t, pair, of("first"), of("second"))
	s, err := New(Config{Endpoints: []string{"https://127.0.0.1:1"}, Prefix: "/p", CertFile: pair, KeyFile: pair, Parse: parse})
	if err != nil {
		t.Fatal(err)
	}
	config, err := s.tls()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Certificates[0].Leaf.Subject.CommonName; got != "first" {
		t.Errorf("the certificate of %q is shown", got)
	}
}
