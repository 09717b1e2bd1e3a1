package status

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// actuated returns the resources that the container has, in the format of Spec.Resources: those of
// its last resize, else those that it was created with. "" means unknown.
func (b *build) actuated(r pod.Container) string {
	return cmp.Or(b.notes.ContainerNotes[r.ID].Resources, r.Resources)
}

// resources fills in the allocated and the actual resources of a container (C-1.34.1,
// C-1.34.2). Both are those of its spec, unless a resize is in progress or pending.
func (b *build) resources(st *v1.ContainerStatus, c *v1.Container, r pod.Container) {
	allocated, has := c.Resources, c.Resources
	if text := b.actuated(r); text != "" && len(pod.ResourcesChanged(text, pod.ResourcesText(c.Resources))) > 0 {
		given := pod.ParseResources(text)
		given.Claims = c.Resources.Claims
		if b.notes.ResizeReason != "" {
			allocated, has = given, given
		} else if r.State == pod.StateRunning {
			has = given
		}
	}
	st.AllocatedResources, st.Resources = allocated.Requests, &has
}

// podResources fills in the resources of the whole pod: the sums over its containers, as the
// kubelet reports static pods. A pod that is not admitted has none, and neither has any pod if the
// feature is off.
func (b *build) podResources(st *v1.PodStatus) {
	if b.notAdmitted() || len(st.ContainerStatuses) == 0 || b.notes.Disabled.Has(pod.FeaturePodResize) {
		return
	}
	p := *b.want.Pod
	if b.notes.ResizeReason != "" { // the containers do not have the resources of their spec yet
		p.Spec.InitContainers = withResources(p.Spec.InitContainers, st.InitContainerStatuses)
		p.Spec.Containers = withResources(p.Spec.Containers, st.ContainerStatuses)
		if p.Spec.Resources != nil && b.notes.Allocated != nil {
			p.Spec.Resources = b.notes.Allocated
		}
	}
	st.AllocatedResources = resource.PodRequests(&p, resource.PodResourcesOptions{})
	st.Resources = &v1.ResourceRequirements{
		Requests: st.AllocatedResources,
		Limits:   resource.PodLimits(&p, resource.PodResourcesOptions{}),
	}
}

// withResources returns the containers with the resources of their statuses, where one has
// them.
func withResources(list []v1.Container, have []v1.ContainerStatus) []v1.Container {
	list = slices.Clone(list)
	for _, s := range have {
		i := slices.IndexFunc(list, func(c v1.Container) bool { return c.Name == s.Name })
		if i >= 0 && s.Resources != nil {
			list[i].Resources = *s.Resources
		}
	}
	return list
}

// resizing returns the condition of a resize in progress or pending; nil when there is none.
func (b *build) resizing(st *v1.PodStatus) *v1.PodCondition {
	c := &v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue}
	switch {
	case pod.IsPhaseTerminal(st.Phase) || b.notes.Terminating:
		return nil
	case b.notes.ResizeReason != "":
		c.Type, c.Reason, c.Message = v1.PodResizePending, b.notes.ResizeReason, b.notes.ResizeMessage
		return c
	}
	found := b.notes.ResizeError != ""
	if found {
		c.Reason, c.Message = v1.PodReasonError, b.notes.ResizeError
	}
	spec := &b.want.Pod.Spec
	for _, container := range slices.Concat(pointers(spec.InitContainers), pointers(spec.Containers)) {
		r, ok := b.Container(container.Name)
		if !ok || r.State != pod.StateRunning || !b.resizable(container) || !b.toResize(container, r) {
			continue
		}
		found = true
		if t := b.notes.Failures[container.Name]; t.Reason != "" {
			c.Reason, c.Message = v1.PodReasonError, t.Message
		}
	}
	if !found {
		return nil
	}
	return c
}

// resizable reports whether a running container is resized at all.
func (b *build) resizable(c *v1.Container) bool {
	return !b.notes.Disabled.Has(pod.FeatureInitResize) || pod.Restartable(c) ||
		!slices.ContainsFunc(b.want.Pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
}

func pointers(list []v1.Container) (all []*v1.Container) {
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

// toResize reports whether the CPU or memory of a container differs from its spec, and so will be
// changed. A spec without resources changes nothing: specOf may have built it from the state in the
// runtime.
func (b *build) toResize(c *v1.Container, r pod.Container) bool {
	text := b.actuated(r)
	if text == "" || len(c.Resources.Requests)+len(c.Resources.Limits) == 0 && b.want.Pod.Spec.Resources == nil {
		return false
	}
	return slices.ContainsFunc(pod.ResourcesChanged(text, b.want.Resources(c.Name)), func(n v1.ResourceName) bool {
		return n == v1.ResourceCPU || n == v1.ResourceMemory
	})
}
