package e2e

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mergePlan is the output of merge --dry-run -o json.
type mergePlan struct {
	Summary struct {
		Changed                                 bool
		Add, Update, Remove, Unchanged, Restart int
		Delete, Reject, Conflict, Reconcile     int
	}
	Sources []struct {
		Source, Location, Error string
		Stale                   bool
	}
	Changes []struct {
		Op      string
		Pod     struct{ Namespace, Name, UID string }
		Restart struct {
			Pod        bool
			Containers []string
			Reason     string
		}
		Fields []struct{ Path, Old, New string }
	}
}

// dryRun returns the changes that serving the stage's directories would make on its node.
func (s *stage) dryRun(layers ...string) mergePlan {
	s.Helper()
	args := []string{"merge", "--dry-run", "--against", "runtime", "-o", "json"}
	for _, l := range layers {
		args = append(args, "-f", l)
	}
	r := s.run(args...)
	var p mergePlan
	if err := json.Unmarshal([]byte(r.out), &p); err != nil {
		s.Fatalf("%v: exit code %d, %v\n%s%s", args, r.code, err, r.out, r.err)
	}
	want := 0
	switch {
	case p.Summary.Reject > 0:
		want = 3
	case p.Summary.Changed:
		want = 1
	}
	if r.code != want {
		s.Errorf("%v: exit code %d, want %d\n%s%s", args, r.code, want, r.out, r.err)
	}
	return p
}

// words writes a plan on one line: the change of each pod, by name without the node's suffix,
// and the containers that restart.
func (p mergePlan) words() string {
	var all []string
	for _, c := range p.Changes {
		name := c.Pod.Name[:strings.LastIndexByte(c.Pod.Name, '-')]
		line := c.Op + " " + name
		if c.Restart.Pod {
			line += " pod"
		} else if len(c.Restart.Containers) > 0 {
			line += " " + strings.Join(c.Restart.Containers, ",")
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// inRuntime is what CRI lists of a stage: the newest container of each name by
// "pod/container", and the newest sandbox of every pod by "pod".
type inRuntime map[string]struct {
	id      string
	attempt uint32
	runs    bool
}

func (s *stage) inRuntime() inRuntime {
	s.Helper()
	now := make(inRuntime)
	note := func(name, id string, attempt uint32, runs bool) {
		if old, known := now[name]; !known || attempt >= old.attempt {
			now[name] = struct {
				id      string
				attempt uint32
				runs    bool
			}{id, attempt, runs}
		}
	}
	short := func(name string) string { return strings.TrimSuffix(name, "-"+s.name) }
	for _, b := range s.sandboxes() {
		note(short(b.Metadata.Name), b.Id, b.Metadata.Attempt, b.State == cri.PodSandboxState_SANDBOX_READY)
	}
	for _, c := range s.containers("") {
		name := short(c.Labels["io.kubernetes.pod.name"]) + "/" + c.Metadata.Name
		note(name, c.Id, c.Metadata.Attempt, c.State == cri.ContainerState_CONTAINER_RUNNING)
	}
	return now
}

// changes returns the differences between two lists, sorted. A name in both is "restarted" if
// its ID differs and "stopped" if it runs no more; others are "new" or "gone".
func (before inRuntime) changes(after inRuntime) []string {
	var all []string
	for name, b := range before {
		switch a, there := after[name]; {
		case !there:
			all = append(all, "gone "+name)
		case a.id != b.id:
			all = append(all, "restarted "+name)
		case b.runs && !a.runs:
			all = append(all, "stopped "+name)
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			all = append(all, "new "+name)
		}
	}
	slices.Sort(all)
	return all
}

// promised returns the changes that a plan promises for the containers in the runtime, as far
// as the plan names them. Each case lists the other containers that a pod gains or loses.
func (p mergePlan) promised(before inRuntime) []string {
	var all []string
	for _, c := range p.Changes {
		name := c.Pod.Name[:strings.LastIndexByte(c.Pod.Name, '-')]
		for has := range maps.Keys(before) {
			of, container, inside := strings.Cut(has, "/")
			switch {
			case of != name:
			case c.Op == "REMOVE":
				all = append(all, "gone "+has)
			case c.Restart.Pod, inside && slices.Contains(c.Restart.Containers, container):
				all = append(all, "restarted "+has)
			}
		}
	}
	return all
}
