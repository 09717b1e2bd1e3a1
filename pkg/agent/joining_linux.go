package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/workload"
)

// StopWorkloads is the value of --workloads that removes the workloads of files from a machine that
// joins a cluster.
const StopWorkloads = "stop"

// maxNamed limits the workloads that an error names.
const maxNamed = 10

// joinWithoutWorkloads makes sure that no workload of a file runs on a node of a cluster, whose
// controllers run workloads. With --workloads=stop it removes the workloads on this machine. Otherwise
// it returns an error with their names. The sources reject workloads in files.
func (a *Agent) joinWithoutWorkloads(ctx context.Context) error {
	if a.cfg.Kubeconfig == "" {
		return nil
	}
	pods, running := a.runningWorkloads()
	if len(running) == 0 {
		return nil
	}
	if a.cfg.Workloads == StopWorkloads {
		return a.stopWorkloads(ctx, pods, slices.SortedFunc(maps.Keys(running), compareKeys))
	}
	a.findPlaces(ctx, running)
	return readonly.Fail(readonly.Usage, fmt.Errorf("--kubeconfig: workloads of files run on this machine, and the controllers of a cluster run workloads: %s", listWorkloads(running)),
		"apply them to the cluster and remove them from the files; --workloads=stop removes their pods from this machine first")
}

func compareKeys(a, b pod.ObjectKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Key.Compare(b.Key))
}

// listWorkloads returns workloads with their places, in order.
func listWorkloads(running map[pod.ObjectKey]string) string {
	var all []string
	for key, place := range running {
		all = append(all, strings.ToLower(key.Kind)+" "+key.Key.String()+" ("+place+")")
	}
	slices.Sort(all)
	if more := len(all) - maxNamed; more > 0 {
		all = append(all[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// findPlaces adds the places of workloads in the files and directories of -f.
func (a *Agent) findPlaces(ctx context.Context, running map[pod.ObjectKey]string) {
	local := a.cfg.Config
	local.Kubeconfig = "" // read the files as without a cluster
	local.Filename = slices.DeleteFunc(slices.Clone(local.Filename), func(name string) bool { return name == "-" || config.IsURL(name) })
	if len(local.Filename) == 0 {
		return
	}
	set, _, err := local.Manifests(ctx, nil)
	if err != nil {
		a.log.Warn("Failed to read manifests", "error", err)
		return
	}
	for _, o := range workloadsIn(set) {
		if _, runs := running[o.ObjectKey()]; runs {
			running[o.ObjectKey()] = o.Origin.String()
		}
	}
}

// runningWorkloads returns the recorded pods of workloads, and the workloads that have pods or a
// state here.
func (a *Agent) runningWorkloads() (pods []*pod.Spec, running map[pod.ObjectKey]string) {
	const unknown = "no file has it any more"
	running = map[pod.ObjectKey]string{}
	err := record.ReadWorkloads(a.cfg.RootDir, func(of pod.ObjectKey, _ string, _ []byte) { running[of] = unknown })
	if err != nil {
		a.log.Warn("Failed to read some states of workloads", "error", err)
	}
	noStates := len(running) == 0
	for _, p := range a.cfg.RecordedPods(a.state.kept, a.state.reported) {
		if !workload.MayOwn(p.Spec) {
			continue
		}
		pods = append(pods, p.Spec)
		if noStates { // without a state, only the pod is known
			running[pod.ObjectKey{Kind: "Pod", Key: p.Spec.Key}] = unknown
		}
	}
	return pods, running
}

// stopWorkloads removes the pods of workloads, in the order of their dependencies, and then their
// states.
func (a *Agent) stopWorkloads(ctx context.Context, pods []*pod.Spec, keys []pod.ObjectKey) error {
	if len(pods) > 0 {
		a.log.Info("Removing the pods of workloads, because this machine joins a cluster", "pods", len(pods), "workloads", len(keys))
		if err := a.runtime.await(ctx, runtimeTimeout); err != nil {
			return err
		}
		set := &podconfig.Merged{Pods: sorted.From(pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })}
		if _, err := a.newEngine(nil, readonly.Rules{}, receivers{}).Once(ctx, set, engine.UntilGone); err != nil {
			return readonly.Fail(readonly.Runtime, fmt.Errorf("--workloads=stop: remove the pods of workloads: %w", err))
		}
	}
	var errs []error
	for _, key := range keys {
		errs = append(errs, record.NewWorkloads(a.cfg.RootDir).Remove(key))
	}
	if err := errors.Join(errs...); err != nil {
		return readonly.Fail(readonly.Failure, fmt.Errorf("--workloads=stop: %w", err))
	}
	a.state = openState(a.cfg)
	return nil
}

// expander returns the Expander of podconfig, which makes the pods of workloads.
func (a *Agent) expander(w *controller.Controller) podconfig.Expander {
	if a.cfg.Kubeconfig != "" {
		return &clusterWorkloads{log: a.log}
	}
	return w
}

// clusterWorkloads is the podconfig.Expander of a node of a cluster: it makes no pods for workloads
// of files, and logs their names.
type clusterWorkloads struct {
	log   *slog.Logger
	named map[pod.ObjectKey]bool
}

// Expand implements podconfig.Expander.
func (c *clusterWorkloads) Expand(workloads []*pod.Object) ([]*pod.Spec, []*pod.Object) {
	now := make(map[pod.ObjectKey]bool, len(workloads))
	for _, o := range workloads {
		key := o.ObjectKey()
		if now[key] = true; !c.named[key] {
			c.log.Warn("Ignoring workload of a source without an API server: this node is in a cluster, whose controllers run workloads", "workload", key.String(), "from", o.Origin.String())
		}
	}
	c.named = now
	return nil, nil
}

// Due implements podconfig.Expander.
func (*clusterWorkloads) Due() <-chan struct{} { return nil }
