package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPrepare_LastRunCompiledAll_BinariesStay: without the file that says so, they may be
// incomplete and go.
func TestPrepare_LastRunCompiledAll_BinariesStay(t *testing.T) {
	for _, compiled := range []bool{true, false} {
		out := filepath.Join(t.TempDir(), "test")
		files := map[string]bool{"0-0/a.test": compiled, "a.log": false, whole: false} // and whether they stay
		for name := range files {
			if name == whole && !compiled {
				continue
			}
			if err := os.MkdirAll(filepath.Join(out, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(out, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := prepare(out, ""); err != nil {
			t.Fatal(err)
		}
		for name, stays := range files {
			if _, err := os.Stat(filepath.Join(out, name)); (err == nil) != stays {
				t.Errorf("compiled %t: %s: %v", compiled, name, err)
			}
		}
	}
}
