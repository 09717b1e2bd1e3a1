package stage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/suite"
)

// Domain is the cluster's.
const Domain = "cluster.local"

// MaxPods is the pod limit of both agents.
const MaxPods = 120

// configuration has the settings that a kubelet needs on a machine that it does not own (swap), and
// those of its cluster. It also sets the seccomp filter that nodectl's containers have by default,
// so that both start the same container.
const configuration = `failSwapOn: false
enforceNodeAllocatable: [none]
seccompDefault: true
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
maxPods: %d
clusterDomain: %s
`

// Configure gives an agent the settings of this cluster: the same for both.
func (s *Stage) Configure(a *arm.Agent) error {
	ca := s.Cluster.Authority.File
	a.Args = append(a.Args, "--node-ip", s.Address)
	if a.Name == "kubelet" {
		a.Address, a.Config = s.Address, fmt.Sprintf(configuration, ca, MaxPods, Domain)+a.Config
		return nil
	}
	ports, err := arm.FreePorts(s.Address, 1)
	if err != nil {
		return err
	}
	a.Args = append(a.Args, "--address", s.Address, "--port", strconv.Itoa(ports[0]),
		"--client-ca-file", ca, "--cluster-domain", Domain, "--max-pods", strconv.Itoa(MaxPods))
	return nil
}

// A Turn is a running agent, as a node of the cluster.
type Turn struct {
	*arm.Turn
	stage      *Stage
	kubeconfig string
}

// Resume starts the agent again after it was ended.
func (t *Turn) Resume() error { return t.Turn.Begin("--kubeconfig", t.kubeconfig) }

// Begin starts an agent as a node of that name, in a place of its own, and returns when the
// node is ready.
func (s *Stage) Begin(ctx context.Context, a *arm.Agent, name string) (*Turn, error) {
	p, err := s.NewPlace(filepath.Join("turn", a.Name))
	if err != nil {
		return nil, err
	}
	p.NodeName = name
	t := &Turn{Turn: &arm.Turn{Agent: a, Place: p}, stage: s}
	if err := suite.Try(func() { t.kubeconfig = s.Cluster.NodeKubeconfig(s.tb, name) }); err != nil {
		return nil, err
	}
	if err := t.Resume(); err != nil {
		return nil, err
	}
	if err := s.AwaitNode(ctx, name); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, t.Tail()), t.Turn.Finish(syscall.SIGKILL))
	}
	return t, nil
}

// Finish ends the agent, and removes its node and its pods from the cluster and the machine.
func (t *Turn) Finish() error {
	err := t.Turn.Finish(syscall.SIGTERM)
	ctx := context.Background()
	no := int64(0)
	now := &metav1.DeleteOptions{GracePeriodSeconds: &no}
	admin := t.stage.Admin
	return errors.Join(err,
		admin.Delete().Namespace("default").Resource("pods").Body(now).Do(ctx).Error(),
		admin.Delete().Resource("nodes").Name(t.NodeName).Do(ctx).Error(),
		t.stage.Empty())
}
