package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/invariant"
	"github.com/nodectl/nodectl/test/node"
)

// A house is one agent with its node name, its directories, and a proxy before containerd.
type house struct {
	name string // of the node
	dirs lab.Dirs
	logs string
	dir  string // scratch: hostPath volumes, sockets

	lab    *lab.Lab
	binary string
	out    string // for the agents' logs
	level  string

	gate  *gate
	proxy *criproxy.Proxy
	rules []*criproxy.Fault // that are in force
	stops []*criproxy.Fault // of every proxy of this round: the agent's stopping calls
	scope invariant.Scope
	agent *lab.Process
	lives int // agents so far
}

func (s *soak) newHouse(name string) (*house, error) {
	d, err := s.lab.NewDirs(name)
	if err != nil {
		return nil, err
	}
	h := &house{
		name: name, dirs: d, lab: s.lab, binary: s.binary, out: s.out, level: s.logLevel, gate: newGate(),
		dir:  filepath.Join(s.lab.Dir, name),
		logs: filepath.Join(s.lab.Dir, name, "logs"),
	}
	h.scope = invariant.Scope{Node: s.lab.Node, Name: name, Witness: s.witness, History: &invariant.History{}, Root: d.Root, Logs: h.logs}
	for _, dir := range []string{h.logs, h.scratch()} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
	}
	if err := h.connect(); err != nil {
		return nil, err
	}
	return h, h.start()
}

// connect puts the proxy before containerd.
func (h *house) connect() error {
	var err error
	h.proxy, err = criproxy.New(h.lab.Node.Endpoint, filepath.Join(h.dir, "cri.sock"), h.gate.hooks())
	if err == nil {
		h.watch()
	}
	return err
}

// watch records from now on the calls by which the agent stops and removes things.
func (h *house) watch() {
	for _, method := range invariant.Stopping {
		h.stops = append(h.stops, h.proxy.Fault(criproxy.Rule{Method: method}))
	}
}

// rule puts a rule in force until well.
func (h *house) rule(r criproxy.Rule) { h.rules = append(h.rules, h.proxy.Fault(r)) }

// well lifts all rules, and ends the delay of calls.
func (h *house) well() {
	h.gate.setSlow(0)
	for _, r := range h.rules {
		r.Lift()
	}
	h.rules = nil
}

// broken returns the invariants that this house's agents have broken in the round that ends.
func (h *house) broken(ctx context.Context) []string {
	h.scope.Stops, h.scope.Pid = nil, h.agent.PID()
	for _, f := range h.stops {
		h.scope.Stops = append(h.scope.Stops, f.Calls()...)
		f.Lift()
	}
	h.stops = nil
	h.watch()
	found, err := h.scope.Check(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var lines []string
	for _, v := range found {
		lines = append(lines, v.String())
	}
	return lines
}

// start starts an agent.
func (h *house) start() error {
	h.lives++
	cmd := lab.Command(h.binary, "serve", "-f", h.dirs.Manifests,
		"--root-dir", h.dirs.Root, "--runtime-endpoint", h.proxy.Endpoint(), "--node-name", h.name,
		"--pod-logs-dir", h.logs, "--cgroup-root", h.lab.Node.CgroupParent, "--log-level", h.level,
		"--max-container-restart-period", "2s")
	cmd.Env = append(cmd.Env, "SOAK_VITALS="+h.vitalsFile())
	var err error
	h.agent, err = lab.StartProcess("the agent of "+h.name, cmd, filepath.Join(h.out, fmt.Sprintf("%s-%03d.log", h.name, h.lives)))
	return err
}

func (h *house) vitalsFile() string { return filepath.Join(h.dir, "vitals") }

// end ends the agent at a moment when it does not know that its last calls are done, and
// calls absent while there is none.
func (h *house) end(ctx context.Context, sig syscall.Signal, absent func() error) error {
	if sig == syscall.SIGKILL {
		if err := h.gate.shut(ctx, h.proxy); err != nil {
			h.gate.open()
			return err
		}
		defer h.gate.open()
	}
	if err := h.leave(sig); err != nil {
		return err
	}
	if err := absent(); err != nil {
		return err
	}
	return h.start()
}

// leave ends the agent and starts no other.
func (h *house) leave(sig syscall.Signal) error {
	if h.agent == nil {
		return nil
	}
	if h.agent.Ended() {
		return fmt.Errorf("the agent of %s had ended by itself:\n%s", h.name, h.agent.Tail())
	}
	a := h.agent
	h.agent = nil
	return a.End(sig)
}

// cut breaks every connection of the agent to containerd, for a while.
func (h *house) cut(ctx context.Context, d time.Duration) error {
	h.well() // rules end with their proxy
	err := h.gate.shut(ctx, h.proxy)
	if err == nil {
		err = h.proxy.Close()
	}
	h.gate.open()
	if err != nil {
		return err
	}
	if err := lab.Pause(ctx, d); err != nil {
		return errors.Join(err, h.connect())
	}
	return h.connect()
}

// stopped stops the agent's process for a while, as a suspended machine does.
func (h *house) stopped(ctx context.Context, d time.Duration) error {
	if err := syscall.Kill(h.agent.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	err := lab.Pause(ctx, d)
	return errors.Join(err, syscall.Kill(h.agent.PID(), syscall.SIGCONT))
}

// write writes a manifest; torn writes it in place, without an editor's care.
func (h *house) write(name, text string, torn bool) error {
	if torn {
		return os.WriteFile(filepath.Join(h.dirs.Manifests, name+".yaml"), []byte(text), 0o600)
	}
	if err := h.dirs.Stage(name, text); err != nil {
		return err
	}
	_, err := h.dirs.Drop(name)
	return err
}

// inner is what an agent of this build reports about itself.
type inner struct{ Goroutines, Heap, Objects float64 }

// vitals asks the agent.
func (h *house) vitals(ctx context.Context) (inner, error) {
	var v inner
	if err := os.Remove(h.vitalsFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return v, err
	}
	if err := syscall.Kill(h.agent.PID(), syscall.SIGUSR2); err != nil {
		return v, err
	}
	const limit = 30 * time.Second
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if text, err := os.ReadFile(h.vitalsFile()); err == nil {
			return v, json.Unmarshal(text, &v)
		}
		if err := lab.Pause(ctx, 20*time.Millisecond); err != nil {
			return v, err
		}
	}
	return v, fmt.Errorf("the agent of %s did not say within %s how it is", h.name, limit)
}

// build builds the agent from this tree as it is released, with testdata/vitals.go
// beside its main.go.
func build(ctx context.Context, dir string) (string, error) {
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(node.Repo(), "vitals_soak.go"): filepath.Join(node.Repo(), "test/soak/testdata/vitals.go"),
	}})
	if err != nil {
		return "", err
	}
	file, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "nodectl")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-overlay", file, "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	cmd.Dir, cmd.Env = node.Repo(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nodectl: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return binary, nil
}

func (h *house) journal() string { return filepath.Join(h.dirs.Root, "journal.jsonl") }

// scratch is what pods of the house have as volume x.
func (h *house) scratch() string { return filepath.Join(h.dir, "x") }
