package csi

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A pod for whose volume the node has no room waits, as its volume may find room meanwhile. If it finds
// none for as long as the kubelet waits, the error asks for the rejection of the pod. A driver that is not
// asked for its limit has no such error. A pod that comes later waits as long as the first one.
func TestPublish_NodeHasTooManyVolumes_PodWaitsAndIsRejected(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v, q := newFake(t), m.agent(), request("u1", "pv-1", "vol-1")
	m.plug(v, f)
	v.patience = 0
	const waits = `MountVolume.WaitForAttach failed for volume "pv-1" : no room`
	try := func(why string, rejects bool) {
		t.Helper()
		_, err := v.Publish(t.Context(), q)
		var e *pod.RejectError
		if err == nil || err.Error() != waits || errors.As(err, &e) != rejects {
			t.Fatalf("%s: %v, rejected %t, want %t", why, err, e != nil, rejects)
		}
		const text = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline exceeded"
		if rejects && (e.Reason != "VolumeAttachmentLimitExceeded" || e.Message != text) {
			t.Errorf("%s: %s %s", why, e.Reason, e.Message)
		}
	}
	period := func(s *storagev1.CSIDriverSpec) { s.NodeAllocatableUpdatePeriodSeconds = ptr.To(int64(60)) }
	m.object(period)
	m.detached, m.attach = true, status.Error(codes.ResourceExhausted, "no room")
	try("at first", false)
	if !v.full[driverName] {
		t.Error("the driver is not asked for its limit")
	}
	v.rejectAfter = 0
	try("after the kubelet's wait", true)
	m.attach = status.Error(codes.Internal, "no room")
	try("another failure", false)
	m.attach = status.Error(codes.ResourceExhausted, "no room")
	m.object(func(s *storagev1.CSIDriverSpec) { s.NodeAllocatableUpdatePeriodSeconds = nil })
	m.detached = false
	try("a driver without a period", false)
	m.object(period)
	v.rejectAfter, m.attach = time.Hour, nil
	publish(t, v, q)
	id, u, _, err := sourceOf(q)
	if err != nil || len(v.volumes[id].waits) > 0 {
		t.Errorf("an attached volume: %v waits since %v, %v", u, v.volumes[id].waits, err)
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if got := f.called(); !slices.Contains(got, "NodePublishVolume") {
		t.Errorf("the driver got %v", got)
	}
	m.detached, m.attach = true, status.Error(codes.ResourceExhausted, "no room")
	try("the next pod", false)
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if len(v.volumes) > 0 {
		t.Errorf("left: %v", v.volumes)
	}
}
