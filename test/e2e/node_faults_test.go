package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

func oomKilled(end *v1.ContainerStateTerminated) bool {
	return end != nil && end.Reason == "OOMKilled" && end.ExitCode == 137
}

// lastWord records the reasons that the runtime gave an agent for containers' exits.
type lastWord struct {
	mu      sync.Mutex
	reasons map[string]string // by container, the newest
}

func newLastWord() *lastWord { return &lastWord{reasons: map[string]string{}} }

func (l *lastWord) note(c criproxy.Call, err error) {
	var r cri.ContainerStatusResponse
	if c.Method != "ContainerStatus" || err != nil || proto.Unmarshal(c.Answer.Materialize(), &r) != nil {
		return
	}
	if st := r.GetStatus(); st.GetState() == cri.ContainerState_CONTAINER_EXITED {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reasons[st.GetId()] = st.GetReason()
	}
}

// of returns the newest reason for a container, "" for none.
func (l *lastWord) of(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reasons[id]
}

// endsForMemory fails unless a pod whose container is killed for its memory has that reason.
// The runtime learns of the OOM kill and of the exit separately, and the agent reads an
// exited container once. So the agent may read one pod too early, but not three. A reason
// that the runtime has given the agent counts at once.
func (s *stage) endsForMemory(word *lastWord, name, container string, text func(name string) string) {
	s.Helper()
	var seen []string
	for i := range 3 {
		name := name + strings.Repeat("-again", i)
		s.write(name+".yaml", text(name))
		st := s.awaitPhase(name, v1.PodFailed)
		c := containerStatus(st, container)
		if end := c.State.Terminated; end == nil || end.ExitCode != 137 || c.RestartCount != 0 {
			s.Fatalf("a pod without memory: %s", describe(st))
		}
		_, id, _ := strings.Cut(c.State.Terminated.ContainerID, "://")
		reported := word.of(id)
		if reported == "" {
			s.Fatalf("the runtime was not asked how %s ended: %s", id, describe(st))
		}
		if reported == "OOMKilled" {
			s.awaitStatus(name, "OOMKilled, as the runtime has said", func(st v1.PodStatus) bool {
				return oomKilled(containerStatus(st, container).State.Terminated)
			})
			return
		}
		if oomKilled(c.State.Terminated) {
			s.Fatalf("the runtime said %s: %s", reported, describe(st))
		}
		seen = append(seen, describe(st))
	}
	s.Errorf("none of these was killed for its memory:\n%s", strings.Join(seen, "\n"))
}

// TestF34_F35_GoldenValues: a container's resources are in the kernel's files, by the names
// and values of this machine's cgroup version; and in its OOM score, or the nearest one that
// the runtime may set.
//
// Shows: F34, F35
func TestF34_F35_GoldenValues(t *testing.T) {
	s := parallelStage(t)
	all := []golden{
		{"guaranteed", "{limits: {cpu: 500m, memory: 32Mi}}",
			map[string]string{"cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": "33554432"},
			map[string]string{"cpu.weight": "59", "cpu.max": "50000 100000", "memory.max": "33554432"}, -997},
		{"burstable", "{requests: {cpu: '1'}, limits: {memory: 64Mi}}",
			map[string]string{"cpu/cpu.shares": "1024", "cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": "67108864"},
			map[string]string{"cpu.weight": "100", "cpu.max": "max 100000", "memory.max": "67108864"}, -1},
		{"besteffort", "{}",
			map[string]string{"cpu/cpu.shares": "2", "cpu/cpu.cfs_quota_us": "-1"},
			map[string]string{"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max"}, 1000},
	}
	for _, g := range all {
		s.writeGolden(g)
	}
	a := s.serve()
	s.awaitRunning("guaranteed", "main")
	if n := len(a.linesWith("level=WARN", "cgroup v1")); (n == 1) == unified() || n > 1 {
		t.Errorf("that it is cgroup v1 was said %d times", n)
	}
	if n := s.front.Counts()["RuntimeConfig"]; n != 1 {
		t.Errorf("the runtime was asked %d times for its cgroup driver", n)
	}
	for _, g := range all {
		s.checkGolden(g)
	}
	s.invariants()
}

// golden is a pod of one container with resources, with the kernel's values for it.
type golden struct {
	name, resources string
	v1, v2          map[string]string
	oom             int // -1: by the machine's memory
}

func (s *stage) writeGolden(g golden) {
	s.Helper()
	s.write(g.name+".yaml", manifest(g.name, []string{container("main", "forever", "resources: "+g.resources)}))
}

func (s *stage) checkGolden(g golden) {
	s.Helper()
	own := s.daemonOOM()
	p := s.node.Processes(s.awaitRunning(g.name, "main")["main"].id)[0]
	want := g.v1
	if unified() {
		want = g.v2
	}
	for file, value := range want {
		if got := cgroupFile(p.Cgroups, file); got != value {
			s.Errorf("%s: %s is %s, want %s", g.name, file, got, value)
		}
	}
	score, err := strconv.Atoi(p.OOM)
	switch {
	case err != nil:
		s.Error(err)
	case g.oom == -1 && (score < 2 || score > 999), g.oom >= 0 && score != g.oom, g.oom < -1 && score != g.oom && score != own:
		s.Errorf("%s: OOM score %d, the runtime's own is %d", g.name, score, own)
	}
}

// daemonOOM returns the runtime's own score.
func (s *stage) daemonOOM() int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", s.node.Pid(s.T)))
	if err != nil {
		s.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.Fatal(err)
	}
	return n
}
