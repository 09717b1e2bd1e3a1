//go:build linux

package cmd

import (
	"os"
	"path/filepath"
	"testing"
)

// The agent knows the pause program of the bundled runtime only.
//
// Shows: C-1.22.12
func TestPauseProfile_BundledRuntime_HasItsOwn(t *testing.T) {
	p := written(t)
	p.cfg.RootDir = t.TempDir()
	if p.pauseProfile("unix:///run/containerd/containerd.sock") != nil {
		t.Error("a runtime of the machine's has the profile of the bundle's pause program")
	}
	if err := os.Mkdir(filepath.Join(p.cfg.RootDir, "runtime"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := p.pauseProfile(p.bundled().Endpoint())
	if write == nil {
		t.Fatal("the bundled runtime has no profile of its own")
	}
	path, err := write()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
