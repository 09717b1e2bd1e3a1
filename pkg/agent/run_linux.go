package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/balancer"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/pkg/upkeep"
)

// serving is a serving agent: an Agent with the parts that only Run needs.
type serving struct {
	*Agent
	member      *member // nil on a node without a cluster
	workloads   *controller.Controller
	sources     readonly.Sources
	balancer    *balancer.Balancer // nil in a cluster
	engine      *engine.Engine
	live        *feed.Live // of the engine
	images      *image.Inventory
	stats       *stats.Stats
	upkeep      *upkeep.Upkeep
	certificate *certificate.Serving // of the TLS port; nil without a port
}

// Run serves until ctx ends: it runs the pods of the sources, answers clients, and supervises the
// runtime. Pods continue after it returns. The end of ctx is not an error.
func (a *Agent) Run(ctx context.Context) error {
	m, err := a.prepareNode(ctx)
	if err != nil {
		return err
	}
	s := &serving{Agent: a, member: m}
	s.workloads = a.newController(false, func() readonly.Rules { return s.sources.Rules })
	defer s.workloads.Close()
	if s.sources, err = a.cfg.Sources(s.reading()); err != nil {
		return err
	}
	a.start(ctx)
	closeAlarm := s.makeParts()
	defer closeAlarm()
	answers, err := s.serverConfig()
	if err != nil {
		return err
	}
	a.addServingMetrics(s.live, m, s.certificate)
	if err := openRun(a.cfg.Config.Config); err != nil {
		a.log.Warn("Failed to create the directory of the local socket", "error", err)
	}
	a.dns.resume(a.state.records.All)
	if a.dns.supervisor != nil {
		a.metrics.DNS(a.dns.counts)
	}
	return s.run(ctx, answers)
}

// prepareNode prepares the membership in a cluster, in which no workload or Service of a file is
// served, and limits the reserved cgroups. The member is nil on a node without a cluster.
func (a *Agent) prepareNode(ctx context.Context) (*member, error) {
	if err := a.joinWithoutWorkloads(ctx); err != nil {
		return nil, err
	}
	a.joinWithoutServices(a.clearServices)
	m, err := a.join()
	if err != nil {
		return nil, err
	}
	return m, a.limitReserved(a.nodeEvents(m))
}

// reading returns how the agent reads its sources.
func (s *serving) reading() readonly.Reading {
	r := readonly.Reading{
		Recorded: s.cfg.Specs(s.state.kept), Restored: s.lastGood(), EtcdAndAPI: true, Expander: s.expander(s.workloads),
		API: s.member.source(s.Agent, func() *feed.Live { return s.live }),
	}
	if s.cfg.InsecureManifestPermissions {
		r.Permissions = file.Ignore
	}
	return r
}

// start sets the limits of this process, logs the start, and imports images.
func (a *Agent) start(ctx context.Context) {
	cfg, log := a.cfg, a.log
	setLimits(cfg.Config.Config, log)
	if !a.host.cpus.Reserves() {
		if err := saveCPUs(cfg.RootDir)(nil); err != nil {
			log.Warn("Failed to remove the state of CPUs and memory", "error", err)
		}
	}
	log.Info("Starting agent", "node", cfg.NodeName, "root", cfg.RootDir, "runtime", a.runtime.Endpoint(), "version", cfg.Build.Version)
	warnOfCgroupV1(log)
	a.runtime.importFirst(ctx, cfg.Images())
}

// makeParts makes the engine and the parts around it. The caller calls closeAlarm when the upkeep
// has ended.
func (s *serving) makeParts() (closeAlarm func()) {
	s.balancer = s.newBalancer()
	to := s.receivers(s.member).withWorkloads(s.workloads).withServices(s.balancer, s.dns)
	to.devices, to.drivers, to.claims = s.devices, s.volumeDrivers(), s.engineClaims()
	s.engine = s.newEngine(s.sources.Config, s.sources.Rules, to)
	s.live = s.engine.Live()
	s.halts.engine, s.halts.event = s.engine, s.shutdownEvent(s.member)
	s.images = s.newInventory(s.live, s.member, s.workloads)
	s.stats = s.newStats(s.live, to.events)
	s.upkeep, closeAlarm = s.newUpkeep(s.engine, s.member, s.images, s.stats)
	return closeAlarm
}

// run runs the engine, and the other parts in goroutines of their own, until ctx ends.
func (s *serving) run(ctx context.Context, answers server.Config) error {
	parts, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { s.runtime.maintain(parts) })
	wg.Go(func() { s.dns.run(parts) })
	defer s.runtime.pulls(parts, collecting{s.cfg.Pulls, s.images})()
	wg.Go(func() { s.images.Run(parts) })
	wg.Go(func() { s.upkeep.Run(parts) })
	wg.Go(func() { s.serveDevices(parts, s.live.Pods) })
	wg.Go(func() { s.events.Run(parts) })
	wg.Go(func() { s.watchVolumes(parts, s.stats) })
	if s.member != nil {
		wg.Go(func() { s.member.run(parts, s.log) })
	}
	wg.Go(func() { s.serveServices(parts, s.balancer) })
	if s.certificate != nil {
		wg.Go(func() {
			if err := s.certificate.Run(parts); err != nil {
				s.log.Error("Failed to maintain serving certificate", "error", err)
			}
		})
	}
	answering := serveSocket(parts, &wg, answers, s.log)
	wg.Go(func() { s.newSupervisor(s.engine, answering).run(parts) })
	wg.Go(func() { s.halts.run(parts) })
	wg.Go(func() { s.halts.watchLogind(parts) })
	wg.Go(func() { settle(parts) })
	wg.Go(func() { watchOOM(parts, s.nodeEvents(s.member), s.log) })
	wg.Go(func() { watchDescriptors(parts, s.log) })
	if err := s.engine.Run(ctx); err != nil {
		return readonly.Fail(readonly.Failure, err)
	}
	s.log.Info("Agent is exiting; running containers continue")
	return nil
}

// newStats returns the part that measures the resource usage of this node and its pods. events gets
// the events of volumes that are not healthy.
func (a *Agent) newStats(live *feed.Live, events engine.Events) *stats.Stats {
	cfg := a.statsConfig(live.Pods)
	cfg.Abnormal = func(p *v1.Pod, volume, message string) {
		events.Event(pod.Event{
			Key: pod.KeyOf(p), UID: string(p.UID), Type: pod.EventWarning, Reason: pod.EventVolumeConditionAbnormal,
			Message: fmt.Sprintf("Volume %s: %s", volume, message), At: time.Now(),
		})
	}
	cfg.RuntimePID = a.runtime.pid
	if a.csi != nil {
		cfg.Driven = a.csi.Usage
	}
	measured := stats.New(cfg)
	a.metrics.Register(measured.Volumes())
	return measured
}

// statsConfig returns the configuration of that part. pods returns the pods to measure.
func (a *Agent) statsConfig(pods func() []v1.Pod) stats.Config {
	return stats.Config{
		Node: a.cfg.NodeName, RootDir: a.cfg.RootDir, PodLogsDir: a.cfg.PodLogsDir, Runtime: a.runtime.Runtime, Cgroups: a.groups,
		Pods: pods, Remeasure: a.cfg.VolumeStatsPeriod, Log: a.log,
	}
}

// serveSocket serves the local socket in a goroutine of wg. It closes the channel once the socket
// answers, or the server has ended.
func serveSocket(ctx context.Context, wg *sync.WaitGroup, cfg server.Config, log *slog.Logger) <-chan struct{} {
	answering := make(chan struct{})
	closeOnce := sync.OnceFunc(func() { close(answering) })
	cfg.Answering = closeOnce
	wg.Go(func() {
		defer closeOnce()
		if err := server.New(cfg).Serve(ctx); err != nil {
			log.Error("Failed to serve the local socket; pods keep running", "error", err)
		}
	})
	return answering
}

// newSupervisor returns the supervisor of a serving agent. It checks the sync loop, the pod workers,
// and the goroutine that receives the runtime's events.
func (a *Agent) newSupervisor(e *engine.Engine, answering <-chan struct{}) *supervisor {
	return &supervisor{
		log: a.log, answering: answering,
		checks: []func(context.Context) error{e.Healthy, a.runtime.hints.Healthy},
		dump:   filepath.Join(a.cfg.RootDir, "goroutines.txt"),
	}
}
