package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/stats"
)

// Run serves until ctx ends: it runs the pods of the sources, answers clients, and supervises the
// runtime. Pods continue after it returns. The end of ctx is not an error.
func (a *Agent) Run(ctx context.Context) error {
	cfg, log := a.cfg, a.log
	if err := a.leaveWorkloads(ctx); err != nil {
		return err
	}
	a.leaveServices(a.clearServices)
	m, err := a.join()
	if err != nil {
		return err
	}
	if err := a.limitReserved(a.nodeEvents(m)); err != nil {
		return err
	}
	var sources look.Sources
	workloads := a.workloads(false, func() look.Rules { return sources.Rules })
	defer workloads.Close()
	var live *feed.Live // of the engine, which needs the sources
	r := look.Reading{
		Recorded: cfg.Specs(a.state.kept), Restored: a.lastGood(), Watched: true, Expander: a.expander(workloads),
		API: m.source(a, func() *feed.Live { return live }),
	}
	if cfg.InsecureManifestPermissions {
		r.Permissions = file.Ignore
	}
	if sources, err = cfg.Sources(r); err != nil {
		return err
	}
	setLimits(cfg.Config.Config, log)
	if a.host.cpus == nil {
		if err := saveCPUs(cfg.RootDir)(nil); err != nil {
			log.Warn("Failed to remove the state of CPUs and memory", "error", err)
		}
	}
	log.Info("Starting agent", "node", cfg.NodeName, "root", cfg.RootDir, "runtime", a.runtime.Endpoint(), "version", cfg.Build.Version)
	warnOfCgroupV1(log)
	a.runtime.importFirst(ctx, cfg.Images())
	balancer := a.services()
	to := a.receivers(m).keptBy(workloads).balancedBy(balancer, a.names)
	to.devices, to.drivers, to.claims = a.devices, a.drivers(), a.engineClaims()
	e := a.engine(sources.Config, sources.Rules, to)
	live = e.Live()
	a.halts.engine, a.halts.event = e, a.shutdownEvent(m)
	images := a.inventory(live, m, workloads)
	measured := a.stats(live, to.events)
	up, closeAlarm := a.upkeepOf(e, m, images, measured)
	defer closeAlarm()
	answers, serving, err := a.serverConfig(e, m, images, measured, up, workloads)
	if err != nil {
		return err
	}
	answers.Services = serviceList(balancer)
	a.measure(live, m, serving)
	if err := openRun(cfg.Config.Config); err != nil {
		log.Warn("Failed to create the directory of the local socket", "error", err)
	}

	a.names.resume(a.state.records.All)
	if a.names.keeper != nil {
		a.metrics.DNS(a.names.counts)
	}

	beside, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { a.runtime.lookAfter(beside) })
	wg.Go(func() { a.names.run(beside) })
	defer a.runtime.pulls(beside, collecting{cfg.Pulls, images})()
	wg.Go(func() { images.Run(beside) })
	wg.Go(func() { up.Run(beside) })
	wg.Go(func() { a.serveDevices(beside, live.Pods) })
	wg.Go(func() { a.events.Run(beside) })
	wg.Go(func() { a.watchVolumes(beside, measured) })
	if m != nil {
		wg.Go(func() { m.run(beside, log) })
	}
	wg.Go(func() { a.serveServices(beside, balancer) })
	if serving != nil {
		wg.Go(func() {
			if err := serving.Run(beside); err != nil {
				log.Error("Failed to maintain serving certificate", "error", err)
			}
		})
	}
	answering := serveSocket(beside, &wg, answers, log)
	wg.Go(func() { a.supervise(e, answering).run(beside) })
	wg.Go(func() { a.halts.run(beside) })
	wg.Go(func() { a.halts.watchLogind(beside) })
	wg.Go(func() { settle(beside) })
	wg.Go(func() { watchOOM(beside, a.nodeEvents(m), log) })
	wg.Go(func() { watchDescriptors(beside, log) })
	if err := e.Run(ctx); err != nil {
		return look.Fail(look.Failure, err)
	}
	log.Info("Agent is exiting; running containers continue")
	return nil
}

// stats returns the meter of the resource usage of this node and its pods. events gets the events of
// volumes that are not healthy.
func (a *Agent) stats(live *feed.Live, events engine.Events) *stats.Stats {
	cfg := a.measuring(live.Pods)
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

// measuring returns the configuration of that meter for these pods.
func (a *Agent) measuring(pods func() []v1.Pod) stats.Config {
	return stats.Config{
		Node: a.cfg.NodeName, RootDir: a.cfg.RootDir, PodLogsDir: a.cfg.PodLogsDir, Runtime: a.runtime.Runtime, Cgroups: a.groups,
		Pods: pods, Remeasure: a.cfg.VolumeStatsPeriod, Log: a.log,
	}
}

// serveSocket serves the local socket beside wg's other jobs. It closes the channel once the socket
// answers, or cannot be opened.
func serveSocket(ctx context.Context, wg *sync.WaitGroup, cfg server.Config, log *slog.Logger) <-chan struct{} {
	answering := make(chan struct{})
	said := sync.OnceFunc(func() { close(answering) })
	cfg.Answering = said
	wg.Go(func() {
		defer said()
		if err := server.New(cfg).Serve(ctx); err != nil {
			log.Error("Failed to serve the local socket; pods keep running", "error", err)
		}
	})
	return answering
}

// supervise returns the supervisor of a serving agent. It checks the sync loop, the pod workers,
// and the goroutine that receives the runtime's events.
func (a *Agent) supervise(e *engine.Engine, answering <-chan struct{}) *supervisor {
	return &supervisor{
		log: a.log, answering: answering,
		checks: []func(context.Context) error{e.Beat, a.runtime.hints.Beat},
		dump:   filepath.Join(a.cfg.RootDir, "goroutines.txt"),
	}
}
