package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
)

// foreignTree is a Cgroups below another owner's tree.
type foreignTree struct{ *groups }

func (foreignTree) Ensure(*pod.Spec) (string, error) {
	return "", errors.New("cgroup /kubepods is there, and not nodectl's")
}

// noMounts is a Volumes whose volume does not exist.
type noMounts struct{ *disk }

func (noMounts) SetUp(context.Context, *pod.Spec, pod.Place, int) error {
	return errors.New(`volume data: hostPath "/data" is no directory`)
}

// TestF34_OnceSaysWhichStepFails: a pod that does not reach the state in time is reported
// with its failing step and the error. The reason is that of the kubelet's event or waiting
// state (C-1.22.2, C-1.22.9).
//
// Shows: F34
func TestF34_OnceSaysWhichStepFails(t *testing.T) {
	refuses := func(method, text string) func(m *machine) {
		return func(m *machine) {
			m.rt.Fault(critest.Fault{Method: method, Err: status.Error(codes.Unknown, text)})
		}
	}
	for name, c := range map[string]struct {
		fault           func(m *machine)
		until           Until
		reason, message string
	}{
		"cgroup of another owner": {func(m *machine) {
			m.alter = func(c *Config) { c.Cgroups = foreignTree{&groups{memory: map[string]int64{}}} }
		}, UntilRunning, "FailedCreatePodContainer", "and not nodectl's"},
		"volume": {func(m *machine) {
			m.alter = func(c *Config) { c.Volumes = noMounts{m.disk} }
		}, UntilRunning, "FailedMount", "/data"},
		"network plugin":      {refuses("RunPodSandbox", "plugin type=\"bridge\" failed"), UntilRunning, "FailedCreatePodSandBox", "bridge"},
		"network not there":   {func(m *machine) { m.rt.SetReady(true, false, "cni config uninitialized") }, UntilRunning, "NetworkNotReady", "cni config uninitialized"},
		"runtime not there":   {func(m *machine) { m.rt.SetReady(false, true, "it starts") }, UntilRunning, "RuntimeNotReady", "it starts"},
		"image":               {refuses("PullImage", "signature is not valid"), UntilRunning, "ImagePullBackOff", "ErrImagePull: pull image remote:latest: signature is not valid"},
		"container":           {refuses("CreateContainer", "no such device"), UntilRunning, "CreateContainerError", "no such device"},
		"start":               {refuses("StartContainer", "no such device"), UntilRunning, "RunContainerError", "no such device"},
		"removal of what ran": {refuses("RemoveContainer", "cannot delete running task"), UntilGone, "FailedKillPod", "remove-container app: cannot delete running task"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				img := "app:1"
				if name == "image" {
					img = "remote"
				}
				web := mkpod("web", image(img))
				if c.until == UntilGone {
					if _, err := m.once(UntilRunning, time.Minute, web); err != nil {
						t.Fatal(err)
					}
				}
				c.fault(m)
				rep, err := m.once(c.until, 5*time.Second, web)
				r := rep.Pods[0]
				if !errors.Is(err, context.DeadlineExceeded) || r.Result != feed.ResultTimeout || r.Reason != c.reason || !strings.Contains(r.Message, c.message) {
					t.Errorf("%v; %s, %s: %q; want %s with %q", err, r.Result, r.Reason, r.Message, c.reason, c.message)
				}
			})
		})
	}
}

// TestF34_StepThatSucceededIsNotReported: a step that failed and then succeeded is not reported.
//
// Shows: F34
func TestF34_StepThatSucceededIsNotReported(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := mkpod("web", image("exit-0"), policy(v1.RestartPolicyNever))
		for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
			m.rt.Fault(critest.Fault{Method: method, Err: status.Error(codes.Unknown, "not now"), Times: 1})
		}
		rep, err := m.once(UntilDone, time.Minute, web)
		if r := rep.Pods[0]; err != nil || r.Result != feed.ResultDone || r.Reason != "" {
			t.Errorf("%v; %s, %s: %q", err, r.Result, r.Reason, r.Message)
		}
		m.rt.Fault(critest.Fault{Method: "RemoveContainer", Err: status.Error(codes.Unknown, "not now"), Times: 1})
		rep, err = m.once(UntilGone, time.Minute, web)
		if r := rep.Pods[0]; err != nil || r.Result != feed.ResultGone || r.Reason != "" {
			t.Errorf("%v; %s, %s: %q", err, r.Result, r.Reason, r.Message)
		}
	})
}
