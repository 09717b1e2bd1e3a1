package cri_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// streamed returns a runtime with a pod of UID u whose container c runs, and a client of
// it.
func streamed(t *testing.T) (*critest.Runtime, *cri.Runtime, string) {
	t.Helper()
	rt := critest.New()
	critest.ServeStreams(t, rt)
	r, err := cri.Dial(cri.Config{Endpoint: critest.Serve(t, rt), Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	labels := map[string]string{pod.LabelPodNamespace: "ns", pod.LabelPodName: "p", pod.LabelPodUID: "u", pod.LabelNode: "n", pod.LabelContainerName: "c"}
	box := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "ns", Name: "p", Uid: "u"}, Labels: labels, LogDirectory: "/logs/ns_p_u"}
	a, err := rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		t.Fatal(err)
	}
	c, err := rt.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: a.GetPodSandboxId(), SandboxConfig: box, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Labels: labels, Command: []string{"serve"}, Image: &runtimeapi.ImageSpec{Image: "i:1", UserSpecifiedImage: "i:1"},
	}})
	if err == nil {
		_, err = rt.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
	}
	if err != nil {
		t.Fatal(err)
	}
	return rt, r, c.GetContainerId()
}

// Shows: C-1.40.9
func TestC_1_40_9_StreamURLs(t *testing.T) {
	t.Parallel()
	rt, r, id := streamed(t)
	ctx := t.Context()
	if got, err := r.RunningContainer(ctx, "u", "c"); err != nil || got != id {
		t.Errorf("%q, %v", got, err)
	}
	exec, err1 := r.ExecURL(ctx, "u", "c", []string{"true"}, cri.Streams{Stdout: true, Stderr: true, TTY: true}) // a terminal has no stderr
	attach, err2 := r.AttachURL(ctx, "u", "c", cri.Streams{Stdin: true})
	forward, err3 := r.PortForwardURL(ctx, "u")
	if err := errors.Join(err1, err2, err3); err != nil || exec.Scheme != "http" || exec.Host != attach.Host || exec.Path == attach.Path || forward.Path == "" {
		t.Errorf("%v %v %v: %v", exec, attach, forward, err)
	}
	for _, c := range [][2]string{{"u", "d"}, {"v", "c"}} {
		_, err := r.ExecURL(ctx, c[0], c[1], []string{"true"}, cri.Streams{Stdout: true})
		var none *cri.NoContainerError
		if !errors.As(err, &none) || !errors.Is(err, cri.ErrNotFound) || none.Name != c[1] {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := r.PortForwardURL(ctx, "v"); !errors.Is(err, cri.ErrNotFound) {
		t.Error(err)
	}
	if _, err := r.ExecURL(ctx, "u", "c", []string{"true"}, cri.Streams{}); err == nil {
		t.Error("an exec without a stream succeeded")
	}
	rt.Exit(pod.Key{Namespace: "ns", Name: "p"}, "c", 0)
	if _, err := r.AttachURL(ctx, "u", "c", cri.Streams{Stdout: true}); !errors.Is(err, cri.ErrNotFound) {
		t.Errorf("a container that has ended: %v", err)
	}
}

// If the caller leaves while the runtime makes a URL, the call still returns it: else the
// runtime would keep the token unused.
//
// Shows: C-1.40.9
func TestStreamURLs_CallerLeaves_URLIsReturned(t *testing.T) {
	t.Parallel()
	rt, _, _ := streamed(t)
	for _, method := range []string{"Exec", "Attach", "PortForward"} {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		r := rt.CRI(cri.Config{Node: "n", OnCall: func(name string) {
			if name == method {
				leave()
			}
		}})
		var where *url.URL
		var err error
		switch method {
		case "Exec":
			where, err = r.ExecURL(ctx, "u", "c", []string{"true"}, cri.Streams{Stdout: true})
		case "Attach":
			where, err = r.AttachURL(ctx, "u", "c", cri.Streams{Stdout: true})
		case "PortForward":
			where, err = r.PortForwardURL(ctx, "u")
		}
		if err != nil || where == nil || ctx.Err() == nil {
			t.Errorf("%s: %v, %v", method, where, err)
		}
	}
}

// Shows: C-1.40.10
func TestC_1_40_10_CheckpointContainer(t *testing.T) {
	t.Parallel()
	rt, r, id := streamed(t)
	path := filepath.Join(t.TempDir(), "x.tar")
	if err := r.CheckpointContainer(t.Context(), "u", "c", path, time.Second); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a runtime that cannot: %v", err)
	}
	rt.Checkpoints(true)
	if err := r.CheckpointContainer(t.Context(), "u", "c", path, 0); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != id {
		t.Errorf("%s, %v", text, err)
	}
	if err := r.CheckpointContainer(t.Context(), "u", "d", path, 0); !errors.Is(err, cri.ErrNotFound) {
		t.Error(err)
	}
}

// A runtime that has the call but no CRIU answers with an error without a code of its own.
//
// Shows: C-1.40.10
func TestCheckpointContainer_RuntimeWithoutCRIU_IsUnsupported(t *testing.T) {
	t.Parallel()
	rt, r, _ := streamed(t)
	for message, unsupported := range map[string]bool{
		`failed to checkpoint container "x": criu support is disabled by configuration`:                                 true,
		`failed to checkpoint container "x": criu binary not found in shim path or system PATH`:                         true,
		`failed to checkpoint container "x": checkpoint/restore requires at least CRIU 31600, current version is 31500`: true,
		"checkpoint/restore support not available":                                                                      true,
		"CRIU binary not found or too old (<31600). Failed to checkpoint container x":                                   true,
		`failed to checkpoint container "x": criu failed: type DUMP errno 0: see /run/x/criu-dump.log`:                  false,
	} {
		lift := rt.Fault(critest.Fault{Method: "CheckpointContainer", Err: status.Error(codes.Unknown, message)})
		err := r.CheckpointContainer(t.Context(), "u", "c", filepath.Join(t.TempDir(), "x.tar"), 0)
		lift()
		if err == nil || errors.Is(err, errors.ErrUnsupported) != unsupported || !strings.Contains(err.Error(), message) {
			t.Errorf("%q is %v, unsupported %v, want %v", message, err, errors.Is(err, errors.ErrUnsupported), unsupported)
		}
	}
}
