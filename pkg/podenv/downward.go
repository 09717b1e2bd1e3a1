package podenv

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/pod"
)

// DownwardField is one field of the pod's metadata as a downward API volume shows it
// (C-1.38.3): metadata.name, namespace, uid, labels and annotations, the last two
// whole, one key="escaped value" a line in the order of the keys, or one of them as
// metadata.labels['key'], which is empty when the pod has no such key.
func DownwardField(p *v1.Pod, path string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch {
		case name == "metadata.labels" && len(validation.IsQualifiedName(key)) == 0:
			return p.Labels[key], nil
		case name == "metadata.annotations" && len(validation.IsQualifiedName(strings.ToLower(key))) == 0:
			return p.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	}
	return "", fmt.Errorf("field %q is not supported", path)
}

// subscript splits "metadata.labels['key']".
func subscript(path string) (name, key string, ok bool) {
	inner, closed := strings.CutSuffix(path, "']")
	name, key, open := strings.Cut(inner, "['")
	return name, key, closed && open
}

func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}

// ResourceField is a request or limit of one container as a downward API volume shows
// it (C-1.38.3): in units of the selector's divisor, rounded up. A container named in
// sel wins over the one given. A missing limit of cpu, memory or ephemeral-storage is
// the allocatable amount; any other missing value is 0.
func ResourceField(p *v1.Pod, container string, sel *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	if sel.ContainerName != "" {
		container = sel.ContainerName
	}
	c, _ := (&pod.Spec{Pod: p}).Container(container)
	if c == nil {
		return "", fmt.Errorf("container %s not found", container)
	}
	kind, name, _ := strings.Cut(sel.Resource, ".")
	list := c.Resources.Requests
	if kind == "limits" {
		list = c.Resources.Limits
	}
	huge := strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
	known := huge || name == "cpu" || name == "memory" || name == "ephemeral-storage"
	if !known || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("resource %q is not supported", sel.Resource)
	}
	amount := list[v1.ResourceName(name)]
	if kind == "limits" && amount.IsZero() && !huge {
		amount = allocatable[v1.ResourceName(name)]
	}
	divisor := sel.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	value, unit := amount.Value(), divisor.Value()
	if name == "cpu" {
		value, unit = amount.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt(int64(math.Ceil(float64(value)/float64(unit))), 10), nil
}

// limitsBelow returns the limits that a container's environment shows where it has
// none: the pod's own limit, else the node's allocatable. A volume shows only the
// latter, as in the kubelet.
func limitsBelow(p *v1.Pod, allocatable v1.ResourceList) v1.ResourceList {
	if p.Spec.Resources == nil {
		return allocatable
	}
	out := maps.Clone(allocatable)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		limit := p.Spec.Resources.Limits[name]
		if _, ok := out[name]; ok && !limit.IsZero() {
			out[name] = limit
		}
	}
	return out
}
