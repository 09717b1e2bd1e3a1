package pod

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Sources is what an environment is made of beside the pod.
type Sources struct {
	Node NodeFacts
	// Services are those whose addresses the pod is told (C-1.38.1), in any order.
	Services []*v1.Service
	// File returns a file in a volume of the pod (C-1.38.4).
	File func(volume, path string) ([]byte, error)
}

// Environment is the environment of the container that q asks for, with values in
// place: each entry may refer to the ones before it (C-1.38.1). A later entry of
// the same name replaces the value. A source that cannot be read is an error.
func Environment(q CreateRequest, from Sources) ([]v1.EnvVar, error) {
	c, _ := q.Want.Container(q.Container)
	if c == nil {
		return nil, fmt.Errorf("pod %s has no container %q", q.Want.Key, q.Container)
	}
	hostIPs := from.Node.HostIPs
	if len(c.EnvFrom) > 0 {
		return nil, errors.New("envFrom is not supported")
	}
	values := map[string]string{}
	var names []string
	for _, e := range c.Env {
		value := Expand(e.Value, values)
		if e.ValueFrom != nil {
			var err error
			if value, err = valueFrom(q, e.ValueFrom, hostIPs); err != nil {
				return nil, fmt.Errorf("env %s: %w", e.Name, err)
			}
		}
		if _, seen := values[e.Name]; !seen {
			names = append(names, e.Name)
		}
		values[e.Name] = value
	}
	out := make([]v1.EnvVar, len(names))
	for i, n := range names {
		out[i] = v1.EnvVar{Name: n, Value: values[n]}
	}
	return out, nil
}

func valueFrom(q CreateRequest, from *v1.EnvVarSource, hostIPs []string) (string, error) {
	if from.FieldRef == nil {
		return "", errors.New("only fieldRef is supported in valueFrom")
	}
	return field(q, from.FieldRef.FieldPath, hostIPs)
}

// field is the value of one downward API field (C-1.38.3).
func field(q CreateRequest, path string, hostIPs []string) (string, error) {
	p := q.Want.Pod
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return p.Labels[key], nil
		case "metadata.annotations":
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
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return addresses(path, hostIPs)
	case "status.podIP", "status.podIPs":
		if p.Spec.HostNetwork {
			return addresses(path, hostIPs)
		}
		return addresses(path, q.Sandbox.IPs)
	}
	return "", fmt.Errorf("field %q is not supported", path)
}

// addresses is the first address, or all of them for a field in the plural.
func addresses(path string, ips []string) (string, error) {
	switch {
	case len(ips) == 0:
		return "", fmt.Errorf("field %q: no address is known", path)
	case strings.HasSuffix(path, "s"):
		return strings.Join(ips, ","), nil
	}
	return ips[0], nil
}

// subscript splits "metadata.labels['key']".
func subscript(path string) (name, key string, ok bool) {
	name, key, ok = strings.Cut(path, "['")
	key, closed := strings.CutSuffix(key, "']")
	return name, key, ok && closed && len(validation.IsQualifiedName(key)) == 0
}
