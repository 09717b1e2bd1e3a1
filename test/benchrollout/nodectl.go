package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/nodectl/nodectl/test/arm"
)

// shown is the Deployment as nodectl shows it.
type shown struct {
	Object  appsv1.Deployment `json:"object"`
	History []struct {
		Revision int64  `json:"revision"`
		Failed   string `json:"failed"`
		Template struct {
			Metadata struct {
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"template"`
	} `json:"history"`
}

// stateOf returns the state of a Deployment, without failed versions.
func stateOf(d *appsv1.Deployment) state {
	is, version := d.Status, d.Spec.Template.Labels["version"]
	s := state{available: is.AvailableReplicas}
	s.text = fmt.Sprintf("the Deployment has version %s, %d pods, %d of the newest version, %d available", version, is.Replicas, is.UpdatedReplicas, is.AvailableReplicas)
	if is.Replicas == replicas && is.UpdatedReplicas == replicas && is.AvailableReplicas == replicas {
		s.complete = version
	}
	return s
}

// onNodectl is the Deployment on nodectl.
type onNodectl struct{ *arm.Turn }

func withNodectl(ctx context.Context, b *bench, do func(system) error) error {
	return b.Turn(ctx, b.Nodectl, b.Nodectl.Name, b.Node.Endpoint, nil, func(t *arm.Turn) error { return do(&onNodectl{t}) })
}

func (n *onNodectl) url() string { return "http://" + address + "/" }

func (n *onNodectl) file() string { return filepath.Join(n.Manifests, "web.yaml") }

// apply replaces the manifest.
func (n *onNodectl) apply(_ context.Context, v version, s settings) error {
	if err := os.WriteFile(n.file()+".new", []byte(manifest(v, s, where{clusterIP: address})), 0o600); err != nil {
		return err
	}
	return os.Rename(n.file()+".new", n.file())
}

// undo does nothing: nodectl rolls back by itself.
func (n *onNodectl) undo(context.Context, version, settings) error { return nil }

func (n *onNodectl) deployment(ctx context.Context) (*shown, error) {
	var list struct {
		Items []shown `json:"items"`
	}
	if err := n.Ask(ctx, "/v1/workloads?kind=Deployment&history=true", &list); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

func (n *onNodectl) state(ctx context.Context) (state, error) {
	d, err := n.deployment(ctx)
	if err != nil || d == nil {
		return state{}, errors.Join(err, errors.New("no Deployment is shown"))
	}
	s := stateOf(&d.Object)
	for _, r := range d.History {
		if r.Failed != "" {
			s.failed = append(s.failed, r.Template.Metadata.Labels["version"])
		}
	}
	return s, nil
}

func (n *onNodectl) clear(ctx context.Context) error {
	if err := os.Remove(n.file()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return arm.Until(ctx, time.Minute, 100*time.Millisecond, func() (bool, error) {
		if n.Ended() {
			return true, errors.New("the agent has ended: the rules of its Services are left")
		}
		var services struct {
			Items []any `json:"items"`
		}
		d, err := n.deployment(ctx)
		err = errors.Join(err, n.Ask(ctx, "/v1/services", &services))
		if err == nil && d == nil && len(services.Items) == 0 {
			return true, nil
		}
		return false, errors.Join(err, errors.New("the Deployment or the Service is left"))
	})
}
