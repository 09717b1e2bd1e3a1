package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// sandboxes returns what CRI lists of this stage, in any state.
func (s *stage) sandboxes() []*cri.PodSandbox {
	s.Helper()
	r, err := s.node.Runtime.ListPodSandbox(s.Context(), s.ours())
	if err != nil {
		s.Fatal(err)
	}
	return r.Items
}

// sandbox returns the sandbox of a pod as soon as it has exactly one.
func (s *stage) sandbox(name string) *cri.PodSandboxStatus {
	s.Helper()
	var found []string
	s.eventually(func() error {
		found = nil
		for _, b := range s.sandboxes() {
			if b.Metadata.Name == s.full(name) {
				found = append(found, b.Id)
			}
		}
		if len(found) != 1 {
			return fmt.Errorf("pod %s has %d sandboxes", name, len(found))
		}
		return nil
	})
	r, err := s.node.Runtime.PodSandboxStatus(s.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: found[0]})
	if err != nil {
		s.Fatal(err)
	}
	return r.Status
}

// containers returns what CRI lists of a pod of this stage, in any state; "" is all pods.
func (s *stage) containers(name string) []*cri.Container {
	s.Helper()
	labels := map[string]string{pod.LabelNode: s.name}
	if name != "" {
		labels[pod.LabelPodName] = s.full(name)
	}
	r, err := s.node.Runtime.ListContainers(s.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		s.Fatal(err)
	}
	return r.Containers
}

// containerStatus returns the CRI status of one container.
func (s *stage) containerStatus(id string) *cri.ContainerStatus {
	s.Helper()
	r, err := s.node.Runtime.ContainerStatus(s.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		s.Fatal(err)
	}
	return r.Status
}

// running is a running container, according to both CRI and /proc.
type running struct {
	id      string
	attempt uint32
	pid     int
	started string // start time; with pid, it identifies the process even when the PID is reused
}

// awaitRunning returns the containers of a pod when exactly these run, each once and with a
// process.
func (s *stage) awaitRunning(name string, containers ...string) map[string]running {
	s.Helper()
	var now map[string]running
	s.eventually(func() (err error) {
		now, err = s.runningNow(name, containers...)
		return err
	})
	return now
}

// runningNow is awaitRunning without waiting.
func (s *stage) runningNow(name string, containers ...string) (map[string]running, error) {
	s.Helper()
	now := make(map[string]running)
	for _, c := range s.containers(name) {
		if c.State != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		if _, double := now[c.Metadata.Name]; double {
			s.Errorf("pod %s: two containers %s run", name, c.Metadata.Name)
		}
		now[c.Metadata.Name] = running{id: c.Id, attempt: c.Metadata.Attempt}
	}
	names := slices.Sorted(maps.Keys(now))
	slices.Sort(containers)
	if !slices.Equal(names, containers) {
		return now, fmt.Errorf("pod %s: containers %v run, want %v", name, names, containers)
	}
	for c, r := range now {
		p := s.node.Processes(r.id)
		if len(p) == 0 {
			return nil, fmt.Errorf("pod %s: container %s has no process", name, c)
		}
		// The oldest: others are probes, and process IDs wrap around.
		main := slices.MinFunc(p, func(a, b node.Process) int {
			return cmp.Or(cmp.Compare(len(a.Started), len(b.Started)), cmp.Compare(a.Started, b.Started), cmp.Compare(a.Pid, b.Pid))
		})
		r.pid, r.started = main.Pid, main.Started
		now[c] = r
	}
	return now, nil
}

// untouched fails unless the same containers run as before, as the same
// processes.
func (s *stage) untouched(name string, before map[string]running) {
	s.Helper()
	var containers []string
	for c := range before {
		containers = append(containers, c)
	}
	now, err := s.runningNow(name, containers...)
	if err != nil {
		s.Error(err)
		return
	}
	for c, b := range before {
		if now[c] != b {
			s.Errorf("pod %s: container %s was %+v, is %+v", name, c, b, now[c])
		}
	}
}

// awaitGone returns when nothing is left of a pod: no sandbox, no container, none of
// nodectl's directories, no log directory.
func (s *stage) awaitGone(name string) {
	s.Helper()
	s.eventually(func() error {
		all := s.sandboxes()
		for _, b := range all {
			if b.Metadata.Name == s.full(name) {
				return fmt.Errorf("pod %s: sandbox %s is there (%s), one of %d", name, b.Id, b.State, len(all))
			}
		}
		for _, c := range s.containers(name) {
			return fmt.Errorf("pod %s: container %s is there (%s)", name, c.Metadata.Name, c.State)
		}
		if logs, _ := filepath.Glob(filepath.Join(s.logs, "*_"+s.full(name)+"_*")); len(logs) > 0 {
			return fmt.Errorf("pod %s: logs are there: %v", name, logs)
		}
		if s.status(name) != nil {
			return fmt.Errorf("pod %s: is still reported", name)
		}
		return nil
	}, wait.WithoutStall) // other pods may stop first
}

// nothingLeft fails if anything of any pod of the stage is left.
func (s *stage) nothingLeft() {
	s.Helper()
	for _, b := range s.sandboxes() {
		s.Errorf("sandbox left: %s %s", b.Metadata.Name, b.State)
	}
	for _, c := range s.containers("") {
		s.Errorf("container left: %s %s", c.Metadata.Name, c.State)
	}
	for _, dir := range []string{filepath.Join(s.root, "pods"), s.logs} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.Error(err)
		}
		for _, e := range entries {
			s.Errorf("left in %s: %s", dir, e.Name())
		}
	}
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, s.dir+"/") && m != s.root { // the root may be a separate disk
			s.Errorf("mount left: %s", m)
		}
	}
}

// log returns the standard output of an attempt of a container, from the kubelet's log file path.
func (s *stage) log(name, container string, attempt uint32) (string, error) {
	uid := s.uid(name)
	file := filepath.Join(s.logs, "default_"+s.full(name)+"_"+uid, container, fmt.Sprint(attempt)+".log")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(line, " ", 4) // time, stream, F, text
		if len(f) != 4 {
			return "", fmt.Errorf("%s: no line of a container's log: %q", file, line)
		}
		if f[1] == "stdout" {
			out.WriteString(f[3])
		}
	}
	return out.String(), nil
}

// awaitLog returns when a container has logged these words.
func (s *stage) awaitLog(name, container string, attempt uint32, words ...string) {
	s.Helper()
	s.eventually(func() error {
		text, err := s.log(name, container, attempt)
		if err == nil && !holds(text, words) {
			err = fmt.Errorf("container %s/%s logged %q, not %v", name, container, text, words)
		}
		return err
	})
}

// uid returns a pod's UID, from its sandbox.
func (s *stage) uid(name string) string {
	for _, b := range s.sandboxes() {
		if b.Metadata.Name == s.full(name) {
			return b.Metadata.Uid
		}
	}
	return ""
}

// stamps returns how many lines a container has appended to a file of scratch with the verb
// append: one for each run.
func (s *stage) stamps(file string) int {
	text, err := os.ReadFile(filepath.Join(s.scratch, file))
	if err != nil {
		return 0
	}
	return bytes.Count(text, []byte("\n"))
}

// awaitStamps returns when a container has stamped a file want times, and fails if it has one
// more stamp.
func (s *stage) awaitStamps(file string, want int) {
	s.Helper()
	s.eventually(func() error {
		if n := s.stamps(file); n < want {
			return fmt.Errorf("%s was started %d times, want %d", file, n, want)
		}
		return nil
	})
	if n := s.stamps(file); n > want {
		s.Errorf("%s was started %d times, want %d", file, n, want)
	}
}

// scratchVolume and scratchMount give a pod the scenario's directory as /x.
func (s *stage) scratchVolume() string {
	return "volumes: [{name: x, hostPath: {path: " + s.scratch + "}}]"
}

const scratchMount = "volumeMounts: [{name: x, mountPath: /x}]"

// ended returns the exited containers of a pod's container name, oldest first, according to
// the runtime's events.
func (s *stage) ended(name, container string) []life {
	var all []life
	for _, l := range s.lives.of(s.name) {
		if l.pod == s.full(name) && l.name == container && !l.to.IsZero() {
			all = append(all, l)
		}
	}
	return all
}

// awaitEnded is ended when n containers have exited: the runtime sends an exit's event a
// moment after it lists the exit.
func (s *stage) awaitEnded(name, container string, n int) []life {
	s.Helper()
	var all []life
	s.eventually(func() error {
		if all = s.ended(name, container); len(all) < n {
			return fmt.Errorf("%d lives of %s/%s are over, want %d: %+v", len(all), name, container, n, all)
		}
		return nil
	})
	return all
}

// awaitBegun returns when want containers of the stage have started, and fails if it was one
// more.
func (s *stage) awaitBegun(want int) {
	s.Helper()
	var all []life
	s.eventually(func() error {
		if all = s.lives.of(s.name); len(all) < want {
			return fmt.Errorf("%d lives have begun, want %d: %v", len(all), want, all)
		}
		return nil
	})
	if len(all) > want {
		s.Errorf("%d lives have begun, want %d: %v", len(all), want, all)
	}
}

// readiness returns the reported values of a pod's condition Ready, in the order of the
// journal's lines.
func (s *stage) readiness(name string) []bool {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "journal.jsonl"))
	if err != nil {
		s.Fatal(err)
	}
	var all []bool
	for line := range bytes.Lines(text) {
		var l struct{ Pod *v1.Pod }
		if json.Unmarshal(line, &l) == nil && l.Pod != nil && l.Pod.Name == s.full(name) {
			all = append(all, ready(l.Pod.Status))
		}
	}
	return all
}

// touch makes files in scratch, for a container to see.
func (s *stage) touch(files ...string) {
	s.Helper()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(s.scratch, f), nil, 0o644); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *stage) untouch(file string) {
	s.Helper()
	if err := os.Remove(filepath.Join(s.scratch, file)); err != nil {
		s.Fatal(err)
	}
}
