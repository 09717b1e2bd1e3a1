package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

// TestC_1_29_18_FailedProbesRestart: the agent stops a container whose liveness probe fails,
// or whose startup probe does not succeed in time, with the probe's own grace period instead
// of the pod's, and restarts it. The pod's other container runs on.
//
// Shows: C-1.29.18
func TestC_1_29_18_FailedProbesRestart(t *testing.T) {
	s := parallelStage(t)
	kinds := []string{"live", "begin"}
	for _, name := range kinds {
		probe := map[string]string{"live": "livenessProbe", "begin": "startupProbe"}[name] +
			": {exec: {command: [/app, exists, /x/well-" + name + "]}, initialDelaySeconds: 2, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1, terminationGracePeriodSeconds: 3}"
		s.write(name+".yaml", manifest(name, []string{
			container("main", "ignore, append, /x/"+name+", forever", scratchMount, probe), container("side", "forever"),
		}, s.scratchVolume(), "terminationGracePeriodSeconds: 600"))
		s.excuse(name) // the agent stops its container
	}
	s.serve()
	asked := make(map[string]time.Time)
	sides := make(map[string]running)
	for _, name := range kinds {
		s.awaitLog(name, "main", 0, "SIGTERM")
		s.touch("well-" + name) // within its grace period: the next run passes its probe
		sides[name] = s.awaitRunning(name, "main", "side")["side"]
		text, err := s.log(name, "main", 0)
		m := regexp.MustCompile(`SIGTERM (\d+)`).FindStringSubmatch(text)
		if err != nil || m == nil {
			t.Fatalf("log of %s: %q, %v", name, text, err)
		}
		at, err := strconv.ParseInt(m[1], 10, 64)
		s.must(err)
		asked[name] = time.Unix(0, at)
	}
	for _, name := range kinds {
		st := s.awaitStatus(name, "restarted and ready", func(st v1.PodStatus) bool {
			return ready(st) && containerStatus(st, "main").RestartCount == 1
		})
		if end := containerStatus(st, "main").LastTerminationState.Terminated; end == nil || end.ExitCode != 137 {
			t.Errorf("%s: last end %+v", name, end)
		}
		all := s.awaitEnded(name, "main", 1)
		if len(all) != 1 {
			t.Fatalf("%s: lives that are over: %+v", name, all)
		}
		if grace := all[0].to.Sub(asked[name]); grace < 2900*time.Millisecond {
			t.Errorf("%s was killed %s after its SIGTERM, the probe's grace is 3s", name, grace)
		}
		if now := s.awaitRunning(name, "main", "side"); now["side"] != sides[name] {
			t.Errorf("%s: side was %+v, is %+v", name, sides[name], now["side"])
		}
		s.awaitStamps(name, 2)
	}
}

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
