package critest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

var web = pod.Key{Namespace: "default", Name: "web"}

// client drives a runtime with plain CRI calls.
type client struct {
	t   *testing.T
	rt  runtimeapi.RuntimeServiceClient
	img runtimeapi.ImageServiceClient
}

func newClient(t *testing.T, c *critest.Conn) client {
	rt, img := c.Clients()
	return client{t, rt, img}
}

func labels() map[string]string {
	return map[string]string{pod.LabelNode: "n1", pod.LabelPodNamespace: web.Namespace, pod.LabelPodName: web.Name}
}

func box(attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: web.Name, Namespace: web.Namespace, Uid: "u1", Attempt: attempt}, Labels: labels(),
	}
}

func (c client) sandbox(attempt uint32) string {
	c.t.Helper()
	a, err := c.rt.RunPodSandbox(c.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box(attempt)})
	if err != nil {
		c.t.Fatal(err)
	}
	return a.GetPodSandboxId()
}

func (c client) create(sandbox string, attempt uint32, command ...string) (string, error) {
	a, err := c.rt.CreateContainer(c.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox, SandboxConfig: box(0),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: attempt}, Labels: labels(),
			Image: &runtimeapi.ImageSpec{Image: "busybox:1", UserSpecifiedImage: "busybox:1"}, Command: command,
		},
	})
	return a.GetContainerId(), err
}

func (c client) run(sandbox string, attempt uint32, command ...string) string {
	c.t.Helper()
	id, err := c.create(sandbox, attempt, command...)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.rt.StartContainer(c.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c client) stop(id string, grace int64) error {
	_, err := c.rt.StopContainer(c.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace})
	return err
}

func (c client) status(id string) *runtimeapi.ContainerStatus {
	c.t.Helper()
	a, err := c.rt.ContainerStatus(c.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return a.GetStatus()
}

func TestBehaviours(t *testing.T) {
	type end struct {
		command []string
		stop    bool          // sent SIGTERM with 10 s of grace at once
		after   time.Duration // when it ends; -1: still runs after an hour
		code    int32
	}
	for _, c := range []end{
		{command: []string{"exit", "0"}},
		{command: []string{"exit", "7"}, code: 7},
		{command: []string{"exit-7", "after", "5s"}, after: 5 * time.Second, code: 7},
		{command: []string{"/bin/sleep", "3"}, after: 3 * time.Second},
		{command: []string{"sleep", "infinity"}, after: -1},
		{command: []string{"nginx", "-g", "daemon off"}, after: -1},
		{command: []string{"nginx"}, stop: true, code: 143},
		{command: []string{"ignore-term"}, stop: true, after: 10 * time.Second, code: 137},
		{command: []string{"slow-term", "4s"}, stop: true, after: 4 * time.Second},
		{command: []string{"slow-term", "4m"}, stop: true, after: 10 * time.Second, code: 137},
		{command: []string{"sh", "-c", "echo hi; sleep 2; exit 3"}, after: 2 * time.Second, code: 3},
		{command: []string{"sh", "-c", "trap '' TERM; sleep 1000"}, stop: true, after: 10 * time.Second, code: 137},
		{command: []string{"sh", "-c", "while true; do sleep 1; done"}, after: -1},
	} {
		t.Run(strings.Join(c.command, " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := critest.New()
				cl := newClient(t, rt.Connect())
				id := cl.run(cl.sandbox(0), 0, c.command...)
				if c.stop {
					if err := cl.stop(id, 10); err != nil {
						t.Fatal(err)
					}
				} else {
					time.Sleep(time.Hour)
					synctest.Wait()
				}
				s := cl.status(id)
				if ended := s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED; ended != (c.after >= 0) {
					t.Fatalf("ended = %v, want %v", ended, c.after >= 0)
				}
				if c.after < 0 {
					return
				}
				if took := time.Duration(s.GetFinishedAt() - s.GetStartedAt()); took != c.after || s.GetExitCode() != c.code {
					t.Errorf("ended after %s with %d, want %s with %d", took, s.GetExitCode(), c.after, c.code)
				}
			})
		})
	}
}

func TestNamesAreReserved(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	id := c.sandbox(0)
	_, err := c.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box(0)})
	if err == nil || !strings.Contains(err.Error(), "is reserved for") {
		t.Errorf("a second sandbox of the same attempt: %v", err)
	}
	first := c.run(id, 0)
	if _, err := c.create(id, 0); err == nil || !strings.Contains(err.Error(), "is reserved for") {
		t.Errorf("a second container of the same attempt: %v", err)
	}
	if err := c.stop(first, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.rt.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: first}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.create(id, 0); err != nil {
		t.Errorf("after its removal the name is free: %v", err)
	}
}

// Shows: C-1.22.9
func TestStartOfMissingCommand(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	id, err := c.create(c.sandbox(0), 0, "no-such-command")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.rt.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	if err == nil || !strings.Contains(err.Error(), "executable file not found") {
		t.Errorf("StartContainer = %v", err)
	}
	if s := c.status(id); s.GetExitCode() != 128 || s.GetReason() != "StartError" || s.GetStartedAt() != 0 {
		t.Errorf("status = %v", s)
	}
}

func TestStopSandboxKillsAndRemoveSandboxRemoves(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	id := c.sandbox(0)
	c.run(id, 0, "ignore-term")
	if _, err := c.rt.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	if got, want := rt.State(), "default/web sandbox attempt=0 notready\ndefault/web/app attempt=0 exited(137)\n"; got != want {
		t.Errorf("state:\n%swant:\n%s", got, want)
	}
	if _, err := c.rt.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	if got := rt.State(); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

func TestTranscript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		c := newClient(t, rt.Connect())
		time.Sleep(1500 * time.Millisecond)
		id := c.run(c.sandbox(0), 0, "ignore-term")
		if err := c.stop(id, 30); err != nil {
			t.Fatal(err)
		}
		_, _ = c.create("nowhere", 1)
		c.status(id)
		want := []string{
			"1.5s RunPodSandbox default/web attempt=0",
			"1.5s CreateContainer default/web/app attempt=0",
			"1.5s StartContainer default/web/app attempt=0",
			"1.5s StopContainer default/web/app attempt=0 grace=30",
			"31.5s CreateContainer default/web/app attempt=1 -> NotFound",
		}
		if got := rt.Transcript(); !slices.Equal(got, want) {
			t.Errorf("transcript:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Shows: I1
func TestI1_CheckSeesTwoLives(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	id := c.sandbox(0)
	c.run(id, 0)
	if err := rt.Check(); err != nil {
		t.Fatal(err)
	}
	c.run(id, 1)
	if err := rt.Check(); err == nil || !strings.Contains(err.Error(), "I1: default/web/app attempt 1 is made while attempt 0 is running") {
		t.Errorf("Check = %v", err)
	}
}

// Shows: I1
func TestI1_CheckSeesTwoSandboxes(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	c.sandbox(0)
	c.sandbox(1)
	if err := rt.Check(); err == nil || !strings.Contains(err.Error(), "I1: sandbox of default/web") {
		t.Errorf("Check = %v", err)
	}
}

// Shows: I4
func TestI4_CheckSeesFallingCount(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	id := c.sandbox(0)
	rt.Exit(web, "app", 0)
	first := c.run(id, 4, "exit", "0")
	if err := c.stop(first, 1); err != nil {
		t.Fatal(err)
	}
	rt.Exit(web, "app", 0)
	rt.Forget(web, "app")
	c.run(id, 3)
	if err := rt.Check(); err == nil || !strings.Contains(err.Error(), "I4: default/web/app attempt fell from 4 to 3") {
		t.Errorf("Check = %v", err)
	}
}

func TestFaults(t *testing.T) {
	sandbox := func(ctx context.Context, c client) error {
		_, err := c.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: box(0)})
		return err
	}
	for name, c := range map[string]struct {
		fault critest.Fault
		took  time.Duration
		code  codes.Code
		state string
	}{
		"fails":         {critest.Fault{Err: status.Error(codes.Internal, "x")}, 0, codes.Internal, ""},
		"is slow":       {critest.Fault{Delay: 3 * time.Second}, 3 * time.Second, codes.OK, "ready"},
		"hangs":         {critest.Fault{Hang: true}, 10 * time.Second, codes.DeadlineExceeded, ""},
		"loses replies": {critest.Fault{DropReply: true}, 0, codes.Unavailable, "ready"},
		"repeats":       {critest.Fault{Repeat: true}, 0, codes.OK, "ready"},
		"other pod":     {critest.Fault{Pod: pod.Key{Name: "x"}, Hang: true}, 0, codes.OK, "ready"},
		"other method":  {critest.Fault{Method: "StopPodSandbox", Hang: true}, 0, codes.OK, "ready"},
		"skips":         {critest.Fault{Skip: 1, Hang: true}, 0, codes.OK, "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := critest.New()
				rt.Fault(c.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				began := time.Now()
				err := sandbox(ctx, newClient(t, rt.Connect()))
				if status.Code(err) != c.code || time.Since(began) != c.took {
					t.Errorf("%v after %s, want %s after %s", err, time.Since(began), c.code, c.took)
				}
				if !strings.Contains(rt.State(), c.state) || c.state == "" && rt.State() != "" {
					t.Errorf("state %q, want %q", rt.State(), c.state)
				}
			})
		})
	}
}

func TestFaultTimesAndLift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		c := newClient(t, rt.Connect())
		rt.Fault(critest.Fault{Method: "Version", Times: 2, Err: status.Error(codes.Internal, "x")})
		version := func() codes.Code {
			_, err := c.rt.Version(t.Context(), &runtimeapi.VersionRequest{})
			return status.Code(err)
		}
		if got := fmt.Sprint(version(), version(), version()); got != "Internal Internal OK" {
			t.Error(got)
		}
		lift := rt.Fault(critest.Fault{Hang: true})
		time.AfterFunc(time.Hour, lift)
		began := time.Now()
		if got := version(); got != codes.OK || time.Since(began) != time.Hour {
			t.Errorf("%s after %s, want OK after an hour", got, time.Since(began))
		}
	})
}

// The engine's crash tests depend on this: after a cut client's n-th call its effect stays,
// its answer and all further calls do not happen.
func TestCutAfterEachCall(t *testing.T) {
	for n, want := range []string{1: "default/web sandbox attempt=0 ready\n", 2: "default/web sandbox attempt=0 ready\ndefault/web/app attempt=0 created\n"} {
		if n == 0 {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			rt := critest.New()
			conn := rt.Connect()
			rt.AfterEach(func(i int, line string) {
				if i == n {
					conn.Cut()
				}
			})
			c := newClient(t, conn)
			a, err := c.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box(0)})
			if n == 1 && status.Code(err) != codes.Unavailable {
				t.Errorf("the cut call answered %v, %v", a, err)
			}
			_, err = c.create(a.GetPodSandboxId(), 0)
			if status.Code(err) != codes.Unavailable {
				t.Errorf("after the cut: %v", err)
			}
			if got := rt.State(); got != want {
				t.Errorf("cut after %d:\n%swant:\n%s", n, got, want)
			}
			other, _ := rt.Connect().Clients()
			if _, err := other.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
				t.Errorf("another client: %v", err)
			}
		})
	}
}

func TestCutEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		conn := rt.Connect()
		c := newClient(t, conn)
		id := c.run(c.sandbox(0), 0, "ignore-term")
		time.AfterFunc(5*time.Second, conn.Cut)
		began := time.Now()
		if err := c.stop(id, 30); status.Code(err) != codes.Unavailable || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		time.Sleep(time.Hour)
		if got := rt.State(); !strings.Contains(got, "running") {
			t.Errorf("no agent is left to kill it, yet:\n%s", got)
		}
	})
}

func TestCrashEndsCallsAndStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		c := newClient(t, rt.Connect())
		id := c.run(c.sandbox(0), 0, "ignore-term")
		events, err := c.rt.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, rt.Crash)
		if err := c.stop(id, 30); status.Code(err) != codes.Unavailable {
			t.Errorf("stop: %v", err)
		}
		for err == nil {
			_, err = events.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("stream: %v", err)
		}
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		if s := c.status(id); s.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("after the restart: %v", s)
		}
	})
}

// Without a subscriber, events are kept for five minutes, as in containerd.
func TestHeldEventsAreReplayed(t *testing.T) {
	for wait, want := range map[time.Duration]int{time.Minute: 2, 6 * time.Minute: 0} {
		synctest.Test(t, func(t *testing.T) {
			rt := critest.New()
			c := newClient(t, rt.Connect())
			c.sandbox(0)
			time.Sleep(wait)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			events, err := c.rt.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			for {
				if _, err := events.Recv(); err != nil {
					break
				}
				got++
			}
			if got != want {
				t.Errorf("after %s %d events were replayed, want %d", wait, got, want)
			}
		})
	}
}

// Shows: F33
func TestF33_Reboot(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	c.run(c.sandbox(0), 0)
	rt.Reboot()
	if got, want := rt.State(), "default/web sandbox attempt=0 notready\ndefault/web/app attempt=0 exited(255)\n"; got != want {
		t.Errorf("state:\n%swant:\n%s", got, want)
	}
}

func TestImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		c := newClient(t, rt.Connect())
		present := func(name string) bool {
			a, err := c.img.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err != nil {
				t.Fatal(err)
			}
			return a.GetImage() != nil
		}
		pull := func(name string) error {
			_, err := c.img.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			return err
		}
		if !present("busybox:1") || present("remote:1") || present("missing:1") {
			t.Error("names do not decide what is present")
		}
		if err := pull("missing:1"); status.Code(err) != codes.NotFound {
			t.Errorf("pull missing: %v", err)
		}
		began := time.Now()
		if err := pull("remote:1"); err != nil || time.Since(began) != time.Second || !present("remote:1") {
			t.Errorf("pull remote: %v after %s", err, time.Since(began))
		}
		rt.SetImage("busybox:1", false)
		if present("busybox:1") {
			t.Error("SetImage(false) leaves it present")
		}
	})
}
