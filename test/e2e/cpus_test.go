package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestC_1_46_1_StaticPolicy_ContainerHasItsCPUs: a container that requests a whole CPU gets it for
// itself, a container that runs moves to the other CPUs, and a killed agent changes neither. The
// CPU is free again when its pod is gone.
//
// Shows: C-1.46.1, C-1.46.2, C-1.46.4
func TestC_1_46_1_StaticPolicy_ContainerHasItsCPUs(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Fatal("the policy needs a CPU beside the reserved one")
	}
	s := parallelStage(t)
	// All CPUs but CPU 1 are reserved: only it can be exclusive.
	reserved := "0"
	if n := runtime.NumCPU(); n > 2 {
		reserved = fmt.Sprintf("0,2-%d", n-1)
	}
	a := s.serve("--cpu-manager-policy", "static", "--reserved-cpus", reserved)
	s.write("shared.yaml", simple("shared"))
	s.awaitReady("shared", true)
	s.awaitCPUs("shared", fmt.Sprintf("0-%d", runtime.NumCPU()-1))
	own := func(name string) string {
		return manifest(name, []string{container("main", "forever", `resources: {limits: {cpu: "1", memory: 50Mi}}`)})
	}
	s.write("own.yaml", own("own"))
	s.awaitReady("own", true)
	s.awaitCPUs("own", "1")
	s.awaitCPUs("shared", reserved)

	a.kill()
	a = s.serve("--cpu-manager-policy", "static", "--reserved-cpus", reserved)
	a.await("Status of every pod is known")
	s.awaitCPUs("own", "1")
	s.write("late.yaml", own("late"))
	s.awaitStatus("late", "no CPU is free", func(st v1.PodStatus) bool { return st.Reason == "UnexpectedAdmissionError" })
	s.remove("own.yaml")
	s.awaitReady("late", true)
	s.awaitCPUs("late", "1")
	s.awaitCPUs("shared", reserved)
}

// awaitCPUs waits until the kernel lets the pod's container main run on these CPUs only.
func (s *stage) awaitCPUs(name, want string) {
	s.Helper()
	s.eventually(func() error {
		p := s.status(name)
		if p == nil {
			return fmt.Errorf("pod %s is not reported", name)
		}
		got, err := s.cpusOf(strings.TrimPrefix(containerStatus(p.Status, "main").ContainerID, "containerd://"))
		if err == nil && got != want {
			err = fmt.Errorf("pod %s runs on the CPUs %s, want %s", name, got, want)
		}
		return err
	})
}

// cpusOf reads the CPUs of the cgroup of a container.
func (s *stage) cpusOf(id string) (cpus string, err error) {
	file := "cpuset.cpus"
	top := filepath.Join("/sys/fs/cgroup/cpuset", s.cgroupRoot(), "kubepods")
	if unified() {
		file, top = "cpuset.cpus.effective", filepath.Join("/sys/fs/cgroup", s.cgroupRoot(), "kubepods")
	}
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || id == "" || !strings.Contains(d.Name(), id) {
			return nil //nolint:nilerr // a cgroup of another pod may go meanwhile
		}
		text, err := os.ReadFile(filepath.Join(path, file))
		cpus = strings.TrimSpace(string(text))
		return err
	})
	if err == nil && cpus == "" {
		err = fmt.Errorf("no cgroup of container %s", id)
	}
	return cpus, err
}
