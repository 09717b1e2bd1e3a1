// Command soakagents kills the real kubelet, or nodectl, at random times while pods of a cluster use
// devices of a device plugin, a ResourceClaim of a DRA driver, an exclusive CPU and a volume of a CSI
// driver. It writes its part of docs/soak-devices.md.
//
// Control plane, containerd and agent are those of package stage, and the plugins are those of
// test/soakdevices. The agent is ended with SIGKILL and starts again a second later. A reboot is imitated:
// all containers, mounts and plugins end, and each plugin starts 30 s after the agent.
//
// If a pod fails or loses its devices, the command counts it and continues.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/plugins"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// options are the command's flags.
type options struct {
	arm, kubelet, nodectl, keep string
	kills, reboots              int
	seed                        uint64
	docs                        bool
}

func main() { program.Main(parse, run) }

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("soakagents", flag.ContinueOnError)
	f.StringVar(&o.arm, "arm", "kubelet", "kubelet or nodectl")
	f.StringVar(&o.kubelet, "kubelet", program.Kubelet(), "the kubelet")
	f.StringVar(&o.nodectl, "nodectl", "", "the nodectl (default: built from this tree)")
	f.StringVar(&o.keep, "keep", filepath.Join(node.Repo(), "bin/soakagents"), "directory for results and logs")
	f.IntVar(&o.kills, "kills", 50, "how often the agent is killed")
	f.IntVar(&o.reboots, "reboots", 5, "how many reboots are imitated; nodectl knows the boot of the machine, so it has none")
	f.Uint64Var(&o.seed, "seed", 1, "of the random times")
	f.BoolVar(&o.docs, "docs", false, "write the results of both arms into docs/soak-devices.md")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	if o.arm != "kubelet" && o.arm != "nodectl" {
		return o, fmt.Errorf("--arm: %q is no arm", o.arm)
	}
	if o.arm == "nodectl" {
		o.reboots = 0
	}
	return o, nil
}

func run(ctx context.Context, o *options) (fine bool, err error) {
	r, err := record(ctx, o)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.keep, 0o755); err != nil {
		return false, err
	}
	if err := report.WriteJSON(filepath.Join(o.keep, o.arm+".json"), r); err != nil {
		return false, err
	}
	for _, note := range r.Notes {
		arm.Say("%s", note)
	}
	if o.docs {
		return true, write(o.keep)
	}
	return true, nil
}

// nodeName is the node's.
const nodeName = "n1"

// record plays all rounds with one agent.
func record(ctx context.Context, o *options) (r *Result, err error) {
	st, err := stage.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s := &soak{Stage: st, random: rand.New(rand.NewPCG(o.seed, 1)), result: &Result{Arm: o.arm, Date: time.Now(), Seed: o.seed, Failed: map[string]int{}}}
	agent, err := s.agent(ctx, o)
	if err != nil {
		return nil, err
	}
	agent.KeepLogs = o.keep
	if err := st.Configure(agent); err != nil {
		return nil, err
	}
	if s.result.Version, err = agent.Version(); err != nil {
		return nil, err
	}
	if err := s.createDriver(ctx); err != nil {
		return nil, err
	}
	if s.turn, err = st.Begin(ctx, agent, nodeName); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.turn.Finish()) }()
	s.makePlugins()
	s.startPlugins()
	defer s.killPlugins()
	if err := s.rounds(ctx, o); err != nil {
		return nil, err
	}
	return s.result, s.countLeft(ctx)
}

// agent returns the agent of the arm, with the CPU policy static on a machine of two CPUs.
func (s *soak) agent(ctx context.Context, o *options) (*arm.Agent, error) {
	if o.arm == "kubelet" {
		s.dir = filepath.Join(s.Dir, "turn", "kubelet", "root")
		return arm.NewKubelet(o.kubelet, "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n")
	}
	s.dir = filepath.Join(s.Dir, "turn", "nodectl", "kubelet")
	a, err := arm.NewNodectl(ctx, s.Dir, o.nodectl)
	if err != nil {
		return nil, err
	}
	a.Args = append(a.Args, "--kubelet-dir", s.dir, "--cpu-manager-policy", "static", "--reserved-cpus", "0")
	return a, nil
}

// makePlugins makes the plugins of the node.
func (s *soak) makePlugins() {
	of := &plugins.Node{
		Dir: s.dir, Line: func() plugins.Line { return plugins.Sockets{} }, Step: func(string) {}, Lost: s.lost,
		Failed: func(err error) { s.note("%v", err) },
	}
	s.gpus = plugins.NewGPUs(of, "g0", "g1", "g2", "g3")
	s.cards, s.disks = plugins.NewCards(of), plugins.NewDisks(of, filepath.Join(s.Dir, "disks"))
}

func (s *soak) startPlugins() {
	s.gpus.Start()
	s.cards.Start()
	s.disks.Start()
}

func (s *soak) killPlugins() {
	s.gpus.Kill()
	s.cards.Kill()
	s.disks.Kill()
}
