package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/cgroup"
	"github.com/nodectl/nodectl/pkg/csi"
	"github.com/nodectl/nodectl/pkg/device"
	"github.com/nodectl/nodectl/pkg/dra"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/shutdown/logind"
)

// Agent holds the lock of the root directory, the client of the container runtime, and the other
// parts that serve and runonce share.
type Agent struct {
	cfg       Config
	log       *slog.Logger
	unlock    func()
	host      host
	state     state
	metrics   *metrics.Metrics
	api       *api // nil without an API server
	dns       *dnsServer
	runtime   *containerRuntime
	groups    *cgroup.Cgroups
	pressures pressures
	observer  *node.Observer
	devices   *device.Plugins
	csi       *csi.Volumes // nil if the agent is not root
	claims    *dra.Claims  // nil if the agent is not root, or has no API server
	events    *event.Store
	halts     *nodeHalt
	board     *activity.Board
	logCopies *boundedcall.Calls // copies of logs of workloads' pods
}

// Open locks the root directory and finds the runtime. If that is the bundled runtime, Open starts
// it. Close releases both; pods stay.
func Open(ctx context.Context, cfg Config) (_ *Agent, err error) {
	a := &Agent{cfg: cfg, log: cfg.Log, board: activity.NewBoard(), logCopies: boundedcall.New(4)}
	if cfg.ContentionProfiling {
		runtime.SetBlockProfileRate(1) // the kubelet's
	}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	if a.unlock, err = lock(cfg); err != nil {
		return nil, err
	}
	for _, dir := range []string{cfg.RootDir, filepath.Join(cfg.RootDir, "runtime"), filepath.Join(cfg.RootDir, "runtime", "cni"), cfg.Certificates()} {
		atomicfile.RemoveRandom(dir) // temporary files of older agents
	}
	if a.host, err = readHost(ctx, cfg); err != nil {
		return nil, err
	}
	a.metrics = newMetrics(cfg)
	if a.api, err = openAPI(cfg); err != nil {
		return nil, err
	}
	a.dns = newDNSServer(cfg)
	if a.runtime, err = openRuntime(ctx, cfg, a.host, a.api, a.dns, a.metrics); err != nil {
		return nil, err
	}
	a.dns.bundled = a.runtime.bundled != nil
	a.groups = a.newGroups()
	if a.halts, err = openNodeHalt(cfg); err != nil {
		return nil, err
	}
	a.halts.askLogind(ctx, logind.Preparing)
	a.csi, a.claims = newCSI(cfg), a.newClaims()
	a.devices = newDevices(cfg, a.metrics, a.pluginHandlers())
	a.observer = a.newObserver()
	a.events = event.Open(event.Config{Path: filepath.Join(cfg.RootDir, "events.jsonl"), Node: cfg.NodeName, Log: cfg.Log})
	a.state = openState(cfg)
	return a, nil
}

// newGroups returns the cgroups of this node's pods.
func (a *Agent) newGroups() *cgroup.Cgroups {
	return cgroup.New(cgroup.Config{
		Root: a.cfg.CgroupRoot, Node: a.cfg.NodeName, RootDir: a.cfg.RootDir,
		Driver: a.runtime.Driver, Limits: a.host.limits, Enforce: a.host.enforcement(a.cfg), PodPIDs: int64(a.cfg.PodPidsLimit), Log: a.cfg.Log,
	})
}

// Close releases the runtime and the root directory.
func (a *Agent) Close() {
	if a.runtime != nil {
		_ = a.runtime.Close()
	}
	if a.unlock != nil {
		a.unlock()
	}
}

// lock locks the root directory for this process and this node.
func lock(cfg Config) (unlock func(), err error) {
	unlock, err = record.Lock(cfg.RootDir)
	if err != nil {
		var held *record.LockedError
		if errors.As(err, &held) {
			return nil, readonly.Fail(readonly.Failure, err, "one agent per root directory: stop the other one, or give this one its own --root-dir and --node-name")
		}
		if errors.Is(err, os.ErrPermission) {
			return nil, readonly.Fail(readonly.Failure, err, "run it as root, or give it a --root-dir of your own")
		}
		return nil, readonly.Fail(readonly.Failure, err)
	}
	if err = record.Node(cfg.RootDir, cfg.NodeName); err != nil {
		unlock()
		var other *record.NodeError
		if errors.As(err, &other) {
			return nil, readonly.Fail(readonly.Failure, err, other.Hint())
		}
		return nil, readonly.Fail(readonly.Failure, err)
	}
	return unlock, nil
}
