// Package bundle is the bundled container runtime: containerd, its shim, runc, the CNI
// plugins and a pause image, for machines without a runtime of their own.
//
// A Runtime unpacks the programs below the agent's root directory, starts containerd
// detached from the agent, and finds it again in the process table. Pods and containerd
// outlive nodectl, so the state is read from /proc, not remembered. The same package
// imports image archives, into any containerd, and finds a runtime that the machine already
// has.
//
// Stop removes everything that the package makes outside the root directory and the run
// directory.
package bundle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// DefaultSubnet and DefaultBridge are the pod network of a Runtime if its Config names
// none.
const (
	DefaultSubnet = "10.88.0.0/16"
	DefaultBridge = "nodectl0"
)

// namespace is containerd's namespace of all CRI objects.
const namespace = "k8s.io"

const (
	startLimit     = 30 * time.Second     // from containerd's start, or from finding it, to its first answer
	startPoll      = 5 * time.Millisecond // between two checks of a containerd that starts
	uncertainLimit = 3 * time.Second      // for a process that may be containerd to turn out as one or to end
	logLimit       = 10 << 20             // a log this long is set aside
)

// ErrSlim says that this binary contains no runtime.
var ErrSlim = errors.New("this nodectl contains no container runtime (it was built without the bundle)")

var errNotRoot = errors.New("the bundled container runtime needs root")

// Config has the directories of a bundled runtime, and the network of its pods.
type Config struct {
	// RootDir is the agent's root directory, absolute: programs go to
	// RootDir/bundle, images, layers and containerd's log to RootDir/runtime.
	RootDir string
	// RunDir holds sockets and all that does not survive a reboot. Empty is a directory
	// below /run/nodectl that depends on RootDir. It has to be short: a socket's path may
	// have 107 bytes.
	RunDir string
	// Archive is the bundle to unpack, as hack/bundle/build makes it. Empty is the one in
	// this binary.
	Archive string
	// Programs is a directory with an unpacked bundle, used instead of an archive.
	Programs string
	// Subnet is the pods' network (DefaultSubnet), Bridge its device (DefaultBridge). A
	// change takes effect when containerd is started and no pod runs.
	Subnet, Bridge string
	// Handlers are further names of the runtime handler "runc", for the RuntimeClasses that name them.
	Handlers []string
	// Log gets messages for a person; nil discards them.
	Log *slog.Logger
}

// A Runtime is the bundled runtime of one root directory. Its methods may be
// called by several goroutines and by several processes at once: a lock file in
// the root directory lets them act one after the other.
type Runtime struct {
	root     string // RootDir/runtime
	unpacked string // RootDir/bundle
	run      string
	archive  string
	programs string
	subnet   string
	bridge   string
	handlers []string
	log      *slog.Logger

	busy     chan struct{} // holds one while a method has the lock file, which excludes only processes
	child    int           // the containerd this process started, to be reaped; guarded by busy
	answered process       // the containerd that has answered; guarded by busy

	profile sync.Mutex // guards the file of PauseProfile
}

// New returns the runtime that cfg describes. It starts nothing.
func New(cfg Config) *Runtime {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Runtime{
		root:     filepath.Join(cfg.RootDir, "runtime"),
		unpacked: filepath.Join(cfg.RootDir, "bundle"),
		run:      cmp.Or(cfg.RunDir, RunDir(cfg.RootDir)),
		archive:  cfg.Archive,
		programs: cfg.Programs,
		subnet:   cmp.Or(cfg.Subnet, DefaultSubnet),
		bridge:   cmp.Or(cfg.Bridge, DefaultBridge),
		handlers: cfg.Handlers,
		log:      log,
		busy:     make(chan struct{}, 1),
	}
}

// runDirs holds the run directories of all agents on the machine.
const runDirs = "/run/nodectl"

// RunDir returns the run directory of an agent with this root directory, for files that do
// not survive a reboot. It is short whatever root is: containerd keeps the shims' sockets
// below it, whose paths may have 107 bytes.
func RunDir(root string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	return filepath.Join(runDirs, hex.EncodeToString(sum[:4]))
}

// Endpoint returns the CRI endpoint, whether or not a runtime listens there.
func (r *Runtime) Endpoint() string { return "unix://" + r.socket() }

// LogFile returns the path of containerd's log.
func (r *Runtime) LogFile() string { return filepath.Join(r.root, "containerd.log") }

func (r *Runtime) socket() string     { return filepath.Join(r.run, "containerd.sock") }
func (r *Runtime) configFile() string { return filepath.Join(r.run, "config.toml") }

// network names the CNI network: runtimes with the same bridge share its list of addresses.
func (r *Runtime) network() string { return r.bridge }

// Start starts the bundled runtime, waits for its answer and returns its CRI endpoint. The
// first use unpacks the programs; a running containerd is used as it is, even from an older
// bundle. An error is one line.
func (r *Runtime) Start(ctx context.Context) (string, error) {
	if _, err := r.Ensure(ctx); err != nil {
		return "", err
	}
	return r.Endpoint(), nil
}

// Ensure is Start for a runtime that was started before and has stopped answering. It
// starts containerd again if that has ended, and reports whether it did. Pods keep running.
// A containerd that runs but does not answer is an error, and is left alone. For one that
// has answered before, Ensure only checks its process, which is cheap.
func (r *Runtime) Ensure(ctx context.Context) (started bool, err error) {
	if os.Geteuid() != 0 {
		return false, errNotRoot
	}
	if err := r.check(); err != nil {
		return false, err
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()

	r.boundLog()
	// A process that is being killed loses its arguments before it ends.
	if r.answered.handle != nil && !r.answered.ended() && arguments(r.answered.pid)[0] != "" {
		return false, nil
	}
	r.answered = process{}
	p, ok, err := r.findCertain(ctx)
	if err != nil {
		return false, err
	}
	if ok {
		if err := r.answer(ctx, p.ended, 0); err != nil {
			return false, fmt.Errorf("the bundled containerd (process %d) runs but does not answer: %w", p.pid, err)
		}
		r.answered = p
		_, err := r.networkChange()
		return false, err
	}
	r.reap()
	bin, err := r.provide()
	if err != nil {
		return false, err
	}
	return true, r.boot(ctx, bin)
}

// findCertain is find for a caller that starts containerd if none runs. It fails for a
// process that may be the runtime, and for one on the runtime's socket that is not
// recognised: a second containerd would run every pod twice (I1). A containerd that is
// being killed loses its program before its socket, so findCertain waits for it.
func (r *Runtime) findCertain(ctx context.Context) (process, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, uncertainLimit)
	defer cancel()
	for {
		p, ok, err := r.find()
		if ok {
			return p, true, nil
		}
		if pid, listens := r.listener(); err == nil && listens {
			err = fmt.Errorf("process %d listens on %s and is not recognised as the bundled runtime", pid, r.socket())
		}
		if err == nil {
			_, err = r.shims()
		}
		if err == nil {
			return process{}, false, nil
		}
		if pause(ctx, startPoll) != nil {
			return process{}, false, fmt.Errorf("not starting a second container runtime: %w", err)
		}
	}
}

// Running reports whether the bundled containerd runs or has left pods running: then the
// agent uses it, whatever other runtime the machine has. A process that may be a part of it
// counts.
func (r *Runtime) Running() bool {
	_, ok, doubt := r.find()
	if ok || doubt != nil {
		return true
	}
	shims, doubt := r.shims()
	return len(shims) > 0 || doubt != nil
}

// boot starts containerd from the programs in bin. The caller holds the lock and knows that
// none runs.
func (r *Runtime) boot(ctx context.Context, bin string) error {
	shims, err := r.shims()
	if err != nil {
		return err
	}
	pods := len(shims) > 0 // their network is not changed
	if err := r.claimNetwork(pods); err != nil {
		return err
	}
	if err := r.configure(bin, pods); err != nil {
		return err
	}
	before := time.Now()
	containerd, err := r.launch(ctx, bin)
	if err != nil {
		return err
	}
	if err := r.importPause(ctx, bin); err != nil {
		return err
	}
	r.prune(bin)
	r.answered = containerd
	r.log.Info("Container runtime started", "endpoint", r.Endpoint(), "took", time.Since(before).Round(time.Millisecond))
	return nil
}

// check refuses a configuration that would fail later with a less clear error.
func (r *Runtime) check() error {
	if !filepath.IsAbs(r.root) || strings.ContainsAny(r.root+r.run, "'\n\r\\\"") {
		return fmt.Errorf("root directory %q: must be absolute, without quotes, backslashes and line breaks", filepath.Dir(r.root))
	}
	// containerd refuses a shim socket directory of more than 42 bytes.
	if dir := filepath.Join(r.run, "s"); len(dir) > 42 {
		return fmt.Errorf("run directory %s: too long for the sockets below it, at most 40 bytes", r.run)
	}
	if len(r.bridge) == 0 || len(r.bridge) >= unix.IFNAMSIZ || strings.ContainsAny(r.bridge, "/ \t\n'\"") {
		return fmt.Errorf("bridge %q: not a network device's name of at most %d bytes", r.bridge, unix.IFNAMSIZ-1)
	}
	return r.checkSubnet()
}

// lock takes the lock that lets one goroutine of one process at a time start and stop this
// runtime. It waits until ctx ends.
func (r *Runtime) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case r.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() {
		if err != nil {
			<-r.busy
		}
	}()
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(r.root, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close(); <-r.busy }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if err := pause(ctx, startPoll); err != nil {
			f.Close()
			return nil, fmt.Errorf("another process is starting or stopping the bundled runtime: %w", err)
		}
	}
}

// pause waits for d. If ctx ends first, it returns that error.
func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
