package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	images "github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
)

// machine is one node in a synctest bubble: a runtime, a disk, one manifest source, and
// agents that start and end.
type machine struct {
	t     *testing.T
	rt    *critest.Runtime
	disk  *disk
	src   *wishes
	more  *wishes         // a second layer; nil for none
	mute  bool            // the source does not answer the next agent
	extra []source.Source // more layers; nil for none
	alter func(*Config)   // changes the configuration of the next agents; nil changes nothing

	groups *groups // nil: pods have no cgroups of their own
	root   string  // the agents' files are really below it; "": on disk, the fake

	log   lines
	agent *agent
}

// lines is a log that two agents may write to at once.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// agent is one run of nodectl on the machine.
type agent struct {
	engine *Engine
	conn   *critest.Conn
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// bubble runs f in fake time on a fresh machine, and checks I1 and I4 at its end.
func bubble(t *testing.T, f func(t *testing.T, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{t: t, rt: critest.New(), disk: newDisk(), src: newWishes()}
		defer func() {
			if t.Failed() {
				t.Log(m.log.String())
			}
		}()
		f(t, m)
		if m.agent != nil {
			m.leave()
		}
		if err := m.rt.Check(); err != nil {
			t.Error(err)
		}
	})
}

// settle waits until every goroutine is blocked, without time passing.
func (m *machine) settle() { synctest.Wait() }

// pass advances the fake time by d.
func (m *machine) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (m *machine) config(conn *critest.Conn) Config {
	rt := conn.CRI(cri.Config{Node: "n1", PodLogsDir: "", NodeMemory: 8 << 30})
	puller := images.New(images.Config{Runtime: rt, Dir: m.t.TempDir()})
	go puller.Run(m.t.Context())
	var sources []source.Source
	if m.src != nil {
		sources = append(sources, m.src.reader(m.mute))
	}
	if m.more != nil {
		sources = append(sources, m.more.reader(false))
	}
	sources = append(sources, m.extra...)
	cfg := Config{
		PodConfig: podconfig.New(podconfig.Config{Sources: sources, Restored: m.disk.restored()}),
		Sets:      m.disk.setsOrNil(),
		Runtime: struct {
			*cri.Runtime
			*images.Puller
		}{rt, puller},
		Hints:              pleg.New(pleg.Config{Runtime: rt}),
		Volumes:            m.disk,
		Records:            m.disk,
		Prober:             m.disk,
		Sinks:              []Sink{m.disk},
		Before:             m.disk.before(),
		Log:                slog.New(slog.NewTextHandler(&m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Starts:             2,
		RequireSourceReady: map[string]bool{"api": true},
	}
	if m.groups != nil {
		cfg.Cgroups = m.groups
	}
	if m.root != "" {
		m.useRoot(&cfg, conn)
	}
	if m.alter != nil {
		m.alter(&cfg)
	}
	return cfg
}

// arrive starts an agent.
func (m *machine) arrive() {
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{conn: m.rt.Connect(), cancel: cancel, done: make(chan struct{})}
	e := New(m.config(a.conn))
	a.engine = e
	m.agent = a
	go func() { defer close(a.done); a.err = e.Run(ctx) }()
	m.settle()
}

// leave ends the agent as SIGTERM does.
func (m *machine) leave() {
	m.agent.cancel()
	<-m.agent.done
	if m.agent.err != nil {
		m.t.Errorf("Run: %v", m.agent.err)
	}
	m.agent = nil
}

// die ends the agent as kill -9 does: none of its later calls has an effect.
func (m *machine) die() {
	m.agent.conn.Cut()
	m.disk.cutOff(true)
	m.agent.cancel()
	<-m.agent.done
	m.agent = nil
	m.disk.cutOff(false)
}

// want compares the runtime's state.
func (m *machine) want(lines ...string) {
	m.t.Helper()
	slices.Sort(lines)
	if got, want := strings.TrimSpace(m.rt.State()), strings.Join(lines, "\n"); got != want {
		m.t.Errorf("runtime:\n%s\nwant:\n%s", got, want)
	}
}

// phase returns the newest phase reported of a pod, "gone" when it is.
func (m *machine) phase(name string) string {
	l := m.disk.last(pod.Key{Namespace: "default", Name: name})
	switch {
	case l == nil:
		return "never reported"
	case l.gone:
		return "gone"
	}
	return string(l.pod.Status.Phase)
}

// mkpod makes a spec; edits change it before its hashes are made.
func mkpod(name string, edits ...func(*v1.Pod)) *pod.Spec {
	grace := int64(30)
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = name, "default", types.UID("uid-"+name)
	p.Spec.RestartPolicy = v1.RestartPolicyAlways
	p.Spec.TerminationGracePeriodSeconds = &grace
	p.Spec.Containers = []v1.Container{{Name: "app", Image: "app:1", ImagePullPolicy: v1.PullIfNotPresent}}
	for _, edit := range edits {
		edit(p)
	}
	s := &pod.Spec{
		Key:             pod.KeyOf(p),
		Origin:          pod.Origin{Source: "file", Location: "/m", File: "/m/" + name + ".yaml", Line: 1},
		Pod:             p,
		ContainerHashes: map[string]string{},
	}
	rest := p.DeepCopy()
	for _, c := range p.Spec.Containers {
		s.ContainerHashes[c.Name] = sum(c)
	}
	rest.Spec.Containers, rest.Spec.TerminationGracePeriodSeconds = nil, nil
	s.SandboxHash = sum(rest.Spec)
	s.Hash = sum(p)
	return s
}

func sum(v any) string {
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(v); err != nil {
		panic(err)
	}
	return fmt.Sprintf("v1-%016x", h.Sum64())
}

func image(name string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Image = name }
}

func policy(r v1.RestartPolicy) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.RestartPolicy = r }
}

func graceSeconds(n int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = &n }
}

func initContainer(img string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: "init", Image: img, ImagePullPolicy: v1.PullIfNotPresent})
	}
}

// wishes is a source of pods that a test sets.
type wishes struct {
	name string
	mu   sync.Mutex
	pods []*pod.Spec
	// objects are in a file of their own.
	objects []*pod.Object
	err     error
	tell    chan struct{}
}

func newWishes() *wishes { return &wishes{name: "file:/m", tell: make(chan struct{}, 1)} }

// set replaces the set.
func (w *wishes) set(pods ...*pod.Spec) { w.change(pods, nil) }

// hold replaces the config objects.
func (w *wishes) hold(objects ...*pod.Object) {
	w.mu.Lock()
	w.objects = objects
	pods := w.pods
	w.mu.Unlock()
	w.change(pods, nil)
}

// fail makes every read of the source fail.
func (w *wishes) fail(err error) { w.change(nil, err) }

func (w *wishes) change(pods []*pod.Spec, err error) {
	w.mu.Lock()
	w.pods, w.err = pods, err
	w.mu.Unlock()
	select {
	case w.tell <- struct{}{}:
	default:
	}
}

func (w *wishes) reader(mute bool) source.Source { return &wishReader{w, mute} }

type wishReader struct {
	*wishes
	mute bool
}

func (w *wishReader) Name() string { return w.wishes.name }

func (w *wishReader) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		select { // drop the messages to an earlier agent
		case <-w.tell:
		default:
		}
		for rev := uint64(1); ; rev++ {
			w.mu.Lock()
			pods, objects, err := w.pods, w.objects, w.err
			w.mu.Unlock()
			snap := source.Snapshot{Revision: rev}
			var files []source.File
			for _, p := range pods {
				snap.Changed = append(snap.Changed, p.Key)
				files = append(files, source.File{File: p.Origin.File, Pods: []*pod.Spec{p}})
			}
			if len(objects) > 0 {
				files = append(files, source.File{File: "/m/objects.yaml", Objects: objects})
			}
			snap.Files = source.FilesOf(files...)
			if err != nil {
				snap = source.Snapshot{}
			}
			if !w.mute && !yield(snap, err) {
				return
			}
			select {
			case <-w.tell:
			case <-ctx.Done():
				return
			}
		}
	}
}

// disk has the data that outlives an agent: records, volumes, the journal. It is also the prober,
// whose results a test sets.
type disk struct {
	mu         sync.Mutex
	full       bool
	shut       bool                                              // the journal is full too
	killed     bool                                              // the agent that writes now was killed
	slow       time.Duration                                     // how long writing a set takes
	slowRecord time.Duration                                     // how long writing a record takes
	stuck      time.Duration                                     // how long setting up volumes takes, for a pod that has some
	hung       func(call string, want *pod.Spec) <-chan struct{} // a call for volumes hangs until it is closed; nil: it does not
	records    map[pod.Key]pod.Record
	sets       map[string]map[string]pod.LastGoodSet // by layer and file; nil: no sets are kept
	volumes    map[string]string                     // "uid/instance" → the data they show
	setUpCall  activity.Call                         // that SetUp notes for a pod with volumes
	setUps     int                                   // calls of SetUp
	over       map[string]string                     // by UID: the limit that the pod exceeds
	overLayers func(layers map[string]int64) string  // in place of over; nil: over
	journal    map[pod.Key]*statusLine
	lines      []statusLine
	sick       map[string]bool // containers whose probes fail, by name

	onReport func(pod.StatusReport) // called for each report; nil: not called
	onSweep  func()                 // called when a sweep begins; nil: not called
	setUpErr error                  // of pods with volumes; may be nil
	onSwept  func()                 // called with the objects that a sweep removed; may be nil

	hooks     []hookRun
	hookTakes map[string]time.Duration // by container name
	hookFails map[string]error

	probeHangs chan struct{} // probes hang until it is closed; nil: they do not
}

func newDisk() *disk {
	return &disk{records: map[pod.Key]pod.Record{}, volumes: map[string]string{}, journal: map[pod.Key]*statusLine{}, sick: map[string]bool{}}
}

// refuse fills the disk, the journal's too, or frees room.
func (d *disk) refuse(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.shut = full, full
}

// cutOff keeps an agent that was killed from writing sets.
func (d *disk) cutOff(killed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed = killed
}

var errFull = fmt.Errorf("no space left on device")

func (d *disk) Load(key pod.Key, uid string) (pod.Record, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.records[key]
	r.Attempts, r.ContainerNotes = maps.Clone(r.Attempts), maps.Clone(r.ContainerNotes)
	return r, ok, d.ofAnother(key, uid)
}

func (d *disk) Owner(uid string) (pod.Key, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, r := range d.records {
		if r.UID == uid {
			return key, true, nil
		}
	}
	return pod.Key{}, false, nil
}

// ofAnother is an error where the record of the UID is another pod's; mu is held.
func (d *disk) ofAnother(key pod.Key, uid string) error {
	for k, r := range d.records {
		if k != key && uid != "" && r.UID == uid {
			return &pod.OwnerError{UID: uid, Owner: k}
		}
	}
	return nil
}

func (d *disk) All() ([]pod.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.records)), nil
}

// takes sets how long writing a record takes.
func (d *disk) takes(long time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slowRecord = long
}

func (d *disk) Save(r pod.Record) error {
	d.mu.Lock()
	long := d.slowRecord
	d.mu.Unlock()
	backoff.Sleep(context.Background(), long) // in fake time
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return errFull
	}
	if err := d.ofAnother(r.Key, r.UID); err != nil {
		return err
	}
	r.Attempts, r.ContainerNotes, r.Devices = maps.Clone(r.Attempts), maps.Clone(r.ContainerNotes), maps.Clone(r.Devices)
	d.records[r.Key] = r
	return nil
}

func (s setsOf) Save(layer string, _ time.Time, changed []pod.LastGoodSet) error {
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full || s.killed {
		return errFull
	}
	if s.sets[layer] == nil {
		s.sets[layer] = map[string]pod.LastGoodSet{}
	}
	for _, c := range changed {
		if s.sets[layer][c.File] = c; c.Empty() {
			delete(s.sets[layer], c.File)
		}
	}
	return nil
}

func (d *disk) SetUp(ctx context.Context, want *pod.Spec, _ pod.Place, instance int) error {
	if len(want.Pod.Spec.Volumes) > 0 {
		time.Sleep(d.stuck)
		if d.setUpCall.Kind != "" {
			defer activity.Begin(ctx, d.setUpCall)()
		}
	}
	d.onVolumes("SetUp", want)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full && len(want.Pod.Spec.Volumes) > 0 {
		return errFull
	}
	if d.setUpErr != nil && len(want.Pod.Spec.Volumes) > 0 {
		return d.setUpErr
	}
	d.setUps++
	d.volumes[fmt.Sprintf("%s/%d", want.UID(), instance)] = shows(want)
	return nil
}

func (d *disk) Ready(want *pod.Spec, instance int) (put, current bool, until time.Time) {
	d.onVolumes("Ready", want)
	d.mu.Lock()
	defer d.mu.Unlock()
	shown, put := d.volumes[fmt.Sprintf("%s/%d", want.UID(), instance)]
	return put, put && shown == shows(want), time.Time{}
}

func (d *disk) HasDriverVolumes(string) bool { return false } // it has no drivers

// shows is the data that the volumes of a pod show.
func shows(want *pod.Spec) string {
	hash, _ := want.Data.Hash(func(pod.ObjectID) bool { return true })
	return hash
}

func (d *disk) Devices(pod.CreateRequest) ([]pod.BlockDevice, error) { return nil, nil }

func (d *disk) Mounts(_ context.Context, r pod.CreateRequest) ([]pod.Mount, error) {
	d.onVolumes("Mounts", r.Want)
	return nil, nil
}

// onVolumes hangs as long as the test wants, as a network file system can.
func (d *disk) onVolumes(call string, want *pod.Spec) {
	if d.hung == nil {
		return
	}
	if until := d.hung(call, want); until != nil {
		<-until
	}
}

func (d *disk) File(*pod.Spec, int, string, string) ([]byte, error) { return nil, os.ErrNotExist }

func (d *disk) ExceededLimit(_ context.Context, want *pod.Spec, _ int, layers map[string]int64) (string, error) {
	d.onVolumes("ExceededLimit", want)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.overLayers != nil {
		return d.overLayers(layers), nil
	}
	return d.over[want.UID()], nil
}

func (d *disk) TearDown(_ context.Context, uid string, instance int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, fmt.Sprintf("%s/%d", uid, instance))
	return nil
}

func (d *disk) Forget(_ context.Context, key pod.Key, uid string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.records[key].UID == uid {
		delete(d.records, key)
	}
	for v := range d.volumes {
		if strings.HasPrefix(v, uid+"/") {
			delete(d.volumes, v)
		}
	}
	return nil
}

func (d *disk) Sweep(_ context.Context, keep func(string) bool) (removed []string, _ error) {
	if d.onSweep != nil {
		d.onSweep()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for v := range d.volumes {
		if uid, _, _ := strings.Cut(v, "/"); !keep(uid) {
			if d.onSwept != nil {
				d.mu.Unlock()
				d.onSwept()
				d.mu.Lock()
			}
			delete(d.volumes, v)
			removed = append(removed, uid)
		}
	}
	return removed, nil
}

func (d *disk) Report(r pod.StatusReport) error {
	if d.onReport != nil {
		d.onReport(r)
	}
	p, gone, at := r.Pod, r.Gone, r.At
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full && d.shut {
		return errFull
	}
	line := statusLine{pod: p.DeepCopy(), origin: r.Origin, gone: gone, at: at, finished: r.Finished}
	d.lines = append(d.lines, line)
	d.journal[pod.KeyOf(p)] = &line
	return nil
}

func (d *disk) last(key pod.Key) *statusLine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.journal[key]
}

func (d *disk) before() map[pod.Key]v1.PodStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := make(map[pod.Key]v1.PodStatus)
	for k, l := range d.journal {
		if !l.gone {
			m[k] = l.pod.Status
		}
	}
	return m
}

// empty returns an error if anything of a pod is left on the disk.
func (d *disk) empty() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.records)+len(d.volumes) > 0 {
		return fmt.Errorf("left on disk: records %v, volumes %v", slices.Collect(maps.Keys(d.records)), slices.Collect(maps.Keys(d.volumes)))
	}
	return nil
}

func (d *disk) Probe(_ context.Context, r pod.ProbeRequest) error {
	if d.probeHangs != nil {
		<-d.probeHangs
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sick[r.Container.Name] {
		return &pod.ProbeFailure{Message: "not well"}
	}
	return nil
}

// Hook takes as long as hookTakes says, and ends as hookFails does.
func (d *disk) Hook(ctx context.Context, r pod.HookRequest) error {
	d.mu.Lock()
	takes, err := d.hookTakes[r.Container.Name], d.hookFails[r.Container.Name]
	d.hooks = append(d.hooks, hookRun{r.Container.Name, r.ContainerID, time.Now()})
	d.mu.Unlock()
	select {
	case <-time.After(takes):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hookRun is one hook that was begun.
type hookRun struct {
	container, id string
	at            time.Time
}

func (d *disk) ran() []hookRun {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.hooks)
}

// statusLine is one status on the disk.
type statusLine struct {
	pod    *v1.Pod
	origin pod.Origin
	gone   bool
	at     time.Time

	finished bool
}
