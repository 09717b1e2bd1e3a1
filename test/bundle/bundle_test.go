// Package bundle_test runs the bundled runtime as a fresh machine does: unpacked
// from its archive, started, used, killed, stopped.
package bundle_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/node"
)

// fresh returns a runtime that nobody has used, on short paths of its own. What
// it leaves behind fails the test.
func fresh(t *testing.T, name string) (*bundle.Runtime, bundle.Config) {
	t.Helper()
	programs, err := node.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "ndb-")
	if err != nil {
		t.Fatal(err)
	}
	cfg := bundle.Config{
		RootDir: dir,
		Archive: filepath.Join(filepath.Dir(programs), "bundle.tar.zst"),
		Subnet:  "10.220.77.0/24",
		Bridge:  "ndb" + name + strconv.Itoa(os.Getpid()%100000),
	}
	r := bundle.New(cfg)
	t.Cleanup(func() {
		// The test's own context has ended by now.
		if err := r.Stop(context.Background(), true); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return r, cfg
}

func connect(t *testing.T, endpoint string) cri.RuntimeServiceClient {
	t.Helper()
	c, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return cri.NewRuntimeServiceClient(c)
}

func sandbox(t *testing.T, rt cri.RuntimeServiceClient, name string) string {
	t.Helper()
	r, err := rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name},
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: "/nodectl-bundle-test"},
		PortMappings: []*cri.PortMapping{{ContainerPort: 80, HostPort: 38080}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r.PodSandboxId
}

func status(t *testing.T, r *bundle.Runtime) bundle.Status {
	t.Helper()
	s, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// TestBundleLifeOnAFreshMachine walks through all of it: first use, reuse, a
// pod, the refusal to stop under it, the end.
func TestBundleLifeOnAFreshMachine(t *testing.T) {
	r, cfg := fresh(t, "a")
	if s := status(t, r); s.Running || s.Endpoint == "" {
		t.Errorf("before its first use: %+v", s)
	}
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := status(t, r)
	if !s.Running || !s.Ready || s.Version == "" || len(s.Digest) != 64 || s.Pods != 0 {
		t.Errorf("after Start: %+v", s)
	}
	if sid, err := unix.Getsid(s.PID); err != nil || sid != s.PID {
		t.Errorf("containerd is in session %d (%v), want its own", sid, err)
	}
	if fi, err := os.Stat(s.RunDir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("run directory: %v %v", fi.Mode(), err)
	}
	// Another process, and the same one again, use what runs.
	if started, err := bundle.New(cfg).Ensure(t.Context()); err != nil || started {
		t.Errorf("Ensure with a running containerd: %v, %v", started, err)
	}

	rt := connect(t, endpoint)
	sandbox(t, rt, "one")
	var running *bundle.PodsRunningError
	if err := r.Stop(t.Context(), false); !errors.As(err, &running) || running.Pods != 1 {
		t.Errorf("Stop with a pod: %v", err)
	}
	if got := status(t, r); got.PID != s.PID || got.Pods != 1 {
		t.Errorf("after a refused Stop: %+v", got)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	gone(t, r, cfg, s)
	if err := r.Stop(t.Context(), false); err != nil {
		t.Errorf("stopping what does not run: %v", err)
	}
}

// gone fails the test for whatever Stop has left on the machine.
func gone(t *testing.T, r *bundle.Runtime, cfg bundle.Config, s bundle.Status) {
	t.Helper()
	if got := status(t, r); got.Running || got.Pods != 0 {
		t.Errorf("after Stop: %+v", got)
	}
	for _, path := range []string{s.RunDir, "/sys/class/net/" + cfg.Bridge, "/sys/fs/cgroup/pids/nodectl-bundle-test", "/sys/fs/cgroup/nodectl-bundle-test"} {
		if exists(path) {
			t.Errorf("Stop left %s", path)
		}
	}
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, s.RunDir+"/") || strings.HasPrefix(m, cfg.RootDir+"/") {
			t.Errorf("Stop left mount %s", m)
		}
	}
	maps, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, m := range maps {
		if line, err := os.ReadFile(m); err == nil && strings.Contains(string(line), s.RunDir) {
			t.Errorf("Stop left process %s", strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

// TestF21_ContainerdKilledUnderPods: Ensure starts it again, and the pod's
// process is the same.
func TestBundleSurvivesKill(t *testing.T) {
	r, _ := fresh(t, "b")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rt := connect(t, endpoint)
	id := sandbox(t, rt, "one")
	s := status(t, r)
	if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, 5*time.Second, func() error {
		if s := status(t, r); s.Running {
			return errors.New("still running")
		}
		return nil
	})
	if s := status(t, r); s.Pods != 1 {
		t.Errorf("without containerd the status counts %d pods, want 1", s.Pods)
	}
	if started, err := r.Ensure(t.Context()); err != nil || !started {
		t.Fatalf("Ensure: %v, %v", started, err)
	}
	node.Eventually(t, 5*time.Second, func() error {
		l, err := rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		if len(l.Items) != 1 || l.Items[0].Id != id || l.Items[0].State != cri.PodSandboxState_SANDBOX_READY {
			return fmt.Errorf("sandboxes: %v", l.Items)
		}
		return nil
	})
}

// TestBundleStopWithoutContainerd: pods are ended also when containerd is dead.
func TestBundleStopWithoutContainerd(t *testing.T) {
	r, cfg := fresh(t, "c")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sandbox(t, connect(t, endpoint), "one")
	s := status(t, r)
	if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var running *bundle.PodsRunningError
	node.Eventually(t, 5*time.Second, func() error {
		if status(t, r).Running {
			return errors.New("still running")
		}
		return nil
	})
	if err := r.Stop(t.Context(), false); !errors.As(err, &running) {
		t.Errorf("Stop with a pod and no containerd: %v", err)
	}
	if err := r.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	gone(t, r, cfg, s)
}

// TestBundleSaysWhyItDoesNotStart: the reason is containerd's own last word.
func TestBundleSaysWhyItDoesNotStart(t *testing.T) {
	r, cfg := fresh(t, "d")
	if err := os.MkdirAll(filepath.Join(cfg.RootDir, "runtime"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.RootDir, "runtime/root"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, err := r.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "not a directory") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Start: %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s to say so", took)
	}
}
