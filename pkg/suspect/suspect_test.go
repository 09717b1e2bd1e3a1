package suspect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// machine is a directory like /proc.
type machine struct {
	t    *testing.T
	proc string
}

// process adds a process with one thread.
func (m machine) process(pid, parent int, name, state, cgroup, waits, environment string) {
	m.t.Helper()
	dir := filepath.Join(m.proc, fmt.Sprint(pid))
	thread := filepath.Join(dir, "task", fmt.Sprint(pid))
	stat := fmt.Sprintf("%d (%s) %s %d 1 1 0 -1", pid, name, state, parent)
	for path, text := range map[string]string{
		filepath.Join(dir, "stat"): stat, filepath.Join(dir, "cgroup"): cgroup, filepath.Join(dir, "environ"): environment,
		filepath.Join(thread, "stat"): stat, filepath.Join(thread, "wchan"): waits,
		filepath.Join(thread, "stack"): "[<0>] " + waits + "+0xb1/0x150\n[<0>] vfs_read+0xbb/0x3d0\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
}

// Of all processes, those that the pod hangs on are found: of its containers, its shim, and its
// network plugin with the plugin's child.
func TestProcesses_FindsThoseOfThePod(t *testing.T) {
	t.Parallel()
	m := machine{t, t.TempDir()}
	const ours, other = "0::/kubepods/pod11-22/abc", "0::/kubepods/pod11-223/abc"
	arguments := "PATH=/bin\x00CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="
	m.process(1, 0, "systemd", "S", "0::/", "ep_poll", "")
	m.process(10, 1, "containerd", "S", "0::/", "futex", "")
	m.process(11, 1, "containerd-shim", "T", "0::/", "do_signal_stop", "")
	m.process(12, 1, "containerd-shim", "T", "0::/", "do_signal_stop", "") // of another pod
	m.process(20, 11, "pause", "S", ours, "pause", "")
	m.process(21, 11, "app (x) y", "D", ours, "rpc_wait_bit_killable", "")
	m.process(22, 12, "app", "D", other, "rpc_wait_bit_killable", "")
	m.process(23, 11, "cat", "S", "0::/kubepods.slice/kubepods-pod11_22.slice/abc", "request_wait_answer", "")
	m.process(30, 10, "bridge", "S", "0::/", "do_wait", arguments+"web")
	m.process(31, 30, "sleep", "S", "0::/", "hrtimer_nanosleep", arguments+"web")
	m.process(32, 10, "bridge", "S", "0::/", "do_wait", arguments+"web2")
	m.process(33, 1, "bridge", "S", "0::/", "do_wait", arguments+"web") // not started by a runtime
	f := New()
	f.proc = m.proc
	got := map[int]string{}
	for _, p := range f.Processes(t.Context(), Target{Key: pod.Key{Namespace: "default", Name: "web"}, UID: "11-22"}) {
		got[p.PID] = p.Of + " " + p.State + " " + p.Waits
		if len(p.Stack) != 2 || p.Stack[0] != p.Waits || p.Stack[1] != "vfs_read" {
			t.Errorf("stack of %d: %q", p.PID, p.Stack)
		}
	}
	want := map[int]string{
		11: "shim T do_signal_stop", 21: "pod D rpc_wait_bit_killable", 23: "pod S request_wait_answer",
		30: "network plugin S do_wait", 31: "network plugin S hrtimer_nanosleep",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// The environment of a plugin does not answer: the plugin counts as one for the pod, and delays
// the report by a second at most.
func TestProcesses_EnvironmentHangs_DoesNotDelay(t *testing.T) {
	m := machine{t, t.TempDir()}
	m.process(10, 1, "containerd", "S", "0::/", "futex", "")
	m.process(30, 10, "bridge", "S", "0::/", "do_wait", "")
	m.process(31, 10, "bridge", "S", "0::/", "do_wait", "")
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		f := New()
		f.proc, f.read = m.proc, func(string) ([]byte, error) { <-answers; return nil, nil }
		for _, limit := range []time.Duration{answersWithin, 0} { // the second time it is not read again
			began := time.Now()
			found := f.Processes(t.Context(), Target{Key: pod.Key{Namespace: "default", Name: "web"}})
			if took := time.Since(began); len(found) != 2 || took != limit {
				t.Errorf("after %s: %v", took, found)
			}
		}
		close(answers)
		synctest.Wait()
		if found := f.Processes(t.Context(), Target{Key: pod.Key{Namespace: "default", Name: "web"}}); len(found) > 0 {
			t.Errorf("after they answer: %v", found)
		}
	})
}

// Mounts are found by path and below directories; one that hangs is named and does not delay.
func TestMounts_OneHangs_IsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "self"), 0o700); err != nil {
			t.Fatal(err)
		}
		const info = `22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:40 / /mnt/dead\040disk rw,relatime shared:1 - fuse.sshfs host:/data rw
24 22 0:41 / /mnt/gone rw - nfs4 server:/x rw
25 22 0:42 / /root/pods/u/1/volumes/m rw - tmpfs tmpfs rw
26 22 0:43 / /mnt/deadline rw - tmpfs tmpfs rw
`
		if err := os.WriteFile(filepath.Join(dir, "self", "mountinfo"), []byte(info), 0o600); err != nil {
			t.Fatal(err)
		}
		answers := make(chan struct{})
		f := New()
		f.proc = dir
		f.statf = func(path string) error {
			switch path {
			case "/mnt/dead disk":
				<-answers
			case "/mnt/gone":
				return errors.New("stale file handle")
			}
			return nil
		}
		for range 2 { // the second time it is not asked again
			began := time.Now()
			got := f.Mounts(t.Context(), []string{"/mnt/dead disk/a", "/mnt/gone", "/etc"}, []string{"/root/pods/u"})
			if text := fmt.Sprint(got); text != "[{/mnt/dead disk fuse.sshfs host:/data true } {/mnt/gone nfs4 server:/x false stale file handle} {/ ext4 /dev/sda1 false } {/root/pods/u/1/volumes/m tmpfs tmpfs false }]" {
				t.Errorf("%s", text)
			}
			if took := time.Since(began); took > answersWithin {
				t.Errorf("it took %s", took)
			}
		}
		close(answers)
	})
}
