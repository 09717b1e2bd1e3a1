package record

import (
	"os"
	"path/filepath"
	"reflect"
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
	if got.Reason() != "NodeDrained" || got.Message() != "the node has been drained since 2026-11-27T10:00:00Z; run 'nodectl drain --undo' to let pods start again" {
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

// TestHalt_Applicable: no drain applies in a cluster, and no shutdown that logind announced to an
// agent that does not watch logind; the drain below it does.
func TestHalt_Applicable(t *testing.T) {
	t.Parallel()
	drain := &Halt{Cause: CauseDrain}
	for _, c := range []struct {
		halt            *Halt
		cluster, logind bool
		want            *Halt
	}{
		{drain, false, false, drain},
		{drain, true, true, nil},
		{&Halt{Cause: CauseSignal, Drained: drain}, true, false, &Halt{Cause: CauseSignal}},
		{&Halt{Cause: CauseLogind, Drained: drain}, false, true, &Halt{Cause: CauseLogind, Drained: drain}},
		{&Halt{Cause: CauseLogind, Drained: drain}, false, false, drain},
		{&Halt{Cause: CauseLogind}, true, false, nil},
	} {
		if got := c.halt.Applicable(c.cluster, c.logind); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c, got, c.want)
		}
	}
}
