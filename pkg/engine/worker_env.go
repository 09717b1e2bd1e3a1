package engine

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/startlimit"
)

// workerEnv has everything that pod workers may share. It contains no field of the sync loop. All
// workers share one. Its fields do not change after the start, and their values are safe for
// concurrent use.
type workerEnv struct {
	runtime Runtime
	volumes Volumes
	cgroups Cgroups           // nil: pods have no cgroups of their own
	users   Users             // nil: no pod has users of its own
	devices Devices           // nil: no plugin serves devices
	cpus    *cpuset.Allocator // nil: no policy allocates exclusive CPUs or NUMA memory, or aligns devices
	claims  Claims            // nil: no driver prepares claims
	records Records
	hooks   hookRunner
	board   *activity.Board // nil: activities are not noted

	recorder recorder
	starts   *startlimit.Limiter
	sweep    *sweep        // the removal of directories of unknown pods
	mover    *mover        // nil: no policy allocates exclusive CPUs
	reports  chan<- report // capacity 0: to the sync loop

	hostIPs      []string
	allocatable  v1.ResourceList
	runtimeName  string
	maxBackoff   time.Duration
	disabled     pod.Disabled
	noClusterDNS bool
	reportLogs   bool // reports name the logs of running containers

	services func(namespace string) ([]*v1.Service, error) // nil: there are none
	// servicesForAll says that pods of every source get them.
	servicesForAll bool
	forbids        func(want *pod.Spec) string                // nil: everything may start
	worked         func(operation string, took time.Duration) // a metrics callback; nil: not measured
	next           func(plan.View) plan.Plan
}

// hookRunner is Prober without probes.
type hookRunner interface {
	Hook(ctx context.Context, r pod.HookRequest) error
}

// newWorkerEnv returns the workerEnv of a loop that receives reports.
func newWorkerEnv(cfg Config, reports chan<- report) *workerEnv {
	return &workerEnv{
		runtime: cfg.Runtime,
		volumes: cfg.Volumes,
		cgroups: cfg.Cgroups,
		users:   cfg.Users,
		devices: cfg.Devices,
		cpus:    cfg.CPUs,
		claims:  cfg.Claims,
		records: cfg.Records,
		hooks:   cfg.Prober,
		board:   cfg.Activity,

		recorder: recorder{cfg.Events},
		starts:   startlimit.New(cfg.Starts),
		sweep:    &sweep{},
		mover:    newMover(cfg),
		reports:  reports,

		hostIPs:      cfg.HostIPs,
		allocatable:  cfg.Node.Allocatable,
		runtimeName:  cfg.RuntimeName,
		maxBackoff:   cfg.MaxBackoff,
		disabled:     cfg.Node.Disabled,
		noClusterDNS: cfg.NoClusterDNS,
		reportLogs:   cfg.Logs != nil,

		services: cfg.Services, servicesForAll: cfg.ServicesForAll,
		forbids: cfg.Forbids,
		worked:  cfg.PodWorkerDuration,
		next:    cfg.next,
	}
}
