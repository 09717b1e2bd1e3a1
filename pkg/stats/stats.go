// Package stats says what the node, its pods and their containers use: the
// kubelet's /stats/summary, /metrics/resource and /metrics/cadvisor.
//
// The server asks when somebody asks it. One reading is one pass: one call to the
// runtime for all containers, and the few files of each cgroup. Those who ask within
// the same second share it, and while one reads, the others wait for it.
//
//	turn       cap 1  whoever puts something in reads, and owns the last reading until it takes it out
//	measuring  cap 1  the same for what pods take of disks, which takes longer
//
// The one rule: nothing is sampled in the background. What was read last is kept,
// so that the next one who asks gets rates; a pod that is gone is gone from it.
package stats

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Runtime says what containers use; *cri.Runtime is one.
type Runtime interface {
	// ContainerUsage returns what each container of ours uses, by one call.
	ContainerUsage(ctx context.Context) ([]pod.ContainerUsage, error)
	// Filesystems returns those of images and of what containers write.
	Filesystems(ctx context.Context) (images, containers pod.Filesystem, err error)
}

// Cgroups says where cgroups are, and touches nothing; *cgroup.Cgroups is one. ok is
// false where there are none.
type Cgroups interface {
	PlaceOf(p *v1.Pod) (at pod.Cgroup, ok bool)
	PlaceOfAll() (at pod.Cgroup, ok bool)
	PlaceOfHost() (at pod.Cgroup, ok bool)
}

// Config is what Stats are made of.
type Config struct {
	Node       string // its name
	RootDir    string // the agent's directory: pods' volumes lie below it
	PodLogsDir string // where pods log
	Runtime    Runtime
	// Cgroups is nil where pods have none of their own: the runtime's word is all
	// there is then.
	Cgroups Cgroups
	// Pods returns the pods with their statuses; what they point to is not written to.
	Pods func() []v1.Pod
	// RuntimePID returns the process of the container runtime; nil or 0: not known.
	RuntimePID func() int
	Log        *slog.Logger // nil is silent
}

// Stats answers questions about usage. Make one with New; its methods may be called
// from many goroutines.
type Stats struct {
	cfg  Config
	proc string // /proc; a test has another
	sys  string // /sys
	now  func() time.Time

	turn chan struct{} // cap 1: full while somebody reads; whoever fills it owns what is below
	last *reading
	said string // of the runtime's last failure

	measuring chan struct{}       // cap 1: full while somebody measures disks; whoever fills it owns what is below
	dirs      map[string]measured // what volumes and logs of pods take, by the pods' UIDs

	machine func() machine // read once
}

// freshness is how old an answer may be (the kubelet's own).
const freshness = time.Second

// New returns Stats. It touches nothing.
func New(c Config) *Stats {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stats{cfg: c, proc: "/proc", sys: "/sys", now: time.Now, turn: make(chan struct{}, 1), measuring: make(chan struct{}, 1)}
	s.machine = sync.OnceValue(func() machine { return lookAtMachine(s.proc, s.sys) })
	return s
}
