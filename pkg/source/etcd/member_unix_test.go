//go:build unix

package etcd

import (
	"path/filepath"
	"testing"

	"github.com/nodectl/nodectl/test/authority"
	"github.com/nodectl/nodectl/test/swap"
)

// A file with certificate and key is replaced while it is read: the result is one of the two pairs,
// never a mix of both.
//
// Shows: F72
func TestF72_PairReplacedWhileItIsRead(t *testing.T) {
	pair := filepath.Join(t.TempDir(), "pair")
	a := authority.New()
	of := func(name string) string { cert, key := a.Issue(name); return cert + key }
	swap.WhileRead(t, pair, of("first"), of("second"))
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
