package device

import (
	"context"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// A plugin that never answers is named by its resource for the pod whose container asks for devices,
// and for a pod that waits for the same plugin.
//
// Shows: F22
func TestAllocate_PluginHangs_IsNamedForEachPod(t *testing.T) {
	t.Parallel()
	n, f := start(t), newFake()
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	f.allocate = func([]string) (*pluginapi.ContainerAllocateResponse, error) { <-hangs; return nil, nil }
	f.serve(t, filepath.Join(n.dir, pluginsDir, "silent.sock"))
	if err := n.register("x.com/silent", "silent.sock"); err != nil {
		t.Fatal(err)
	}
	f.lists <- devices("a", "b")
	n.until("the plugin lists", func() bool { return n.Supply()["x.com/silent"].Healthy == 2 })
	board := activity.NewBoard()
	ctx, stop := context.WithCancel(board.Context(t.Context()))
	done := make(chan error, 2)
	for _, uid := range []string{"u1", "u2"} {
		w := requesting(uid, 1)
		w.Pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"x.com/silent": w.Pod.Spec.Containers[0].Resources.Limits["x.com/gpu"]}
		go func() {
			_, err := n.Allocate(activity.WithPod(ctx, w.Key), pod.DeviceRequest{Want: w, Container: "c"})
			done <- err
		}()
		wait.True(t, "the plugin is named", func() bool {
			calls := board.Calls(w.Key)
			return len(calls) == 1 && calls[0].String() == "allocate devices for container c by the device plugin of x.com/silent"
		})
	}
	stop()
	for range 2 {
		if err := <-done; err == nil {
			t.Error("a container gets devices of a plugin that does not answer")
		}
	}
	for _, uid := range []string{"u1", "u2"} {
		if calls := board.Calls(requesting(uid, 1).Key); len(calls) > 0 {
			t.Errorf("calls for %s that have ended: %v", uid, calls)
		}
	}
}
