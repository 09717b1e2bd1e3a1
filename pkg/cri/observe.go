package cri

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// readers limits the concurrent status calls of one read.
const readers = 4

// Pods returns every pod that carries our node's label, ordered by key, read now. If some
// statuses cannot be read, it returns the pods it could read in full together with the
// error; nil pods with an error mean that the lists failed.
func (r *Runtime) Pods(ctx context.Context) ([]pod.Actual, error) {
	found, err := r.readPods(ctx, r.selector())
	if found == nil {
		return nil, err
	}
	actuals := make([]pod.Actual, 0, len(found))
	for key, s := range found {
		actuals = append(actuals, s.actual(key))
	}
	slices.SortFunc(actuals, func(a, b pod.Actual) int { return a.Key.Compare(b.Key) })
	return actuals, err
}

// Pod returns one pod, read now: an empty Actual with its Key if the runtime has nothing of
// it. With an error the Actual is invalid.
func (r *Runtime) Pod(ctx context.Context, key pod.Key) (pod.Actual, error) {
	sel := r.selector()
	sel[pod.LabelPodNamespace], sel[pod.LabelPodName] = key.Namespace, key.Name
	found, err := r.readPods(ctx, sel)
	if err != nil {
		return pod.Actual{Key: key}, err
	}
	if sum := found[key].print; sum != 0 {
		r.seen.Store(key, sum)
	} else {
		r.seen.Delete(key)
	}
	return found[key].actual(key), nil
}

// Ready returns the runtime's current report about itself. A runtime that cannot make pods below
// the configured cgroup is not ready.
func (r *Runtime) Ready(ctx context.Context) (pod.RuntimeReady, error) {
	a, err := read(ctx, r, "Status", r.rt.Status, &runtimeapi.StatusRequest{})
	if err != nil {
		r.cgroupsRead.Store(false) // the runtime may be another one when it answers again
		r.features.Store(nil)
		return pod.RuntimeReady{}, err
	}
	r.features.Store(featuresOf(a))
	ready := pod.RuntimeReady{RuntimeMessage: "not reported by the runtime", NetworkMessage: "not reported by the runtime"}
	for _, c := range a.GetStatus().GetConditions() {
		msg := ""
		if !c.GetStatus() {
			msg = reasonOf(c)
		}
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			ready.Runtime, ready.RuntimeMessage = c.GetStatus(), msg
		case runtimeapi.NetworkReady:
			ready.Network, ready.NetworkMessage = c.GetStatus(), msg
		}
	}
	if ready.Runtime {
		if err := r.readCgroupNaming(ctx); err != nil {
			ready.Runtime, ready.RuntimeMessage = false, err.Error()
		}
	}
	return ready, nil
}

func reasonOf(c *runtimeapi.RuntimeCondition) string {
	switch {
	case c.GetMessage() != "":
		return plain(c.GetMessage())
	case c.GetReason() != "":
		return c.GetReason()
	}
	return "no reason given"
}

// Version returns the runtime's name and version ("containerd", "v2.4.2").
func (r *Runtime) Version(ctx context.Context) (name, version string, err error) {
	a, err := read(ctx, r, "Version", r.rt.Version, &runtimeapi.VersionRequest{})
	return a.GetRuntimeName(), a.GetRuntimeVersion(), err
}

// Relist returns a fingerprint of every pod that carries our node's label, by two calls. A
// fingerprint changes only when a sandbox or container of the pod is created, removed or
// changes its state.
func (r *Runtime) Relist(ctx context.Context) (map[pod.Key]uint64, error) {
	boxes, containers, err := r.lists(ctx, r.selector())
	if err != nil {
		return nil, err
	}
	prints := map[pod.Key]uint64{}
	for _, b := range boxes {
		prints[keyOfLabels(b.GetLabels())] += fingerprint("s", b.GetId(), b.GetState().String())
	}
	for _, c := range containers {
		prints[keyOfLabels(c.GetLabels())] += fingerprint("c", c.GetId(), c.GetState().String())
	}
	return prints, nil
}

// LastFingerprint returns the fingerprint of a pod when Pod last read it, 0 if it was not there. A
// relist is news to the caller of Pod only if the fingerprint differs.
func (r *Runtime) LastFingerprint(key pod.Key) uint64 {
	sum, _ := r.seen.Load(key)
	n, _ := sum.(uint64)
	return n
}

// fingerprint is the part of one sandbox or container in its pod's fingerprint. The parts
// are summed, so that the runtime's order does not matter.
func fingerprint(words ...string) uint64 {
	h := fnv.New64a()
	for _, w := range words {
		_, _ = h.Write([]byte(w + "\x00"))
	}
	return h.Sum64()
}

func (r *Runtime) selector() map[string]string {
	return map[string]string{pod.LabelNode: r.cfg.Node}
}

func keyOfLabels(l map[string]string) pod.Key {
	return pod.Key{Namespace: l[pod.LabelPodNamespace], Name: l[pod.LabelPodName]}
}

// readPods lists the objects that sel selects, and reads the status of each, since the lists lack
// addresses, times and exit codes. Entries that vanish between list and status are left out. A pod
// with an unreadable entry is left out whole and named in the error, because half a pod would be
// taken for the whole. For the same reason a sandbox that only a container names is read too, and a
// sandbox without containers is believed only after a second list (F26).
func (r *Runtime) readPods(ctx context.Context, sel map[string]string) (map[pod.Key]shown, error) {
	boxes, containers, err := r.lists(ctx, sel)
	if err == nil && hollow(boxes, containers, time.Now()) {
		boxes, containers, err = r.lists(ctx, sel)
	}
	if err != nil {
		return nil, err
	}
	listed := make(map[string]bool, len(boxes))
	for _, b := range boxes {
		listed[b.GetId()] = true
	}
	for _, c := range containers {
		if id := c.GetPodSandboxId(); id != "" && !listed[id] {
			listed[id] = true
			boxes = append(boxes, &runtimeapi.PodSandbox{Id: id, Labels: c.GetLabels()})
		}
	}
	sandboxes := make([]*runtimeapi.PodSandboxStatus, len(boxes))
	statuses := make([]*runtimeapi.ContainerStatus, len(containers))
	failed := make([]error, len(boxes)+len(containers))
	var g errgroup.Group // errors are kept for each entry instead
	g.SetLimit(readers)
	for i, b := range boxes {
		g.Go(func() error {
			a, err := read(ctx, r, "PodSandboxStatus", r.rt.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: b.GetId()})
			sandboxes[i], failed[i] = a.GetStatus(), unlessGone(err)
			return nil
		})
	}
	for i, c := range containers {
		g.Go(func() error {
			a, err := read(ctx, r, "ContainerStatus", r.rt.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
			statuses[i], failed[len(boxes)+i] = a.GetStatus(), unlessGone(err)
			return nil
		})
	}
	_ = g.Wait()

	found, bad := map[pod.Key]shown{}, map[pod.Key]error{}
	for i, b := range boxes {
		key := keyOfLabels(b.GetLabels())
		if failed[i] != nil {
			bad[key] = failed[i]
		} else if sandboxes[i] != nil {
			s := found[key]
			s.sandboxes = append(s.sandboxes, sandboxOf(sandboxes[i]))
			s.print += fingerprint("s", sandboxes[i].GetId(), sandboxes[i].GetState().String())
			found[key] = s
		}
	}
	for i, c := range containers {
		key := keyOfLabels(c.GetLabels())
		if err := failed[len(boxes)+i]; err != nil {
			bad[key] = err
		} else if statuses[i] != nil {
			s := found[key]
			s.containers = append(s.containers, r.containerOf(c.GetPodSandboxId(), statuses[i]))
			s.print += fingerprint("c", statuses[i].GetId(), statuses[i].GetState().String())
			found[key] = s
		}
	}
	return found, withoutBad(found, bad)
}

// hollow reports whether a ready sandbox older than a second has no container: a new one
// has none yet.
func hollow(boxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container, now time.Time) bool {
	filled := make(map[string]bool, len(containers))
	for _, c := range containers {
		filled[c.GetPodSandboxId()] = true
	}
	return slices.ContainsFunc(boxes, func(b *runtimeapi.PodSandbox) bool {
		return b.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && !filled[b.GetId()] && now.Sub(timeOf(b.GetCreatedAt())) > time.Second
	})
}

// withoutBad removes the keys of bad from found and joins their errors, in the order of
// keys.
func withoutBad(found map[pod.Key]shown, bad map[pod.Key]error) error {
	keys := make([]pod.Key, 0, len(bad))
	for key := range bad {
		delete(found, key)
		keys = append(keys, key)
	}
	slices.SortFunc(keys, pod.Key.Compare)
	var errs []error
	for _, key := range keys {
		errs = append(errs, fmt.Errorf("read pod %s: %w", key, bad[key]))
	}
	return errors.Join(errs...)
}
