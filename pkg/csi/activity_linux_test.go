package csi

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/test/wait"
)

// A driver that never answers is named for the pod whose volume it stages, and for a pod that waits
// for the same volume.
//
// Shows: F22
func TestPublish_DriverHangs_IsNamedForEachPod(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	answers := make(chan struct{})
	release := sync.OnceFunc(func() { close(answers) })
	f.before = func(call string) error {
		if call == "NodeStageVolume" {
			<-answers
			return errors.New("it is too late")
		}
		return nil
	}
	m.plug(v, f)
	t.Cleanup(release)
	board := activity.NewBoard()
	ctx, stop := context.WithCancel(board.Context(t.Context()))
	done := make(chan error, 2)
	for _, of := range [][2]string{{"u1", "NodeStageVolume"}, {"u2", "wait for another operation on the volume"}} {
		q, text := request(of[0], "pv-1", "vol-1"), of[1]+" of volume vol-1 by CSI driver "+driverName
		go func() {
			_, err := v.Publish(activity.WithPod(ctx, q.Want.Key), q)
			done <- err
		}()
		wait.True(t, text, func() bool {
			calls := board.Calls(q.Want.Key)
			return len(calls) == 1 && calls[0].String() == text
		})
	}
	stop()
	for range 2 {
		if err := <-done; err == nil {
			t.Error("a volume is mounted by a driver that does not answer")
		}
	}
	release()
	for _, uid := range []string{"u1", "u2"} {
		if calls := board.Calls(podOf(uid).Key); len(calls) > 0 {
			t.Errorf("calls for %s that have ended: %v", uid, calls)
		}
		if err := v.Unpublish(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
}
