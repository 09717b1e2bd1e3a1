package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: B1
func TestB1_StartInitThenContainers(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", initContainer("exit-0-after-5s")))
		m.arrive()
		if got := m.phase("web"); got != "Pending" {
			t.Errorf("phase while init runs = %s", got)
		}
		m.pass(6 * time.Second)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("phase = %s", got)
		}
		transcript(t, m, `
0s RunPodSandbox default/web attempt=0
0s CreateContainer default/web/init attempt=0
0s StartContainer default/web/init attempt=0
5s CreateContainer default/web/app attempt=0
5s StartContainer default/web/app attempt=0`)
	})
}

// Shows: B5, I6
func TestB5_RemoveStopsAndLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", image("slow-term-3s")))
		m.arrive()
		m.rt.Reset()
		m.src.set()
		m.pass(4 * time.Second)
		transcript(t, m, `
0s StopContainer default/web/app attempt=0 grace=30
3s StopPodSandbox default/web attempt=0
3s RemoveContainer default/web/app attempt=0
3s RemovePodSandbox default/web attempt=0`)
		m.want()
		if err := m.disk.empty(); err != nil {
			t.Error(err)
		}
		if got := m.phase("web"); got != "gone" {
			t.Errorf("phase = %s", got)
		}
	})
}

// TestB7 is C-1.30.2 as it should be: an agent that finds the desired state changes nothing.
//
// Shows: B7
func TestB7_RestartOfTheAgentChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		var all []*pod.Spec
		for i := range 10 {
			all = append(all, mkpod(fmt.Sprintf("p%d", i)))
		}
		all = append(all, mkpod("job", image("exit-0"), policy(v1.RestartPolicyOnFailure)))
		m.src.set(all...)
		m.arrive()
		m.pass(time.Second)
		m.leave()
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		transcript(t, m, ``)
		if got := m.phase("job"); got != "Succeeded" {
			t.Errorf("job = %s", got)
		}
	})
}

// Shows: B8
func TestB8_ManifestRemovedWhileTheAgentWasDown(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", graceSeconds(7)), mkpod("other"))
		m.arrive()
		m.leave()
		m.src.set(mkpod("other"))
		m.rt.Reset()
		m.arrive()
		m.pass(3 * time.Second)
		transcript(t, m, `
0s StopContainer default/web/app attempt=0 grace=7
0s StopPodSandbox default/web attempt=0
0s RemoveContainer default/web/app attempt=0
0s RemovePodSandbox default/web attempt=0`)
		m.want("default/other sandbox attempt=0 ready", "default/other/app attempt=0 running")
	})
}

// A source that does not answer, or fails, removes nothing (I2, I9).
//
// Shows: I2
func TestI2_UnansweredSourceRemovesNothing(t *testing.T) {
	for name, prepare := range map[string]func(*machine){
		"silent":      func(m *machine) { m.mute = true },
		"cannot look": func(m *machine) { m.src.fail(errors.New("no such directory")) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.src.set(mkpod("web"))
				m.arrive()
				m.leave()
				prepare(m)
				m.rt.Reset()
				m.arrive()
				m.pass(10 * time.Minute)
				transcript(t, m, ``)
			})
		})
	}
}

// Pods of a layer that is not configured any more stop when the agent starts.
func TestSweep_PodsOfAnUnconfiguredLayerStop(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		other := mkpod("web")
		other.Origin.Location = "/elsewhere"
		m.src.set(other)
		m.arrive()
		m.leave()
		m.src.set()
		m.arrive()
		m.pass(time.Second)
		m.want()
		if !strings.Contains(m.log.String(), "no longer configured") {
			t.Error("no notice was logged")
		}
	})
}

// swept returns the volumes that are left after the sweep of an agent whose sources have no
// pods when it starts.
func (m *machine) swept() map[string]string {
	m.src.set()
	m.arrive()
	m.pass(time.Minute)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return maps.Clone(m.disk.volumes)
}

// A pod that is added while directories of unknown pods are removed keeps its own.
//
// Shows: I6
func TestSweep_PodAddedConcurrently_IsKept(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		late := mkpod("late")
		m.disk.volumes["orphan/1"] = ""
		m.disk.onSweep = func() {
			m.src.set(late)
			time.Sleep(time.Second) // the loop continues meanwhile
		}
		volumes := m.swept()
		if _, has := volumes[late.UID()+"/1"]; !has || len(volumes) != 1 {
			t.Errorf("volumes %v", volumes)
		}
	})
}

// A pod whose UID is that of the directories being removed waits until they are.
//
// Shows: I6
func TestSweep_PodIsAddedAgain_WaitsForTheSweep(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		back := mkpod("back")
		m.disk.volumes[back.UID()+"/1"] = "left"
		m.disk.onSwept = func() {
			m.disk.onSwept = nil
			m.src.set(back)
			time.Sleep(time.Second) // the removal takes long
		}
		volumes := m.swept()
		if is, has := volumes[back.UID()+"/1"]; !has || is == "left" {
			t.Errorf("volumes %v", volumes)
		}
	})
}

// Shows: F28
func TestF28_ForeignSandboxIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		if err := m.rt.RunForeign(pod.Key{Namespace: "default", Name: "foreign"}, "app"); err != nil {
			t.Fatal(err)
		}
		before := m.rt.State()
		m.rt.Reset()
		m.src.set()
		m.arrive()
		m.pass(10 * time.Minute)
		transcript(t, m, ``)
		if got := m.rt.State(); got != before {
			t.Errorf("state = %s, want %s", got, before)
		}
	})
}

// Shows: C-1.22.5, B2
func TestC_1_22_5_CrashBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("crash", image("exit-1")))
		m.arrive()
		m.pass(25 * time.Minute)
		var starts []string
		for _, line := range m.rt.Transcript() {
			if f := strings.Fields(line); f[1] == "StartContainer" {
				starts = append(starts, f[0])
			}
		}
		want := []string{"0s", "0s", "10s", "30s", "1m10s", "2m30s", "5m10s", "10m10s", "15m10s", "20m10s"}
		if !slices.Equal(starts, want) {
			t.Errorf("starts at %v, want %v", starts, want)
		}
		st := m.disk.last(pod.Key{Namespace: "default", Name: "crash"}).pod.Status.ContainerStatuses[0]
		if st.RestartCount != int32(len(want)-1) || st.State.Waiting == nil || st.State.Waiting.Reason != "CrashLoopBackOff" {
			t.Errorf("status = %+v", st)
		}
	})
}

// The containers carry the back-off: another agent continues it (unlike C-1.32.4).
//
// Shows: F1
func TestF1_BackoffOutlivesTheAgent(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("crash", image("exit-1")))
		m.arrive()
		m.pass(35 * time.Second)
		m.die()
		m.pass(5 * time.Second)
		m.rt.Reset()
		m.arrive()
		m.pass(40 * time.Second)
		lines := m.rt.Transcript()
		if len(lines) == 0 || !strings.HasPrefix(lines[0], "30s CreateContainer default/crash/app attempt=4") {
			t.Errorf("transcript = %q", lines)
		}
	})
}

// Shows: B11
func TestB11_EditOfOneContainerRestartsThatOne(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		two := func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1"})
		}
		m.src.set(mkpod("web", two))
		m.arrive()
		m.rt.Reset()
		m.src.set(mkpod("web", two, image("app:2")))
		m.pass(time.Second)
		transcript(t, m, `
0s StopContainer default/web/app attempt=0 grace=30
0s CreateContainer default/web/app attempt=1
0s StartContainer default/web/app attempt=1`)
		m.want("default/web sandbox attempt=0 ready", "default/web/app attempt=1 running", "default/web/app attempt=0 exited(143)", "default/web/side attempt=0 running")
	})
}

func TestUpdate_LabelsTouchNothing(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		m.rt.Reset()
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"team": "edge"} }))
		m.pass(time.Second)
		transcript(t, m, ``)
		if got := m.disk.last(pod.Key{Namespace: "default", Name: "web"}).pod.Labels["team"]; got != "edge" {
			t.Errorf("label reported = %q", got)
		}
	})
}

// The new instance starts as soon as the old one is gone (better than C-1.16.17), which is
// stopped with its own recorded grace.
//
// Shows: C-1.16.17
func TestC_1_16_17_ReplacementStartsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", image("slow-term-3s"), graceSeconds(20)))
		m.arrive()
		m.rt.Reset()
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Spec.HostNetwork = true }))
		m.pass(4 * time.Second)
		lines := m.rt.Transcript()
		if len(lines) == 0 || lines[0] != "0s StopContainer default/web/app attempt=0 grace=20" {
			t.Errorf("transcript = %q", lines)
		}
		m.want("default/web sandbox attempt=1 ready", "default/web/app attempt=1 running")
		if got := m.instance(); got != 2 {
			t.Errorf("instance = %d, want 2", got)
		}
	})
}

// A pod that is re-added while it stops becomes a new instance.
//
// Shows: C-1.16.17
func TestGeneration_ReaddedWhileStopping(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", image("slow-term-3s")))
		m.arrive()
		m.src.set()
		m.pass(time.Second)
		m.src.set(mkpod("web", image("slow-term-3s")))
		m.pass(10 * time.Second)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("phase = %s\n%s", got, m.rt.State())
		}
		if lines := m.rt.Transcript(); indexOf(lines, "3s RemovePodSandbox") < 0 || indexOf(lines, "3s RunPodSandbox") < 0 {
			t.Errorf("the pod that was being removed still runs: %q", lines)
		}
	})
}

// Shows: I4
func TestI4_SucceededNeverRunsAgainUntilEdited(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		job := func(edits ...func(*v1.Pod)) *pod.Spec {
			return mkpod("job", append([]func(*v1.Pod){image("exit-0"), policy(v1.RestartPolicyOnFailure)}, edits...)...)
		}
		m.src.set(job())
		m.arrive()
		m.pass(time.Minute)
		m.leave()
		m.arrive()
		m.pass(time.Minute)
		if got := starts(m, "job"); got != 1 {
			t.Errorf("the job ran %d times", got)
		}
		m.src.set(job(func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }))
		m.pass(time.Minute)
		if got := starts(m, "job"); got != 1 {
			t.Errorf("a label ran the job again: %d times", got)
		}
		m.src.set(job(image("exit-0-after-1s")))
		m.pass(time.Minute)
		if got := starts(m, "job"); got != 2 || m.phase("job") != "Succeeded" {
			t.Errorf("edited job ran %d times, phase %s", got, m.phase("job"))
		}
	})
}

// Shows: F33
func TestF33_RebootStartsEverythingAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", initContainer("exit-0")), mkpod("once", image("exit-0"), policy(v1.RestartPolicyNever)))
		m.arrive()
		m.pass(time.Second)
		m.die()
		m.rt.Reboot()
		m.arrive()
		m.pass(time.Minute)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("web = %s\n%s", got, m.rt.State())
		}
		if got := m.instance(); got != 1 {
			t.Errorf("a reboot made instance %d", got)
		}
		if got := starts(m, "once"); got != 1 || m.phase("once") != "Succeeded" {
			t.Errorf("once ran %d times, phase %s", got, m.phase("once"))
		}
	})
}

// Shows: F20
func TestF20_RuntimeAbsentThenThere(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		lift := m.rt.Fault(critest.Fault{Err: status.Error(codes.Unavailable, "no such socket")})
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(time.Minute)
		lift()
		m.pass(2 * time.Second)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("phase = %s", got)
		}
	})
}

func TestNetworkNotReadyHoldsOnlyPodsThatNeedIt(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.rt.SetReady(true, false, "cni plugin not initialized")
		m.src.set(mkpod("web"), mkpod("host", func(p *v1.Pod) { p.Spec.HostNetwork = true }))
		m.arrive()
		m.pass(time.Second)
		if w, h := m.phase("web"), m.phase("host"); w != "Pending" || h != "Running" {
			t.Errorf("web %s, host %s", w, h)
		}
		m.rt.SetReady(true, true, "")
		m.pass(6 * time.Second)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("web = %s", got)
		}
	})
}

// Shows: C-1.22.9
func TestC_1_22_9_MissingImageIsNamedAndTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", image("missing:1")), mkpod("other"))
		m.arrive()
		m.pass(time.Second)
		st := m.disk.last(pod.Key{Namespace: "default", Name: "web"}).pod.Status
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ErrImagePull" && w.Reason != "ImagePullBackOff" {
			t.Errorf("waiting = %+v", st.ContainerStatuses[0].State)
		}
		if got := m.phase("other"); got != "Running" {
			t.Errorf("other = %s", got)
		}
		m.rt.SetImage("missing:1", true)
		m.pass(time.Minute)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("web = %s", got)
		}
	})
}

// Shows: C-1.29
func TestC_1_29_ReadinessFollowsTheProbe(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.sick["app"] = true
		m.src.set(mkpod("web", func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 2, SuccessThreshold: 1, FailureThreshold: 3, TimeoutSeconds: 1, InitialDelaySeconds: 1}
		}))
		m.arrive()
		ready := func() bool {
			return m.disk.last(pod.Key{Namespace: "default", Name: "web"}).pod.Status.ContainerStatuses[0].Ready
		}
		m.pass(10 * time.Second)
		if ready() {
			t.Error("ready while the probe fails")
		}
		m.disk.mu.Lock()
		m.disk.sick["app"] = false
		m.disk.mu.Unlock()
		m.pass(2 * time.Second)
		if !ready() {
			t.Error("not ready though the probe succeeds")
		}
		m.disk.mu.Lock()
		m.disk.sick["app"] = true
		m.disk.mu.Unlock()
		m.pass(3 * time.Second)
		if !ready() {
			t.Error("not ready before the failure threshold")
		}
		m.pass(4 * time.Second)
		if ready() {
			t.Error("ready after three failures")
		}
		if got := starts(m, "web"); got != 1 {
			t.Errorf("a readiness probe restarted the container: %d starts", got)
		}
	})
}

// Shows: F12
func TestF12_FullDiskNeverCostsAContainer(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		m.disk.full = true
		m.src.set(mkpod("web"), mkpod("late"))
		m.pass(time.Second)
		m.want("default/web sandbox attempt=0 ready", "default/web/app attempt=0 running",
			"default/late sandbox attempt=0 ready", "default/late/app attempt=0 running")
		m.leave()
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		transcript(t, m, ``)
		m.src.set()
		m.pass(time.Minute)
		m.want()
	})
}

// A status that was not written to a full disk is written when there is room again.
//
// Shows: F12
func TestF12_StatusIsWrittenWhenThereIsRoomAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set()
		m.arrive()
		m.disk.refuse(true)
		m.src.set(mkpod("web"))
		m.pass(time.Minute)
		if got := m.phase("web"); got != "never reported" {
			t.Fatalf("phase = %s though the disk was full", got)
		}
		m.disk.refuse(false)
		m.pass(2 * time.Minute)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("phase = %s", got)
		}
		if len(m.disk.records) != 1 {
			t.Errorf("%d records", len(m.disk.records))
		}
		if n := strings.Count(m.log.String(), "Failed to write"); n != 2 {
			t.Errorf("%d lines about the disk, want one for records and one for the status", n)
		}
	})
}

func TestAdmission_RefusedPodStartsWhenThePortIsFree(t *testing.T) {
	port := func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080}} }
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("a", port), mkpod("b", port))
		m.arrive()
		m.pass(time.Second)
		if a, b := m.phase("a"), m.phase("b"); a != "Running" || b != "Pending" {
			t.Errorf("a %s, b %s", a, b)
		}
		m.src.set(mkpod("b", port))
		m.pass(time.Second)
		if got := m.phase("b"); got != "Running" {
			t.Errorf("b = %s", got)
		}
	})
}

// SIGTERM ends the agent at once, also while a container takes long to stop.
//
// Shows: F4
func TestF4_LeavingDoesNotWaitForAStop(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", image("ignore-term"), graceSeconds(600)))
		m.arrive()
		m.src.set()
		m.pass(time.Second)
		began := time.Now()
		m.leave()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("leaving took %s", took)
		}
		m.pass(100 * time.Second)
		m.rt.Reset()
		m.arrive()
		m.settle()
		if lines := m.rt.Transcript(); len(lines) == 0 || lines[0] != "0s StopContainer default/web/app attempt=0 grace=499" {
			t.Errorf("transcript = %q", lines)
		}
		m.pass(10 * time.Minute)
		m.want()
	})
}

// A pod that was removed while no agent ran is reported gone in the journal.
//
// Shows: I4
func TestI4_NoGhostInTheJournal(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		m.src.set()
		m.pass(time.Second)
		ghost := mkpod("ghost").Pod
		if err := m.disk.Report(pod.StatusReport{Pod: ghost, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		m.leave()
		m.arrive()
		if got := m.phase("ghost"); got != "gone" {
			t.Errorf("ghost = %s", got)
		}
	})
}

// A pod that an earlier layer runs waits for that layer's answer, though a later one that
// defines the same key answers first.
func TestLayers_OrderOfAnswersNeverChangesARunningPod(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		second := newWishes()
		second.name = "file:/second"
		m.more = second
		other := mkpod("web", image("other:1"))
		other.Origin.Location = "/second"
		second.set(other)
		m.src.set(mkpod("web"))
		m.arrive()
		m.leave()
		m.mute = true
		m.rt.Reset()
		m.arrive()
		m.pass(time.Hour)
		transcript(t, m, ``)
		m.leave()
		m.mute = false
		m.src.set()
		m.arrive()
		m.pass(time.Second)
		m.want("default/web sandbox attempt=0 ready", "default/web/app attempt=0 exited(143)", "default/web/app attempt=1 running")
	})
}

// Directories of unknown pods are removed; those of pods that are desired, run or have a
// record stay.
//
// Shows: I6
func TestI6_DirectoriesOfUnknownPodsGo(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		m.disk.volumes["uid-unknown/1"] = ""
		m.leave()
		m.arrive()
		_, unknown := m.disk.volumes["uid-unknown/1"]
		if _, web := m.disk.volumes["uid-web/1"]; unknown || !web {
			t.Errorf("volumes %v", m.disk.volumes)
		}
	})
}

func starts(m *machine, name string) int {
	n := 0
	for _, line := range m.rt.Transcript() {
		if strings.Contains(line, " StartContainer default/"+name+"/") {
			n++
		}
	}
	return n
}

func transcript(t *testing.T, m *machine, want string) {
	t.Helper()
	got := strings.Join(m.rt.Transcript(), "\n")
	if want = strings.TrimSpace(want); got != want {
		t.Errorf("transcript:\n%s\nwant:\n%s", got, want)
	}
}
