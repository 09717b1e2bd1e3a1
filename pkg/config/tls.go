package config

import (
	"crypto/tls"
	"fmt"
	"slices"
)

// CipherSuites returns TLSCipherSuites as IDs of crypto/tls, none for the library's
// default. Check has accepted them.
func (c Config) CipherSuites() []uint16 {
	all, _ := c.cipherSuites()
	return all
}

// MinTLS returns TLSMinVersion as a version of crypto/tls. Check has accepted it.
func (c Config) MinTLS() uint16 {
	if c.TLSMinVersion == "VersionTLS12" {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// cipherSuites refuses suites that crypto/tls calls insecure or does not know.
func (c Config) cipherSuites() ([]uint16, error) {
	var all []uint16
	for _, name := range items(c.TLSCipherSuites) {
		named := func(s *tls.CipherSuite) bool { return s.Name == name }
		i := slices.IndexFunc(tls.CipherSuites(), named)
		switch {
		case i >= 0:
			all = append(all, tls.CipherSuites()[i].ID)
		case slices.ContainsFunc(tls.InsecureCipherSuites(), named):
			return nil, fmt.Errorf("cipher suite %s is insecure and not supported", name)
		default:
			return nil, fmt.Errorf("%q is not a cipher suite, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
	}
	return all, nil
}
