package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestStartSlots: of a crowd few start at first, and more with each that has started; a
// slot that is given back for another reason makes none; the next crowd begins anew.
func TestStartSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := newGate(3)
		go g.run(ctx)
		defer cancel()
		crowd := func() (waiting []*ticket) {
			want := &pod.Spec{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}}
			for i := range 20 {
				k := &ticket{want: want, seq: uint64(i), grant: make(chan struct{}, 1)}
				if err := g.ask(ctx, k); err != nil {
					t.Error(err)
				}
				waiting = append(waiting, k)
			}
			return waiting
		}
		// granted takes what is granted now.
		granted := func(waiting *[]*ticket) (n int) {
			synctest.Wait()
			*waiting = slices.DeleteFunc(*waiting, func(k *ticket) bool {
				select {
				case <-k.grant:
					n++
					return true
				default:
					return false
				}
			})
			return n
		}
		for range 2 {
			waiting := crowd()
			running := granted(&waiting)
			if running != 3 {
				t.Errorf("%d start at first", running)
			}
			var most []int
			for _, started := range []bool{false, true, false, true, true, true, true} {
				g.release(ctx, started)
				running += granted(&waiting) - 1
				most = append(most, running)
			}
			if want := []int{3, 5, 5, 7, 9, 10, 10}; !slices.Equal(most, want) {
				t.Errorf("%d run at once, want %d", most, want)
			}
			for ; running > 0; running-- {
				g.release(ctx, true)
				running += granted(&waiting)
			}
			if len(waiting) > 0 {
				t.Errorf("%d wait on", len(waiting))
			}
		}
	})
}
