package invariant

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// processes returns the containers whose state in the kernel differs from the runtime's (I1).
func (s *Scope) processes(now shown) (found []Violation) {
	for _, c := range now.containers {
		if c.State != cri.ContainerState_CONTAINER_EXITED {
			continue // a running one may exit during the check
		}
		for _, p := range s.Node.Processes(c.Id) {
			found = append(found, Violation{"I1", time.Now(), c.Labels[labelPod],
				fmt.Sprintf("container %s has ended, its process %d lives: %v", c.Metadata.GetName(), p.Pid, p.Args)})
		}
	}
	return found
}

// Limits of an agent with a few dozen pods (I5): several times its usual needs.
const (
	maxFiles   = 200
	maxThreads = 100
	maxMemory  = 200 << 10 // KiB of private memory
	maxRepeats = 60        // of one line, numbers apart; at debug level, a repeated action logs one each time
	maxDebug   = 10 * maxRepeats
)

// number matches the parts that may differ between two lines with the same message.
var number = regexp.MustCompile(`[0-9a-f]{12,}|[0-9]+`)

// bounded returns where an agent exceeds its limits (I5).
func (s *Scope) bounded() (found []Violation) {
	said := make(map[string]int)
	for _, l := range s.Said {
		said[number.ReplaceAllString(l, "#")]++
	}
	for l, n := range said {
		limit := maxRepeats
		if strings.Contains(l, "level=DEBUG") {
			limit = maxDebug
		}
		if n > limit {
			found = append(found, Violation{"I5", time.Now(), "", fmt.Sprintf("said %d times: %s", n, l)})
		}
	}
	if s.Pid == 0 {
		return found
	}
	proc := fmt.Sprint("/proc/", s.Pid)
	files, _ := os.ReadDir(proc + "/fd")
	status, _ := os.ReadFile(proc + "/status")
	for _, of := range []struct {
		what      string
		have, max int
	}{
		{"open files", len(files), maxFiles},
		{"threads", field(status, "Threads:"), maxThreads},
		{"KiB of memory", field(status, "RssAnon:"), maxMemory},
	} {
		if of.have > of.max {
			found = append(found, Violation{"I5", time.Now(), "", fmt.Sprintf("has %d %s, more than %d", of.have, of.what, of.max)})
		}
	}
	return found
}

// field returns a number of /proc/PID/status.
func field(status []byte, name string) int {
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}

// leaks returns the remains of pods that are neither in the runtime nor in the desired set (I6).
func (s *Scope) leaks(lives []Life, now shown) (found []Violation) {
	kept := make(map[string]bool) // pods by name
	for name := range s.History.wanted() {
		kept[name] = true
	}
	for _, b := range now.boxes {
		kept[b.Labels[labelPod]] = true
	}
	gone := make(map[string]string) // UID → pod
	for _, l := range lives {
		if !kept[l.Pod] {
			gone[l.UID] = l.Pod
		}
	}
	if len(gone) == 0 {
		return nil
	}
	places := append(node.Mounts(), s.Node.Cgroups()...)
	for _, pattern := range []string{
		filepath.Join(s.Root, "pods/*"), filepath.Join(s.Logs, "*"), filepath.Join(filepath.Dir(s.Logs), "containers/*"),
	} {
		more, _ := filepath.Glob(pattern)
		places = append(places, more...)
	}
	for uid, pod := range gone {
		for _, p := range places {
			if strings.Contains(p, uid) || strings.HasPrefix(p, filepath.Join(filepath.Dir(s.Logs), "containers", pod+"_")) {
				found = append(found, Violation{"I6", time.Now(), pod, "is gone, and left " + p})
			}
		}
	}
	return found
}

// secrets returns where an agent has written a secret (I8).
func (s *Scope) secrets() (found []Violation) {
	for _, l := range s.Said {
		for _, word := range s.Secrets {
			if strings.Contains(l, word) {
				found = append(found, Violation{"I8", time.Now(), "", "printed a secret: " + l})
			}
		}
	}
	return found
}
