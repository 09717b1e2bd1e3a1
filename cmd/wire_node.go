//go:build linux

package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/cgroup"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/metrics"
	machine "github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/probe"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/pkg/userns"
	"github.com/nodectl/nodectl/pkg/volume"
)

// superviseEvery is the interval in which serve checks the bundled runtime.
const superviseEvery = time.Second

// importPatience is how long serve imports images before it starts pods.
const importPatience = 30 * time.Second

// node is this machine under this process: it holds the lock of the root directory, and the
// runtime. serve and runonce use it; get, merge and watch never make one.
type node struct {
	p       *program
	log     *slog.Logger
	unlock  func()
	bundled *bundle.Runtime // nil for any other runtime
	runtime *cri.Runtime
	records *record.Records
	sets    *record.Split
	images  *bundle.Images
	puller  *image.Puller
	news    *pullNews
	hints   hints
	journal *journal.Journal
	kept    []pod.Record
	facts   plan.Node     // input of admission
	machine machine.Facts // this machine at the start

	groups   *cgroup.Cgroups
	observer *machine.Observer
	events   *event.Store
	metrics  *metrics.Metrics
	hostIPs  []string
	live     *feed.Live                          // of a serving agent
	certs    atomic.Pointer[certificate.Client]  // what is shown to the API server, of a member of a cluster
	serving  atomic.Pointer[certificate.Serving] // what is shown to others, once there is a server
	limits   v1.ResourceList                     // what all pods together are held to
	before   map[pod.Key]v1.PodStatus
}

// hints report what may have changed in the runtime, and whether they still receive its
// events; pleg.PLEG implements it.
type hints interface {
	engine.Hints
	Beat(context.Context) error
}

// openNode locks the root directory and finds the runtime; it starts the bundled one if
// that is the one to use. close releases both; pods stay.
func (p *program) openNode(ctx context.Context, log *slog.Logger) (_ *node, err error) {
	n := &node{p: p, log: log, news: newPullNews()}
	n.metrics = n.measures()
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	root := p.cfg.RootDir
	if n.unlock, err = record.Lock(root); err != nil {
		var held *record.LockedError
		if errors.As(err, &held) {
			return nil, failed(exitFailure, err, "one agent per root directory: stop the other one, or give this one its own --root-dir and --node-name")
		}
		if errors.Is(err, os.ErrPermission) {
			return nil, failed(exitFailure, err, "run it as root, or give it a --root-dir of your own")
		}
		return nil, failed(exitFailure, err)
	}
	if err = record.Node(root, p.cfg.NodeName); err != nil {
		var other *record.NodeError
		if errors.As(err, &other) {
			return nil, failed(exitFailure, err, other.Hint())
		}
		return nil, failed(exitFailure, err)
	}
	if n.machine, n.facts, n.limits, err = p.facts(); err != nil {
		return nil, err
	}
	if n.hostIPs, err = p.hostIPs(ctx); err != nil {
		return nil, failed(exitUsage, fmt.Errorf("--node-ip: %w", err))
	}
	if err = n.findRuntime(ctx); err != nil {
		return nil, err
	}
	n.hints = pleg.New(pleg.Config{Runtime: n.runtime, Relist: p.cfg.SyncFrequency, Observe: n.metrics.Relist, Log: n.log})
	n.groups = n.cgroups()
	n.observer = n.observe()
	n.events = n.store()
	n.records = record.New(root)
	if n.kept, err = n.records.All(); err != nil {
		log.Warn("Some records were not read", "error", err)
	}
	n.sets = p.keptSets()
	n.journal = journal.New(filepath.Join(root, "journal.jsonl"), log)
	n.before = p.statuses(log)
	return n, nil
}

// facts returns this machine, the input of admission made from it and the configuration,
// and the limits of all pods together.
func (p *program) facts() (machine.Facts, plan.Node, v1.ResourceList, error) {
	f, err := machine.Read(p.cfg.RootDir)
	if err != nil {
		return f, plan.Node{}, nil, failed(exitFailure, err)
	}
	system, kube := p.cfg.Reserved()
	reserved := []v1.ResourceList{system, kube}
	if p.cfg.Kubeconfig != "" { // a scheduler expects the kubelet's number
		reserved = append(reserved, f.Spared(p.cfg.Thresholds()))
	}
	allocatable, err := f.Allocatable(reserved...)
	if err != nil {
		return f, plan.Node{}, nil, failed(exitUsage, err, "--system-reserved and --kube-reserved say what pods do not get")
	}
	return f, plan.Node{
		Name:        p.cfg.NodeName,
		Labels:      f.Labels(p.cfg.NodeName, p.cfg.Labels()),
		Taints:      p.cfg.Taints(),
		OS:          f.OS,
		Kernel:      f.Kernel,
		Sysctls:     p.cfg.Sysctls(),
		Allocatable: allocatable,
		MaxPods:     p.cfg.MaxPods,
		NoAppArmor:  f.OS == "linux" && !f.AppArmor,
	}, f.Enforced(p.cfg.Reserved()), nil
}

// lastGood returns the last good set of each source, from the previous agent. It logs and
// skips damaged ones.
func (n *node) lastGood() map[string]podconfig.Restored {
	sets, err := n.sets.Load()
	if err != nil {
		n.log.Warn("Some of the last good sets were not read", "error", err)
	}
	return setsByLayer(sets)
}

// findRuntime finds or starts the runtime.
func (n *node) findRuntime(ctx context.Context) error {
	p := n.p
	found, err := p.discover(ctx)
	if err != nil {
		return failed(exitRuntime, err, "install containerd, name a socket with --runtime-endpoint, or use the nodectl that carries its runtime")
	}
	endpoint := found.Endpoint
	if found.Kind == bundledKind {
		n.bundled = p.bundled()
		if endpoint, err = n.bundled.Start(ctx); err != nil {
			return failed(exitRuntime, err)
		}
	}
	if n.runtime, err = p.dial(endpoint, n.called); err != nil {
		return failed(exitUsage, err)
	}
	if n.puller, err = p.puller(n.runtime, n.news.hear, n.log); err != nil {
		return failed(exitUsage, err, "--image-credential-provider-config names who is asked for registries' credentials")
	}
	n.images = bundle.NewImages(bundle.ImagesConfig{
		Dir:      p.cfg.Images(),
		Endpoint: endpoint,
		Memory:   filepath.Join(p.cfg.RootDir, "images-imported.json"),
		Owners:   trustedOwners(p.env),
		Insecure: p.cfg.InsecureManifestPermissions,
		Log:      n.log,
	})
	return nil
}

// bundledKind is the name of the bundled runtime in bundle.Found.
const bundledKind = "bundled"

// discover finds the runtime to use. A running bundled one stays in use, whatever was
// installed since: the pods are on it.
func (p *program) discover(ctx context.Context) (bundle.Found, error) {
	if b := p.bundled(); p.cfg.RuntimeEndpoint == "" && b.Running() {
		return bundle.Found{Endpoint: b.Endpoint(), Kind: bundledKind}, nil
	}
	return bundle.Discover(ctx, p.cfg.RuntimeEndpoint)
}

// importFirst imports the images in the image directory before pods start, so that they
// find their images. It does not wait for a runtime, and ends after importPatience:
// lookAfter imports the rest.
func (n *node) importFirst(ctx context.Context) {
	_ = os.Mkdir(n.p.cfg.Images(), 0o700) // so that new archives are seen at once
	ctx, cancel := context.WithTimeout(ctx, importPatience)
	defer cancel()
	if _, err := n.runtime.Ready(ctx); err != nil {
		return
	}
	if err := n.images.Import(ctx); err != nil && ctx.Err() == nil {
		n.log.Warn("Images not imported", "error", err)
	}
}

func (n *node) close() {
	if n.runtime != nil {
		_ = n.runtime.Close()
	}
	if n.unlock != nil {
		n.unlock()
	}
}

// told are the observers of an engine beside the journal, and the function that reads its
// Node object.
type told struct {
	sinks  []engine.Sink // may block
	hear   []engine.Sink // do not block
	events engine.Events
	node   func() (labels map[string]string, taints []v1.Taint, ok bool)
	synced func()
}

// engine makes an engine.
func (n *node) engine(config *podconfig.PodConfig, told told) *engine.Engine {
	p := n.p
	return engine.New(engine.Config{
		PodConfig:          config,
		Runtime:            pulling{n.runtime, n.puller, n.metrics.Pulled},
		Hints:              n.hints,
		Volumes:            n.volumes(),
		Cgroups:            n.podCgroups(),
		Users:              userns.New(userns.Config{Root: p.cfg.RootDir, MaxPods: p.cfg.MaxPods}),
		Records:            n.records,
		Sets:               n.sets,
		Forbids:            p.forbids,
		RequireSourceReady: p.requireSourceReady(),
		Visible:            visible(p.policy),
		Prober:             n.metrics.Prober(probe.New(probe.Config{Exec: n.runtime, Version: readVersion().Version})),
		Sinks:              append([]engine.Sink{n.journal}, told.sinks...),
		Listeners:          told.hear,
		Events:             told.events,
		NodeSeen:           told.node,
		Synced:             told.synced,
		Worked:             n.metrics.Worked,
		WorkerStarted:      n.metrics.WorkerStarted,
		NoClusterDNS:       p.cfg.Kubeconfig != "" && len(p.cfg.ClusterDNS) == 0,
		Log:                n.log,
		Before:             n.before,
		Node:               n.facts,
		HostIPs:            n.hostIPs,
		Services:           p.services(),
		Logs:               logs.New(logs.Config{Dir: p.cfg.PodLogsDir, MaxSize: p.cfg.LogMaxBytes(), MaxFiles: p.cfg.ContainerLogMaxFiles}),
		MaxBackoff:         p.cfg.MaxContainerRestartPeriod,
		SyncFrequency:      p.cfg.SyncFrequency,
	})
}

// volumes makes the manager of pods' volumes.
func (n *node) volumes() *volume.Volumes {
	cfg := volume.Config{
		RootDir: n.p.cfg.RootDir, PodLogsDir: n.p.cfg.PodLogsDir, ContainerLogsDir: n.p.cfg.LogLinks(), Log: n.log,
		ClusterDomain: n.p.cfg.ClusterDomain, Allocatable: n.facts.Allocatable, SELinux: volume.SELinuxEnabled(),
		RecursiveReadOnly: n.recursiveReadOnly, Allow: n.p.allows,
	}
	if api := n.p.apiReader; api != nil {
		cfg.Token, cfg.TrustBundle, cfg.Claim = api.Token, api.TrustBundle, api.Claim
	}
	return volume.New(cfg)
}

// recursiveReadOnly reports whether the runtime supports recursive read-only mounts for pods
// of a class. If the handler of the class is unknown, it has the name of the class, as for
// the sandbox of a static pod.
func (n *node) recursiveReadOnly(class *string) bool {
	ctx, stop := context.WithTimeout(context.Background(), time.Second) // the caller has no context
	defer stop()
	handler, _, err := n.runtime.Handler(ctx, class)
	if err != nil {
		handler = *class
	}
	return n.runtime.RecursiveReadOnly(handler)
}

// podCgroups returns the manager of pods' cgroups. Only root may manage them; for other
// users the runtime decides where pods are.
func (n *node) podCgroups() engine.Cgroups {
	if os.Geteuid() != 0 {
		n.log.Info("Pods have no cgroups of their own: only root may make them")
		return nil
	}
	return timedCgroups{n.groups, n.metrics}
}

// timedCgroups measures the duration of operations on pods' cgroups.
type timedCgroups struct {
	*cgroup.Cgroups
	metrics *metrics.Metrics
}

// Put implements engine.Cgroups.
func (t timedCgroups) Put(want *pod.Spec) (parent string, err error) {
	defer t.ended("create", time.Now())
	return t.Cgroups.Put(want)
}

// Raise implements engine.Cgroups.
func (t timedCgroups) Raise(want *pod.Spec) error {
	defer t.ended("update", time.Now())
	return t.Cgroups.Raise(want)
}

// Lower implements engine.Cgroups.
func (t timedCgroups) Lower(want *pod.Spec) error {
	defer t.ended("update", time.Now())
	return t.Cgroups.Lower(want)
}

// Take implements engine.Cgroups.
func (t timedCgroups) Take(uid string) error {
	defer t.ended("destroy", time.Now())
	return t.Cgroups.Take(uid)
}

func (t timedCgroups) ended(operation string, began time.Time) {
	t.metrics.Cgroup(operation, time.Since(began))
}

// cgroups returns the pods' cgroups, below the one that the configuration names. It changes
// nothing.
func (n *node) cgroups() *cgroup.Cgroups {
	return cgroup.New(cgroup.Config{
		Root: n.p.cfg.CgroupRoot, Node: n.p.cfg.NodeName, RootDir: n.p.cfg.RootDir,
		Driver: n.runtime.Driver, Limits: n.limits, PodPIDs: int64(n.p.cfg.PodPidsLimit), Log: n.log,
	})
}

// lookAfter restarts the bundled runtime when it dies and imports new images, until ctx
// ends.
func (n *node) lookAfter(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := n.images.Watch(ctx); err != nil {
			n.log.Warn("Image directory is not watched", "error", err)
		}
	})
	if n.bundled == nil {
		return
	}
	failed := ""
	for {
		select {
		case <-time.After(superviseEvery):
		case <-ctx.Done():
			return
		}
		started, err := n.bundled.Ensure(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != failed:
			n.log.Error("Bundled runtime is not well", "error", err)
			failed = err.Error()
		case err == nil:
			failed = ""
			if started {
				n.log.Warn("Bundled runtime had ended and was started again")
			}
		}
	}
}

// awaitRuntime waits until the runtime answers, and returns an error after limit.
func (n *node) awaitRuntime(ctx context.Context, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	var silent error
	for {
		_, err := n.runtime.Ready(ctx)
		if silent == nil || !errors.Is(err, context.DeadlineExceeded) {
			silent = err
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return context.Cause(ctx)
		case ctx.Err() == nil && time.Now().Before(deadline):
		case errors.Is(silent, context.DeadlineExceeded):
			return failed(exitRuntime, errors.New("container runtime at "+n.runtime.Endpoint()+" does not answer"))
		default:
			return failed(exitRuntime, silent)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// statuses returns the last status of every pod in the journal.
func (p *program) statuses(log *slog.Logger) map[pod.Key]v1.PodStatus {
	entries, err := journal.Read(filepath.Join(p.cfg.RootDir, "journal.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("Journal not read", "error", err)
	}
	m := make(map[pod.Key]v1.PodStatus, len(entries))
	for key, e := range entries {
		if e.Pod != nil {
			m[key] = e.Pod.Status
		}
	}
	return m
}

// hostIPs returns this machine's addresses: those of --node-ip, else the one of the default
// route, else loopback. It resolves the node's name by DNS in a cluster only.
func (p *program) hostIPs(ctx context.Context) ([]string, error) {
	name := ""
	if p.cfg.Kubeconfig != "" {
		name = p.cfg.NodeName
	}
	ips, err := machine.HostIPs(ctx, name, p.cfg.NodeIP)
	if err != nil && len(p.cfg.NodeIP) == 0 { // static pods do not wait for the network
		return []string{"127.0.0.1"}, nil
	}
	return ips, err
}

// supervise returns the supervisor of a serving agent. It checks the sync loop, the workers,
// and the drain of the runtime's events.
func (n *node) supervise(e *engine.Engine, answering <-chan struct{}) *supervisor {
	return &supervisor{
		log: n.log, answering: answering,
		checks: []func(context.Context) error{e.Beat, n.hints.Beat},
		dump:   filepath.Join(n.p.cfg.RootDir, "goroutines.txt"),
	}
}
