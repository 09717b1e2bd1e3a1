package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// nodeName is the node name of both agents.
const nodeName = "parity"

// Settings of both agents, so that the cases need not wait for the defaults.
const (
	logSize     = "100Ki" // of a log that is not rotated yet
	keptLogs    = 3
	longestWait = 30 * time.Second // before a container that crashes is started again
	taint       = "parity.example"
	pidsLimit   = 4096 // of one pod
	domain      = "parity.test"
)

// place is where one agent runs; it shares nothing with the other.
type place struct {
	node      *node.Node
	endpoint  string // the tap's
	dir       string // everything of the agent
	manifests string
	root      string // its state
	logs      string // the pods' logs
	cgroup    string // above all its pods
	repo      string
	registry  string            // images can be pulled from it
	digests   map[string]string // of those images
	server    *server           // nil: pods come from files
}

// An agent is one of the two programs.
type agent interface {
	name() string
	version() (string, error)
	// command returns the program's command; each start calls it.
	command() (*exec.Cmd, error)
	// pods asks the running agent for its pods.
	pods(context.Context) ([]v1.Pod, error)
}

// kubelet is the real kubelet, without an API server.
type kubelet struct {
	place
	program        string
	port, readOnly int
}

func (k *kubelet) name() string { return "kubelet" }

func (k *kubelet) version() (string, error) {
	return arm.Version(k.program)
}

func (k *kubelet) command() (*exec.Cmd, error) {
	return k.start(fmt.Sprintf("staticPodPath: %s\nregisterWithTaints: [{key: %s, effect: NoSchedule}, {key: %[2]s, effect: NoExecute}]\n", k.manifests, taint))
}

// start returns the command with an extended configuration and more arguments.
func (k *kubelet) start(more string, args ...string) (*exec.Cmd, error) {
	if k.port == 0 {
		ports, err := arm.FreePorts("127.0.0.1", 2)
		if err != nil {
			return nil, err
		}
		k.port, k.readOnly = ports[0], ports[1]
	}
	configured, err := arm.Kubelet{Name: nodeName, Dir: k.dir, Root: k.root, Logs: k.logs, Cgroup: k.cgroup, Endpoint: k.endpoint}.Arguments(fmt.Sprintf(`failSwapOn: false
enforceNodeAllocatable: [none]
localStorageCapacityIsolation: false
address: 127.0.0.1
port: %d
readOnlyPort: %d
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, imagefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.inodesFree: 0%%}
imageGCHighThresholdPercent: 100
containerLogMaxSize: %s
containerLogMaxFiles: %d
containerLogMonitorInterval: 3s
crashLoopBackOff: {maxContainerRestartPeriod: %s}
podPidsLimit: %d
clusterDomain: %s
featureGates: {ContainerStopSignals: true}
%s`, k.port, k.readOnly, logSize, keptLogs, longestWait, pidsLimit, domain, more))
	if err != nil {
		return nil, err
	}
	return exec.Command(k.program, slices.Concat(configured, []string{"--v", "2"}, args)...), nil
}

func (k *kubelet) pods(ctx context.Context) ([]v1.Pod, error) {
	return getPods(ctx, http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/pods", k.readOnly))
}

// nodectl is `nodectl serve`.
type nodectl struct {
	place
	program string
	client  *http.Client
}

func newNodectl(p place, program string) *nodectl {
	socket := filepath.Join(p.root, "nodectl.sock")
	return &nodectl{place: p, program: program, client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (n *nodectl) name() string { return "nodectl" }

func (n *nodectl) version() (string, error) {
	out, err := exec.Command("git", "-C", n.repo, "describe", "--always", "--dirty").Output()
	return strings.TrimSpace(string(out)), err
}

func (n *nodectl) command() (*exec.Cmd, error) {
	cmd := exec.Command(n.program, "serve", "-f", n.manifests, "--root-dir", n.root, "--runtime-endpoint", n.endpoint,
		"--pod-logs-dir", n.logs, "--cgroup-root", n.cgroup, "--node-name", nodeName, "--log-level", "debug",
		"--container-log-max-size", logSize, "--container-log-max-files", strconv.Itoa(keptLogs),
		"--max-container-restart-period", longestWait.String(), "--register-with-taints", taint+":NoSchedule,"+taint+":NoExecute",
		"--pod-pids-limit", strconv.Itoa(pidsLimit), "--cluster-domain", domain)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NODECTL_") || strings.HasPrefix(v, "CONTAINER_RUNTIME_ENDPOINT=")
	})
	return cmd, nil
}

func (n *nodectl) pods(ctx context.Context) ([]v1.Pod, error) {
	return getPods(ctx, n.client, "http://nodectl/v1/pods")
}

func getPods(ctx context.Context, client *http.Client, url string) ([]v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r, err := client.Do(q)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, r.Status)
	}
	var list v1.PodList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return list.Items, nil
}

// A process is a running agent.
type process struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error
}

// launch starts the agent and appends its output to a file in its directory.
func launch(a agent, dir string) (*process, error) {
	cmd, err := a.command()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, a.name()+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	// A terminal's SIGINT goes to the comparison, which then ends the agent; and no agent
	// outlives a comparison that was killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() { // ends with the process, which end waits for
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// end signals the agent and returns when it has exited; it kills one that does not exit
// within ten seconds.
func (p *process) end(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s)
	timer := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	<-p.done
	timer.Stop()
	p.log.Close()
}

// ended returns why the agent exited by itself, and nil while it runs.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("it ended: %v", p.err) //nolint:errorlint // nil after exit code 0
	default:
		return nil
	}
}
