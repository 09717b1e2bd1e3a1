//go:build unix

package http

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A named pipe does not block the source.
func TestCredentialsAreRegularFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	s := secure(t, issue(t, nil, nil), nil)
	for _, path := range []string{pipe, t.TempDir()} {
		l := s.listen(t, func(c *Config) { c.CAFile = path })
		if err := l.Error(); err.Error() != "CA file "+path+": not a regular file" {
			t.Errorf("error %q", err)
		}
		l.Leave()
		l.Ended()
	}
}
