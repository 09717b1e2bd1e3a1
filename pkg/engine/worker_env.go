package engine

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/startlimit"
)

// workerEnv is all that pod workers may use beside what each of them owns: no field of the
// sync loop is in it. All workers share one. Its fields are not written to after the
// start, and what they hold may be used from many goroutines.
type workerEnv struct {
	runtime Runtime
	volumes Volumes
	cgroups Cgroups // nil: pods have no cgroups of their own
	users   Users   // nil: no pod has users of its own
	records Records
	hooks   hookRunner

	recorder recorder
	starts   *startlimit.Limiter
	sweep    *sweep        // of directories of unknown pods
	reports  chan<- report // capacity 0: to the sync loop

	hostIPs      []string
	allocatable  v1.ResourceList
	runtimeName  string
	maxBackoff   time.Duration
	noClusterDNS bool
	reportLogs   bool // reports name the logs of running containers

	services func(namespace string) ([]*v1.Service, error) // nil: there are none
	forbids  func(want *pod.Spec) string                   // nil: everything may start
	worked   func(operation string, took time.Duration)    // nil: it is not measured
	next     func(plan.View) plan.Plan
}

// hookRunner is Prober without probes.
type hookRunner interface {
	Hook(ctx context.Context, r pod.HookRequest) error
}

// workerEnv returns what the workers of this loop may use.
func (l *loop) workerEnv() *workerEnv {
	return &workerEnv{
		runtime: l.cfg.Runtime,
		volumes: l.cfg.Volumes,
		cgroups: l.cfg.Cgroups,
		users:   l.cfg.Users,
		records: l.cfg.Records,
		hooks:   l.cfg.Prober,

		recorder: l.recorder,
		starts:   l.starts,
		sweep:    &l.sweeping,
		reports:  l.reports,

		hostIPs:      l.cfg.HostIPs,
		allocatable:  l.cfg.Node.Allocatable,
		runtimeName:  l.cfg.RuntimeName,
		maxBackoff:   l.cfg.MaxBackoff,
		noClusterDNS: l.cfg.NoClusterDNS,
		reportLogs:   l.cfg.Logs != nil,

		services: l.cfg.Services,
		forbids:  l.cfg.Forbids,
		worked:   l.cfg.Worked,
		next:     l.cfg.next,
	}
}
