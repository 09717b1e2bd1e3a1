package e2e

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/invariant"
	"github.com/nodectl/nodectl/test/wait"
)

// promised has the facts that a scenario records for invariants.
type promised struct {
	history invariant.History
	owners  map[string]*v1.Pod // the pod of a manifest, under its full name
	stops   []*criproxy.Fault  // faults without an effect: they collect calls
	agents  []*agent
	judged  bool // the scenario's end has called invariants
}

// canary is a secret: an agent may read it in a manifest, and must never write it where users
// can read it.
const canary = "canary-f31d"

// secret gives a container the canary; it is more YAML for container.
const secret = `env: [{name: TOKEN, value: ` + canary + `}]`

// listen collects the calls that stop containers and sandboxes.
func (s *stage) listen(p *criproxy.Proxy) {
	for _, method := range invariant.Stopping {
		s.stops = append(s.stops, p.Fault(criproxy.Rule{Method: method}))
	}
}

// noteWrite records which pod a manifest is about to add. A file that is no manifest changes
// nothing.
func (s *stage) noteWrite(file, text string) {
	if s.owners == nil {
		s.owners = make(map[string]*v1.Pod)
	}
	old := s.owners[file]
	p := &v1.Pod{}
	// Parsing a text of 10 MiB takes seconds of CPU; no manifest of a scenario is so long.
	if len(text) > 1<<20 || yaml.Unmarshal([]byte(text), p) != nil || p.Kind != "Pod" || p.Name == "" {
		if old != nil {
			s.history.Break(old.Name)
		}
		return
	}
	p.Name = s.full(p.Name)
	if old != nil && old.Name != p.Name {
		s.noteRemove(file)
	}
	s.owners[file] = p
	s.history.Want(p.Name, p)
}

// noteRemove records that a manifest is about to be removed. Another manifest of the same pod
// takes over.
func (s *stage) noteRemove(file string) {
	old := s.owners[file]
	if old == nil {
		return
	}
	delete(s.owners, file)
	for _, heir := range s.owners {
		if heir.Name == old.Name {
			s.history.Want(heir.Name, heir)
			return
		}
	}
	s.history.Away(old.Name)
}

// excuse says that the agent may end a pod's containers, and that the pod need not run at the
// end.
func (s *stage) excuse(names ...string) {
	for _, name := range names {
		s.history.Excuse(s.full(name))
	}
}

// judge runs invariants once: at the end of every scenario, while its last agent runs, if it
// has one. A failed scenario is not checked again.
func (s *stage) judge() {
	if !s.judged && !s.Failed() {
		s.judged = true
		s.invariants()
	}
}

// invariants fails for every invariant that was broken until now. With a running agent, it
// first waits until the node is in the desired state. No scenario opts out; excuse names pods
// that a scenario makes the agent end.
func (s *stage) invariants() {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*wait.Limit) // at the end, the test's own is over
	defer cancel()
	scope := invariant.Scope{
		Node: s.node, Name: s.name, Witness: s.lives.Witness, History: &s.history, Root: s.root, Logs: s.logs, Secrets: []string{canary},
	}
	for _, a := range s.agents {
		scope.Said = append(scope.Said, strings.Split(a.said(), "\n")...)
		select {
		case <-a.done:
		default:
			scope.Pid = a.cmd.Process.Pid
		}
	}
	s.forgive()
	if scope.Pid > 0 {
		if err := scope.Settle(ctx); err != nil {
			s.Error(err)
		}
		s.eventually(func() error {
			left, err := s.leftoverGroups(ctx)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("cgroups of no pod are left: %v", left)
			}
			return err
		})
	}
	for _, f := range s.stops {
		scope.Stops = append(scope.Stops, f.Calls()...)
	}
	found, err := scope.Check(ctx)
	if err != nil {
		s.Error(err)
	}
	for _, v := range found {
		s.Error(v)
	}
}
