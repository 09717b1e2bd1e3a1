package pod

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Container returns the container called name, of whatever kind; init says that
// it is an init container. It is nil when the pod has none.
func (s *Spec) Container(name string) (c *v1.Container, init bool) {
	spec := &s.Pod.Spec
	for i := range spec.Containers {
		if spec.Containers[i].Name == name {
			return &spec.Containers[i], false
		}
	}
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == name {
			return &spec.InitContainers[i], true
		}
	}
	for i := range spec.EphemeralContainers {
		if c := &spec.EphemeralContainers[i]; c.Name == name {
			return (*v1.Container)(&c.EphemeralContainerCommon), false
		}
	}
	return nil, false
}

// Resources returns a container's requests and limits, one "name=request/limit" for
// each resource, by name, joined by commas: "cpu=100m/200m,memory=/64Mi", as they are
// written: ResourcesChanged compares two of them. It is "none" for a container without
// any, and "", which is not known, for a name the pod does not have. For a pod with
// resources of its own, the limits that the container has from it follow (C-1.34.7):
// ",pod:cpu=/2,pod:memory=/".
func (s *Spec) Resources(name string) string {
	c, _ := s.Container(name)
	if c == nil {
		return ""
	}
	text := ResourcesText(c.Resources)
	if s.Pod.Spec.Resources == nil {
		return text
	}
	for _, n := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		own, of := c.Resources.Limits[n], s.Pod.Spec.Resources.Limits[n]
		limit := ""
		if own.IsZero() && !of.IsZero() {
			limit = of.String()
		}
		text += "," + ofPod + string(n) + "=/" + limit
	}
	return text
}

// ofPod is the prefix of a limit that a container has from its pod.
const ofPod = "pod:"

// ResourcesText is Spec.Resources of one container's resources.
func ResourcesText(r v1.ResourceRequirements) string {
	names := make(map[v1.ResourceName]bool, len(r.Requests)+len(r.Limits))
	for n := range r.Requests {
		names[n] = true
	}
	for n := range r.Limits {
		names[n] = true
	}
	if len(names) == 0 {
		return "none"
	}
	text := func(l v1.ResourceList, n v1.ResourceName) string {
		q, ok := l[n]
		if !ok {
			return ""
		}
		return q.String()
	}
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(n) + "=" + text(r.Requests, n) + "/" + text(r.Limits, n))
	}
	return b.String()
}

// ResourcesChanged returns the names of the resources in which two texts of
// Spec.Resources differ, in order. Amounts are compared, not their spelling: 1Gi
// is 1073741824. Limits of the pod that only one of the texts names are not known in the
// other, and are no difference.
func ResourcesChanged(a, b string) []v1.ResourceName {
	if a == b {
		return nil
	}
	left, right := resourceFields(a), resourceFields(b)
	var out []v1.ResourceName
	add := func(n v1.ResourceName, known bool) {
		name, pods := strings.CutPrefix(string(n), ofPod)
		if known || !pods {
			out = append(out, v1.ResourceName(name))
		}
	}
	for n, v := range left {
		if w, ok := right[n]; !ok || !sameAmounts(v, w) {
			add(n, ok)
		}
	}
	for n := range right {
		if _, ok := left[n]; !ok {
			add(n, false)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sameAmounts compares two fields, "request/limit".
func sameAmounts(a, b string) bool {
	aRequest, aLimit, _ := strings.Cut(a, "/")
	bRequest, bLimit, _ := strings.Cut(b, "/")
	return sameAmount(aRequest, bRequest) && sameAmount(aLimit, bLimit)
}

func sameAmount(a, b string) bool {
	if a == b {
		return true
	}
	x, errA := resource.ParseQuantity(a)
	y, errB := resource.ParseQuantity(b)
	return errA == nil && errB == nil && x.Cmp(y) == 0
}

func resourceFields(text string) map[v1.ResourceName]string {
	fields := make(map[v1.ResourceName]string)
	for f := range strings.SplitSeq(text, ",") {
		if n, v, ok := strings.Cut(f, "="); ok {
			fields[v1.ResourceName(n)] = v
		}
	}
	return fields
}

// ResizeRestarts reports whether a container's resize policy asks for a restart
// when the named resources change (C-1.34.4), or devices change: a running container keeps its
// own.
func ResizeRestarts(c *v1.Container, changed []v1.ResourceName) bool {
	return slices.ContainsFunc(changed, ExtendedResource) || slices.ContainsFunc(c.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
		return p.RestartPolicy == v1.RestartContainer && slices.Contains(changed, p.ResourceName)
	})
}

// Restartable reports whether an init container is a sidecar (C-1.20.1).
func Restartable(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// ParseResources parses the text of Spec.Resources: the container's own resources. It
// skips parts that are invalid.
func ParseResources(text string) v1.ResourceRequirements {
	var r v1.ResourceRequirements
	set := func(l *v1.ResourceList, n v1.ResourceName, text string) {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return
		}
		if *l == nil {
			*l = v1.ResourceList{}
		}
		(*l)[n] = q
	}
	for n, v := range resourceFields(text) {
		if strings.HasPrefix(string(n), ofPod) {
			continue
		}
		request, limit, _ := strings.Cut(v, "/")
		set(&r.Requests, n, request)
		set(&r.Limits, n, limit)
	}
	return r
}
