package http

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// largestCredential is the size limit of a file of certificates or keys.
const largestCredential = 1 << 20

// credentials has the content of the TLS files.
type credentials struct {
	sum    [sha256.Size]byte // of the content of all files
	config *tls.Config       // nil: the system's defaults
}

// credentials reads the files again, so that the next poll uses rotated ones. Errors name the
// file and contain nothing of its content.
func (s *Source) credentials() (credentials, error) {
	var c credentials
	if s.url.Scheme != "https" || s.cfg.CAFile == "" && s.cfg.CertFile == "" {
		return c, nil
	}
	all := sha256.New()
	c.config = &tls.Config{}
	// Read a file with certificate and key only once: it may be replaced at any moment, and the two
	// readings would then not belong together.
	once := map[string][]byte{}
	contentOf := func(what, path string) ([]byte, error) {
		data, had := once[path]
		if had {
			return data, nil
		}
		data, err := s.read(what, path)
		once[path] = data
		return data, err
	}
	if s.cfg.CAFile != "" {
		data, err := contentOf("CA file", s.cfg.CAFile)
		if err != nil {
			return c, err
		}
		all.Write(data)
		c.config.RootCAs = x509.NewCertPool()
		if !c.config.RootCAs.AppendCertsFromPEM(data) {
			return c, fmt.Errorf("CA file %s: no certificate in it", s.cfg.CAFile)
		}
	}
	fmt.Fprintf(all, "%x", all.Sum(nil)) // marks where one file ends and the next begins
	if s.cfg.CertFile != "" {
		cert, err := contentOf("client certificate", s.cfg.CertFile)
		if err != nil {
			return c, err
		}
		key, err := contentOf("client key", s.cfg.KeyFile)
		if err != nil {
			return c, err
		}
		all.Write(cert)
		fmt.Fprintf(all, "%x", all.Sum(nil))
		all.Write(key)
		pair, err := s.pair(cert, key)
		if err != nil {
			return c, err
		}
		c.config.Certificates = []tls.Certificate{pair}
	}
	c.sum = [sha256.Size]byte(all.Sum(nil))
	return c, nil
}

// pair combines certificate and key. It has its own error texts, because those of crypto/tls may contain
// lines of the files.
func (s *Source) pair(cert, key []byte) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil {
		return pair, nil
	}
	first := cert
	for {
		var block *pem.Block
		if block, first = pem.Decode(first); block == nil {
			return pair, fmt.Errorf("client certificate %s: no certificate in it", s.cfg.CertFile)
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return pair, fmt.Errorf("client certificate %s: not a valid certificate", s.cfg.CertFile)
		}
		break
	}
	if block, _ := pem.Decode(key); block == nil {
		return pair, fmt.Errorf("client key %s: no key in it", s.cfg.KeyFile)
	}
	return pair, fmt.Errorf("client key %s: not the key of certificate %s", s.cfg.KeyFile, s.cfg.CertFile)
}

// readCredential reads a small regular file: a named pipe would block every poll.
func readCredential(what, path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", what, path, cause(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s %s: not a regular file", what, path)
	case info.Size() > largestCredential:
		return nil, fmt.Errorf("%s %s: larger than %d MiB", what, path, largestCredential>>20)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, path, cause(err))
	}
	return data, nil
}

// cause returns err without its path.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}
