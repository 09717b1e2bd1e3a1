package bootid

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRead_FileOfTheKernel_IsTrimmedAndNeverEmpty(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "boot_id")
	if id, err := read(path); err == nil {
		t.Errorf("a missing file: %q", id)
	}
	for text, want := range map[string]string{"b-1\n": "b-1", "\n": "", "": ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := read(path); id != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, id, err)
		}
	}
}
