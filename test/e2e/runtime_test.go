package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// containerdKilled kills containerd under so many pods; with again, a second time while no
// agent runs.
func containerdKilled(t *testing.T, pods int, again bool) {
	n := node.New(t)
	// A runc that ends with containerd leaves an empty cgroup behind.
	t.Cleanup(func() { removeEmptyGroups(n.Look().Cgroups) })
	s := newStage(t, n)
	s.interrupts()
	s.endpoint = n.Endpoint
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprint("web", i))
		s.write(names[i]+".yaml", simple(names[i]))
	}
	crash := manifest("crash", []string{container("main", "append, /x/crash, wait, /x/now, forever", scratchMount)}, s.scratchVolume())
	s.write("crash.yaml", crash)
	s.write("going.yaml", manifest("going", []string{container("main", "ignore, forever")}))
	a := s.serve()
	was := make(map[string]map[string]running)
	for _, name := range names {
		was[name] = s.awaitRunning(name, "main")
		s.awaitReady(name, true)
	}
	crashed := s.awaitRunning("crash", "main")["main"]
	s.awaitRunning("going", "main")

	// In this moment one pod is being stopped, others are being started, and a container
	// exits while containerd is down.
	s.remove("going.yaml")
	for i := range 3 {
		name := fmt.Sprint("coming", i)
		// On the host network: a containerd that dies while a network plugin works for it forgets
		// the plugin's objects.
		s.write(name+".yaml", manifest(name, []string{container("main", "forever")}, "hostNetwork: true"))
	}
	s.awaitLog("going", "main", 0, "SIGTERM")
	n.Kill(t)
	if err := unix.Kill(crashed.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.await("Container runtime is not ready")
	n.Restart(t)
	for i := range 3 {
		s.awaitRunning(fmt.Sprint("coming", i), "main")
	}
	s.awaitGone("going")
	s.eventually(func() error {
		now, err := s.runningNow("crash", "main")
		if err == nil && now["main"].id == crashed.id {
			err = errors.New("the container that was killed is said to run")
		}
		return err
	})
	s.awaitStamps("crash", 2)
	for _, name := range names {
		s.untouched(name, was[name])
	}

	if again {
		a.kill()
		n.Kill(t)
		a = s.serve()
		a.await("Container runtime is not ready")
		n.Restart(t)
		a.await("Status of every pod is known", fmt.Sprint("pods=", pods+4))
	}
	s.write("last.yaml", simple("last"))
	s.awaitRunning("last", "main")
	for _, name := range names {
		s.awaitReady(name, true)
		s.untouched(name, was[name])
		for i, st := range s.reported(name) {
			c := containerStatus(st, "main")
			if i > 0 && (st.Phase != v1.PodRunning || !ready(st) || c.RestartCount != 0 || c.State.Running == nil) {
				t.Errorf("%s was reported as %s", name, describe(st))
			}
		}
	}
	s.networkNotReady()
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, name := range append(names, "crash", "coming0", "coming1", "coming2", "last") {
		s.awaitGone(name)
	}
	s.nothingLeft()
}

// reported returns all statuses of a pod in the journal, from the first in which it ran.
func (s *stage) reported(name string) []v1.PodStatus {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "journal.jsonl"))
	if err != nil {
		s.Fatal(err)
	}
	var all []v1.PodStatus
	for line := range strings.Lines(string(text)) {
		var l struct{ Pod *v1.Pod }
		if json.Unmarshal([]byte(line), &l) == nil && l.Pod != nil && l.Pod.Name == s.full(name) &&
			(len(all) > 0 || ready(l.Pod.Status)) {
			all = append(all, l.Pod.Status)
		}
	}
	return all
}

func (s *stage) files() []string {
	s.Helper()
	entries, err := os.ReadDir(s.manifests)
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// networkNotReady removes the network's configuration from its own node: pods on the host
// network still start, others wait, and their status says for what.
func (s *stage) networkNotReady() {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(s.node.RootDir, "*/cni/*.conflist"))
	if err != nil || len(found) != 1 {
		s.Fatalf("configurations of the pod network: %v, %v", found, err)
	}
	config, err := os.ReadFile(found[0])
	if err != nil {
		s.Fatal(err)
	}
	if err := os.Remove(found[0]); err != nil {
		s.Fatal(err)
	}
	s.eventually(func() error { return s.networkWord(false) })
	s.write("host.yaml", manifest("host", []string{container("main", "forever")}, "hostNetwork: true"))
	s.write("pod.yaml", simple("pod"))
	s.awaitRunning("host", "main")
	st := s.awaitStatus("pod", "waiting for the network", func(st v1.PodStatus) bool {
		return strings.Contains(waiting(st, "main").Message, "network")
	})
	if st.Phase != v1.PodPending {
		s.Errorf("status: %s", describe(st))
	}
	if err := os.WriteFile(found[0], config, 0o600); err != nil { // containerd ignores a rename
		s.Fatal(err)
	}
	s.awaitRunning("pod", "main")
	for _, name := range []string{"host", "pod"} {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
}

// networkWord returns nil when the runtime's condition NetworkReady is want.
func (s *stage) networkWord(want bool) error {
	r, err := s.node.Runtime.Status(s.Context(), &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range r.Status.Conditions {
		if c.Type == cri.NetworkReady && c.Status == want {
			return nil
		}
	}
	return fmt.Errorf("network ready is not %v", want)
}
