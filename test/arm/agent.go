// Package arm has the arms of the programs that compare and measure: the agents that run pods
// there. An arm is an Agent, which is nodectl or the real kubelet, or "raw", which is plain CRI
// calls.
//
// A program opens a Lab, which is a node with its own containerd, and gives each arm its turn on
// it, in a Place that no other arm uses. Package report stores the measurements of the arms,
// package compare their differences.
//
// The package assumes nothing about a kubelet; it only keeps the kubelet away from the machine's
// own objects. Nothing polls the runtime while a latency is measured: latencies come from
// container events.
package arm

import (
	"bytes"
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
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/node"
)

// An Agent is nodectl or the real kubelet, with its settings.
type Agent struct {
	Name     string // of its arm
	Binary   string
	Config   string   // more lines of a kubelet's configuration
	Args     []string // more arguments
	Env      []string // more of its environment
	LogLevel string   // of nodectl; "" is info
	KeepLogs string   // directory for the logs of its processes; "" keeps none
	Address  string   // that a kubelet listens on; "" is 127.0.0.1

	kubelet bool
	ports   []int // of a kubelet: its API, that without authentication, health
	starts  int   // so far: names the logs
}

// A Place is where one agent runs.
type Place struct {
	NodeName  string
	Dir       string // of a kubelet's configuration and certificate
	Manifests string // that the agent watches; "" is none
	Root      string // its state; the agent makes it
	Logs      string // its pods'
	Cgroup    string // above its pods
	Endpoint  string // the runtime's
}

// NewPlace makes directories for an agent on the node that no agent has used yet.
func (l *Lab) NewPlace(name string) (Place, error) {
	dir := filepath.Join(l.Dir, name)
	p := Place{
		NodeName: NodeName, Dir: dir, Manifests: filepath.Join(dir, "manifests"), Root: filepath.Join(dir, "root"),
		Logs: l.Node.LogsDir, Cgroup: l.Node.CgroupParent, Endpoint: l.Node.Endpoint,
	}
	return p, os.MkdirAll(p.Manifests, 0o700)
}

// NewKubelet returns the real kubelet.
func NewKubelet(binary, config string) (*Agent, error) {
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("%w: run make kubelet-bin", err)
	}
	return &Agent{Name: "kubelet", Binary: binary, Config: config, kubelet: true}, nil
}

// NewNodectl returns the agent of a binary; "" builds one from this tree in dir, as it is
// released.
func NewNodectl(ctx context.Context, dir, binary string, flags ...string) (*Agent, error) {
	a := &Agent{Name: "nodectl"}
	var err error
	if a.Binary, err = filepath.Abs(binary); binary != "" {
		return a, err
	}
	Say("building nodectl")
	a.Binary = filepath.Join(dir, "nodectl")
	args := slices.Concat([]string{"build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w"}, flags, []string{"-o", a.Binary, "."})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = node.Repo(), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build nodectl: %w\n%s", err, out)
	}
	return a, nil
}

// Version returns the version of the agent's program: for a kubelet such as v1.36.0, for nodectl
// the commit of the tree.
func (a *Agent) Version() (string, error) {
	if !a.kubelet {
		return commit(), nil
	}
	out, err := exec.Command(a.Binary, "--version").Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes "), err
}

// configuration is the kubelet's default, except for cgroup v1 and for settings that a kubelet
// needs on a machine that it does not own: directories, cgroups, addresses, the packet filter.
const configuration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: %s
volumePluginDir: %s
containerRuntimeEndpoint: %s
cgroupRoot: %s
staticPodPath: %q
cgroupDriver: cgroupfs
failCgroupV1: false
makeIPTablesUtilChains: false
address: %[6]s
port: %[7]d
readOnlyPort: %d
healthzBindAddress: %[6]s
healthzPort: %[9]d
`

// configure makes a kubelet's cgroup, writes its configuration, and returns its arguments.
func (a *Agent) configure(p Place) (args []string, err error) {
	if a.Address == "" {
		a.Address = "127.0.0.1"
	}
	if a.ports == nil {
		if a.ports, err = FreePorts(a.Address, 3); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(p.Dir, "kubelet.yaml")
	text := fmt.Sprintf(configuration, p.Logs, filepath.Join(p.Dir, "plugins"), p.Endpoint, p.Cgroup, p.Manifests, a.Address, a.ports[0], a.ports[1], a.ports[2]) + a.Config
	if err := errors.Join(MakeCgroup(p.Cgroup), os.MkdirAll(p.Dir, 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	return []string{"--config", file, "--root-dir", p.Root, "--cert-dir", filepath.Join(p.Dir, "pki"), "--hostname-override", p.NodeName}, nil
}

// On returns a command of nodectl with the flags that keep it in a place.
func (p Place) On(command ...string) []string {
	return append(command, "--root-dir", p.Root, "--runtime-endpoint", p.Endpoint, "--pod-logs-dir", p.Logs,
		"--cgroup-root", p.Cgroup, "--node-name", p.NodeName)
}

// Start starts the agent. The caller ends it.
func (a *Agent) Start(p Place, more ...string) (*Process, error) {
	level := a.LogLevel
	if level == "" {
		level = "info"
	}
	args := p.On("serve", "-f", p.Manifests, "--log-level", level)
	if a.kubelet {
		var err error
		if args, err = a.configure(p); err != nil {
			return nil, err
		}
	}
	a.starts++
	logFile := ""
	if a.KeepLogs != "" {
		logFile = filepath.Join(a.KeepLogs, fmt.Sprintf("%s-%03d.log", a.Name, a.starts))
	}
	cmd := Command(a.Binary, slices.Concat(args, a.Args, more)...)
	cmd.Env = append(cmd.Env, a.Env...)
	return StartProcess(a.Name, cmd, logFile)
}

// Run runs a command of nodectl to its end, and returns its output and its CPU time.
func (a *Agent) Run(ctx context.Context, args ...string) (printed []byte, cpu time.Duration, err error) {
	cmd := Command(a.Binary, args...)
	var out, conversation bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &conversation
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return nil, 0, fmt.Errorf("nodectl %s: %w\n%s", args[0], err, Tail(conversation.String()))
	}
	return out.Bytes(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// Pods decodes the list of pods that the running agent reports into list.
func (a *Agent) Pods(ctx context.Context, p Place, list any) error {
	if a.kubelet {
		return get(ctx, http.DefaultClient, fmt.Sprintf("http://%s:%d/pods", a.Address, a.ports[1]), list)
	}
	return p.Ask(ctx, "/v1/pods", list)
}

// Ask decodes the answer of a running nodectl to a path into to.
func (p Place) Ask(ctx context.Context, path string, to any) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(p.Root, "nodectl.sock"))
	}
	return get(ctx, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}, "http://nodectl"+path, to)
}

// get decodes an answer into to, unless that is nil.
func get(ctx context.Context, by *http.Client, url string, to any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := by.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, r.Status)
	}
	if to == nil {
		return nil
	}
	if err := json.NewDecoder(r.Body).Decode(to); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}

// Ready returns when the agent has found the runtime and waits for manifests.
func (a *Agent) Ready(ctx context.Context, p *Process) error {
	if !a.kubelet {
		_, err := p.Await(ctx, "Container runtime is ready")
		return err
	}
	return a.until(ctx, p, 10*time.Millisecond, func() error {
		return get(ctx, http.DefaultClient, fmt.Sprintf("http://%s:%d/healthz", a.Address, a.ports[2]), nil)
	})
}

// until calls f until it returns nil, as long as the agent runs.
func (a *Agent) until(ctx context.Context, p *Process, every time.Duration, f func() error) error {
	err := Until(ctx, time.Minute, every, func() (bool, error) {
		err := f()
		return err == nil || p.Ended(), err
	})
	if err != nil {
		return fmt.Errorf("%s does not answer as it should: %w\n%s", a.Name, err, p.Tail())
	}
	return nil
}

// A Reported is a moment when a restarted agent has reported all its pods.
type Reported struct {
	At    time.Time
	Flips int           // how many pods it reported as not Ready before
	Asked time.Duration // how long nodectl's get pods took then
}

// Reported returns when the restarted agent has reported n pods, all of them Running.
func (a *Agent) Reported(ctx context.Context, p *Process, at Place, n int) (Reported, error) {
	if !a.kubelet {
		return a.ownReport(ctx, p, at, n)
	}
	if err := a.Ready(ctx, p); err != nil {
		return Reported{}, err
	}
	flipped := map[string]bool{}
	err := a.until(ctx, p, 100*time.Millisecond, func() error {
		var list podList
		if err := a.Pods(ctx, at, &list); err != nil {
			return err
		}
		for _, i := range list.Items {
			if i.unready() {
				flipped[i.Metadata.Name] = true
			}
		}
		return list.running(n)
	})
	return Reported{At: time.Now(), Flips: len(flipped)}, err
}

// ownReport waits for nodectl's log line, and checks it with get pods.
func (a *Agent) ownReport(ctx context.Context, p *Process, at Place, n int) (r Reported, err error) {
	l, err := p.Await(ctx, "Status of every pod is known", fmt.Sprintf("pods=%d", n))
	if err != nil {
		return r, err
	}
	r.At = l.At
	begin := time.Now()
	out, _, err := a.Run(ctx, at.On("get", "pods", "-o", "json")...)
	if err != nil {
		return r, err
	}
	r.Asked = time.Since(begin)
	var list podList
	if err := json.Unmarshal(out, &list); err != nil {
		return r, fmt.Errorf("get pods -o json: %w", err)
	}
	if err := list.running(n); err != nil {
		return r, fmt.Errorf("get pods, right after all were reported: %w", err)
	}
	r.Flips, err = journalFlips(filepath.Join(at.Root, "journal.jsonl"), p.Exec)
	return r, err
}

// journalFlips counts the pods that the journal shows as not Ready since begin.
func journalFlips(name string, begin time.Time) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	flipped := map[string]bool{}
	for line := range bytes.Lines(text) {
		var entry struct {
			Time time.Time
			Pod  podItem
		}
		if json.Unmarshal(line, &entry) == nil && entry.Time.After(begin) && entry.Pod.unready() {
			flipped[entry.Pod.Metadata.Name] = true
		}
	}
	return len(flipped), nil
}

// podList has the compared part of both agents' reports about pods.
type podList struct{ Items []podItem }

type podItem struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase      string
		Conditions []struct{ Type, Status string }
	}
}

// running returns an error unless the list has n pods, all of them Running.
func (l podList) running(n int) error {
	running := 0
	for _, p := range l.Items {
		if p.Status.Phase == "Running" {
			running++
		}
	}
	if running != n || len(l.Items) != n {
		return fmt.Errorf("%d pods, %d of them Running; want %d", len(l.Items), running, n)
	}
	return nil
}

// unready reports whether the pod has a Ready condition that is False; a missing condition
// does not count.
func (p podItem) unready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" && c.Status == "False" {
			return true
		}
	}
	return false
}
