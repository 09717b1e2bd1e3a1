// Package stats reports the resource usage of the node, its pods and their containers: the
// kubelet's /stats/summary, /metrics/resource and /metrics/cadvisor.
//
// The server calls it for each request. One reading makes one call to the runtime for all
// containers, and reads the few files of each cgroup. Requests within a second share a reading: one of
// them makes it, and the others wait.
//
//	turn       cap 1  the sender makes a reading, and owns the last one until it receives
//	measuring  cap 1  the same for disk usage, which takes longer to measure
//
// The package takes no samples in the background; only WatchVolumes measures volumes. It keeps the last
// reading, so that the next request gets rates.
package stats

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Runtime reports the usage of containers; *cri.Runtime implements it.
type Runtime interface {
	// ContainerUsage returns the usage of each container of this node's pods, with one call.
	ContainerUsage(ctx context.Context) ([]pod.ContainerUsage, error)
	// Filesystems returns the file systems of images and of containers' writable layers.
	Filesystems(ctx context.Context) (images, containers pod.Filesystem, err error)
}

// Cgroups returns paths of cgroups, and changes nothing; *cgroup.Cgroups implements it. ok is false if there is
// no such cgroup, or it is not known.
type Cgroups interface {
	PodCgroup(p *v1.Pod) (at pod.Cgroup, ok bool) // of a pod
	AllPodsCgroup() (at pod.Cgroup, ok bool)      // of all pods together
	HostCgroup() (at pod.Cgroup, ok bool)         // of the machine
}

// Config is the configuration of Stats.
type Config struct {
	Node       string // the node's name
	RootDir    string // the agent's root directory, which has the volumes of pods
	PodLogsDir string // the directory of all pods' logs; "": logs are not measured
	Runtime    Runtime
	// Cgroups is nil if pods have no cgroups of their own: then only the runtime reports
	// usage.
	Cgroups Cgroups
	// Pods returns the pods with their statuses; Stats does not change them.
	Pods func() []v1.Pod
	// Driven returns the usage of a volume that a CSI driver has mounted. uid is the UID of the pod,
	// volume the name of the volume. known is false for another volume. nil: there are no drivers.
	Driven func(ctx context.Context, uid, volume string) (usage pod.VolumeUsage, known bool, err error)
	// Abnormal is called after each measurement of a volume that is not healthy, as its CSI driver
	// reports; it must not block. nil: not called.
	Abnormal func(p *v1.Pod, volume, message string)
	// RuntimePID returns the process ID of the container runtime; nil or 0: unknown.
	RuntimePID func() int
	// Remeasure is how old the disk usage of a pod may be; 0 is a minute. With a negative value no disk
	// usage is measured.
	Remeasure time.Duration
	Log       *slog.Logger // nil discards
}

// Stats reports usage. Make one with New. Many goroutines may call its methods.
type Stats struct {
	cfg       Config
	proc      string // /proc; tests change it
	sys       string // /sys
	mountinfo string // the file with the mounts of this process
	now       func() time.Time

	turn        chan struct{} // cap 1: full during a reading; its holder owns the fields below
	last        *reading
	lastWarning string // the runtime's last logged failure

	measuring chan struct{}       // cap 1: full during a measurement; its holder owns dirs
	dirs      map[string]measured // disk usage of volumes and logs, by the pods' UIDs
	calls     *boundedcall.Calls  // measurements without claims, by the pods' UIDs
	// claimCalls has the measurements with claims: their servers may not answer.
	claimCalls *boundedcall.Calls

	machine func() machine // read once
}

// freshness is how old a reading may be. It is the kubelet's value.
const freshness = time.Second

// New returns Stats. It does no I/O.
func New(c Config) *Stats {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Remeasure = cmp.Or(c.Remeasure, time.Minute)
	s := &Stats{cfg: c, proc: "/proc", sys: "/sys", mountinfo: "/proc/self/mountinfo", now: time.Now, turn: make(chan struct{}, 1), measuring: make(chan struct{}, 1), calls: boundedcall.New(maxHanging), claimCalls: boundedcall.New(maxHanging)}
	s.machine = sync.OnceValue(func() machine { return lookAtMachine(s.proc, s.sys) })
	return s
}
