package status_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// serverPod is a pod as a node gets it from an API server.
func serverPod(edit func(*v1.PodSpec)) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy: v1.RestartPolicyAlways, NodeName: "n1",
		Containers: []v1.Container{{Name: "c", Image: "i", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile, ImagePullPolicy: v1.PullAlways}},
	}}
	p.Namespace, p.Name, p.UID, p.ResourceVersion = "default", "web-1", "11111111-2222-3333-4444-555555555555", "7"
	p.Status.Phase = v1.PodPending
	edit(&p.Spec)
	return p
}

// TestUnsupported_WhatTheNodeLacks_IsWaitedFor: a pod of an API server that needs something that
// this node lacks is Pending with an event. If it were Failed, its ReplicaSet would create the next
// one, forever. When the node reads its own status back from the server, nothing changes: the
// status does not flap, and one event is sent.
//
// Shows: C-1.31
func TestUnsupported_WhatTheNodeLacks_IsWaitedFor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		edit            func(*v1.PodSpec)
		reason, message string
	}{
		"Fibre Channel volume": {func(s *v1.PodSpec) {
			s.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{FC: &v1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1"}, Lun: new(int32(0))}}}}
		}, "FailedMount", "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[]: spec.volumes[0].fc: this kind of volume needs a driver that nodectl does not have"},
		"iSCSI volume": {func(s *v1.PodSpec) {
			s.Volumes = []v1.Volume{{Name: "ok", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, {Name: "scratch", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2026-01.com.example:disk"}}}}
		}, "FailedMount", "Unable to attach or mount volumes: unmounted volumes=[scratch], unattached volumes=[], failed to process volumes=[]: spec.volumes[1].iscsi: this kind of volume needs a driver that nodectl does not have"},
		"resource claim of the pod as a whole": {func(s *v1.PodSpec) {
			s.Resources = &v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}
		}, "UnsupportedField", "spec.resources.claims"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			p := serverPod(c.edit)
			spec, problems := manifest.FromAPI(p, manifest.Options{Node: "n1", Source: "api", Location: "/k"})
			if spec != nil || len(problems) == 0 {
				t.Fatalf("spec %v, problems %v", spec, problems)
			}
			u, ok := status.OfUnsupported(p, problems, nil, now)
			if !ok || u.Final || u.Status.Phase != v1.PodPending || u.Reason != c.reason || !strings.HasPrefix(u.Message, c.message) {
				t.Fatalf("%v %s, final %v: %s: %s", ok, u.Status.Phase, u.Final, u.Reason, u.Message)
			}
			if u.Known {
				t.Error("the event is not sent")
			}
			if w := u.Status.ContainerStatuses; len(w) != 1 || w[0].State.Waiting == nil {
				t.Errorf("containers %+v", w)
			}
			p.Status = u.Status // as the server shows it to the node afterwards
			again, ok := status.OfUnsupported(p, problems, nil, now.Add(time.Hour))
			if !ok || !again.Known || !equality.Semantic.DeepEqual(again.Status, u.Status) {
				t.Errorf("the status that the node reported changes when it is read back: known %v\n%+v\n%+v", again.Known, u.Status, again.Status)
			}
		})
	}
}

// TestUnsupported_BadIdentity_IsFailed: a pod that no version of the node can run is Failed.
func TestUnsupported_BadIdentity_IsFailed(t *testing.T) {
	t.Parallel()
	p := serverPod(func(s *v1.PodSpec) {
		s.NodeName = "another"
		s.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "csi.example.com"}}}}
	})
	_, problems := manifest.FromAPI(p, manifest.Options{Node: "n1", Source: "api", Location: "/k"})
	u, ok := status.OfUnsupported(p, problems, nil, time.Now())
	if !ok || !u.Final || u.Status.Phase != v1.PodFailed || !strings.HasPrefix(u.Message, "Pod was rejected: spec.nodeName") {
		t.Errorf("%v %+v", ok, u)
	}
}

// TestUnsupported_PodThatHasRun_IsLeftAsReported: an edit that needs something that the node lacks
// does not make a running pod Pending.
func TestUnsupported_PodThatHasRun_IsLeftAsReported(t *testing.T) {
	t.Parallel()
	for _, s := range []v1.PodStatus{
		{Phase: v1.PodRunning},
		{Phase: v1.PodFailed},
		{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{{Name: "i", ContainerID: "containerd://1"}}},
	} {
		p := serverPod(func(*v1.PodSpec) {})
		p.Status = s
		if u, ok := status.OfUnsupported(p, []pod.Problem{{Path: "spec.x", Msg: "no", Lacking: true}}, nil, time.Now()); ok {
			t.Errorf("%+v becomes %+v", s, u)
		}
	}
}
