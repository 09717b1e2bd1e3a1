package soakdevices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/csi"
	"github.com/nodectl/nodectl/pkg/device"
	"github.com/nodectl/nodectl/pkg/dra"
	"github.com/nodectl/nodectl/pkg/engine"
	images "github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/volume"
	"github.com/nodectl/nodectl/test/plugins"
)

const nodeName = "n1"

var errKilled = errors.New("the agent was killed")

// world is one node with its runtime, disk, plugins and API server. It outlives its agents. All of
// its time is fake, and its files and mounts are real, below root.
type world struct {
	t      *testing.T
	root   string
	rt     *critest.Runtime
	net    network
	api    *apiServer
	gpu    *plugins.GPUs
	cards  *plugins.Cards
	disks  *plugins.Disks
	agent  *agent
	boot   int
	plugIn time.Time      // when the plugins start after a reboot; zero: they have started
	away   func()         // called while no agent runs; nil: nothing is
	ran    map[string]ran // the containers that ran when an agent was killed, by ID
	killed chan fate      // a step has ended the agent

	mu       sync.Mutex
	n        int          // steps so far
	fates    map[int]fate // by step
	steps    map[string]int
	ends     []string // the steps after which an agent ended
	problems []string
	broken   map[promise]int
	sets     map[string]string // the devices, CPUs and claims of containers, by UID and name
	statuses map[pod.Key]pod.StatusReport
	log      bytes.Buffer
}

// fate is the event after a step.
type fate int

const (
	kill fate = iota + 1
	reboot
)

// Write implements io.Writer, for the logs of agents.
func (w *world) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(text)
}

func (w *world) path(elements ...string) string {
	return filepath.Join(append([]string{w.root}, elements...)...)
}

// promise is a promise of the agent. Its text names its breaches in the report.
type promise string

const (
	refused promise = "pods refused with UnexpectedAdmissionError, or failed"
	changed promise = "changed sets of devices, CPUs or claims"
	shared  promise = "devices or exclusive CPUs with two users"
	left    promise = "leaks of devices, CPUs, claims, volumes, files or containers"
	mounted promise = "mounts left"
	twice   promise = "claims prepared twice, volumes staged or published twice"
	waiting promise = "pods that did not run again"
	ended   promise = "running containers that a kill of the agent ended"
	without promise = "pods that run without their claim or volume"
	gone    promise = "idle drivers taken for gone"
	other   promise = "other errors"
)

// promises are in the order of the report.
var promises = []promise{refused, changed, shared, left, mounted, twice, waiting, ended, without, gone, other}

// problem notes a breach of a promise.
func (w *world) problem(p promise, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken[p]++
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// step counts a write to the disk or an outgoing call of the agent, right after it took effect. It
// ends the agent if that is the fate of the step: then the answer does not reach it.
func (w *world) step(name string) {
	w.mu.Lock()
	a := w.agent
	if a == nil || a.dead.Load() {
		w.mu.Unlock()
		return
	}
	w.n++
	w.steps[name]++
	end := w.fates[w.n]
	if end != 0 {
		w.ends = append(w.ends, name)
		a.dead.Store(true)
	}
	w.mu.Unlock()
	if end != 0 {
		a.cut()
		w.killed <- end
		return
	}
	backoff.Sleep(context.Background(), time.Millisecond)
}

// agent is one run of nodectl.
type agent struct {
	w       *world
	conn    *critest.Conn
	line    *line
	csi     *csi.Volumes
	claims  *dra.Claims
	devices *device.Plugins
	dead    atomic.Bool
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	err     error
}

// arrive starts an agent.
func (w *world) arrive() {
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{w: w, conn: w.rt.Connect(), line: w.net.line(), cancel: cancel}
	log, boot, kubelet := slog.New(slog.NewTextHandler(w, nil)), fmt.Sprint("boot-", w.boot), w.path("kubelet")
	of := calls{w.api, a}
	a.csi = csi.New(csi.Config{Node: nodeName, Dir: kubelet, Log: log, Boot: boot, Dial: a.line.Dial, Cut: a.point("csi")})
	a.csi.Join(csi.Cluster{API: of, Node: a.node, Report: func() {}})
	a.claims = dra.New(dra.Config{Dir: w.path("root", "resource-claims"), Log: log, Boot: boot, Dial: a.line.Dial, Cut: a.point("dra")})
	a.claims.Join(dra.Cluster{API: of, Node: a.node})
	a.devices = device.New(device.Config{Dir: kubelet, Log: log, Sockets: a.line, Handlers: map[string]device.Handler{
		registerapi.CSIPlugin: csiPlugins{a.csi}, registerapi.DRAPlugin: a.claims,
	}})
	w.mu.Lock()
	w.agent = a
	w.mu.Unlock()
	e := engine.New(a.config(ctx, log, boot))
	a.wg.Go(func() { a.csi.Run(ctx) })
	a.wg.Go(func() { a.claims.Run(ctx) })
	a.wg.Go(func() {
		if err := a.devices.Run(ctx); err != nil && !a.dead.Load() {
			w.problem(other, "device plugins are not served: %v", err)
		}
	})
	a.wg.Go(func() { a.err = e.Run(ctx) })
	synctest.Wait()
}

// csiPlugins registers CSI drivers, as in package agent.
type csiPlugins struct{ *csi.Volumes }

// Register implements device.Handler.
func (p csiPlugins) Register(ctx context.Context, name, endpoint string, _ []string) error {
	return p.Volumes.Register(ctx, name, endpoint)
}

// config returns the configuration of the agent's engine.
func (a *agent) config(ctx context.Context, log *slog.Logger, boot string) engine.Config {
	w := a.w
	root := w.path("root")
	rt := a.conn.CRI(cri.Config{Node: nodeName, RootDir: root, NodeMemory: 128 << 30})
	puller := images.New(images.Config{Runtime: rt, Dir: filepath.Join(root, "image_manager")})
	a.wg.Go(func() { puller.Run(ctx) })
	machine, err := cpuset.Read(cpusettest.Sys(w.t, "two-sockets-smt"))
	if err != nil {
		w.t.Fatal(err)
	}
	cpus, err := cpuset.New(machine, cpuset.Policy{
		CPU: "static", Memory: "Static", Topology: "single-numa-node", Scope: "pod",
		Reservation:    v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")},
		ReservedMemory: map[int]cpuset.Reserved{0: {v1.ResourceMemory: 1 << 30}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	before := make(map[pod.Key]v1.PodStatus)
	for key, r := range w.reports() {
		if !r.Gone {
			before[key] = r.Pod.Status
		}
	}
	return engine.Config{
		PodConfig: podconfig.New(podconfig.Config{Sources: []source.Source{w.api.source()}}),
		Runtime: struct {
			*cri.Runtime
			*images.Puller
		}{rt, puller},
		Hints: pleg.New(pleg.Config{Runtime: rt}),
		Volumes: volumes{volume.New(volume.Config{
			RootDir: root, Boot: boot, Log: log, Drivers: a.csi, Claim: w.api.boundVolume,
		}), a},
		Devices: a.devices, Claims: a.claims, Records: records{record.New(root), a}, Prober: noProbes{},
		Sinks: []engine.Sink{sink{a}}, Before: before, Log: log, Starts: 4, CPUs: cpus, SaveCPUs: a.saveCPUs,
		RequireSourceReady: map[string]bool{pod.SourceAPI: true},
	}
}

// noProbes is a Prober without probes and hooks.
type noProbes struct{}

func (noProbes) Probe(context.Context, pod.ProbeRequest) error { return nil }
func (noProbes) Hook(context.Context, pod.HookRequest) error   { return nil }

// cut ends all connections of the agent: none of its later calls has an effect.
func (a *agent) cut() {
	a.conn.Cut()
	a.line.Cut()
}

// point returns the test's hook for the writes of a package. An agent that was killed stops there.
func (a *agent) point(name string) func(string) error {
	return func(point string) error {
		if a.dead.Load() {
			return errKilled
		}
		a.w.step(name + " " + point)
		if a.dead.Load() {
			return errKilled
		}
		return nil
	}
}

// wrote counts a write to the disk. It returns an error if the agent ended with it.
func (a *agent) wrote(what string, err error) error {
	if err == nil {
		err = a.point("disk")(what)
	}
	return err
}

// end ends the agent. It leaves everything as it is.
func (w *world) end() {
	a := w.agent
	a.dead.Store(true)
	a.cut()
	a.cancel()
	a.wg.Wait()
	if a.err != nil {
		w.problem(other, "the engine ended: %v", a.err)
	}
	w.mu.Lock()
	w.agent = nil
	w.mu.Unlock()
}

// records are the files of pods, whose writes are steps.
type records struct {
	*record.Records
	a *agent
}

// Save implements engine.Records.
func (r records) Save(of pod.Record) error {
	if r.a.dead.Load() {
		return errKilled
	}
	return r.a.wrote("record", r.Records.Save(of))
}

// volumes are the volumes of pods. The calls that change the disk are steps.
type volumes struct {
	*volume.Volumes
	a *agent
}

// SetUp implements engine.Volumes.
func (v volumes) SetUp(ctx context.Context, want *pod.Spec, p pod.Place, instance int) error {
	if v.a.dead.Load() {
		return errKilled
	}
	return v.a.wrote("volumes set up", v.Volumes.SetUp(ctx, want, p, instance))
}

// TearDown implements engine.Volumes.
func (v volumes) TearDown(ctx context.Context, uid string, instance int) error {
	if v.a.dead.Load() {
		return errKilled
	}
	return v.a.wrote("volumes torn down", v.Volumes.TearDown(ctx, uid, instance))
}

// Forget implements engine.Volumes.
func (v volumes) Forget(ctx context.Context, key pod.Key, uid string) error {
	if v.a.dead.Load() {
		return errKilled
	}
	return v.a.wrote("pod removed", v.Volumes.Forget(ctx, key, uid))
}

// Sweep implements engine.Volumes.
func (v volumes) Sweep(ctx context.Context, keep func(string) bool) ([]string, error) {
	if v.a.dead.Load() {
		return nil, errKilled
	}
	removed, err := v.Volumes.Sweep(ctx, keep)
	return removed, v.a.wrote("swept", err)
}

// saveCPUs writes the kubelet's state files.
func (a *agent) saveCPUs(files map[string][]byte) error {
	for name, text := range files {
		if a.dead.Load() {
			return errKilled
		}
		if err := a.wrote(name, atomicfile.Write(a.w.path("root", name), text, atomicfile.Options{})); err != nil {
			return err
		}
	}
	return nil
}

// sink is the journal: it has the newest status of each pod.
type sink struct{ a *agent }

// Report implements engine.Sink.
func (s sink) Report(r pod.StatusReport) error {
	if s.a.dead.Load() {
		return errKilled
	}
	w := s.a.w
	w.mu.Lock()
	r.Pod = r.Pod.DeepCopy()
	w.statuses[pod.KeyOf(r.Pod)] = r
	w.mu.Unlock()
	failed := r.Pod.Status.Phase == v1.PodFailed && r.Pod.DeletionTimestamp == nil && !r.NotDesired // a reboot fails a pod that stops
	if failed || strings.Contains(fmt.Sprint(r.Pod.Status), pod.ReasonUnexpectedAdmission) {
		w.problem(refused, "%s is refused: %s %s %s", pod.KeyOf(r.Pod), r.Pod.Status.Phase, r.Pod.Status.Reason, r.Pod.Status.Message)
	}
	w.api.reported(r)
	return s.a.wrote("status", nil)
}

// reports returns the newest status of each pod.
func (w *world) reports() map[pod.Key]pod.StatusReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.statuses)
}

// newWorld returns a node on which the plugins and an agent run.
func newWorld(t *testing.T, root string, fates map[int]fate) *world {
	t.Helper()
	w := &world{
		t: t, root: root, rt: critest.New(), fates: fates, killed: make(chan fate, 1),
		steps: make(map[string]int), sets: make(map[string]string), broken: make(map[promise]int), ran: make(map[string]ran), statuses: make(map[pod.Key]pod.StatusReport),
	}
	w.net.at = make(map[string]*endpoint)
	w.api = newAPIServer(w)
	of := &plugins.Node{
		Dir: w.path("kubelet"), Line: func() plugins.Line { return w.net.line() }, Step: w.step, Lost: func(time.Time) bool { return false },
		Failed: func(err error) { w.problem(other, "%v", err) },
	}
	w.gpu = plugins.NewGPUs(of, "g0", "g1", "g2", "g3")
	w.cards, w.disks = plugins.NewCards(of), plugins.NewDisks(of, w.path("disks"))
	for _, dir := range []string{"root", "kubelet", "disks"} {
		if err := os.Mkdir(w.path(dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	w.rt.AfterEach(func(_ int, line string) {
		f := strings.Fields(line) // time, method, object
		if f[1] == "CreateContainer" {
			w.noteSets(f[2])
		}
		w.step("CRI " + f[1])
	})
	w.arrive()
	w.startPlugins()
	return w
}

func (w *world) startPlugins() {
	w.plugIn = time.Time{}
	w.gpu.Start()
	w.cards.Start()
	w.disks.Start()
}

func (w *world) killPlugins() {
	w.gpu.Kill()
	w.cards.Kill()
	w.disks.Kill()
}

// late is the delay of every plugin after a reboot.
const late = 30 * time.Second

// live lets time pass, and starts another agent a second after one has ended.
func (w *world) live(long time.Duration) {
	over := time.Now().Add(long)
	for time.Now().Before(over) {
		second, stop := context.WithTimeout(context.Background(), time.Second)
		select {
		case end := <-w.killed:
			w.end()
			w.cards.Prepared.Doubt(w.knowsClaim)
			w.disks.Mounted.Doubt(w.knowsMount)
			if w.noteRunning(); end == reboot {
				w.reboot()
			}
			if w.away != nil {
				w.away()
			}
			backoff.Sleep(context.Background(), time.Second)
			w.arrive()
		case <-second.Done():
		}
		stop()
		if !w.plugIn.IsZero() && !time.Now().Before(w.plugIn) {
			w.startPlugins()
		}
		w.api.finish()
	}
	synctest.Wait()
}

// reboot ends everything that a reboot ends.
func (w *world) reboot() {
	w.rt.Reboot()
	w.killPlugins()
	w.cards.Prepared.Lose()
	w.disks.Mounted.Lose()
	w.unmountAll()
	w.boot++
	clear(w.ran)
	w.plugIn = time.Now().Add(late)
}

// leave ends the agent, and the plugins after it.
func (w *world) leave() {
	if w.agent != nil {
		w.end()
	}
	w.killPlugins()
	select {
	case <-w.killed:
	default:
	}
}

// files returns the files below a directory.
func (w *world) files(dir string) (all []string) {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		w.problem(other, "read %s: %v", dir, err)
	}
	return all
}
