package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// belongings are things of a scenario that have no pod's name.
type belongings struct {
	mu          sync.Mutex
	networks    map[string]string // sandbox by its network namespace's mount
	interrupted bool              // see interrupts
}

// noting adds to hooks that the network namespace of each sandbox is recorded.
func (s *stage) noting(hooks criproxy.Hooks) criproxy.Hooks {
	after := hooks.After
	hooks.After = func(c criproxy.Call, err error) {
		if c.Method == "RunPodSandbox" && err == nil {
			s.noteNetwork(c)
		}
		if after != nil {
			after(c, err)
		}
	}
	return hooks
}

func (s *stage) noteNetwork(c criproxy.Call) {
	var made cri.RunPodSandboxResponse
	if proto.Unmarshal(c.Answer.Materialize(), &made) != nil {
		return
	}
	// Not the call's own context: it ends with the client, and the sandbox may stay.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	st, err := s.node.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: made.PodSandboxId, Verbose: true})
	if err != nil {
		return // the sandbox or the runtime has gone
	}
	var info struct {
		Spec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil {
		s.Errorf("what the runtime tells of sandbox %s: %v", made.PodSandboxId, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range info.Spec.Linux.Namespaces {
		if n.Type == "network" && n.Path != "" {
			if s.networks == nil {
				s.networks = make(map[string]string)
			}
			s.networks[n.Path] = made.PodSandboxId
		}
	}
}

// leftovers returns network namespaces, shims and cgroups of the scenario that belong to nothing
// that CRI lists.
func (s *stage) leftovers() (left node.Left, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	all := s.node.LookBeside() // first: things made later are missing here, or are listed
	listed := make(map[string]bool)
	boxes, err := s.node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return left, err
	}
	for _, b := range boxes.Items {
		listed[b.Id] = true
	}
	containers, err := s.node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return left, err
	}
	for _, c := range containers.Containers {
		listed[c.Id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range all.Mounts {
		if box, ours := s.networks[m]; ours && !listed[box] {
			left.Mounts = append(left.Mounts, m)
		}
	}
	ours := func(id string) bool { return !listed[id] && s.lives.ofStage(id, s.name) }
	for _, p := range all.Processes {
		if m := stillborn.FindStringSubmatch(p); m != nil && ours(m[2]) {
			left.Processes = append(left.Processes, p)
		}
	}
	for _, g := range all.Cgroups {
		if ours(filepath.Base(g)) {
			left.Cgroups = append(left.Cgroups, g)
		}
	}
	return left, nil
}

// nothingIsLeft fails for remains of the scenario, see leftovers. The runtime may remove things a
// little later than it reports their removal.
func (s *stage) nothingIsLeft() {
	s.eventually(func() error {
		s.forgive()
		left, err := s.leftovers()
		if err == nil && !left.Empty() {
			err = fmt.Errorf("the scenario left behind what CRI does not list:\n%s", left)
		}
		return err
	})
}

// leftoverGroups returns the cgroups of pods that neither the runtime nor the agent knows any
// more.
func (s *stage) leftoverGroups(ctx context.Context) ([]string, error) {
	groups := s.podGroups() // first, as in leftovers
	boxes, err := s.node.Runtime.ListPodSandbox(ctx, s.ours())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(groups, func(g string) bool {
		_, uid, _ := strings.Cut(filepath.Base(g), "pod")
		_, err := os.Stat(filepath.Join(s.root, "pods", uid))
		return err == nil || slices.ContainsFunc(boxes.Items, func(b *cri.PodSandbox) bool { return b.Metadata.GetUid() == uid })
	}), nil
}

// interrupts says that the scenario interrupts calls that the runtime works on. It forgives
// only two leftovers, which containerd does not report: the empty cgroup of a killed runc,
// and the shim of a sandbox that containerd has forgotten. forgive removes both.
func (s *stage) interrupts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = true
	if s.node == shared {
		interrupted.Store(true)
	}
}

// forgive removes the remains that interrupts allows.
func (s *stage) forgive() {
	s.mu.Lock()
	forgiven := s.interrupted
	s.mu.Unlock()
	if !forgiven {
		return
	}
	if left, err := s.leftovers(); err == nil {
		removeEmptyGroups(left.Cgroups)
		s.lives.endStillborn(left)
	}
}

// stillborn matches a shim's process in node.Left: PID and the ID it was started for.
var stillborn = regexp.MustCompile(`^(\d+) .*containerd-shim-runc-v2 .*-id ([0-9a-f]{64})\b`)

// endStillborn ends shims that containerd does not know any more: a call that makes or ends a
// sandbox was interrupted between the shim and its task, and containerd forgets those, so
// that no client can end them. A shim whose sandbox CRI still lists is left for the test to
// fail on, and so is anything else.
func (w *witness) endStillborn(left node.Left) {
	for _, line := range left.Processes {
		m := stillborn.FindStringSubmatch(line)
		if m == nil || slices.ContainsFunc(left.Pods, func(p string) bool { return strings.Contains(p, m[2]) }) {
			continue
		}
		if pid, err := strconv.Atoi(m[1]); err == nil {
			fmt.Fprintf(os.Stderr, "e2e: a broken-off call left its shim behind, which is ended: %s (%s)\n", line, w.who(m[2]))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// removeEmptyGroups removes cgroups without processes: the kernel keeps the others.
func removeEmptyGroups(groups []string) {
	for _, g := range slices.Backward(groups) {
		_ = os.Remove(g)
	}
}
