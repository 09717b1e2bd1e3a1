//go:build vm

// Package vm tests nodectl as those who install it have it: the unit of its
// package under a systemd that is process 1, on cgroup v2, with the runtime it
// brings along.
//
// The tests change the machine they run on as they like, and reboot it. So they are
// for the virtual machine of hack/vm alone, and without the build tag vm they are
// not there. They run in the order of their files and share one nodectl and its pods.
package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

const (
	root      = "/var/lib/nodectl"
	manifests = "/etc/nodectl/manifests"
	unitFile  = "/usr/lib/systemd/system/nodectl.service"
	dropIn    = "/run/systemd/system/nodectl.service.d/test.conf"
	nodeName  = "vm"
)

func TestMain(m *testing.M) {
	for _, f := range []string{"/etc/nodectl-vm", "/sys/fs/cgroup/cgroup.controllers", "/run/systemd/system", unitFile} {
		if _, err := os.Stat(f); err != nil {
			fmt.Fprintln(os.Stderr, "vm: these tests change the machine, and are for that of make test-vm:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// output returns the output of a command, and fails the test if the command failed.
func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func systemctl(t testing.TB, args ...string) string {
	t.Helper()
	return output(t, "systemctl", args...)
}

// property returns a property of the unit from systemd.
func property(t testing.TB, name string) string {
	t.Helper()
	return systemctl(t, "show", "nodectl", "--value", "-p", name)
}

func number(t testing.TB, name string) int {
	t.Helper()
	n, err := strconv.Atoi(property(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// eventually calls f until it returns nil.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	wait.NoError(t, f)
}

// awaitProperty returns when the unit's property has the value.
func awaitProperty(t testing.TB, name, want string) {
	t.Helper()
	eventually(t, func() error {
		if got := property(t, name); got != want {
			return fmt.Errorf("%s is %s, want %s", name, got, want)
		}
		return nil
	})
}

// logged returns the log lines of systemd and nodectl about the unit since then.
func logged(t testing.TB, since time.Time) string {
	t.Helper()
	return output(t, "journalctl", "--no-pager", "-o", "short-precise", "-u", "nodectl", "--since", fmt.Sprintf("@%d.%06d", since.Unix(), since.Nanosecond()/1000))
}

// runtime connects to the runtime that nodectl brought along.
func runtime(t testing.TB) cri.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(bundle.New(bundle.Config{RootDir: root}).Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return cri.NewRuntimeServiceClient(conn)
}

// containerd returns the process of that runtime: 0 for none.
func containerd(t testing.TB) int {
	t.Helper()
	s, err := bundle.New(bundle.Config{RootDir: root}).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.PID
}

// lives returns every container that runs, by pod and name, with its ID and the
// processes the kernel shows in its group; and every sandbox.
func lives(t testing.TB) map[string]string {
	t.Helper()
	rt, all := runtime(t), map[string]string{}
	// Processes come and go where probes run; main is the first.
	main := func(id string) string {
		p := (&node.Node{}).Processes(id)
		if len(p) == 0 {
			return id + " without a process"
		}
		first := slices.MinFunc(p, func(a, b node.Process) int { return a.Pid - b.Pid })
		return fmt.Sprintf("%s process %d of %s", id, first.Pid, first.Started)
	}
	boxes, err := rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, b := range boxes.Items {
		names[b.Id] = b.Metadata.Name
		all["sandbox "+b.Metadata.Name] = main(b.Id)
	}
	containers, err := rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers.Containers {
		all[names[c.PodSandboxId]+"/"+c.Metadata.Name] = main(c.Id)
	}
	return all
}

// untouched fails unless exactly the same containers run as before, as the same
// processes.
func untouched(t testing.TB, before map[string]string) {
	t.Helper()
	if now := lives(t); !maps.Equal(now, before) {
		t.Errorf("containers were\n%v\nare\n%v", before, now)
	}
}

// adopted is untouched, and fails unless the agent, which found these pods ready, has reported them
// ready since its first report. The agent removes the reports of the previous agent with its first
// report, which may come after it is active.
func adopted(t testing.TB, before map[string]string) {
	t.Helper()
	untouched(t, before)
	eventually(t, func() error {
		text, err := os.ReadFile(filepath.Join(root, "journal.jsonl"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			var l struct{ Pod *v1.Pod }
			if json.Unmarshal([]byte(line), &l) == nil && l.Pod != nil && before[l.Pod.Name+"/main"] != "" && !ready(l.Pod) {
				return fmt.Errorf("pod %s was said not to be ready: %+v", l.Pod.Name, l.Pod.Status.Conditions)
			}
		}
		return nil
	})
}

func ready(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// pod returns nodectl's last report of a pod, nil for none.
func pod(t testing.TB, name string) *v1.Pod {
	t.Helper()
	all, err := journal.Read(filepath.Join(root, "journal.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for key, e := range all {
		if key.Name == name+"-"+nodeName {
			return e.Pod
		}
	}
	return nil
}

// awaitPod returns a pod when ok accepts it.
func awaitPod(t testing.TB, name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var p *v1.Pod
	eventually(t, func() error {
		if p = pod(t, name); p == nil {
			return fmt.Errorf("pod %s: %s: not there", name, what)
		}
		if !ok(p) {
			return fmt.Errorf("pod %s: %s: is %+v", name, what, p.Status)
		}
		return nil
	})
	return p
}

// write puts a pod's manifest in place: one container of the tests' image. spec is
// the container's beside that, in YAML between commas; more are lines of the pod's.
func write(t testing.TB, name, args, spec string, more ...string) {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  terminationGracePeriodSeconds: 2\n"
	for _, l := range more {
		text += "  " + l + "\n"
	}
	text += "  containers:\n  - {name: main, image: " + node.Stamp + ", imagePullPolicy: Never, args: [" + args + "], " + spec + "}\n"
	if err := os.WriteFile(filepath.Join(manifests, name+".yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// asks are the pods that all tests share, with the kernel's expected values for each: files of its
// container's group, and its OOM score (F34, F35).
var asks = []struct {
	name, resources string
	files           map[string]string
	oom             string // "" is any between 2 and 999
}{
	{"guaranteed", "{limits: {cpu: 500m, memory: 32Mi}}",
		map[string]string{"cpu.weight": "59", "cpu.max": "50000 100000", "memory.max": "33554432"}, "-997"},
	{"burstable", "{requests: {cpu: 250m}, limits: {memory: 64Mi}}",
		map[string]string{"cpu.weight": "35", "cpu.max": "max 100000", "memory.max": "67108864"}, ""},
	{"besteffort", "{}",
		map[string]string{"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max"}, "1000"},
}

// serving returns the containers that run when the unit is active and all shared
// pods are ready.
func serving(t testing.TB) map[string]string {
	t.Helper()
	for _, a := range asks {
		if _, err := os.Stat(filepath.Join(manifests, a.name+".yaml")); err != nil {
			write(t, a.name, "forever", "resources: "+a.resources+
				", readinessProbe: {exec: {command: [/app, print, well]}, periodSeconds: 5, timeoutSeconds: 5}")
		}
	}
	systemctl(t, "start", "nodectl")
	for _, a := range asks {
		awaitPod(t, a.name, "ready", ready)
	}
	return lives(t)
}

// checkKernel compares the kernel's values of the shared pods with asks.
func checkKernel(t testing.TB) {
	t.Helper()
	now := lives(t)
	for _, a := range asks {
		id, _, _ := strings.Cut(now[a.name+"-"+nodeName+"/main"], " ")
		all := (&node.Node{}).Processes(id)
		if id == "" || len(all) == 0 {
			t.Errorf("%s: no process", a.name)
			continue
		}
		p := all[0]
		if len(p.Cgroups) != 1 {
			t.Errorf("%s: groups %v, want one", a.name, p.Cgroups)
		}
		for file, want := range a.files {
			text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", p.Cgroups[0], file))
			if got := strings.TrimSpace(string(text)); err != nil || got != want {
				t.Errorf("%s: %s is %q (%v), want %s", a.name, file, got, err, want)
			}
		}
		score, err := strconv.Atoi(p.OOM)
		if a.oom != "" && p.OOM != a.oom || a.oom == "" && (err != nil || score < 2 || score > 999) {
			t.Errorf("%s: OOM score %s, want %s", a.name, p.OOM, a.oom)
		}
	}
}

// unitGroup returns the processes in the unit's own group.
func unitGroup(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile("/sys/fs/cgroup/system.slice/nodectl.service/cgroup.procs")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// alone fails unless the agent is the one process in the unit's group: systemd ends
// or complains about all others.
func alone(t testing.TB) {
	t.Helper()
	if got, want := unitGroup(t), property(t, "MainPID"); !slices.Equal(got, []string{want}) {
		t.Errorf("processes %v are in the unit's group, want %s alone", got, want)
	}
}
