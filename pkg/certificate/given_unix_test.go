//go:build unix

package certificate

import (
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/swap"
)

// A file with certificate and key is replaced while it is read: the result is one of the two pairs,
// never a mix of both.
//
// Shows: C-1.40.1
func TestC_1_40_1_PairReplacedWhileItIsRead(t *testing.T) {
	t.Parallel()
	pair := filepath.Join(t.TempDir(), "pair")
	of := func(name string) string {
		cert, key := issue(name, time.Now().Add(time.Hour))
		return string(cert) + string(key)
	}
	swap.WhileRead(t, pair, of("first"), of("second"))
	s, err := NewServing(ServingConfig{Node: "n1", CertFile: pair, KeyFile: pair})
	if err != nil {
		t.Fatal(err)
	}
	if got := must(s.Certificate(&tls.ClientHelloInfo{})).Leaf.Subject.CommonName; got != "first" && got != "second" {
		t.Errorf("%q is shown", got)
	}
}
