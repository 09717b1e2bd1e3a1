//go:build vm

package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// TestF7_ActiveByReadyAlone: while the agent's process is there and has not said
// READY=1, its unit is no more than activating; as soon as it has, it is active.
// The process is stopped before it becomes nodectl, and goes on when it was looked at.
//
// Shows: F7
func TestF7_ActiveByReadyAlone(t *testing.T) {
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	late := "[Service]\nExecStart=\nExecStart=/bin/sh -c 'kill -STOP $$$$; exec /usr/bin/nodectl serve'\n"
	if err := os.WriteFile(dropIn, []byte(late), 0o644); err != nil {
		t.Fatal(err)
	}
	plain := func() {
		_ = os.Remove(dropIn)
		systemctl(t, "daemon-reload")
	}
	t.Cleanup(func() { _ = os.Remove(dropIn) })
	systemctl(t, "daemon-reload")
	systemctl(t, "start", "--no-block", "nodectl")
	var pid int
	eventually(t, func() error {
		pid = number(t, "MainPID")
		if s := processState(pid); s != "T" {
			return fmt.Errorf("process %d is in state %q", pid, s)
		}
		return nil
	})
	if got := property(t, "ActiveState"); got != "activating" {
		t.Errorf("before READY=1: %s", got)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	awaitProperty(t, "ActiveState", "active")
	t.Logf("active %s after nodectl began, which unpacked and started its runtime first", time.Since(begin).Round(10*time.Millisecond))
	if got := number(t, "MainPID"); got != pid {
		t.Errorf("active is %d, started was %d", got, pid)
	}
	output(t, "nodectl", "get", "pods")
	systemctl(t, "stop", "nodectl")
	plain()
	begin = time.Now()
	systemctl(t, "start", "nodectl")
	t.Logf("started again in %s", time.Since(begin).Round(10*time.Millisecond))
}

// processState returns the letter of /proc/PID/stat: "" for no such process.
func processState(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

// TestF7_UnitAsSystemdReadsIt: systemd finds nothing wrong in the unit, and has
// understood it as it is meant. Some values it only has of a unit that is active.
//
// Shows: F7
func TestF7_UnitAsSystemdReadsIt(t *testing.T) {
	serving(t)
	if said := output(t, "systemd-analyze", "verify", "--man=no", unitFile); said != "" {
		t.Error(said)
	}
	for name, want := range map[string]string{
		"Type": "notify", "NotifyAccess": "main", "WatchdogUSec": "30s", "KillMode": "process",
		"Delegate": "yes", "OOMScoreAdjust": "-999", "Restart": "always", "RestartUSec": "1s", "StartLimitIntervalUSec": "0",
		"TimeoutStartUSec": "2min", "TimeoutStopUSec": "10s", "LimitNOFILE": "65536", "TasksMax": "infinity",
		"NoNewPrivileges": "yes", "UMask": "0022", "RestrictRealtime": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes",
		"SystemCallArchitectures": "native",
	} {
		if got := property(t, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// TestF34_F35_UnderSystemd: a pod's limits and OOM scores are those of its manifest, in groups that
// are not the unit's. The kernel kills the agent last for memory.
//
// Shows: F34, F35
func TestF34_F35_UnderSystemd(t *testing.T) {
	begin := time.Now()
	before := serving(t)
	t.Logf("%d pods ready after %s", len(asks), time.Since(begin).Round(10*time.Millisecond))
	checkKernel(t)
	alone(t)
	for _, pid := range []string{property(t, "MainPID"), strconv.Itoa(containerd(t))} {
		score, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
		if err != nil || strings.TrimSpace(string(score)) != "-999" {
			t.Errorf("process %s: OOM score %s (%v), want -999", pid, score, err)
		}
	}
	for name, life := range before {
		id, _, _ := strings.Cut(life, " ")
		for _, p := range (&node.Node{}).Processes(id) {
			if strings.Contains(strings.Join(p.Cgroups, " "), ".service") {
				t.Errorf("%s: process %d is in group %v, of a service", name, p.Pid, p.Cgroups)
			}
		}
	}
}

// TestUnit_AgentIsConfined_RuntimeIsNot: the kernel confines the agent as the unit says.
// containerd is in a unit of its own, unconfined as process 1, also after it was killed and
// the confined agent had it started again. All three see the same mounts.
//
// Shows: F21
func TestUnit_AgentIsConfined_RuntimeIsNot(t *testing.T) {
	before := serving(t)
	check := func() {
		t.Helper()
		agent, runtime, first := number(t, "MainPID"), containerd(t), 1
		for name, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} {
			if got := statusField(t, agent, name); got != want {
				t.Errorf("%s of the agent is %s, want %s", name, got, want)
			}
			if got := statusField(t, runtime, name); got != "0" {
				t.Errorf("%s of containerd is %s, want 0", name, got)
			}
		}
		all := statusField(t, first, "CapBnd")
		if got := statusField(t, agent, "CapBnd"); got == all {
			t.Errorf("the agent has all capabilities: %s", got)
		}
		if got := statusField(t, runtime, "CapBnd"); got != all {
			t.Errorf("containerd has capabilities %s, want %s", got, all)
		}
		mounts := mountNamespace(t, first)
		for what, pid := range map[string]int{"the agent": agent, "containerd": runtime} {
			if got := mountNamespace(t, pid); got != mounts {
				t.Errorf("%s is in %s, want %s", what, got, mounts)
			}
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", runtime))
		if err != nil || !strings.Contains(string(groups), "/system.slice/nodectl-runtime-") {
			t.Errorf("containerd is in %s, %v; want a unit of its own", groups, err)
		}
	}
	check()
	old := containerd(t)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if now := containerd(t); now == 0 || now == old {
			return errors.New("containerd was not started again")
		}
		_, err := runtime(t).Version(t.Context(), &cri.VersionRequest{})
		return err
	})
	check()
	untouched(t, before)
	t.Log(output(t, "systemd-analyze", "security", "--no-pager", "nodectl"))
}

// TestPause_AgentsRuntime_HasItsOwnFilter: the sandboxes that the agent makes on its
// bundled runtime have the filter of the pause program, and their process runs under it.
//
// Shows: C-1.22.12
func TestPause_AgentsRuntime_HasItsOwnFilter(t *testing.T) {
	serving(t)
	rt := runtime(t)
	boxes, err := rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil || len(boxes.Items) == 0 {
		t.Fatalf("sandboxes: %v, %v", boxes, err)
	}
	for _, b := range boxes.Items {
		verbose, err := rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: b.Id, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			PID  int `json:"pid"`
			Spec struct {
				Linux struct {
					Seccomp struct {
						Syscalls []struct{ Names []string } `json:"syscalls"`
					} `json:"seccomp"`
				} `json:"linux"`
			} `json:"runtimeSpec"`
		}
		if err := json.Unmarshal([]byte(verbose.Info["info"]), &info); err != nil {
			t.Fatal(err)
		}
		calls := 0
		for _, s := range info.Spec.Linux.Seccomp.Syscalls {
			calls += len(s.Names)
		}
		if calls == 0 || calls > 60 || statusField(t, info.PID, "Seccomp") != "2" {
			t.Errorf("sandbox of %s, process %d: %d calls, Seccomp %s; want its own short filter", b.Metadata.Name, info.PID, calls, statusField(t, info.PID, "Seccomp"))
		}
	}
}

// statusField returns a field of /proc/PID/status.
func statusField(t testing.TB, pid int, name string) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process %d has no field %s", pid, name)
	return ""
}

func mountNamespace(t testing.TB, pid int) string {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestF34_LimitsOutliveWhatSystemdDoes: systemd, which owns the tree of groups, is
// asked to read its units again, to start itself again, to use and no more use
// controllers: limits of pods stay.
//
// Shows: F34
func TestF34_LimitsOutliveWhatSystemdDoes(t *testing.T) {
	before := serving(t)
	for _, args := range [][]string{
		{"systemctl", "daemon-reload"},
		{"systemd-run", "--wait", "-p", "CPUWeight=50", "-p", "MemoryMax=64M", "-p", "TasksMax=20", "true"},
		{"systemctl", "set-property", "--runtime", "system.slice", "CPUWeight=200", "MemoryMax=2G"},
		{"systemctl", "set-property", "--runtime", "system.slice", "CPUWeight=", "MemoryMax=infinity"},
		{"systemctl", "daemon-reload"},
		{"systemctl", "daemon-reexec"},
	} {
		output(t, args[0], args[1:]...)
		checkKernel(t)
		if t.Failed() {
			t.Fatalf("after %s", strings.Join(args, " "))
		}
	}
	untouched(t, before)
}

// awaitNext returns when systemd has started the unit once more than before, and
// it is active.
func awaitNext(t testing.TB, restarts int) {
	t.Helper()
	eventually(t, func() error {
		if n, state := number(t, "NRestarts"), property(t, "ActiveState"); n != restarts+1 || state != "active" {
			return fmt.Errorf("%s after %d restarts, had %d", state, n, restarts)
		}
		return nil
	})
	for _, a := range asks {
		awaitPod(t, a.name, "ready", ready)
	}
}

// TestF1_KilledUnderSystemd: SIGKILL to all that is in the unit, again and again,
// costs no container anything; systemd starts the agent again.
//
// Shows: F1
func TestF1_KilledUnderSystemd(t *testing.T) {
	before, runtime := serving(t), containerd(t)
	for range 3 {
		restarts := number(t, "NRestarts")
		begin := time.Now()
		systemctl(t, "kill", "-s", "KILL", "nodectl")
		awaitNext(t, restarts)
		t.Logf("active again, all pods reported, after %s", time.Since(begin).Round(10*time.Millisecond))
		adopted(t, before)
	}
	if now := containerd(t); now != runtime {
		t.Errorf("containerd was %d, is %d", runtime, now)
	}
	alone(t)
}

// TestF7_WatchdogEndsWhatStandsStill: systemd ends an agent that stands still, by
// WatchdogSec of the unit, and starts another one; containers notice nothing.
//
// Shows: F7
func TestF7_WatchdogEndsWhatStandsStill(t *testing.T) {
	before, restarts, begin := serving(t), number(t, "NRestarts"), time.Now()
	pid := number(t, "MainPID")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitNext(t, restarts)
	took := time.Since(begin)
	t.Logf("another agent is active after %s", took.Round(100*time.Millisecond))
	if took < 20*time.Second || took > 60*time.Second { // fed every 10 s, then 30 s without
		t.Errorf("the watchdog took %s", took)
	}
	said := logged(t, begin)
	for _, want := range []string{"Watchdog timeout (limit 30s)", "Failed with result 'watchdog'", "goroutine "} {
		if !strings.Contains(said, want) {
			t.Errorf("the journal does not say %q:\n%.4000s", want, said)
		}
	}
	if now := number(t, "MainPID"); now == pid {
		t.Errorf("process %d is still the agent", pid)
	}
	adopted(t, before)
}

// TestF4_StopLeavesPods: a stopped unit leaves its pods and their runtime as they
// are, also a runtime that the agent had to start again; systemd finds nothing in
// the unit to complain about, and the next agent adopts all.
//
// Shows: F4
func TestF4_StopLeavesPods(t *testing.T) {
	before, begin := serving(t), time.Now()
	systemctl(t, "enable", "nodectl") // or systemd forgets how it ended
	old := containerd(t)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if now := containerd(t); now == 0 || now == old {
			return errors.New("containerd was not started again")
		}
		_, err := runtime(t).Version(t.Context(), &cri.VersionRequest{})
		return err
	})
	again := containerd(t)
	alone(t)

	stopping := time.Now()
	systemctl(t, "stop", "nodectl")
	t.Logf("stopped in %s", time.Since(stopping).Round(10*time.Millisecond))
	for name, want := range map[string]string{"ActiveState": "inactive", "Result": "success", "ExecMainCode": "1", "ExecMainStatus": "0"} {
		if got := property(t, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if left := unitGroup(t); len(left) > 0 {
		t.Errorf("left in the unit's group: %v", left)
	}
	if now := containerd(t); now != again {
		t.Errorf("containerd was %d, is %d", again, now)
	}
	untouched(t, before)
	systemctl(t, "start", "nodectl")
	for _, a := range asks {
		awaitPod(t, a.name, "ready", ready)
	}
	adopted(t, before)
	for line := range strings.Lines(logged(t, begin)) {
		for _, complaint := range []string{"remains running", "left-over process", "Killing process", "timed out"} {
			if strings.Contains(line, complaint) {
				t.Error(line)
			}
		}
	}
}

// TestF16_UpgradeByRestart: another binary is put in the old one's place and the
// unit restarted, as packages do it.
//
// Shows: F16
func TestF16_UpgradeByRestart(t *testing.T) {
	before, pid := serving(t), number(t, "MainPID")
	if err := replace("/usr/bin/nodectl"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	systemctl(t, "restart", "nodectl")
	t.Logf("restarted in %s", time.Since(begin).Round(10*time.Millisecond))
	if now := number(t, "MainPID"); now == pid {
		t.Error("the old agent goes on")
	}
	for _, a := range asks {
		awaitPod(t, a.name, "ready", ready)
	}
	adopted(t, before)
	checkKernel(t)
	alone(t)
}

// replace puts a copy of a program in its place, as dpkg does.
func replace(path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
