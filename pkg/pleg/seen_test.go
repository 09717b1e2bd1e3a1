package pleg_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
)

// A relist gives no hint for a pod that was read after its change. It gives one for a pod that
// changed again after it was read.
//
// Shows: F25
func TestF25_RelistHintsAtUnreadChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		run(t, r, "b")
		h := listen(t, r)
		settle(h)
		for _, name := range []string{"a", "b"} {
			rt.Fault(critest.Fault{Method: "Events", Pod: key(name), Drop: true})
			rt.Exit(key(name), "app", 1)
			if _, err := r.Pod(t.Context(), key(name)); err != nil {
				t.Fatal(err)
			}
		}
		rt.Forget(key("b"), "app")
		time.Sleep(time.Minute)
		h.expect(t, "after the relist", "b")
	})
}
