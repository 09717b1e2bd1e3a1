package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
)

// clusterAddress is the Service's in the control plane of the tests, whose range is fixed.
const clusterAddress = "10.96.0.20"

// onKubelet is the Deployment on the real control plane, with kube-proxy and the kubelet.
type onKubelet struct {
	*stage.Stage
	apps *rest.RESTClient
}

// withKubelet starts a control plane with all its controllers, a containerd, the kubelet and
// kube-proxy. kube-proxy has its defaults, except that it leaves the machine's settings for tracked
// connections as they are.
func withKubelet(ctx context.Context, b *bench, do func(system) error) (err error) {
	st, err := stage.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if err := importImages(ctx, st.Node); err != nil {
		return err
	}
	// Other users of this machine's disk or memory have no effect, as on nodectl.
	k, err := arm.NewKubelet(b.Kubelet, "evictionHard: {memory.available: 1Mi}\n")
	if err != nil {
		return err
	}
	k.KeepLogs = b.KeepLogs
	if err := st.Configure(k); err != nil {
		return err
	}
	t, err := st.Begin(ctx, k, k.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Finish()) }()
	if err := st.KubeProxy(k.Name, "--masquerade-all=false"); err != nil {
		return err
	}
	apps, err := st.Apps()
	if err != nil {
		return err
	}
	return do(&onKubelet{st, apps})
}

func (k *onKubelet) url() string { return "http://" + clusterAddress + "/" }

func (k *onKubelet) apply(ctx context.Context, v version, s settings) error {
	return k.Kubectl(ctx, manifest(v, s, where{clusterIP: clusterAddress}), "apply", "-f", "-")
}

// undo is that of a person: the Deployment has no other way back.
func (k *onKubelet) undo(ctx context.Context, _ version, _ settings) error {
	return k.Kubectl(ctx, "", "rollout", "undo", "deployment/web")
}

func (k *onKubelet) state(ctx context.Context) (state, error) {
	var d appsv1.Deployment
	if err := k.apps.Get().Namespace("default").Resource("deployments").Name("web").Do(ctx).Into(&d); err != nil {
		return state{}, err
	}
	return observed(&d), nil
}

// observed is the state of a Deployment that the deployment controller manages. Until the controller
// has observed the newest generation, its status is of an older one.
func observed(d *appsv1.Deployment) state {
	s := stateOf(d)
	if d.Status.ObservedGeneration < d.Generation {
		s.complete = ""
		return s
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == v1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded" {
			s.failed = []string{d.Spec.Template.Labels["version"]}
		}
	}
	return s
}

func (k *onKubelet) clear(ctx context.Context) error {
	if err := k.Kubectl(ctx, "", "delete", "deployment,service", "web", "--ignore-not-found", "--cascade=foreground"); err != nil {
		return err
	}
	return arm.Until(ctx, time.Minute, 100*time.Millisecond, func() (bool, error) {
		var pods v1.PodList
		if err := k.Admin.Get().Namespace("default").Resource("pods").Do(ctx).Into(&pods); err != nil {
			return false, err
		}
		if n := len(pods.Items); n > 0 {
			return false, fmt.Errorf("%d pods are left", n)
		}
		return true, nil
	})
}
