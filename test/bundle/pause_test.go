package bundle_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// The bundle's pause container runs under its own seccomp filter. It starts, reaps orphaned
// processes of its PID namespace, and exits on request.
//
// Shows: C-1.22.12, D1
func TestPause_OwnSeccompFilter_RunsReapsAndEnds(t *testing.T) {
	t.Parallel()
	r, _ := fresh(t, "s")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	profile, err := r.PauseProfile()
	if err != nil || profile == "" {
		t.Fatalf("profile %q, %v", profile, err)
	}
	rt := connect(t, endpoint)
	box, err := rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "one", Namespace: "test", Uid: "one"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: parent(t),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: profile},
			},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	verbose, err := rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: box.PodSandboxId, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		PID  int `json:"pid"`
		Spec struct {
			Linux struct {
				Seccomp struct {
					DefaultAction string `json:"defaultAction"`
					Syscalls      []struct {
						Names []string `json:"names"`
					} `json:"syscalls"`
				} `json:"seccomp"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(verbose.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, s := range info.Spec.Linux.Seccomp.Syscalls {
		calls = append(calls, s.Names...)
	}
	if len(calls) == 0 || len(calls) > 60 || info.Spec.Linux.Seccomp.DefaultAction != "SCMP_ACT_ERRNO" {
		t.Errorf("the sandbox allows %d calls, by default %q; want its own short list", len(calls), info.Spec.Linux.Seccomp.DefaultAction)
	}
	for _, dangerous := range []string{"socket", "mount", "ptrace", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "kill", "fork", "clone3", "userfaultfd"} {
		if slices.Contains(calls, dangerous) {
			t.Errorf("the sandbox may call %s", dangerous)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", info.PID))
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") || !strings.Contains(string(status), "\nName:\tpause\n") && !strings.HasPrefix(string(status), "Name:\tpause\n") {
		t.Fatalf("process %d: %v\n%s", info.PID, err, status)
	}

	release := orphan(t, info.PID)
	children := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", info.PID))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	wait.True(t, "pause has an orphan", func() bool { return children() != "" })
	release()
	wait.Equal(t, "children of pause after the orphan has ended", "", children)

	if _, err := rt.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box.PodSandboxId}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", info.PID)); err == nil {
		t.Errorf("process %d has not ended", info.PID)
	}
}

// orphan starts a process in the PID namespace of pid whose parent has ended. It lives
// until release.
func orphan(t *testing.T, pid int) (release func()) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread cannot be used again
		if err := unix.Setns(fd, unix.CLONE_NEWPID); err != nil {
			done <- err
			return
		}
		cmd := exec.Command("sh", "-c", "exec 3<&0; (cat <&3 >/dev/null 2>&1 &)")
		cmd.Stdin = in
		done <- cmd.Run()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	in.Close()
	return func() { out.Close() }
}

// BenchmarkSandbox_SeccompOfPause starts sandboxes in turn with the runtime's default filter
// and with the pause program's own, and reports the ratio of their times. It measures CRI
// alone: no agent, no container, the host's network.
func BenchmarkSandbox_SeccompOfPause(b *testing.B) {
	r, _ := fresh(b, "t")
	endpoint, err := r.Start(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	profile, err := r.PauseProfile()
	if err != nil || profile == "" {
		b.Fatalf("profile %q, %v", profile, err)
	}
	rt := connect(b, endpoint)
	took := map[string][]float64{}
	kinds := map[string]*cri.SecurityProfile{
		"default": {ProfileType: cri.SecurityProfile_RuntimeDefault},
		"own":     {ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: profile},
	}
	start := func(kind string, i int) {
		name := fmt.Sprint(kind, i)
		begin := time.Now()
		box, err := rt.RunPodSandbox(b.Context(), &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name},
			Linux: &cri.LinuxPodSandboxConfig{
				CgroupParent: parent(b),
				SecurityContext: &cri.LinuxSandboxSecurityContext{
					NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
					Seccomp:          kinds[kind],
				},
			},
		}})
		if err != nil {
			b.Fatal(err)
		}
		took[kind] = append(took[kind], time.Since(begin).Seconds())
		_, err1 := rt.StopPodSandbox(b.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box.PodSandboxId})
		_, err2 := rt.RemovePodSandbox(b.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: box.PodSandboxId})
		if err := errors.Join(err1, err2); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		order := []string{"default", "own"}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, kind := range order {
			start(kind, i)
		}
	}
	var ratios []float64
	for i := range took["own"] {
		ratios = append(ratios, took["own"][i]/took["default"][i])
	}
	for unit, values := range map[string][]float64{"s/default": took["default"], "s/own": took["own"], "own/default": ratios} {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], unit)
		if unit == "own/default" {
			b.ReportMetric(values[len(values)/4], "ratio-p25")
			b.ReportMetric(values[len(values)*3/4], "ratio-p75")
		}
	}
}

// An archive gives the pause image's name to another image. The next start of the runtime
// imports the bundle's own image again: every new sandbox runs the image with that name.
func TestStart_PauseImageExchanged_IsImportedAgain(t *testing.T) {
	t.Parallel()
	r, _ := fresh(t, "x")
	endpoint, err := r.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id := func() string {
		r, err := cri.NewImageServiceClient(c).ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: node.Pause}}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return r.GetImage().GetId()
	}
	own := id()
	archive := filepath.Join(t.TempDir(), "pause.tar")
	put(t, archive, docker(t, node.Pause, image(t, runtime.GOARCH)))
	if _, err := bundle.ImportFile(t.Context(), endpoint, archive); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error {
		if id() == own {
			return errors.New("CRI lists the bundle's image still")
		}
		return nil
	})
	if err := r.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := id(); got != own {
		t.Errorf("after a start the pause image is %s, want %s", got, own)
	}
}
