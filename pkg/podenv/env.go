// Package podenv computes a container's view of its pod and its node: the environment, the fields
// of downward API volumes, the hostname and /etc/hosts (C-1.38).
//
// The package has no clock and no goroutine. Its only I/O is the function that reads a file of a
// volume.
package podenv

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Sources are the inputs of an environment besides the pod.
type Sources struct {
	Node pod.NodeFacts
	// Services are those whose addresses the environment may contain (C-1.38.1), in any
	// order.
	Services []*v1.Service
	// File returns a file in a volume of the pod (C-1.38.4).
	File func(volume, path string) ([]byte, error)
}

// Environment returns the environment of q's container with all values: envFrom in
// order, then env in order, a later entry in place of an earlier one of the same name,
// then the variables of services whose names are free (C-1.38.1). It skips optional
// sources that are missing. A source that cannot be read is an error; no error contains
// a value.
func Environment(q pod.CreateRequest, from Sources) ([]v1.EnvVar, error) {
	c, _ := q.Want.Container(q.Container)
	if c == nil {
		return nil, fmt.Errorf("pod %s has no container %q", q.Want.Key, q.Container)
	}
	services := serviceVariables(q.Want.Pod, from.Services)
	e := environment{q: q, from: from, vars: maps.Clone(services), own: map[string]bool{}}
	for i := range c.EnvFrom {
		if err := e.addAll(&c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		value, err := Expand(v.Value, e.vars)
		found := true
		switch {
		case err != nil:
			err = fmt.Errorf("environment variable %s is %w", v.Name, err)
		case v.Value == "" && v.ValueFrom != nil:
			value, found, err = e.valueFrom(v.ValueFrom)
		}
		if err != nil {
			return nil, err
		}
		if found {
			e.set(v.Name, value)
		}
		if e.size > maxArguments {
			return nil, fmt.Errorf("the environment is longer than %d bytes", maxArguments)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if !e.own[name] {
			e.set(name, services[name])
		}
	}
	out := make([]v1.EnvVar, len(e.names))
	for i, n := range e.names {
		if n == "" || strings.ContainsAny(n, "=\x00") || !utf8.ValidString(n) {
			return nil, fmt.Errorf("%q cannot be the name of an environment variable", n)
		}
		if strings.Contains(e.vars[n], "\x00") || !utf8.ValidString(e.vars[n]) {
			return nil, fmt.Errorf("the value of environment variable %q is not UTF-8 text", n)
		}
		out[i] = v1.EnvVar{Name: n, Value: e.vars[n]}
	}
	return out, nil
}

// environment is an environment under construction.
type environment struct {
	q     pod.CreateRequest
	from  Sources
	vars  map[string]string // the values for $(NAME): services' below own
	own   map[string]bool   // names with a value from the container's spec
	names []string          // own, in the order in which they came
	size  int               // of all values that were ever set
}

func (e *environment) set(name, value string) {
	if !e.own[name] {
		e.own[name] = true
		e.names = append(e.names, name)
	}
	e.vars[name] = value
	e.size += len(value)
}

// addAll sets a variable for each key of an object. It ignores a ConfigMap's
// binaryData, which are no text.
func (e *environment) addAll(f *v1.EnvFromSource) error {
	var values map[string]string
	var found bool
	var err error
	switch {
	case f.ConfigMapRef != nil:
		values, found, err = e.values(pod.KindConfigMap, f.ConfigMapRef.Name, f.ConfigMapRef.Optional)
	case f.SecretRef != nil:
		values, found, err = e.values(pod.KindSecret, f.SecretRef.Name, f.SecretRef.Optional)
	}
	if err != nil || !found {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		e.set(f.Prefix+key, values[key])
	}
	return nil
}

// values returns an object's values as text. found is false for an optional object that
// is missing.
func (e *environment) values(kind, name string, optional *bool) (values map[string]string, found bool, err error) {
	if bound := e.q.Want.Data.Object(kind, name); bound != nil {
		switch o := bound.Object.(type) {
		case *v1.ConfigMap:
			return o.Data, true, nil
		case *v1.Secret:
			values = make(map[string]string, len(o.Data))
			for k, v := range o.Data {
				values[k] = string(v)
			}
			return values, true, nil
		}
	}
	if e.q.Want.Data.Has(kind, name) { // it is not missing
		return nil, false, fmt.Errorf("the content of %s %q is unknown: nodectl has not read its source since it started", strings.ToLower(kind), name)
	}
	if err := e.q.Want.CheckRead(kind, name); err != nil {
		return nil, false, err
	}
	if optional != nil && *optional {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("%s %q not found", strings.ToLower(kind), name)
}

// valueFrom returns the value of a variable with valueFrom. found is false if its
// source is optional and missing.
func (e *environment) valueFrom(from *v1.EnvVarSource) (value string, found bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = e.field(from.FieldRef.FieldPath)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err = e.resource(from.ResourceFieldRef)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		return e.key(pod.KindConfigMap, r.Name, r.Key, r.Optional)
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		return e.key(pod.KindSecret, r.Name, r.Key, r.Optional)
	case from.FileKeyRef != nil:
		return e.file(from.FileKeyRef)
	}
	return "", false, errors.New("valueFrom names no supported source")
}

func (e *environment) key(kind, name, key string, optional *bool) (value string, found bool, err error) {
	values, found, err := e.values(kind, name, optional)
	if err != nil || !found {
		return "", false, err
	}
	if value, found = values[key]; found || optional != nil && *optional {
		return value, found, nil
	}
	return "", false, fmt.Errorf("couldn't find key %s in %s %s/%s", key, kind, e.q.Want.Namespace, name)
}

// file returns a value from a file in a volume (C-1.38.4). As in the kubelet, an empty
// value counts as missing, and optional permits a missing key but no missing file.
func (e *environment) file(f *v1.FileKeySelector) (value string, found bool, err error) {
	if e.from.File == nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", f.VolumeName)
	}
	text, err := e.from.File(f.VolumeName, f.Path)
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file: %w", err)
	}
	if value, err = parseEnvFile(text, f.Key); err != nil {
		return "", false, fmt.Errorf("couldn't parse env file %q: %w", f.Path, err)
	}
	if value == "" && (f.Optional == nil || !*f.Optional) {
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", f.Key, f.Path)
	}
	return value, value != "", nil
}

// resource is ResourceField for an environment. For an init container that is named,
// the kubelet uses only its own limits.
func (e *environment) resource(sel *v1.ResourceFieldSelector) (string, error) {
	p := e.q.Want.Pod
	allocatable := limitsBelow(p, e.from.Node.Allocatable)
	if _, init := e.q.Want.Container(sel.ContainerName); init {
		allocatable = nil
	}
	return ResourceField(p, e.q.Container, sel, allocatable)
}

// field is the value of one downward API field (C-1.38.3).
func (e *environment) field(path string) (string, error) {
	p, hostIPs := e.q.Want.Pod, e.from.Node.HostIPs
	switch path {
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return addresses(path, hostIPs)
	case "status.podIP", "status.podIPs":
		if p.Spec.HostNetwork {
			return addresses(path, ofEachFamily(hostIPs, hostIPs))
		}
		return addresses(path, ofEachFamily(e.q.Sandbox.IPs, hostIPs))
	}
	return DownwardField(p, path)
}

// ofEachFamily returns the first address of each family, the node's family first.
func ofEachFamily(ips, hostIPs []string) []string {
	four := func(ip string) bool {
		a, err := netip.ParseAddr(ip)
		return err == nil && a.Unmap().Is4()
	}
	first := len(hostIPs) == 0 || four(hostIPs[0])
	var out []string
	for _, family := range []bool{first, !first} {
		if i := slices.IndexFunc(ips, func(ip string) bool { return four(ip) == family }); i >= 0 {
			out = append(out, ips[i])
		}
	}
	return out
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
