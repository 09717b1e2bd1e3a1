package suite

import (
	"os"
	"testing"
)

func TestOnce_TwoTests_ShareOneValueUntilTheEnd(t *testing.T) {
	starts, ended := 0, ""
	once := Once(func(t testing.TB) string {
		starts++
		dir := t.TempDir()
		t.Cleanup(func() { ended = dir })
		return dir
	})
	first, second := once(t), once(t)
	if _, err := os.Stat(first); err != nil || first != second || starts != 1 {
		t.Errorf("started %d times, values %q and %q: %v", starts, first, second, err)
	}
	all.End()
	if _, err := os.Stat(first); !os.IsNotExist(err) || ended != first {
		t.Errorf("at the end: cleanup of %q, directory: %v", ended, err)
	}
}

// recorder keeps the message of Fatal.
type recorder struct {
	testing.TB
	said any
}

func (r *recorder) Helper()           {}
func (r *recorder) Fatal(args ...any) { r.said = args[0] }

func TestOnce_StartFails_EveryCallerFails(t *testing.T) {
	starts := 0
	once := Once(func(t testing.TB) int { starts++; t.Fatalf("no %s", "server"); return 1 })
	for range 2 {
		r := &recorder{}
		if once(r); r.said != "no server" {
			t.Errorf("the test failed with %v", r.said)
		}
	}
	if !all.Failed() || starts != 1 {
		t.Errorf("the suite failed: %t; %d starts", all.Failed(), starts)
	}
	all.failed = false
}
