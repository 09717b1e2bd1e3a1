package device

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A plugin that registers and changes its devices all the time makes admission and the pods that wait look
// ever more seldom. Another plugin is not affected, and the last change is signalled.
func TestChanged_PluginChangesEverySecond_SignalsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Log: slog.New(slog.DiscardHandler)})
		change := func(resource string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.changedLocked(p.of(resource))
		}
		signalled := func() bool {
			synctest.Wait()
			select {
			case <-p.Changed():
				return true
			default:
				return false
			}
		}
		signals := 0
		for range 120 {
			change("x.com/hostile")
			if signalled() {
				signals++
			}
			time.Sleep(time.Second)
		}
		if signals < 10 || signals > 20 {
			t.Errorf("%d signals in two minutes, want 10 to 20", signals)
		}
		if time.Sleep(10 * time.Second); !signalled() {
			t.Error("the last change is not signalled")
		}
		if change("x.com/other"); !signalled() {
			t.Error("another plugin waits")
		}
	})
}
