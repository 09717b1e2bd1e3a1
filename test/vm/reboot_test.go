//go:build vm

package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
)

// memory has the facts that one boot passes to the next.
type memory struct {
	Boot     string // the kernel's name for it
	Web      string // the container
	Restarts int32
}

const (
	memoryFile = "/var/lib/nodectl-vm/before.json"
	scratch    = "/var/lib/nodectl-vm/scratch"
)

// TestF33_Reboot runs before a reboot and after it. Before, it leaves behind an enabled unit, pods
// that run, and one that has succeeded. Afterwards only systemd has started nodectl. Pods that
// should run do, with their limits and one restart more; pods that had succeeded did not run again.
//
// Shows: F33
func TestF33_Reboot(t *testing.T) {
	text, err := os.ReadFile(memoryFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		beforeReboot(t)
	case err != nil:
		t.Fatal(err)
	default:
		var was memory
		if err := json.Unmarshal(text, &was); err != nil {
			t.Fatal(err)
		}
		afterReboot(t, was)
	}
}

func beforeReboot(t *testing.T) {
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	volume := "volumes: [{name: x, hostPath: {path: " + scratch + "}}]"
	const mount = "volumeMounts: [{name: x, mountPath: /x}]"
	write(t, "web", "append, /x/web, forever", mount, volume)
	write(t, "job", "append, /x/job", mount, volume, "restartPolicy: OnFailure")
	writeVolumes(t)
	serving(t)
	checkVolumes(t, 1, 1)
	awaitPod(t, "job", "has succeeded", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded })
	web := awaitPod(t, "web", "ready", ready)
	systemctl(t, "enable", "nodectl")
	c := web.Status.ContainerStatuses[0]
	text, err := json.Marshal(memory{bootID(t), c.ContainerID, c.RestartCount})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(memoryFile, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func afterReboot(t *testing.T, was memory) {
	if now := bootID(t); now == was.Boot {
		t.Fatal("the machine has not been rebooted")
	}
	awaitProperty(t, "ActiveState", "active")
	web := awaitPod(t, "web", "runs in a new container", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].ContainerID != was.Web
	})
	if n := web.Status.ContainerStatuses[0].RestartCount; n != was.Restarts+1 {
		t.Errorf("%d restarts, had %d", n, was.Restarts)
	}
	for _, a := range asks {
		awaitPod(t, a.name, "ready", ready)
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("all pods ready %s s after the kernel's start; %s", strings.Fields(string(up))[0], output(t, "systemd-analyze", "time"))
	checkKernel(t)
	checkVolumes(t, 2, 1)
	alone(t)
	job := awaitPod(t, "job", "has succeeded", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded })
	if n := job.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the job: %d restarts", n)
	}
	for file, want := range map[string]int{"web": 2, "job": 1} {
		if n := stamps(t, file); n != want {
			t.Errorf("%s was started %d times, want %d", file, n, want)
		}
	}

	for name := range lives(t) {
		t.Log(name)
	}
	all, err := os.ReadDir(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if err := os.Remove(manifests + "/" + f.Name()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if left := lives(t); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	begin := time.Now()
	systemctl(t, "stop", "nodectl")
	output(t, "nodectl", "runtime", "stop")
	t.Logf("unit and runtime stopped in %s", time.Since(begin).Round(10*time.Millisecond))
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, root) || strings.HasPrefix(m, "/run/nodectl") {
			t.Errorf("mount left: %s", m)
		}
	}
}

func bootID(t testing.TB) string {
	t.Helper()
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return string(id)
}

func stamps(t testing.TB, file string) int {
	t.Helper()
	text, err := os.ReadFile(scratch + "/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}
