//go:build full

package e2e

import (
	"fmt"
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
