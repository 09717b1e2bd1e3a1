package cri_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// verb is one method of the adapter, ready to call.
type verb struct {
	name, method string // the adapter's, CRI's
	reason       string // of its StartError; "" means a plain error
	gone         bool   // "not found" is success
	reads        bool   // ends with the caller
	call         func(ctx context.Context, r *cri.Runtime, l life, w *pod.Spec) error
}

func verbs() []verb {
	return []verb{
		{"RunSandbox", "RunPodSandbox", "FailedCreatePodSandBox", false, false, func(ctx context.Context, r *cri.Runtime, _ life, w *pod.Spec) error {
			_, err := r.RunSandbox(ctx, pod.SandboxRequest{Want: w, Instance: 2, Attempt: 9})
			return err
		}},
		{"StopSandbox", "StopPodSandbox", "", true, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			return r.StopSandbox(ctx, l.sandbox)
		}},
		{"RemoveSandbox", "RemovePodSandbox", "", true, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			return r.RemoveSandbox(ctx, l.sandbox)
		}},
		{"PullImage", "PullImage", "ErrImagePull", false, true, func(ctx context.Context, r *cri.Runtime, _ life, _ *pod.Spec) error {
			_, err := r.FetchImage(ctx, wanted("web", "remote"), "remote", "", "")
			return err
		}},
		{"CreateContainer", "CreateContainer", "CreateContainerError", false, false, func(ctx context.Context, r *cri.Runtime, l life, w *pod.Spec) error {
			_, err := r.CreateContainer(ctx, pod.CreateRequest{Want: w, Container: "c0", Sandbox: &pod.Sandbox{ID: l.sandbox}, Attempt: 9})
			return err
		}},
		{"StartContainer", "StartContainer", "RunContainerError", false, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			return r.StartContainer(ctx, l.containers["c0"])
		}},
		{"StopContainer", "StopContainer", "", true, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			return r.StopContainer(ctx, l.containers["c0"], 30*time.Second)
		}},
		{"RemoveContainer", "RemoveContainer", "", true, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			return r.RemoveContainer(ctx, l.containers["c0"], false)
		}},
		{"UpdateContainer", "UpdateContainerResources", "", false, false, func(ctx context.Context, r *cri.Runtime, l life, w *pod.Spec) error {
			return r.UpdateContainer(ctx, l.containers["c0"], w, "c0")
		}},
		{"ReopenLog", "ReopenContainerLog", "", false, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			return r.ReopenLog(ctx, l.containers["c0"])
		}},
		{"ExecSync", "ExecSync", "", false, false, func(ctx context.Context, r *cri.Runtime, l life, _ *pod.Spec) error {
			_, _, err := r.ExecSync(ctx, l.containers["c0"], []string{"true"}, time.Second)
			return err
		}},
		{"Pods", "ListContainers", "", false, true, func(ctx context.Context, r *cri.Runtime, _ life, _ *pod.Spec) error {
			_, err := r.Pods(ctx)
			return err
		}},
		{"Pod", "ListPodSandbox", "", false, true, func(ctx context.Context, r *cri.Runtime, _ life, w *pod.Spec) error {
			_, err := r.Pod(ctx, w.Key)
			return err
		}},
		{"Relist", "ListPodSandbox", "", false, true, func(ctx context.Context, r *cri.Runtime, _ life, _ *pod.Spec) error {
			_, err := r.Relist(ctx)
			return err
		}},
		{"Ready", "Status", "", false, true, func(ctx context.Context, r *cri.Runtime, _ life, _ *pod.Spec) error {
			_, err := r.Ready(ctx)
			return err
		}},
		{"Version", "Version", "", false, true, func(ctx context.Context, r *cri.Runtime, _ life, _ *pod.Spec) error {
			_, _, err := r.Version(ctx)
			return err
		}},
	}
}

// prepared returns a runtime with a pod on it.
func prepared(t *testing.T) (*critest.Runtime, *cri.Runtime, life, *pod.Spec) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1", Endpoint: "unix:///run/x.sock"})
	want := wanted("web", "ignore-term")
	return rt, r, start(t, r, want, 0), want
}

// Shows: F24
func TestF24_EveryMethodEveryCode(t *testing.T) {
	for _, v := range verbs() {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			t.Run(v.name+" "+code.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rt, r, l, want := prepared(t)
					rt.Fault(critest.Fault{Method: v.method, Err: status.Error(code, "some words")})
					err := v.call(t.Context(), r, l, want)
					if code == codes.NotFound && v.gone {
						if err != nil {
							t.Errorf("not found is not success: %v", err)
						}
						return
					}
					if code == codes.ResourceExhausted && strings.HasPrefix(v.method, "List") { // in pieces
						if err != nil {
							t.Errorf("a long list: %v", err)
						}
						return
					}
					if code == codes.DeadlineExceeded && v.name == "ExecSync" { // the command's
						if !errors.Is(err, cri.ErrExecTimeout) || errors.Is(err, cri.ErrTimeout) {
							t.Errorf("a command that takes too long: %v", err)
						}
						return
					}
					for kind, want := range map[error]bool{
						cri.ErrUnavailable: code == codes.Unavailable || code == codes.Canceled, cri.ErrTimeout: code == codes.DeadlineExceeded,
						cri.ErrNotFound: code == codes.NotFound, errors.ErrUnsupported: code == codes.Unimplemented,
					} {
						if errors.Is(err, kind) != want {
							t.Errorf("%v is %v: %t", err, kind, !want)
						}
					}
					if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "some words") {
						t.Fatalf("error %v", err)
					}
					start := (*pod.StartError)(nil)
					isStart := errors.As(err, &start)
					switch {
					case code == codes.Unavailable, code == codes.Canceled:
						if !errors.Is(err, cri.ErrUnavailable) || isStart || !strings.Contains(err.Error(), "unix:///run/x.sock") {
							t.Errorf("error %#v", err)
						}
					case v.reason == "":
						if isStart {
							t.Errorf("error %#v", err)
						}
					case !isStart || start.Reason != v.reason || start.Final:
						t.Errorf("error %#v, want reason %s", err, v.reason)
					}
				})
			})
		}
	}
}

// If the runtime hangs, every call ends at its deadline with ErrTimeout.
//
// Shows: F22
func TestF22_EveryCallHasADeadline(t *testing.T) {
	limits := map[string]time.Duration{
		"PullImage": 30 * time.Minute, "StopContainer": 2*time.Minute + 30*time.Second, "ReopenLog": 10 * time.Second, "ExecSync": 11 * time.Second,
	}
	for _, v := range verbs() {
		t.Run(v.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, r, l, want := prepared(t)
				rt.Fault(critest.Fault{Method: v.method, Hang: true})
				limit := limits[v.name]
				if limit == 0 {
					limit = 2 * time.Minute
					if v.reads {
						limit = 10 * time.Second
					}
				}
				began := time.Now()
				err := v.call(t.Context(), r, l, want)
				if !errors.Is(err, cri.ErrTimeout) || !strings.Contains(err.Error(), fmt.Sprintf("did not answer %s within %s", v.method, limit)) {
					t.Errorf("error %v", err)
				}
				if took := time.Since(began); took != limit {
					t.Errorf("after %s, want %s", took, limit)
				}
			})
		})
	}
}

// Only reads, pulls and the wait for a stop end with the caller. Other calls go on: one that
// is cut off could leave half a sandbox and a reserved name, or a command that never ends.
// Their time is limited, because a stopped agent has to exit (F4).
//
// Shows: F4
func TestF4_OnlyReadsPullsAndStopsEndWithTheCaller(t *testing.T) {
	for _, v := range verbs() {
		t.Run(v.name+"/hung", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, r, l, want := prepared(t)
				rt.Fault(critest.Fault{Method: v.method, Hang: true})
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				began := time.Now()
				if err := v.call(ctx, r, l, want); !errors.Is(err, context.Canceled) || time.Since(began) > 3*time.Second {
					t.Errorf("%v after %s, want the end within two seconds of the caller's", err, time.Since(began))
				}
			})
		})
		t.Run(v.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, r, l, want := prepared(t)
				if v.name == "StartContainer" {
					l.containers["c0"] = create(t, r, wanted("web", "sleep"), l.sandbox, "c0", 1)
				}
				rt.Fault(critest.Fault{Method: v.method, Delay: 2 * time.Second})
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				began := time.Now()
				err := v.call(ctx, r, l, want)
				switch took := time.Since(began); {
				case (v.reads || v.name == "StopContainer") && (!errors.Is(err, context.Canceled) || took != time.Second):
					t.Errorf("%v after %s, want the end of the caller after 1s", err, took)
				case !v.reads && v.name != "StopContainer" && (err != nil || took < 2*time.Second):
					t.Errorf("%v after %s, want success after 2s", err, took)
				}
			})
		})
	}
}

func TestStopContainerShortenedByASecondCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, r, l, _ := prepared(t)
		began := time.Now()
		done := make(chan time.Duration)
		go func() {
			_ = r.StopContainer(t.Context(), l.containers["c0"], time.Hour)
			done <- time.Since(began)
		}()
		time.Sleep(10 * time.Second)
		if err := r.StopContainer(t.Context(), l.containers["c0"], 1500*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if took := <-done; took != 12*time.Second {
			t.Errorf("the first stop ended after %s, want 10 s and the second's 2 s", took)
		}
	})
}

func TestStopAndRemove_NotFound_Succeed(t *testing.T) {
	r := critest.New().CRI(cri.Config{Node: "n1"})
	for name, err := range map[string]error{
		"StopContainer": r.StopContainer(t.Context(), "x", 0), "RemoveContainer": r.RemoveContainer(t.Context(), "x", false),
		"StopSandbox": r.StopSandbox(t.Context(), "x"), "RemoveSandbox": r.RemoveSandbox(t.Context(), "x"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A list that does not fit in one message is read in pieces, and is complete; part of one
// is an error.
//
// Shows: F24
func TestF24_LongListsComeInPieces(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	for i := range 5 {
		start(t, r, wanted(fmt.Sprintf("web%d", i), "sleep", "sleep"), 0)
	}
	plain, err := r.Pods(t.Context())
	if err != nil || len(plain) != 5 {
		t.Fatalf("%d pods, %v", len(plain), err)
	}
	for _, method := range []string{"ListPodSandbox", "ListContainers"} {
		rt.Fault(critest.Fault{Method: method, Err: status.Error(codes.ResourceExhausted, "trying to send message larger than max")})
	}
	pieces, err := r.Pods(t.Context())
	if diff := cmp.Diff(plain, pieces); err != nil || diff != "" {
		t.Errorf("%v, in pieces (-one +pieces):\n%s", err, diff)
	}
	lift := rt.Fault(critest.Fault{Method: "StreamContainers", DropReply: true})
	if got, err := r.Pods(t.Context()); !errors.Is(err, cri.ErrUnavailable) || len(got) != 0 {
		t.Errorf("a list that broke off: %d pods, %v", len(got), err)
	}
	lift()
	rt.Fault(critest.Fault{Method: "StreamContainers", Err: status.Error(codes.Unimplemented, "unknown method")})
	if _, err := r.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than max (and the runtime has no StreamContainers)") {
		t.Errorf("a runtime that cannot: %v", err)
	}
}

// A sandbox that the runtime finishes after the call has timed out is used; no second one
// is made.
//
// Shows: F3
func TestF3_SandboxFinishedLateIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		want := wanted("web", "sleep")
		rt.Fault(critest.Fault{Method: "RunPodSandbox", Late: true, Delay: 130 * time.Second, Times: 1})
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0}); !errors.Is(err, cri.ErrTimeout) {
			t.Fatalf("error %v", err)
		}
		if a, err := r.Pod(t.Context(), want.Key); err != nil || !a.Empty() {
			t.Fatalf("%+v, %v", a, err)
		}
		// Its name is reserved until it is made.
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0}); err == nil || !strings.Contains(err.Error(), "failed to reserve sandbox name") {
			t.Fatalf("error %v", err)
		}
		time.Sleep(11 * time.Second)
		id, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
		if err != nil {
			t.Fatal(err)
		}
		a, err := r.Pod(t.Context(), want.Key)
		if err != nil || a.Sandbox == nil || a.Sandbox.ID != id || len(a.Older) != 0 {
			t.Errorf("%+v, %v", a, err)
		}
		if err := r.StopSandbox(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0}); err == nil {
			t.Error("a sandbox that is not ready is taken over")
		}
		if err := rt.Check(); err != nil {
			t.Error(err)
		}
	})
}

// A call whose answer was lost can be repeated safely.
//
// Shows: F3
func TestF3_LostReplyOfASandbox(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep")
	rt.Fault(critest.Fault{Method: "RunPodSandbox", DropReply: true, Times: 1})
	if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0}); !errors.Is(err, cri.ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	if id, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0}); err != nil || id == "" {
		t.Errorf("the second call: %q, %v", id, err)
	}
	if n := strings.Count(rt.State(), "sandbox"); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
}

// Shows: F35
func TestF35_OOMScoreIsExplained(t *testing.T) {
	const raw = `failed to start sandbox "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": failed to create containerd task: ` +
		`failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: ` +
		"error during container init: nsexec-0[1]: failed to update /proc/self/oom_score_adj: Permission denied\n: unknown"
	rt := critest.New()
	rt.Fault(critest.Fault{Err: status.Error(codes.Unknown, raw)})
	_, err := rt.CRI(cri.Config{Node: "n1"}).RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("web", "sleep"), Instance: 1, Attempt: 0})
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "set restrict_oom_score_adj = true") {
		t.Errorf("%v", err)
	}
}

// Messages become statuses: one line, without prefixes that say nothing and without IDs,
// which would make the same fault look new each time.
func TestMessagesArePlain(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for raw, want := range map[string]string{
		`failed to setup network for sandbox "` + id + `": plugin type="bridge" failed (add): no IP addresses available`: `failed to setup network for sandbox: plugin type="bridge" failed (add): no IP addresses available`,
		`failed to reserve sandbox name "a": name "a" is reserved for "` + id + `"`:                                      `failed to reserve sandbox name "a": name "a" is reserved`,
		"failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: \"x\": executable file not found in $PATH: unknown": `exec: "x": executable file not found in $PATH`,
		"two\n  lines": "two lines",
	} {
		rt := critest.New()
		rt.Fault(critest.Fault{Err: status.Error(codes.Unknown, raw)})
		err := rt.CRI(cri.Config{Node: "n1"}).StartContainer(t.Context(), "x")
		if err == nil || err.Error() != "RunContainerError: "+want {
			t.Errorf("%q\nis   %v\nwant RunContainerError: %s", raw, err, want)
		}
	}
}

// Shows: F29
func TestF29_NetworkNotReadyKeepsItsText(t *testing.T) {
	rt := critest.New()
	rt.SetReady(true, false, "")
	r := rt.CRI(cri.Config{Node: "n1"})
	_, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("web", "sleep"), Instance: 1, Attempt: 0})
	if err == nil || !strings.Contains(err.Error(), "cni plugin not initialized") {
		t.Errorf("%v", err)
	}
	onHost := wanted("host", "sleep")
	onHost.Pod.Spec.HostNetwork = true
	if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: onHost, Instance: 1, Attempt: 0}); err != nil {
		t.Errorf("host network: %v", err)
	}
}

// TestF1_ContainerStillHasATask_TaskIsEnded: if the runtime refuses to remove a container because it still has
// a task, the task is ended and the container removed. Other refusals, and a runtime
// without EndTask, are failures.
//
// Shows: F1
func TestF1_ContainerStillHasATask_TaskIsEnded(t *testing.T) {
	refuses := status.Error(codes.FailedPrecondition, "cannot delete running task")
	for _, c := range []struct {
		name         string
		answer, ends error
		times        int // that the runtime refuses the removal
		asked        bool
		want         string
	}{
		{"ended and removed", refuses, nil, 1, true, ""},
		{"it stays", refuses, nil, 2, true, "cannot delete running task"},
		{"it does not end", refuses, errors.New("no such service"), 1, true, "cannot delete running task; no such service"},
		{"another fault", status.Error(codes.Internal, "disk is broken"), nil, 1, false, "disk is broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := critest.New()
				var asked []string
				r := rt.CRI(cri.Config{Node: "n1", EndTask: func(_ context.Context, id string) error {
					asked = append(asked, id)
					return c.ends
				}})
				l := start(t, r, wanted("web", "ignore-term"), 0)
				rt.Fault(critest.Fault{Method: "RemoveContainer", Err: c.answer, Times: c.times})
				err := r.RemoveContainer(t.Context(), l.containers["c0"], false)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%v, not %q", err, c.want)
				}
				if got := len(asked) == 1 && asked[0] == l.containers["c0"]; got != c.asked {
					t.Errorf("asked to end %v", asked)
				}
				if left := strings.Contains(rt.State(), "c0"); left != (c.want != "") {
					t.Errorf("then there is:\n%s", rt.State())
				}
			})
		})
	}
}
