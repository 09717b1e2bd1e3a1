package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/invariant"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

// A house is one agent in its place, with a proxy before containerd.
type house struct {
	arm.Place
	name  string // of the node
	lab   *arm.Lab
	agent *arm.Agent // its log files have the name of the house

	gate    *gate
	proxy   *criproxy.Proxy
	rules   []*criproxy.Fault // that are in force
	stops   []*criproxy.Fault // of every proxy of this round: the agent's stopping calls
	scope   invariant.Scope
	process *arm.Process
}

func (s *soak) newHouse(name string) (*house, error) {
	p, err := s.lab.NewPlace(name)
	if err != nil {
		return nil, err
	}
	p.NodeName, p.Logs, p.Cgroup = name, filepath.Join(p.Dir, "logs"), filepath.Join(p.Cgroup, name)
	h := &house{Place: p, name: name, lab: s.lab, gate: newGate()}
	h.agent = &arm.Agent{
		Name: name, Binary: s.binary, LogLevel: s.logLevel, KeepLogs: s.out,
		Args: []string{"--max-container-restart-period", "2s"}, Env: []string{"SOAK_VITALS=" + h.vitalsFile()},
	}
	h.scope = invariant.Scope{Node: s.lab.Node, Name: name, Witness: s.witness, History: &invariant.History{}, Root: h.Root, Logs: h.Logs}
	for _, dir := range []string{h.Logs, h.scratch()} {
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
	if h.proxy, err = criproxy.New(h.lab.Node.Endpoint, filepath.Join(h.Dir, "cri.sock"), h.gate.hooks()); err != nil {
		return err
	}
	h.Endpoint = h.proxy.Endpoint()
	h.watch()
	return nil
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
	h.scope.Stops, h.scope.Pid = nil, h.process.PID()
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
func (h *house) start() (err error) {
	h.process, err = h.agent.Start(h.Place)
	return err
}

func (h *house) vitalsFile() string { return filepath.Join(h.Dir, "vitals") }

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
	p := h.process
	if p == nil {
		return nil
	}
	if p.Ended() {
		return fmt.Errorf("the agent of %s had ended by itself:\n%s", h.name, p.Tail())
	}
	h.process = nil
	return p.End(sig)
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
	if err := arm.Pause(ctx, d); err != nil {
		return errors.Join(err, h.connect())
	}
	return h.connect()
}

// stopped stops the agent's process for a while, as a suspended machine does.
func (h *house) stopped(ctx context.Context, d time.Duration) error {
	if err := syscall.Kill(h.process.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	err := arm.Pause(ctx, d)
	return errors.Join(err, syscall.Kill(h.process.PID(), syscall.SIGCONT))
}

// write writes a manifest; torn writes it in place, without an editor's care.
func (h *house) write(name, text string, torn bool) error {
	if torn {
		return os.WriteFile(h.Place.Manifest(name), []byte(text), 0o600)
	}
	if err := h.Stage(name, text); err != nil {
		return err
	}
	_, err := h.Drop(name)
	return err
}

// inner has the figures that an agent of this build reports about itself.
type inner struct{ Goroutines, Heap, Objects float64 }

// vitals asks the agent.
func (h *house) vitals(ctx context.Context) (inner, error) {
	var v inner
	if err := os.Remove(h.vitalsFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return v, err
	}
	if err := syscall.Kill(h.process.PID(), syscall.SIGUSR2); err != nil {
		return v, err
	}
	err := arm.Until(ctx, 30*time.Second, 20*time.Millisecond, func() (bool, error) {
		text, err := os.ReadFile(h.vitalsFile())
		if err != nil {
			return false, fmt.Errorf("the agent of %s does not say how it is: %w", h.name, err)
		}
		return true, json.Unmarshal(text, &v)
	})
	return v, err
}

// build builds the agent from this tree as it is released, with testdata/vitals.go
// beside its main.go.
func build(ctx context.Context, dir string) (string, error) {
	file := filepath.Join(dir, "overlay.json")
	err := report.WriteJSON(file, map[string]map[string]string{"Replace": {
		filepath.Join(node.Repo(), "vitals_soak.go"): filepath.Join(node.Repo(), "test/soak/testdata/vitals.go"),
	}})
	if err != nil {
		return "", err
	}
	a, err := arm.NewNodectl(ctx, dir, "", "-overlay", file)
	if err != nil {
		return "", err
	}
	return a.Binary, nil
}

func (h *house) journal() string { return filepath.Join(h.Root, "journal.jsonl") }

// scratch is the volume x of the house's pods.
func (h *house) scratch() string { return filepath.Join(h.Dir, "x") }
