// Package critest is the one fake container runtime of this repository: CRI v1 in memory
// that behaves like containerd, with faults set by the test.
//
// New makes one. Inside a synctest bubble, Connect gives in-process clients and CRI a whole
// cri.Runtime on top of them: the same adapter code runs, without a socket, and every wait
// uses the bubble's time. Outside, Serve offers the same runtime as a gRPC server on a unix
// socket.
//
// A container's command, or its image's name if it has none, decides its behaviour, see
// Behaviour. Images are present unless their name begins with "missing" (in no registry) or
// "remote" (pulled first, which takes a second).
//
// The fake never holds its mutex during a wait, and every wait ends with the call's
// context.
package critest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Runtime is an in-memory container runtime. Its methods may be called from
// many goroutines.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	start time.Time

	mu           sync.Mutex // guards all fields below; never held while waiting
	serial       int
	sandboxes    map[string]*sandbox
	containers   map[string]*container
	images       map[string]bool // by name; absent: the name decides
	behave       func(*runtimeapi.ContainerConfig) (Behaviour, bool)
	execs        func(Exec) (Behaviour, bool)
	execLog      []Exec
	making       map[string]bool // names of sandboxes still being made after their call ended
	ready        [2]condition    // runtime, network
	noEvents     bool
	driver       *runtimeapi.CgroupDriver // nil: a runtime that does not report it
	handlers     []*runtimeapi.RuntimeHandler
	imageUsers   map[string]*runtimeapi.Image // by name; only the user in it is used
	faults       []*fault
	groupsPolicy bool
	log          []string
	calls        map[string]int
	after        func(int, string)
	broken       []error
	counts       map[string]uint32 // newest attempt by uid and container
	subs         map[*subscriber]bool
	held         []heldEvent   // published without a subscriber
	room         chan struct{} // closed and replaced whenever a subscriber takes an event
	life         context.Context
	kill         context.CancelFunc
	servers      map[string]*server // by socket path
	streams      streaming.Server   // nil: none
	checkpoints  bool               // it supports checkpoints
}

type condition struct {
	ok      bool
	message string
}

type sandbox struct {
	id      string
	serial  int
	config  *runtimeapi.PodSandboxConfig
	handler string
	ready   bool
	created int64
	ip      string
}

type container struct {
	id, sandboxID string
	serial        int
	sandbox       *runtimeapi.PodSandboxConfig // kept for its names, which outlive the sandbox
	config        *runtimeapi.ContainerConfig
	does          Behaviour
	state         runtimeapi.ContainerState
	created       int64
	started       int64
	finished      int64
	code          int32
	reason        string
	message       string
	resources     *runtimeapi.LinuxContainerResources // as last updated; nil before
	memory        uint64                              // bytes it uses, as ContainerStats says
	childKilled   bool                                // the kernel has OOM-killed one of its processes
	timer         *time.Timer                         // its own end, if it has one
	done          chan struct{}                       // closed when it has exited
}

// New returns a runtime that is up, with a working network and no pods. In a synctest
// bubble it must be called inside the bubble.
func New() *Runtime {
	rt := &Runtime{
		start:      time.Now(),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]bool{},
		imageUsers: map[string]*runtimeapi.Image{},
		ready:      [2]condition{{ok: true}, {ok: true}},
		calls:      map[string]int{},
		making:     map[string]bool{},
		counts:     map[string]uint32{},
		subs:       map[*subscriber]bool{},
		room:       make(chan struct{}),
		servers:    map[string]*server{},
	}
	rt.life, rt.kill = context.WithCancel(context.Background())
	return rt
}

// CRI returns the adapter under test on top of in-process clients.
func (rt *Runtime) CRI(cfg cri.Config) *cri.Runtime {
	return rt.Connect().CRI(cfg)
}

// Behave lets f decide the behaviour of containers; if f returns false, their names decide as
// before.
func (rt *Runtime) Behave(f func(*runtimeapi.ContainerConfig) (Behaviour, bool)) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.behave = f
}

// SetReady sets the conditions in Status of the runtime and of its network, with message
// for a failure.
func (rt *Runtime) SetReady(runtime, network bool, message string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.ready = [2]condition{{runtime, message}, {network, message}}
}

// SetCgroupDriver makes the runtime report its cgroup driver.
func (rt *Runtime) SetCgroupDriver(d runtimeapi.CgroupDriver) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.driver = &d
}

// NoEvents removes GetContainerEvents from the runtime.
func (rt *Runtime) NoEvents() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.noEvents = true
}

// SetImage makes an image present or not, whatever its name means.
func (rt *Runtime) SetImage(name string, present bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.images[name] = present
}

// Exit ends a running container with code: a crash, or the end of its work. It reports
// whether one was running.
func (rt *Runtime) Exit(key pod.Key, name string, code int32) bool {
	return rt.end(key, name, code, "", "")
}

// OOM ends a running container as the kernel's out-of-memory killer does.
func (rt *Runtime) OOM(key pod.Key, name string) bool {
	return rt.end(key, name, 137, "OOMKilled", "")
}

// OOMChild kills a process of a running container that is not its first. The container runs
// on, and the reason of its later end is OOMKilled whatever its code, as in containerd. It
// reports whether one was running.
func (rt *Runtime) OOMChild(key pod.Key, name string) bool {
	return rt.withRunning(key, name, func(c *container) { c.childKilled = true })
}

// SetMemory sets how much memory a running container uses, in bytes. It reports
// whether one was running.
func (rt *Runtime) SetMemory(key pod.Key, name string, used uint64) bool {
	return rt.withRunning(key, name, func(c *container) { c.memory = used })
}

// SetMessage makes a running container write text as its termination message when it ends.
// It reports whether one was running.
func (rt *Runtime) SetMessage(key pod.Key, name, text string) bool {
	return rt.withRunning(key, name, func(c *container) { c.does.Message = text })
}

// Resources returns the resources of the running container; nil if none runs.
func (rt *Runtime) Resources(key pod.Key, name string) (now *runtimeapi.LinuxContainerResources) {
	rt.withRunning(key, name, func(c *container) { now = c.limits() })
	return now
}

func (rt *Runtime) end(key pod.Key, name string, code int32, reason, message string) bool {
	return rt.withRunning(key, name, func(c *container) { rt.exit(c, code, reason, message) })
}

// withRunning calls f for the running containers of that name, under the mutex.
func (rt *Runtime) withRunning(key pod.Key, name string, f func(*container)) (found bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, c := range rt.containers {
		if c.key() == key && c.config.GetMetadata().GetName() == name && c.running() {
			f(c)
			found = true
		}
	}
	return found
}

// Forget removes a container, or with an empty name the whole pod, without an event.
func (rt *Runtime) Forget(key pod.Key, name string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for id, c := range rt.containers {
		if c.key() == key && (name == "" || c.config.GetMetadata().GetName() == name) {
			c.stopTimer()
			if c.state != runtimeapi.ContainerState_CONTAINER_EXITED {
				close(c.done)
			}
			delete(rt.containers, id)
		}
	}
	for id, b := range rt.sandboxes {
		if name == "" && keyOf(b.config) == key {
			delete(rt.sandboxes, id)
		}
	}
}

// Reboot ends everything as a reboot of the machine does: sandboxes are not ready, running
// containers have exited with 255 and reason Unknown.
func (rt *Runtime) Reboot() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, c := range rt.containers {
		if c.running() {
			rt.exit(c, 255, "Unknown", "")
		}
	}
	for _, b := range rt.sandboxes {
		b.ready = false
	}
	rt.held = nil
}

// State lists all sandboxes and containers, one line each, sorted: tests compare this at their end.
func (rt *Runtime) State() string {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var lines []string
	for _, b := range rt.sandboxes {
		state := "notready"
		if b.ready {
			state = "ready"
		}
		lines = append(lines, fmt.Sprintf("%s sandbox attempt=%d %s\n", keyOf(b.config), b.config.GetMetadata().GetAttempt(), state))
	}
	for _, c := range rt.containers {
		lines = append(lines, fmt.Sprintf("%s/%s attempt=%d %s\n", c.key(), c.config.GetMetadata().GetName(), c.config.GetMetadata().GetAttempt(), c.stateText()))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (c *container) stateText() string {
	s := strings.ToLower(strings.TrimPrefix(c.state.String(), "CONTAINER_"))
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		s += fmt.Sprintf("(%d)", c.code)
	}
	return s
}

func (c *container) key() pod.Key { return keyOf(c.sandbox) }

func (c *container) running() bool { return c.state == runtimeapi.ContainerState_CONTAINER_RUNNING }

func (c *container) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

func keyOf(b *runtimeapi.PodSandboxConfig) pod.Key {
	return pod.Key{Namespace: b.GetMetadata().GetNamespace(), Name: b.GetMetadata().GetName()}
}
