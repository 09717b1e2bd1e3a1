package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// TestB7_AdoptionTouchesNothing: SIGTERM ends the agent at once and no pod; the
// next agent takes the pods over without one mutating call, and so does one
// after a kill -9.
func TestB7_AdoptionTouchesNothing(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	mount := "volumeMounts: [{name: data, mountPath: /data}]"
	s.write("a.yaml", manifest("a", []string{container("main", "forever", mount), container("side", "forever")},
		"volumes: [{name: data, emptyDir: {}}]", "initContainers:", container("init", "write, /data/x, text", mount)))
	s.write("b.yaml", manifest("b", []string{container("main", "forever")}, "hostNetwork: true"))
	s.write("job.yaml", manifest("job", []string{container("main", "print, done")}, "restartPolicy: OnFailure"))
	s.write("bad.yaml", manifest("bad", []string{container("main", "exit, \"1\"")}, "restartPolicy: Never"))
	a := s.serve()
	was := map[string]map[string]running{"a": s.awaitRunning("a", "main", "side"), "b": s.awaitRunning("b", "main")}
	s.awaitReady("a", true)
	s.awaitReady("b", true)
	s.awaitPhase("job", v1.PodSucceeded)
	s.awaitPhase("bad", v1.PodFailed)
	s.quiet(p)
	before := len(p.Mutations())
	for i, end := range []func(*agent){(*agent).leave, (*agent).kill, (*agent).leave} {
		end(a)
		a = s.serve()
		a.await("All pods reported", "pods=4")
		s.awaitReady("a", true)
		s.awaitPhase("job", v1.PodSucceeded)
		s.awaitPhase("bad", v1.PodFailed)
		s.quiet(p)
		if made := p.Mutations()[before:]; len(made) > 0 {
			t.Fatalf("agent %d made mutating calls: %v", i+2, made)
		}
		for name, w := range was {
			s.untouched(name, w)
		}
		for _, name := range []string{"a", "b"} {
			if all := s.readiness(name); len(all) == 0 || strings.Contains(fmt.Sprint(all), "false") {
				t.Errorf("agent %d reported readiness of %s as %v", i+2, name, all)
			}
		}
	}
}

// quiet returns when no call was made for a while.
func (s *stage) quiet(p *criproxy.Proxy) {
	s.Helper()
	last, since := fmt.Sprint(p.Counts()), time.Now()
	s.eventually(func() error {
		if now := fmt.Sprint(p.Counts()); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 500*time.Millisecond {
			return fmt.Errorf("calls are still made: %s", last)
		}
		return nil
	})
}

// TestB8_RemovedWhileAgentWasDown: a pod whose manifest went while nobody looked
// is stopped by the next agent, with the grace it was given, and its own exit is
// waited for. What is still wanted is not touched.
func TestB8_RemovedWhileAgentWasDown(t *testing.T) {
	s := parallelStage(t)
	// Asked to end, it takes as long as the test lets it.
	slow := func(name string) string {
		return manifest(name, []string{container("main", `ignore, print, armed, wait, /x/go, exit, "5"`, scratchMount)},
			"terminationGracePeriodSeconds: 20", s.scratchVolume())
	}
	s.write("slow.yaml", slow("slow"))
	s.write("lost.yaml", slow("lost"))
	a := s.serve()
	kept := s.keep()
	s.awaitLog("slow", "main", 0, "armed")
	s.awaitLog("lost", "main", 0, "armed")
	lost := s.uid("lost")
	a.kill()
	s.remove("slow.yaml")
	s.remove("lost.yaml")
	// Of one of them even the record is lost: the runtime alone knows it.
	if err := os.RemoveAll(filepath.Join(s.root, "pods", lost)); err != nil {
		t.Fatal(err)
	}
	s.serve()
	s.awaitLog("slow", "main", 0, "SIGTERM")
	s.awaitLog("lost", "main", 0, "SIGTERM")
	<-time.After(time.Second)
	s.touch("go")
	s.awaitGone("slow")
	s.awaitGone("lost")
	for _, name := range []string{"slow", "lost"} {
		all := s.ended(name, "main")
		if len(all) != 1 || all[0].exit != 5 {
			t.Errorf("lives of %s: %+v, want one that ended by itself with 5", name, all)
		}
	}
	s.untouched("keep", kept)
	s.remove("keep.yaml")
	s.awaitGone("keep")
	s.nothingLeft()
}

// TestI6_DirectoryWithoutRecord: what a pod left on disk goes, also where neither
// runtime nor record tell of the pod any more; what is wanted stays.
func TestI6_DirectoryWithoutRecord(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", manifest("web", []string{container("main", "write, /d/x, text, forever", "volumeMounts: [{name: d, mountPath: /d}]")},
		"volumes: [{name: d, emptyDir: {}}]"))
	a := s.serve()
	s.awaitRunning("web", "main")
	kept := s.keep()
	box := s.sandbox("web")
	dir := filepath.Join(s.root, "pods", box.Metadata.Uid)
	a.kill()
	s.remove("web.yaml")
	for _, err := range []error{
		func() error {
			_, err := s.node.Runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box.Id})
			return err
		}(),
		func() error {
			_, err := s.node.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: box.Id})
			return err
		}(),
		os.Remove(filepath.Join(dir, "record.json")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.serve().await("All pods reported")
	s.awaitGone("web") // its logs, too
	s.eventually(func() error {
		if _, err := os.Lstat(dir); err == nil {
			return fmt.Errorf("%s is still there", dir)
		}
		return nil
	})
	s.untouched("keep", kept)
}

// TestSweep_SourceNoLongerConfigured: pods of a source that serve is not given
// any more are stopped at its start, and one line says why.
func TestSweep_SourceNoLongerConfigured(t *testing.T) {
	s := parallelStage(t)
	second := filepath.Join(s.dir, "second")
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(second, "old.yaml"), []byte(simple("old")), 0o600); err != nil {
		t.Fatal(err)
	}
	// Both hold keep: the earlier layer wins, and later alone is enough.
	if err := os.WriteFile(filepath.Join(second, "keep.yaml"), []byte(simple("keep")), 0o600); err != nil {
		t.Fatal(err)
	}
	a := s.start(s.command("serve", "-f", second, "-f", s.manifests))
	s.awaitRunning("old", "main")
	kept := s.keep()
	a.await("Pod wanted twice", s.full("keep"))
	a.leave()
	a = s.serve()
	a.once("not configured any more", s.full("old"), second)
	s.awaitGone("old")
	s.untouched("keep", kept)
}

// TestF15_SecondAgent: another agent on the same root directory is refused in
// one line that names the first, whatever it was told; the first does not notice.
func TestF15_SecondAgent(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	kept := s.keep()
	b := s.start(s.command("serve", "-f", s.scratch))
	if code := b.exit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	said := b.said()
	if !strings.HasPrefix(said, "error: ") || !strings.Contains(said, fmt.Sprint("process ", a.cmd.Process.Pid)) ||
		!strings.Contains(said, s.root) || strings.Count(said, "\n") > 1 {
		t.Errorf("the second agent said:\n%s", said)
	}
	s.untouched("keep", kept)
	s.write("next.yaml", simple("next"))
	s.awaitRunning("next", "main")
	// A lock outlives no process: kill -9 leaves nothing to clean up.
	a.kill()
	s.serve()
	s.awaitReady("next", true)
}

// TestF16_NodeNameRemembered: a root directory belongs to one node name; another
// is refused with a hint, and sweeps nothing.
func TestF16_NodeNameRemembered(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	kept := s.keep()
	a.leave()
	cmd := s.command("serve", "-f", s.scratch)
	cmd.Args[len(cmd.Args)-1] = "other" + s.name // the value of --node-name
	b := s.start(cmd)
	if code := b.exit(); code != 1 || !strings.Contains(b.said(), "hint:") || !strings.Contains(b.said(), s.name) {
		t.Errorf("exit code %d:\n%s", code, b.said())
	}
	s.untouched("keep", kept)
}

// TestF28_ForeignPods: what somebody else made on the runtime is left alone,
// with the kubelet's labels, with another node's, and with a static pod's name.
func TestF28_ForeignPods(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	s.keep()
	foreign := []map[string]string{
		{pod.LabelPodName: "foreign", pod.LabelPodNamespace: "default", pod.LabelPodUID: "f1"},
		{pod.LabelPodName: s.full("keep"), pod.LabelPodNamespace: "default", pod.LabelPodUID: "f2"},
		{pod.LabelPodName: s.full("gone"), pod.LabelPodNamespace: "default", pod.LabelPodUID: "f3", pod.LabelNode: "x" + s.name},
	}
	was := make(map[string]string) // sandbox → container
	for i, labels := range foreign {
		box, c := s.runForeign(fmt.Sprint("f", i, "-", s.name), labels)
		was[box] = c
	}
	// Everything that looks for strays: events of these pods, housekeeping, a
	// new agent, the going of a pod of the same name.
	a.leave()
	s.serve().await("All pods reported")
	s.remove("keep.yaml")
	s.awaitGone("keep")
	s.write("next.yaml", simple("next"))
	s.awaitRunning("next", "main")
	<-time.After(2500 * time.Millisecond) // housekeeping's period is two seconds
	for box, c := range was {
		r, err := s.node.Runtime.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: box})
		if err != nil || r.Status.State != cri.PodSandboxState_SANDBOX_READY {
			t.Errorf("foreign sandbox %v: %v", r, err)
		}
		if st := s.containerStatus(c); st.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("foreign container is %s", st.State)
		}
	}
}

// runForeign makes a pod by CRI alone, which the end of the test takes away.
func (s *stage) runForeign(name string, labels map[string]string) (box, id string) {
	s.Helper()
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Labels:   labels,
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: s.node.CgroupParent},
	}
	b, err := s.node.Runtime.RunPodSandbox(s.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = s.node.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: b.PodSandboxId})
		if _, err := s.node.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: b.PodSandboxId}); err != nil {
			s.Error(err)
		}
	})
	c, err := s.node.Runtime.CreateContainer(s.Context(), &cri.CreateContainerRequest{
		PodSandboxId: b.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "main"}, Labels: labels, Args: []string{"forever"},
			Image: &cri.ImageSpec{Image: node.Stamp}, Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.node.Runtime.StartContainer(s.Context(), &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		s.Fatal(err)
	}
	return b.PodSandboxId, c.ContainerId
}

// TestF12_FullDisk: with no byte left under the root directory pods go on, one
// without a volume on that disk still starts and goes, edits are taken, a new
// agent adopts; one line says what is the matter. With room again, all is well
// without a restart.
func TestF12_FullDisk(t *testing.T) {
	s := parallelStage(t)
	if err := os.Mkdir(s.root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.root, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := s.serve()
	kept := s.keep()
	ballast := filepath.Join(s.root, "ballast")
	fill(t, ballast)

	s.write("free.yaml", simple("free"))
	s.awaitRunning("free", "main")
	a.await("level=WARN", "no space left on device")
	s.untouched("keep", kept)
	uid := s.uid("free")
	s.remove("free.yaml")
	s.eventually(func() error { // the journal may not be able to say it
		for _, dir := range []string{filepath.Join(s.logs, "default_"+s.full("free")+"_"+uid), filepath.Join(s.root, "pods", uid)} {
			if _, err := os.Lstat(dir); err == nil {
				return fmt.Errorf("%s is still there", dir)
			}
		}
		return nil
	})
	if n := len(a.linesWith("no space left on device")); n > 12 {
		t.Errorf("the full disk is %d lines:\n%s", n, strings.Join(a.linesWith("no space left on device"), "\n"))
	}

	// A new agent comes up on the full disk, adopts, and starts pods.
	a.kill()
	fill(t, filepath.Join(s.root, "more"))
	a = s.serve()
	s.write("late.yaml", simple("late"))
	s.awaitRunning("late", "main")
	s.untouched("keep", kept)
	s.write("needs.yaml", manifest("needs", []string{container("main", "forever", "volumeMounts: [{name: d, mountPath: /d}]")},
		"volumes: [{name: d, emptyDir: {}}]"))

	for _, f := range []string{"ballast", "more"} {
		if err := os.Remove(filepath.Join(s.root, f)); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitRunning("needs", "main")
	s.awaitReady("needs", true)
	s.untouched("keep", kept)
	for _, f := range []string{"keep.yaml", "late.yaml", "needs.yaml"} {
		s.remove(f)
	}
	for _, p := range []string{"keep", "late", "needs"} {
		s.awaitGone(p)
	}
	s.nothingLeft()
}

// fill writes a file until the disk takes no more.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		if strings.Contains(err.Error(), "no space") {
			return
		}
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}
