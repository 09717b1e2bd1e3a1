// Package stage is a cluster of one machine for programs that compare the real kubelet and
// nodectl: a control plane (test/cluster), a containerd (test/node), a network device with an
// address for both, and an agent that joins.
//
// test/benchcluster measures on it, test/paritycluster records. Both take an agent's flags
// from here, so that figures and recordings are of the same two.
//
// The one rule: closing a stage removes or restores everything that it started or changed on
// this machine, also after an error.
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
	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/cluster"
)

// A Stage is a control plane and a machine that an agent can join as a node.
type Stage struct {
	*lab.Lab
	Cluster *cluster.Cluster
	Admin   *rest.RESTClient // of the core group, as the administrator
	Address string           // of the machine; the API server listens on it too

	bench    *arm.Bench
	device   string
	settings arm.Settings
}

// Open starts a stage. The caller closes it.
func Open(ctx context.Context) (s *Stage, err error) {
	s = &Stage{settings: arm.ReadSettings()}
	defer func() {
		if said := recover(); said != nil {
			err = fmt.Errorf("control plane: %v", said)
		}
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Lab, err = lab.Open(ctx); err != nil {
		return s, err
	}
	if s.device, s.Address, err = makeDevice(); err != nil {
		return s, err
	}
	if err := arm.MakeCgroup(s.Node.CgroupParent); err != nil { // a kubelet needs it to exist
		return s, err
	}
	s.bench = arm.NewBench(ctx, s.Dir)
	s.Cluster = cluster.Start(s.bench, cluster.Whole(s.Address))
	s.Admin = s.Cluster.Client(s.bench)
	// Every pod mounts this ConfigMap.
	return s, Await(ctx, 30*time.Second, func(ctx context.Context) error {
		return s.Admin.Get().Namespace("default").Resource("configmaps").Name("kube-root-ca.crt").Do(ctx).Error()
	})
}

// Close ends everything, and returns an error when something is left.
func (s *Stage) Close() error {
	var errs []error
	if s.bench != nil {
		s.bench.End()
	}
	if s.Lab != nil {
		errs = append(errs, s.Clean(), s.Lab.Close())
	}
	if s.device != "" {
		if out, err := exec.Command("ip", "link", "del", s.device).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w: %s", s.device, err, out))
		}
	}
	return errors.Join(append(errs, s.settings.Restore())...)
}

// Clean removes every pod by CRI, and what an agent left of them.
func (s *Stage) Clean() error { return arm.Empty(s.Node, s.Dir, s.Clear) }

// AwaitNode returns when the node is there and ready.
func (s *Stage) AwaitNode(ctx context.Context, name string) error {
	err := Await(ctx, time.Minute, func(ctx context.Context) error {
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

// Await calls f until it returns nil.
func Await(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	for deadline := time.Now().Add(limit); ; {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", limit, err)
		}
		if err := lab.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
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
