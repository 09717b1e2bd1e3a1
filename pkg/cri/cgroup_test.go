package cri_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// parents is a client that records the cgroup parent of each call.
type parents struct {
	runtimeapi.RuntimeServiceClient
	named []string
}

func (p *parents) RunPodSandbox(ctx context.Context, q *runtimeapi.RunPodSandboxRequest, o ...grpc.CallOption) (*runtimeapi.RunPodSandboxResponse, error) {
	p.named = append(p.named, q.GetConfig().GetLinux().GetCgroupParent())
	return p.RuntimeServiceClient.RunPodSandbox(ctx, q, o...)
}

func (p *parents) CreateContainer(ctx context.Context, q *runtimeapi.CreateContainerRequest, o ...grpc.CallOption) (*runtimeapi.CreateContainerResponse, error) {
	p.named = append(p.named, q.GetSandboxConfig().GetLinux().GetCgroupParent())
	return p.RuntimeServiceClient.CreateContainer(ctx, q, o...)
}

// placed returns a Runtime whose pods are below the cgroup parent, and its client.
func placed(rt *critest.Runtime, parent string) (*cri.Runtime, *parents) {
	rts, img := rt.Connect().Clients()
	p := &parents{RuntimeServiceClient: rts}
	return cri.New(cri.Config{Endpoint: "critest", Node: "n1", CgroupParent: parent}, p, img), p
}

const (
	silent   = runtimeapi.CgroupDriver(-1) // a runtime that does not report it
	systemd  = runtimeapi.CgroupDriver_SYSTEMD
	cgroupfs = runtimeapi.CgroupDriver_CGROUPFS
)

// TestF34_CgroupParentIsTheDriversOwn: pods are made where the runtime's driver accepts them, with
// a name in its form. If that is impossible, the runtime is not ready, and one sentence names the
// setting to change.
//
// Shows: F34
func TestF34_CgroupParentIsTheDriversOwn(t *testing.T) {
	for _, c := range []struct {
		root   string
		driver runtimeapi.CgroupDriver
		parent string
		fix    string // of a parent that the driver cannot have
	}{
		{"/pods", silent, "/pods", ""},
		{"/pods.slice", silent, "/pods.slice", ""},
		{"", silent, "", ""},
		{"/pods", cgroupfs, "/pods", ""},
		{"/a/b-c", cgroupfs, "/a/b-c", ""},
		{"/a.slice/b", cgroupfs, "/a.slice/b", ""},
		{"", cgroupfs, "", ""},
		{"/pods.slice", cgroupfs, "", "set --cgroup-root /pods, or SystemdCgroup = true"},
		{"/pods", systemd, "/pods.slice", ""},
		{"/a/b", systemd, "/a.slice/a-b.slice", ""},
		{"/a/b/c_1", systemd, "/a.slice/a-b.slice/a-b-c_1.slice", ""},
		{"/my-pods/x", systemd, "/my_pods.slice/my_pods-x.slice", ""},
		{"/pods.slice", systemd, "/pods.slice", ""},
		{"/a.slice/a-b.slice", systemd, "/a.slice/a-b.slice", ""},
		{"", systemd, "/system.slice", ""},
		{"/po ds", systemd, "", "set one, for example --cgroup-root /pods.slice"},
		{"/po:ds", systemd, "", "set one, for example --cgroup-root /pods.slice"},
		{"/a.slice/b", systemd, "", "set one, for example --cgroup-root /pods.slice"},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt := critest.New()
			if c.driver != silent {
				rt.SetCgroupDriver(c.driver)
			}
			r, p := placed(rt, c.root)
			ready, err := r.Ready(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.fix != "" {
				if ready.Runtime || !strings.Contains(ready.RuntimeMessage, c.fix) || !strings.Contains(ready.RuntimeMessage, c.root) ||
					!strings.Contains(ready.RuntimeMessage, "driver is "+strings.ToLower(c.driver.String())) {
					t.Errorf("%q under %s: ready %t: %s", c.root, c.driver, ready.Runtime, ready.RuntimeMessage)
				}
				if _, err := r.Driver(t.Context()); err == nil || !strings.Contains(err.Error(), c.fix) {
					t.Errorf("%q under %s: driver: %v", c.root, c.driver, err)
				}
				return
			}
			if !ready.Runtime || ready.RuntimeMessage != "" {
				t.Errorf("%q under %s: not ready: %s", c.root, c.driver, ready.RuntimeMessage)
			}
			// The pod's own cgroup is named by the same driver.
			isSystemd := c.driver == systemd || c.driver == silent && strings.HasSuffix(c.root, ".slice")
			if got, err := r.Driver(t.Context()); err != nil || got != isSystemd {
				t.Errorf("%q under %s: systemd %t, %v", c.root, c.driver, got, err)
			}
			start(t, r, wanted("web", "app:1"), 0)
			for _, named := range p.named {
				if named != c.parent {
					t.Errorf("%q under %s: a call names %q, want %q", c.root, c.driver, named, c.parent)
				}
			}
			if len(p.named) != 2 {
				t.Errorf("%d calls", len(p.named))
			}
		})
	}
}

// TestF34_DriverIsAskedOnce: the driver is read once, and again after the runtime was away
// or could not make a sandbox. A call that fails blocks nothing and is repeated, and a
// wrong configuration is read again until it is corrected.
//
// Shows: F34
func TestF34_DriverIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		rt.SetCgroupDriver(systemd)
		r, p := placed(rt, "/pods")
		asked := func(what string, calls int, runtime bool) {
			t.Helper()
			before := rt.Calls()["RuntimeConfig"]
			for range 3 {
				if ready, err := r.Ready(t.Context()); err != nil || ready.Runtime != runtime {
					t.Errorf("%s: %+v, %v", what, ready, err)
				}
			}
			if n := rt.Calls()["RuntimeConfig"] - before; n != calls {
				t.Errorf("%s: asked %d times in three, want %d", what, n, calls)
			}
		}
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			if code == codes.Unimplemented {
				continue // "unsupported" is an answer
			}
			lift := rt.Fault(critest.Fault{Method: "RuntimeConfig", Err: status.Error(code, "some words")})
			asked(code.String(), 3, true)
			lift()
		}
		asked("at first", 1, true)
		rt.Crash()
		if _, err := r.Ready(t.Context()); err == nil {
			t.Fatal("it answers though it is down")
		}
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		asked("after a crash", 1, true)

		// Another configuration, after a restart that went unnoticed.
		rt.SetCgroupDriver(cgroupfs)
		lift := rt.Fault(critest.Fault{Method: "RunPodSandbox", Times: 1, Err: status.Error(codes.Unknown, "no such cgroup")})
		defer lift()
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("web", "app:1"), Instance: 1, Attempt: 0}); err == nil {
			t.Fatal("it was made")
		}
		asked("after a sandbox that failed", 1, true)
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("web", "app:1"), Instance: 1, Attempt: 0}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(p.named, " "); got != "/pods.slice /pods" {
			t.Errorf("named %s", got)
		}

		wrong, _ := placed(rt, "/pods.slice")
		r = wrong
		asked("with a cgroup root that the driver refuses", 3, false)
		rt.SetCgroupDriver(systemd)
		asked("with another driver", 1, true)
	})
}

// TestF34_RuntimeThatIsNotReadyKeepsItsReason: the runtime's own reason comes first.
//
// Shows: F34
func TestF34_RuntimeThatIsNotReadyKeepsItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		rt.SetCgroupDriver(cgroupfs)
		rt.SetReady(false, true, "starting")
		r, _ := placed(rt, "/pods.slice")
		if got, err := r.Ready(t.Context()); err != nil || got != (pod.RuntimeReady{RuntimeMessage: "starting", Network: true}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
