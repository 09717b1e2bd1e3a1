package e2e

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

// TestC_1_34_ResizeByTheAgent: an edit of resources changes a running container's cgroup and
// no process. The status shows the resize while it is in progress and when it is done. If the
// container's resize policy requires it, that container restarts. A resize that the node can
// never grant is reported and changes nothing.
//
// Shows: C-1.34
func TestC_1_34_ResizeByTheAgent(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	text := func(cpu, memory, side string) string {
		of := func(cpu, memory string) string {
			return "resources: {limits: {cpu: " + cpu + ", memory: " + memory + "}}"
		}
		return manifest("web", []string{
			container("main", "forever", of(cpu, memory)),
			container("side", "forever", of("100m", side), "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]"),
		})
	}
	s.write("web.yaml", text("200m", "64Mi", "32Mi"))
	s.serve()
	was := s.awaitRunning("web", "main", "side")
	s.awaitReady("web", true)
	groups := s.node.Processes(was["main"].id)[0].Cgroups
	// has waits until the kernel, and then the status, show these limits of main.
	has := func(cpu, memory string) {
		t.Helper()
		quota, limit := map[string]string{"200m": "20000", "300m": "30000"}[cpu], map[string]string{"64Mi": "67108864", "96Mi": "100663296"}[memory]
		files := map[string]string{"cpu/cpu.cfs_quota_us": quota, "memory/memory.limit_in_bytes": limit}
		if unified() {
			files = map[string]string{"cpu.max": quota + " 100000", "memory.max": limit}
		}
		for file, want := range files {
			s.eventually(func() error {
				if got := cgroupFile(groups, file); got != want {
					return fmt.Errorf("%s is %s, want %s", file, got, want)
				}
				return nil
			})
		}
		s.awaitStatus("web", cpu+" and "+memory+" given", func(st v1.PodStatus) bool {
			c := containerStatus(st, "main")
			if c.Resources == nil || resizeWord(st) != "" {
				return false
			}
			return c.AllocatedResources.Cpu().String() == cpu && c.AllocatedResources.Memory().String() == memory &&
				c.Resources.Limits.Cpu().String() == cpu && c.Resources.Limits.Memory().String() == memory
		})
	}
	has("200m", "64Mi")

	slow := p.Fault(criproxy.Rule{Method: "UpdateContainerResources", Hang: true})
	s.write("web.yaml", text("300m", "96Mi", "32Mi"))
	s.awaitStatus("web", "being resized", func(st v1.PodStatus) bool { return resizeWord(st) == "PodResizeInProgress " })
	slow.Lift()
	has("300m", "96Mi")
	s.untouched("web", was)

	s.write("web.yaml", text("300m", "96Mi", "48Mi"))
	var now map[string]running
	s.eventually(func() (err error) {
		if now, err = s.runningNow("web", "main", "side"); err == nil && now["side"].id == was["side"].id {
			err = fmt.Errorf("side was not restarted for its memory")
		}
		return err
	})
	if now["main"] != was["main"] || now["side"].attempt != 1 {
		t.Errorf("was %+v, is %+v", was, now)
	}

	s.write("web.yaml", text("9000", "96Mi", "48Mi"))
	s.awaitStatus("web", "more than the node has", func(st v1.PodStatus) bool { return resizeWord(st) == "PodResizePending Infeasible" })
	s.untouched("web", now)
	s.write("web.yaml", text("200m", "64Mi", "48Mi"))
	has("200m", "64Mi")
	s.untouched("web", now)
}

// resizeWord returns the condition of a resize that is not over, and its reason; "" for none.
func resizeWord(st v1.PodStatus) string {
	for _, c := range st.Conditions {
		if (c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress) && c.Status == v1.ConditionTrue {
			return string(c.Type) + " " + c.Reason
		}
	}
	return ""
}
