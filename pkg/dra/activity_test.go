package dra

import (
	"context"
	"net"
	"testing"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/test/wait"
)

// A driver that never answers is named for the pod whose claim it prepares, and for a pod that waits
// for the same claim.
//
// Shows: F22
func TestPrepare_DriverHangs_IsNamedForEachPod(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent()
	silent, err := net.Listen("unix", m.socket("silent.test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	m.register(c, "silent.test")
	m.claim("gpu", []string{"silent.test"}, "u1", "u2")
	board := activity.NewBoard()
	ctx, stop := context.WithCancel(board.Context(t.Context()))
	done := make(chan error, 2)
	for _, of := range [][2]string{{"u1", "NodePrepareResources"}, {"u2", "another operation"}} {
		want, text := podOf(of[0], "gpu"), of[1]+" of ResourceClaim gpu by DRA driver silent.test"
		go func() { done <- c.Prepare(activity.WithPod(ctx, want.Key), want) }()
		wait.True(t, text, func() bool {
			calls := board.Calls(want.Key)
			return len(calls) == 1 && calls[0].String() == text
		})
	}
	stop()
	for range 2 {
		if err := <-done; err == nil {
			t.Error("a claim is prepared by a driver that does not answer")
		}
	}
	for _, uid := range []string{"u1", "u2"} {
		if calls := board.Calls(podOf(uid, "gpu").Key); len(calls) > 0 {
			t.Errorf("calls for %s that have ended: %v", uid, calls)
		}
	}
}
