package identity

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/test/wait"
)

// shown connects as the API server does, which trusts the cluster's authority only, and
// returns the certificate that the node presents.
func shown(t testing.TB, s *certificate.Serving, authority string, name string) (*x509.Certificate, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(authority)))
	l := must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: s.Certificate}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		there, err := l.Accept()
		if err != nil {
			return
		}
		defer there.Close()
		_ = there.SetDeadline(time.Now().Add(wait.Limit))
		_ = there.(*tls.Conn).Handshake()
	})
	client, err := tls.DialWithDialer(&net.Dialer{Timeout: wait.Limit}, "tcp", l.Addr().String(), &tls.Config{RootCAs: pool, ServerName: name})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.ConnectionState().PeerCertificates[0], nil
}

// The node requests a serving certificate once its addresses are known, for exactly these,
// with its own identity; and again when it has another address.
//
// Shows: D4, C-1.40.1
func TestD4_ServingCertificateForTheNodesAddresses(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	s := sign(t, c, node)
	way := must(apiclient.Open(apiclient.Config{File: c.NodeKubeconfig(t, node), UserAgent: "nodectl/test"}))
	t.Cleanup(way.Close)
	var addresses atomic.Pointer[[]v1.NodeAddress]
	addresses.Store(&[]v1.NodeAddress{{Type: v1.NodeHostName, Address: "n1"}}) // no address yet
	l, dir, asked := &logger{}, t.TempDir(), make(chan struct{}, 1)            // cap 1: a token that says "asked"
	serving := must(certificate.NewServing(certificate.ServingConfig{
		Node: node, Dir: dir, Rotate: true, API: way.REST(), Log: l.log(),
		Addresses: func() []v1.NodeAddress {
			select {
			case asked <- struct{}{}:
			default:
			}
			return *addresses.Load()
		},
	}))
	runs(t, serving.Run)
	for range 5 {
		<-asked
	}
	if _, err := shown(t, serving, c.Authority.File, "n1"); err == nil {
		t.Error("something is shown before there is a certificate")
	}
	if all := c.requested(t, node); len(all) != 0 {
		t.Errorf("%d certificates were asked for before there is an address", len(all))
	}
	set := append(*addresses.Load(), v1.NodeAddress{Type: v1.NodeInternalIP, Address: "10.0.0.7"}, v1.NodeAddress{Type: v1.NodeInternalIP, Address: "fd00::7"}, v1.NodeAddress{Type: v1.NodeInternalDNS, Address: "n1.local"})
	addresses.Store(&set)
	csr, cert := s.waits(t, 1)
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName || csr.Spec.Username != "system:node:"+node ||
		!slices.Equal(csr.Spec.Usages, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}) {
		t.Errorf("asked %+v", csr.Spec)
	}
	if cert.Subject.CommonName != "system:node:"+node || !slices.Equal(cert.Subject.Organization, []string{"system:nodes"}) ||
		!slices.Equal(cert.DNSNames, []string{"n1", "n1.local"}) || len(cert.IPAddresses) != 2 {
		t.Errorf("certificate of %v for %q and %v", cert.Subject, cert.DNSNames, cert.IPAddresses)
	}
	for _, name := range []string{"10.0.0.7", "fd00::7", "n1", "n1.local"} {
		until(t, "the certificate is shown for "+name, func() (bool, error) {
			got, err := shown(t, serving, c.Authority.File, name)
			return err == nil && got.Equal(cert), err
		})
	}
	if _, err := shown(t, serving, c.Authority.File, "10.0.0.8"); err == nil {
		t.Error("the certificate is valid for another node")
	}
	if f := serving.Facts(); !f.Expires.Equal(cert.NotAfter) || f.Failures != 0 {
		t.Errorf("facts %+v", f)
	}

	moved := slices.Concat(set, []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "192.0.2.1"}})
	addresses.Store(&moved)
	_, second := s.waits(t, 2)
	until(t, "the new address's certificate is shown", func() (bool, error) {
		got, err := shown(t, serving, c.Authority.File, "192.0.2.1")
		return err == nil && got.Equal(second), err
	})
	for _, file := range must(filepath.Glob(filepath.Join(dir, "kubelet-server-2*.pem"))) {
		if info := must(os.Stat(file)); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
	}

	// After a restart the node presents the existing certificate at once, and requests none.
	again := must(certificate.NewServing(certificate.ServingConfig{Node: node, Dir: dir, Rotate: true, API: way.REST()}))
	if got, err := shown(t, again, c.Authority.File, "192.0.2.1"); err != nil || !got.Equal(second) {
		t.Errorf("after a restart: %v", err)
	}
	if strings.Contains(l.text(), "PRIVATE KEY") {
		t.Error("the log holds a key")
	}
}
