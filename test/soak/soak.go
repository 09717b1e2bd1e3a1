package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/arm"
	bounds "github.com/nodectl/nodectl/test/growth"
	"github.com/nodectl/nodectl/test/invariant"
	"github.com/nodectl/nodectl/test/node"
)

// soak is one run.
type soak struct {
	options
	lab     *arm.Lab
	runtime *bundle.Runtime // to start containerd again
	houses  []*house        // the one whose agent lives, the one whose agents die
	artist  *artist
	report  *result
	diary   *os.File

	wishes  []*wish
	elders  []*wish
	first   map[string]bool // the elders' containers
	before  inventory       // with the elders alone
	witness *invariant.Witness
	now     int             // pods drawn so far
	known   map[string]bool // violations
}

// soakAll makes a run on its own node, and closes the node. It returns the findings before an
// error together with it.
func soakAll(ctx context.Context, o options) (_ *result, err error) {
	if err := os.RemoveAll(o.out); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return nil, err
	}
	arm.Say("seed %d: starting containerd", o.seed)
	l, err := arm.Open(ctx)
	if err != nil {
		return nil, err
	}
	s := &soak{
		options: o, lab: l, artist: &artist{Rand: rand.New(rand.NewPCG(o.seed, 0))}, known: map[string]bool{},
		report: &result{Time: time.Now(), Seed: o.seed, Round: o.round, AtOnce: o.atOnce, Deeds: map[string]int{}, Said: map[string]int{}},
	}
	defer func() {
		if left := l.Close(); left != nil {
			s.violation(left.Error())
		}
		s.report.finish()
	}()
	if err := s.open(ctx); err != nil {
		return s.report, errors.Join(err, s.close())
	}
	err = s.rounds(ctx)
	if err == nil {
		err = s.empty(ctx)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	return s.report, errors.Join(err, s.close())
}

func (s *soak) open(ctx context.Context) error {
	n := s.lab.Node
	programs, err := node.Programs()
	if err != nil {
		return err
	}
	s.runtime = bundle.New(bundle.Config{RootDir: n.RootDir, RunDir: n.RunDir, Programs: programs, Subnet: n.Subnet, Bridge: n.Bridge, Log: slog.New(slog.DiscardHandler)})
	if s.diary, err = os.Create(filepath.Join(s.out, "diary.txt")); err != nil {
		return err
	}
	if s.binary == "" {
		if s.binary, err = build(ctx, s.lab.Dir); err != nil {
			return err
		}
	}
	if s.report.Machine, err = s.lab.Machine(ctx, &arm.Agent{Name: "nodectl", Binary: s.binary}); err != nil {
		return err
	}
	if s.witness, err = invariant.Observe(n); err != nil {
		return err
	}
	for _, name := range []string{"steady", "mortal"} {
		h, err := s.newHouse(name)
		if h != nil {
			s.houses = append(s.houses, h)
		}
		if err != nil {
			return err
		}
	}
	return s.settleElders(ctx)
}

// close ends the programs that the soak started beside the node.
func (s *soak) close() error {
	var errs []error
	if s.witness != nil {
		s.witness.Close()
	}
	for _, h := range s.houses {
		errs = append(errs, h.leave(syscall.SIGTERM), h.proxy.Close())
		s.lab.Node.RemovePodGroups(h.name)
		s.lab.Node.RemoveTiers(h.name)
		s.report.listen(s.out, h.name)
	}
	if s.diary != nil {
		errs = append(errs, s.diary.Close())
	}
	return errors.Join(errs...)
}

// tell writes the soak's actions to its diary.
func (s *soak) tell(format string, args ...any) {
	fmt.Fprintf(s.diary, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
}

// violation records each violation once.
func (s *soak) violation(lines ...string) {
	for _, l := range lines {
		if s.known[l] {
			continue
		}
		s.known[l] = true
		arm.Say("VIOLATION %s", l)
		s.tell("VIOLATION %s", l)
		s.report.Violations = append(s.report.Violations, fmt.Sprintf("round %d: %s", len(s.report.Rounds)+1, l))
	}
}

// maxViolations end a run: later ones add no information.
const maxViolations = 40

func (s *soak) rounds(ctx context.Context) error {
	for s.now < s.pods {
		began := time.Now()
		for target := min(s.now+s.round, s.pods); s.now < target; {
			if err := s.act(ctx); err != nil {
				return err
			}
			if err := s.breathe(ctx); err != nil {
				return err
			}
		}
		r, err := s.quiet(ctx)
		if err != nil {
			return err
		}
		r.Took = time.Since(began).Seconds()
		s.report.Rounds = append(s.report.Rounds, r)
		arm.Say("round %d, %d/%d pods: %.0f s, quiet after %.1f s, empty after %.1f s; %s",
			len(s.report.Rounds), s.now, s.pods, r.Took, r.Settled, r.Emptied, r.summary())
		if len(s.report.Violations) > maxViolations {
			return fmt.Errorf("more than %d violations", maxViolations)
		}
		if s.limit > 0 && time.Since(s.report.Time) > s.limit {
			return nil
		}
	}
	return nil
}

// breathe waits while the machine is overloaded. Its duration does not change the later
// actions.
func (s *soak) breathe(ctx context.Context) error {
	const backlog = 12 // pods that wait for their sandbox, or to go
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
		ids, err := s.sandboxes(ctx)
		if err != nil {
			return ctx.Err()
		}
		behind := 0
		for _, w := range s.wishes {
			if end, known := w.settled(); known && end == runs && !ids[w.full()] {
				behind++
			}
			delete(ids, w.full())
		}
		if behind < backlog && len(ids) < backlog+len(s.elders) {
			return nil
		}
		if err := arm.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// quiet ends a round: see the package's comment.
func (s *soak) quiet(ctx context.Context) (round, error) {
	r := round{Pods: s.now}
	for _, h := range s.houses {
		h.well()
		if err := os.RemoveAll(h.scratch()); err != nil {
			return r, err
		}
		if err := os.MkdirAll(h.scratch(), 0o777); err != nil {
			return r, err
		}
		if h.process.Ended() {
			return r, fmt.Errorf("the agent of %s ended by itself:\n%s", h.name, h.process.Tail())
		}
	}
	s.tell("quiet")
	took, wrong := s.await(ctx, converge, func() []string { return s.unsettled(ctx, slices.Concat(s.elders, s.wishes)) })
	r.Settled = took.Seconds()
	s.violation(wrong...)
	s.violation(s.changedElders(ctx)...)
	if len(wrong) > 0 {
		s.keep()
	}
	s.tell("all go")
	for len(s.wishes) > 0 {
		if err := s.take(s.wishes[0]); err != nil {
			return r, err
		}
	}
	var inv inventory
	took, wrong = s.await(ctx, depart, func() []string {
		inv = s.inventory(ctx)
		return inv.more(s.before)
	})
	r.Emptied, r.Inventory = took.Seconds(), inv
	s.violation(wrong...)
	s.violation(s.changedElders(ctx)...)
	for _, h := range s.houses {
		s.violation(h.broken(ctx)...)
		s.violation(s.grown(ctx, h)...)
	}
	if len(wrong) > 0 {
		s.keep()
		s.before = inv // report each leak once
	}
	if err := arm.Pause(ctx, time.Second); err != nil {
		return r, err
	}
	var err error
	r.Sample, err = s.sample(ctx)
	return r, err
}

// sandboxes returns the names of the pods with a ready sandbox.
func (s *soak) sandboxes(ctx context.Context) (map[string]bool, error) {
	r, err := s.lab.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
	}})
	names := map[string]bool{}
	for _, b := range r.GetItems() {
		names[b.Metadata.Name] = true
	}
	return names, err
}

// keep writes the state to a file, for the search for the cause.
func (s *soak) keep() {
	name := filepath.Join(s.out, fmt.Sprintf("round-%03d.txt", len(s.report.Rounds)+1))
	text := strings.Join(s.report.Violations, "\n") + "\n\n" + s.leftBehind()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		arm.Say("%v", err)
	}
	for _, h := range s.houses {
		if journal, err := os.ReadFile(h.journal()); err == nil {
			_ = os.WriteFile(strings.TrimSuffix(name, ".txt")+"-"+h.name+".jsonl", journal, 0o644)
		}
	}
}

// empty removes the elders: then nothing of any pod is left.
func (s *soak) empty(ctx context.Context) error {
	s.wishes, s.elders = s.elders, nil
	for len(s.wishes) > 0 {
		if err := s.take(s.wishes[0]); err != nil {
			return err
		}
	}
	none := inventory{}
	for name := range s.before {
		none[name] = 0
	}
	none["cgroups"], none["odd files of the agent"] = s.before["cgroups"], s.before["odd files of the agent"] // groups above the pods; its own files
	_, wrong := s.await(ctx, depart, func() []string { return s.inventory(ctx).more(none) })
	s.violation(wrong...)
	for _, h := range s.houses {
		s.violation(s.grown(ctx, h)...)
	}
	s.violation(bounds.Node{Dirs: map[bounds.Place]string{bounds.Root: s.lab.Node.RootDir, bounds.Run: s.lab.Node.RunDir}}.Check()...)
	return nil
}
