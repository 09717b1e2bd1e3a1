package record

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestHalt_File_AppliesToItsBoot: a halt is found in the boot that it began in, and in no other
// one; a damaged file is an error.
func TestHalt_File_AppliesToItsBoot(t *testing.T) {
	t.Parallel()
	root, grace := t.TempDir(), int64(7)
	if _, ok, err := LoadHalt(root, "a"); ok || err != nil {
		t.Errorf("without a file: %t, %v", ok, err)
	}
	saved := Halt{Boot: "a", Since: time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC), Cause: CauseDrain, MaxGrace: &grace}
	if err := SaveHalt(root, saved); err != nil {
		t.Fatal(err)
	}
	got, ok, err := LoadHalt(root, "a")
	if !ok || err != nil || !got.Since.Equal(saved.Since) || got.Shutdown() || *got.MaxGrace != 7 {
		t.Errorf("loaded %+v, %t, %v", got, ok, err)
	}
	if got.Reason() != "NodeDrained" || got.Message() != "the node is drained since 2026-11-27T10:00:00Z; 'nodectl drain --undo' ends that" {
		t.Errorf("%s: %s", got.Reason(), got.Message())
	}
	for _, boot := range []string{"b", ""} {
		if _, ok, err := LoadHalt(root, boot); ok || err != nil {
			t.Errorf("in boot %q: %t, %v", boot, ok, err)
		}
	}
	for range 2 {
		if err := RemoveHalt(root); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "halt.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := LoadHalt(root, "a"); ok || err == nil {
		t.Errorf("damaged: %t, %v", ok, err)
	}
}
