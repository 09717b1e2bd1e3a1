package bundle

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestPauseProfile_AgentsWereKilledWhileTheyWroteIt_OneFileIsLeft also calls it as concurrently as
// the workers of pods do.
func TestPauseProfile_AgentsWereKilledWhileTheyWroteIt_OneFileIsLeft(t *testing.T) {
	r := New(Config{RootDir: t.TempDir()})
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.root, "pause-seccomp.json.tmp"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var files [8]string
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			var err error
			if files[i], err = r.PauseProfile(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := 1
	if files[0] == "" { // the kernel has no seccomp filters
		want = 0
	}
	if entries, err := os.ReadDir(r.root); err != nil || len(entries) != want {
		t.Errorf("%v, %v; want the profile only, if there is one", entries, err)
	}
}
