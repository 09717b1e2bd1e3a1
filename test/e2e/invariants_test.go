package e2e

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/invariant"
)

// promised is what a scenario notes down for invariants.
type promised struct {
	history invariant.History
	owners  map[string]string // pod's full name by manifest
	stops   []*criproxy.Fault // they happen to nothing: they collect calls
	agents  []*agent
}

// canary is a secret word: an agent may read it in a manifest, and must never
// write it where people look for what it did.
const canary = "canary-f31d"

// secret gives a container the canary; it is more YAML for container.
const secret = `env: [{name: TOKEN, value: ` + canary + `}]`

// listen collects the calls that end things.
func (s *stage) listen(p *criproxy.Proxy) {
	for _, method := range invariant.Stopping {
		s.stops = append(s.stops, p.Fault(criproxy.Rule{Method: method}))
	}
}

// noteWrite notes what a manifest is about to want. One that is no manifest
// changes nothing.
func (s *stage) noteWrite(file, text string) {
	if s.owners == nil {
		s.owners = make(map[string]string)
	}
	old, known := s.owners[file]
	var p v1.Pod
	if yaml.Unmarshal([]byte(text), &p) != nil || p.Kind != "Pod" || p.Name == "" {
		if known {
			s.history.Break(old)
		}
		return
	}
	name := s.full(p.Name)
	if known && old != name {
		s.history.Away(old)
	}
	s.owners[file] = name
	s.history.Want(name, &p)
}

func (s *stage) noteRemove(file string) {
	if name, known := s.owners[file]; known {
		s.history.Away(name)
		delete(s.owners, file)
	}
}

// excuse says that the agent may end a pod's containers, and that it need not
// be as wanted in the end.
func (s *stage) excuse(names ...string) {
	for _, name := range names {
		s.history.Excuse(s.full(name))
	}
}

// invariants waits until everything is as it is wanted, and fails for every
// promise that was broken on the way. A scenario ends with it, while its agent
// lives.
func (s *stage) invariants() {
	s.Helper()
	scope := invariant.Scope{
		Node: s.node, Name: s.name, Witness: s.lives.Witness, History: &s.history, Root: s.root, Logs: s.logs, Secrets: []string{canary},
	}
	if err := scope.Settle(s.Context(), patience); err != nil {
		s.Error(err)
	}
	for _, a := range s.agents {
		scope.Said = append(scope.Said, strings.Split(a.said(), "\n")...)
		select {
		case <-a.done:
		default:
			scope.Pid = a.cmd.Process.Pid
		}
	}
	for _, f := range s.stops {
		scope.Stops = append(scope.Stops, f.Calls()...)
	}
	found, err := scope.Check(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, v := range found {
		s.Error(v)
	}
}
