//go:build full

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestF31_OutOfMemoryOfARealRuntime: a container that is killed for memory has that reason;
// one that loses a process other than its first runs on.
//
// Shows: F31
func TestF31_OutOfMemoryOfARealRuntime(t *testing.T) {
	limit := v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("32Mi")}}
	b := newBare(parallelStage(t), "oom",
		v1.Container{Name: "main", Args: []string{"alloc", "64", "forever"}, Resources: limit},
		v1.Container{Name: "parent", Args: []string{"forever"}, Resources: limit},
	)
	b.run("main")
	parent := b.run("parent")
	b.eventually(func() error { // the runtime may learn the reason after the exit
		if c := b.ended("main"); c.Reason != "OOMKilled" || c.ExitCode != 137 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if code, out, err := b.rt.ExecSync(t.Context(), parent, []string{"/app", "alloc", "64"}, 10*time.Second); err != nil || code != 137 {
		t.Errorf("a child: code %d, %q, %v", code, out, err)
	}
	a, err := b.rt.Pod(t.Context(), b.want.Key)
	if c := a.Containers["parent"]; err != nil || c.State != pod.StateRunning {
		t.Errorf("its parent: %+v, %v", c, err)
	}
	if err := b.rt.StopContainer(t.Context(), parent, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	// The runtime's reason does not matter: on cgroup v1 it is the child's.
	if c := b.ended("parent"); c.ExitCode != 0 {
		t.Errorf("its parent, stopped: %+v", c)
	}
}

// TestC_1_23_9_StopSignalOfARealRuntime: the container gets the signal that the pod names,
// then SIGKILL.
//
// Shows: C-1.23.9
func TestC_1_23_9_StopSignalOfARealRuntime(t *testing.T) {
	with := func(s v1.Signal) *v1.Lifecycle { return &v1.Lifecycle{StopSignal: &s} }
	b := newBare(parallelStage(t), "signal",
		v1.Container{Name: "usr1", Args: []string{"term", "7", "forever"}, Lifecycle: with(v1.SIGUSR1)},
		v1.Container{Name: "deaf", Args: []string{"ignore", "forever"}, Lifecycle: with(v1.SIGQUIT)},
		v1.Container{Name: "none", Args: []string{"forever"}},
	)
	for _, c := range []struct {
		name, signal string
		code         int32
	}{{"usr1", "SIGUSR1", 7}, {"deaf", "SIGQUIT", 137}, {"none", "SIGTERM", 0}} {
		id := b.run(c.name)
		b.logged(b.logFile(c.name), "started ")
		began := time.Now()
		if err := b.rt.StopContainer(t.Context(), id, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); c.code == 137 && took < 2*time.Second {
			t.Errorf("%s was killed after %s", c.name, took)
		}
		b.logged(b.logFile(c.name), " stdout F "+c.signal+" ")
		if got := b.ended(c.name); got.ExitCode != c.code {
			t.Errorf("%+v, want code %d", got, c.code)
		}
	}
}

// TestC_1_34_ResizeOfARealRuntime: the limits of a running container change in its cgroup, up
// and down, and removing a limit is a change, too.
//
// Shows: C-1.34
func TestC_1_34_ResizeOfARealRuntime(t *testing.T) {
	ask := func(request, cpu, memory string) v1.ResourceRequirements {
		r := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(request)}, Limits: v1.ResourceList{}}
		if cpu != "" {
			r.Limits[v1.ResourceCPU], r.Limits[v1.ResourceMemory] = resource.MustParse(cpu), resource.MustParse(memory)
		}
		return r
	}
	b := newBare(parallelStage(t), "resize", v1.Container{Name: "main", Args: []string{"alloc", "24", "print", "touched", "forever"}, Resources: ask("100m", "200m", "64Mi")})
	id := b.run("main")
	b.logged(b.logFile("main"), "touched")
	processes := b.node.Processes(id)
	cgroup := func(v1File, v2File string) string {
		if unified() {
			v1File = v2File
		}
		return cgroupFile(processes[0].Cgroups, v1File)
	}
	for _, c := range []struct{ request, cpu, memory, shares, quota, limit string }{
		{"100m", "200m", "64Mi", "102", "20000", strconv.Itoa(64 << 20)},
		{"500m", "1", "128Mi", "512", "100000", strconv.Itoa(128 << 20)},
		{"250m", "300m", "48Mi", "256", "30000", strconv.Itoa(48 << 20)},
		{"250m", "", "", "256", "-1", strconv.Itoa(1<<63 - 4096)},
		{"100m", "200m", "64Mi", "102", "20000", strconv.Itoa(64 << 20)},
	} {
		b.want.Pod.Spec.Containers[0].Resources = ask(c.request, c.cpu, c.memory)
		if err := b.rt.UpdateContainer(t.Context(), id, b.want, "main"); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		quota, limit := c.quota+" 100000", c.limit
		if c.cpu == "" {
			quota, limit = "max 100000", "max"
		}
		if got := cgroup("cpu/cpu.cfs_quota_us", "cpu.max"); got != c.quota && got != quota {
			t.Errorf("%+v: quota %s", c, got)
		}
		if got := cgroup("memory/memory.limit_in_bytes", "memory.max"); got != c.limit && got != limit {
			t.Errorf("%+v: memory limit %s", c, got)
		}
		if got := cgroup("cpu/cpu.shares", "cpu.weight"); !unified() && got != c.shares {
			t.Errorf("%+v: shares %s", c, got)
		}
	}
	// The runtime knows the memory in use with a delay.
	b.want.Pod.Spec.Containers[0].Resources = ask("100m", "200m", "16Mi")
	b.eventually(func() error {
		err := b.rt.UpdateContainer(t.Context(), id, b.want, "main")
		if err == nil || !strings.Contains(err.Error(), "memory limit (16777216) below current usage (") {
			return fmt.Errorf("update of the memory limit to 16Mi, below the current usage: got error %v", err)
		}
		return nil
	})
	if now := b.node.Processes(id); len(now) != 1 || now[0].Pid != processes[0].Pid {
		t.Errorf("processes before %v, now %v", processes, now)
	}
}
