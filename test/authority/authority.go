// Package authority issues certificates in memory, for tests of TLS clients and servers.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// An Authority issues certificates.
type Authority struct {
	Cert *x509.Certificate // self-signed
	key  *ecdsa.PrivateKey
}

// New makes an authority that is valid for an hour.
func New() *Authority {
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return &Authority{must(x509.ParseCertificate(der)), key}
}

// PEM is the authority's certificate.
func (a *Authority) PEM() string { return encode("CERTIFICATE", a.Cert.Raw) }

// Issue returns a certificate and its key, as PEM: for clients, and for servers on
// 127.0.0.1, valid for an hour unless it is changed.
func (a *Authority) Issue(name string, change ...func(*x509.Certificate)) (cert, key string) {
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, f := range change {
		f(template)
	}
	own := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must(x509.CreateCertificate(rand.Reader, template, a.Cert, own.Public(), a.key))
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(own)))
}

// Until makes a certificate expire at end.
func Until(end time.Time) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotAfter = end }
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func serial() *big.Int { return must(rand.Int(rand.Reader, big.NewInt(1<<62))) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
