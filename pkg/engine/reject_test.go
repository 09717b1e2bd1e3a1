package engine

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The node has no room for the volume of a pod. A pod of an API server has Failed, as with the kubelet, and
// no later agent starts it. A static pod waits, and starts once there is room.
func TestReject_NodeHasNoRoomForVolumes_PodOfAPIServerHasFailed(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fail := func(err error) {
			m.disk.mu.Lock()
			defer m.disk.mu.Unlock()
			m.disk.setUpErr = err
		}
		usesVolume := func(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{{Name: "data"}} }
		const failed = "Failed VolumeAttachmentLimitExceeded Pod was rejected: Node has reached its volume attachment limit"
		fail(&pod.RejectError{Reason: "VolumeAttachmentLimitExceeded", Message: "Node has reached its volume attachment limit", Err: errors.New("no room")})
		m.src.set(ofAPI("app", usesVolume), mkpod("static", usesVolume))
		m.arrive()
		m.pass(time.Minute)
		m.expect("app", failed, false)
		m.expect("static", "Pending", false)
		m.die()
		m.arrive()
		fail(nil)
		m.pass(time.Minute)
		m.expect("app", failed, false)
		m.expect("static", "Running", true)
	})
}
