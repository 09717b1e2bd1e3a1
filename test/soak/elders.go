package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/test/arm"
)

// Elders are pods that the soak never changes, two in each house: their containers run from
// the first minute to the last, whatever happens around them (I2).
const eldersPerHouse = 2

// elders draws a house's, with every kind of probe between them.
func elders(h *house) []*wish {
	probe := func(handler v1.ProbeHandler) *v1.Probe {
		return &v1.Probe{ProbeHandler: handler, PeriodSeconds: 2, TimeoutSeconds: 10, FailureThreshold: 5}
	}
	var all []*wish
	for i := range eldersPerHouse {
		w := &wish{name: fmt.Sprintf("elder%d", i), house: h, pod: &v1.Pod{}, end: runs}
		p := w.pod
		p.APIVersion, p.Kind, p.Name, p.Namespace = "v1", "Pod", w.name, namespace
		p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(2))
		p.Spec.Volumes = []v1.Volume{volume("data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})}
		side, c, other := container(p, "side"), container(p, "c0"), container(p, "c1")
		side.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		side.Args, other.Args = []string{"forever"}, []string{"forever"}
		c.Args = []string{"serve", ":8000", "health", ":9000", "forever"}
		c.ReadinessProbe = probe(v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt(8000)}})
		c.LivenessProbe = probe(v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: 9000}})
		if i == 1 {
			c.ReadinessProbe = probe(command("exists", "/data"))
			c.LivenessProbe = probe(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt(8000)}})
		}
		p.Spec.InitContainers, p.Spec.Containers = []v1.Container{side}, []v1.Container{c, other}
		all = append(all, w)
	}
	return all
}

// settleElders starts the elders, and records their containers and the node's state with them
// alone.
func (s *soak) settleElders(ctx context.Context) error {
	for _, h := range s.houses {
		for _, w := range elders(h) {
			if err := s.write(w); err != nil {
				return err
			}
			s.elders = append(s.elders, w)
		}
	}
	if _, wrong := s.await(ctx, converge, func() []string { return s.unsettled(ctx, s.elders) }); len(wrong) > 0 {
		return fmt.Errorf("the first pods do not run: %v", wrong)
	}
	var err error
	if s.first, err = s.lab.RunningContainers(ctx); err != nil {
		return err
	}
	if err := arm.Pause(ctx, 2*time.Second); err != nil {
		return err
	}
	s.before = s.inventory(ctx)
	return nil
}

// changedElders returns the elders' containers that do not run any more.
func (s *soak) changedElders(ctx context.Context) []string {
	r, err := s.lab.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return []string{err.Error()}
	}
	missing := maps.Clone(s.first)
	for _, c := range r.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			delete(missing, c.Id)
		}
	}
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		delete(s.first, id)
		lines = append(lines, fmt.Sprintf("I2: container %.12s of a pod that nothing was done to does not run any more", id))
	}
	return lines
}
