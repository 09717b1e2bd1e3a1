package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/suite"
)

// nodeName is the agent's name in the cluster, and the host name of its namespace.
const nodeName = "e2enode"

// A stage is the system under test: a control plane, a container runtime and an agent.
type stage struct {
	tb      *suite.TB
	dir     string // of the run's files
	work    string // the suite's working directory, where it expects the agent's configuration
	logs    string
	token   string // of the suite, as the API server knows it
	url     string // of the API server, as the suite sees it
	cluster *cluster.Cluster
	node    *node.Node
	unit    *unit
}

// runInside runs the wanted cases with one agent, in the namespaces that enter made.
func runInside(ctx context.Context, o *options) (fine bool, err error) {
	dir := os.Getenv(scratchVariable)
	s := &stage{
		dir: dir, work: filepath.Join(dir, "work"), logs: filepath.Join(o.logs, o.agent),
		token: rand.Text(), tb: suite.New(ctx, dir),
	}
	defer s.tb.End()
	for _, d := range []string{s.work, s.logs} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return false, err
		}
	}
	if err := standIns(dir); err != nil {
		return false, err
	}
	arm.Say("%s: starting a control plane and a container runtime", o.agent)
	if err := suite.Try(s.start); err != nil {
		return false, err
	}
	if err := s.pullImages(ctx); err != nil {
		return false, err
	}
	if err := s.startAgent(o.agent); err != nil {
		return false, err
	}
	err = s.runCases(ctx, o)
	if !s.unit.running() {
		err = errors.Join(err, errors.New("the agent does not run at the end"))
	}
	return true, err
}

// runtimeHandler is the name of a handler that the suite expects of the runtime.
const runtimeHandler = "test-handler"

// showRuntimeConfig puts the runtime's configuration where the suite looks for that handler, and
// nodectl for the mirrors of registries. The namespace has its own /etc.
func (s *stage) showRuntimeConfig() error {
	const dir = "/etc/containerd"
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	return errors.Join(
		os.Symlink(filepath.Join(s.node.RunDir, "config.toml"), filepath.Join(dir, "config.toml")),
		os.Symlink(filepath.Join(s.node.RootDir, "runtime/certs.d"), filepath.Join(dir, "certs.d")))
}

// start starts everything but the agent.
func (s *stage) start() {
	t := s.tb
	s.node = node.NewIn(t, s.dir, runtimeHandler)
	if err := s.showRuntimeConfig(); err != nil {
		t.Fatal(err)
	}
	// Where the kubelet's cAdvisor looks for the runtime, whatever its endpoint is.
	const socket = "/run/containerd/containerd.sock"
	if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o755), os.Symlink(strings.TrimPrefix(s.node.Endpoint, "unix://"), socket)); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(s.dir, "tokens.csv")
	if err := os.WriteFile(tokens, fmt.Appendf(nil, "%s,suite,suite,system:masters\n", s.token), 0o600); err != nil {
		t.Fatal(err)
	}
	// As the suite's own API server, which authorizes everything, but with a client
	// certificate for the agent's server: else logs and exec arrive there anonymously.
	s.cluster = cluster.Start(t, cluster.Whole(address),
		cluster.APIServerArgs("--token-auth-file="+tokens, "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
			"--authorization-mode=AlwaysAllow", "--service-account-issuer=https://foo.bar.example.com", "--api-audiences=https://foo.bar.example.com"),
		cluster.ControllerArgs("--controllers=namespace-controller,serviceaccount-controller"))
	s.cluster.Scheduler.Kill(t) // the suite names the node of each pod
	s.url = s.cluster.URL
}
