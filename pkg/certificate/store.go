package certificate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// errNoPair says that there is no certificate yet.
var errNoPair = errors.New("no certificate yet")

// store keeps a certificate with its key in the kubelet's layout: a file
// <prefix>-<time>.pem for each, and <prefix>-current.pem, a link to the newest. Unlike
// client-go's store, it has a current one at any moment and keeps only one older pair.
type store struct {
	dir, prefix string
	// empty: the stored pair must not be used, so the rotation requests a first
	// certificate. The rotation's goroutine owns it.
	empty bool
	// updated is called after each update; its error is the update's.
	updated func() error
}

func (s *store) current() string { return filepath.Join(s.dir, s.prefix+"-current.pem") }

// Current returns the certificate that is kept. The error is errNoPair where there is none.
func (s *store) Current() (*tls.Certificate, error) {
	text, err := os.ReadFile(s.current())
	switch {
	case s.empty, errors.Is(err, fs.ErrNotExist):
		return nil, errNoPair
	case err != nil:
		return nil, err
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil { // a full disk or a manual edit: a new one is requested
		return nil, fmt.Errorf("%w: %s does not contain a certificate and its key", errNoPair, s.current())
	}
	return &pair, nil
}

// Update keeps a certificate and its key in place of the current one.
func (s *store) Update(cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", s.prefix, err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(s.dir)
	if err != nil {
		return nil, err
	}
	before, _ := filepath.EvalSymlinks(s.current())
	file := filepath.Join(dir, s.prefix+"-"+time.Now().Format("2006-01-02-15-04-05")+".pem")
	if err := write(file, slices.Concat(withNewline(cert), key), 0o600); err != nil {
		return nil, err
	}
	link := filepath.Join(dir, s.prefix+"-updated.pem")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(file, link); err != nil {
		return nil, err
	}
	if err := os.Rename(link, filepath.Join(dir, s.prefix+"-current.pem")); err != nil {
		return nil, err
	}
	s.tidy(dir, file, before)
	s.empty = false
	if s.updated != nil {
		if err := s.updated(); err != nil {
			return nil, err
		}
	}
	return &pair, atomicfile.SyncDir(dir)
}

// tidy removes pairs other than these two; those that stay cost little.
func (s *store) tidy(dir string, keep ...string) {
	all, err := filepath.Glob(filepath.Join(dir, s.prefix+"-[0-9]*.pem*")) // also incomplete files of a killed agent
	if err != nil {
		return
	}
	for _, file := range all {
		if !slices.Contains(keep, file) {
			_ = os.Remove(file)
		}
	}
}

func withNewline(text []byte) []byte {
	if n := len(text); n > 0 && text[n-1] != '\n' {
		return append(slices.Clip(text), '\n')
	}
	return text
}

// write replaces a file in one step.
func write(path string, text []byte, mode fs.FileMode) error {
	if err := atomicfile.Write(path, text, atomicfile.Options{Mode: mode, Temp: ".tmp", Sync: true}); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
