package readonly

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/config"
)

// The agent knows the pause program of the bundled runtime only.
//
// Shows: C-1.22.12
func TestPauseProfile_BundledRuntime_HasItsOwn(t *testing.T) {
	c := Config{Config: config.Config{RootDir: t.TempDir()}}
	if c.pauseProfile("unix:///run/containerd/containerd.sock") != nil {
		t.Error("a runtime of the machine's has the profile of the bundle's pause program")
	}
	if err := os.Mkdir(filepath.Join(c.RootDir, "runtime"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := c.pauseProfile(bundle.New(c.Bundle()).Endpoint())
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
