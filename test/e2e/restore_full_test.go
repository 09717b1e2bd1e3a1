//go:build full

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/cluster"
)

// TestRestore_DamagedSet: damage to one file of a last-known-good set loses only that file's
// pods, and is reported. The agent starts, and restores all else.
//
// Shows: F12
func TestRestore_DamagedSet(t *testing.T) {
	s := parallelStage(t)
	e := cluster.StartEtcd(t, cluster.EtcdOptions{})
	names := []string{"one", "two", "three", "four"}
	for _, name := range names {
		e.Put(t, "/manifests/"+name, simple(name))
	}
	flags := []string{"--etcd-endpoints", strings.Join(e.Endpoints, ","), "--etcd-prefix", "/manifests/"}
	a := s.serve(flags...)
	for _, name := range names {
		s.awaitReady(name, true)
		s.awaitSet(name)
	}
	a.leave()
	e.Kill(t)
	s.reboot()
	damage := map[string]func(text []byte) []byte{
		"one":   func(text []byte) []byte { return text[:len(text)/2] },
		"two":   func(text []byte) []byte { text[len(text)/2] ^= 0x20; return text },
		"three": func([]byte) []byte { return nil },
	}
	for name, broken := range damage {
		file := s.awaitSet(name)
		text, err := os.ReadFile(file)
		s.must(err, os.WriteFile(file, broken(text), 0o600))
	}
	a = s.serve(flags...)
	a.await("last good sets were not read")
	a.await("Using the last good set of the source", "etcd:", "pods=1")
	s.awaitRunning("four", "main")
	if asides, _ := filepath.Glob(filepath.Join(s.root, "sources/*/*.corrupt-*")); len(asides) != 3 {
		t.Errorf("set aside: %v", asides)
	}
	e.Start(t)
	for _, name := range names {
		s.awaitRunning(name, "main")
	}
	s.awaitOK("etcd")
	for _, name := range names {
		s.awaitSet(name)
	}
}
