// Package stage is a cluster of one machine for programs that compare the real kubelet and
// nodectl: a control plane (test/cluster), a containerd (test/node), a network device with an
// address for both, and an agent that joins.
//
// test/benchcluster measures on it, test/paritycluster records. Both take an agent's flags
// from here, so that figures and recordings are of the same two.
//
// Close removes or restores everything that the stage started or changed on this machine,
// also after an error.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
)

// A Stage is a control plane and a machine that an agent can join as a node.
type Stage struct {
	*arm.Lab
	Cluster *cluster.Cluster
	Admin   *rest.RESTClient // of the core group, as the administrator
	Address string           // of the machine; the API server listens on it too

	tb     *suite.TB // of the control plane
	device string
}

// Open starts a stage. The caller closes it.
func Open(ctx context.Context) (s *Stage, err error) {
	s = &Stage{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Lab, err = arm.Open(ctx); err != nil {
		return s, err
	}
	if s.device, s.Address, err = makeDevice(); err != nil {
		return s, err
	}
	s.tb = suite.New(ctx, s.Dir)
	if err := suite.Try(func() { s.Cluster = cluster.Start(s.tb, cluster.Whole(s.Address)) }); err != nil {
		return s, fmt.Errorf("control plane: %w", err)
	}
	s.Admin = s.Cluster.Client(s.tb)
	// Every pod mounts this ConfigMap.
	return s, await(ctx, 30*time.Second, func(ctx context.Context) error {
		return s.Admin.Get().Namespace("default").Resource("configmaps").Name("kube-root-ca.crt").Do(ctx).Error()
	})
}

// Close ends everything, and returns an error when something is left.
func (s *Stage) Close() error {
	var errs []error
	if s.tb != nil {
		s.tb.End()
	}
	if s.Lab != nil {
		errs = append(errs, s.Empty(), s.Lab.Close())
	}
	if s.device != "" {
		if out, err := exec.Command("ip", "link", "del", s.device).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w: %s", s.device, err, out))
		}
	}
	return errors.Join(errs...)
}

// AwaitNode returns when the node is there and ready.
func (s *Stage) AwaitNode(ctx context.Context, name string) error {
	err := await(ctx, time.Minute, func(ctx context.Context) error {
		var n v1.Node
		if err := s.Admin.Get().Resource("nodes").Name(name).Do(ctx).Into(&n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not Ready")
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// await calls f until it returns nil.
func await(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	return arm.Until(ctx, limit, 50*time.Millisecond, func() (bool, error) {
		err := f(ctx)
		return err == nil, err
	})
}

// makeDevice makes a network device with its own address.
func makeDevice() (name, address string, err error) {
	for i := range 200 {
		name, address = fmt.Sprintf("ndc%d", i), fmt.Sprintf("198.19.%d.1", i)
		if exec.Command("ip", "link", "add", name, "type", "veth", "peer", "name", name+"p").Run() != nil {
			continue // the name is taken
		}
		for _, args := range [][]string{{"addr", "add", address + "/32", "dev", name}, {"link", "set", name, "up"}, {"link", "set", name + "p", "up"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				return name, address, fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
		}
		return name, address, nil
	}
	return "", "", errors.New("no network device could be made")
}
