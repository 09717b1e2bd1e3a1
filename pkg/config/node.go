package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"
)

// Labels returns NodeLabels as a map; the last value of a key wins. Check has accepted them.
func (c Config) Labels() map[string]string {
	all, _ := labels(c.NodeLabels)
	return all
}

// Taints returns RegisterWithTaints. Check has accepted it.
func (c Config) Taints() []v1.Taint {
	all, _ := taints(c.RegisterWithTaints)
	return all
}

// Reserved returns SystemReserved and KubeReserved. Check has accepted both. ReservedCPUs, if set,
// replaces the CPU in both.
func (c Config) Reserved() (system, kube v1.ResourceList) {
	system, _ = reserved(c.SystemReserved)
	kube, _ = reserved(c.KubeReserved)
	c.withReservedCPUs(system, kube)
	return system, kube
}

// Sysctls returns AllowedUnsafeSysctls with one name per item.
func (c Config) Sysctls() []string { return items(c.AllowedUnsafeSysctls) }

// LogMaxBytes returns ContainerLogMaxSize in bytes. Check has accepted it.
func (c Config) LogMaxBytes() int64 {
	n, _ := size(c.ContainerLogMaxSize)
	return n
}

// items splits a list whose items may be lists: in a configuration file, "a,b" is one text.
func items(list []string) []string {
	var all []string
	for _, text := range list {
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				all = append(all, item)
			}
		}
	}
	return all
}

// errText returns the message of a parser's error, "" for nil.
func errText[T any](_ T, err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func labels(list []string) (map[string]string, error) {
	all := map[string]string{}
	for _, item := range items(list) {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form key=value", item)
		}
		if err := label(key, value); err != nil {
			return nil, err
		}
		all[key] = value
	}
	return all, nil
}

func label(key, value string) error {
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return fmt.Errorf("%q cannot be a key: %s", key, problems[0])
	}
	if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the value of %s: %s", value, key, problems[0])
	}
	return nil
}

// reservedLabels rejects labels that the API server does not let a node set on itself
// (NodeRestriction): labels of Kubernetes' domains, with exceptions. Without an API server it
// allows all.
func reservedLabels(c Config) string {
	if c.Kubeconfig == "" {
		return ""
	}
	own := []string{"kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/os",
		"beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"}
	for _, key := range slices.Sorted(maps.Keys(c.Labels())) {
		domain, _, ok := strings.Cut(key, "/")
		within := func(name string) bool { return domain == name || strings.HasSuffix(domain, "."+name) }
		switch {
		case !ok, !within("kubernetes.io") && !within("k8s.io"), slices.Contains(own, key):
		case within("kubelet.kubernetes.io"), within("node.kubernetes.io"):
		default:
			return fmt.Sprintf("a node must not set the label %q: in kubernetes.io and k8s.io it may set only node.kubernetes.io/..., kubelet.kubernetes.io/... and well-known labels", key)
		}
	}
	return ""
}

func taints(list []string) ([]v1.Taint, error) {
	var all []v1.Taint
	for _, item := range items(list) {
		name, effect, ok := strings.Cut(item, ":")
		t := v1.Taint{Effect: v1.TaintEffect(effect)}
		t.Key, t.Value, _ = strings.Cut(name, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form key=value:effect", item)
		}
		if msg := oneOf(effect, string(v1.TaintEffectNoSchedule), string(v1.TaintEffectPreferNoSchedule), string(v1.TaintEffectNoExecute)); msg != "" {
			return nil, errors.New(msg)
		}
		if err := label(t.Key, t.Value); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(o v1.Taint) bool { return o.MatchTaint(&t) }) {
			return nil, fmt.Errorf("taint %s:%s is set twice", t.Key, effect)
		}
		all = append(all, t)
	}
	return all, nil
}

// reserved parses reserved resources. It accepts pid, as the kubelet does.
func reserved(list []string) (v1.ResourceList, error) {
	all := v1.ResourceList{}
	for _, item := range items(list) {
		name, text, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form resource=quantity", item)
		}
		if msg := oneOf(name, "cpu", "memory", "ephemeral-storage", "pid"); msg != "" {
			return nil, errors.New(msg)
		}
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("%q is not a quantity of %s, such as 500m or 1Gi", text, name)
		}
		all[v1.ResourceName(name)] = q
	}
	return all, nil
}

// sysctls rejects sysctls without a namespace, with which a pod could change the node.
func sysctls(list []string) string {
	for _, item := range items(list) {
		namespace, name, _ := sysctl.GetNamespace(item)
		if i := strings.IndexByte(item, '*'); namespace == sysctl.UnknownNamespace || name == "" || i >= 0 && i != len(item)-1 {
			return fmt.Sprintf("%q is not a namespaced sysctl: those are kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* and net.*", item)
		}
	}
	return ""
}

func size(text string) (int64, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() <= 0 {
		return 0, fmt.Errorf("%q is not a size, such as 10Mi", text)
	}
	return q.Value(), nil
}

func between[T cmp.Ordered](v, least, most T) string {
	if v < least || v > most {
		return fmt.Sprintf("%v is not between %v and %v", v, least, most)
	}
	return ""
}

// Classes returns RuntimeClasses by name.
func (c Config) Classes() map[string]string {
	all, _ := classes(c.RuntimeClasses)
	return all
}

func classes(list []string) (map[string]string, error) {
	all := map[string]string{}
	for _, item := range items(list) {
		name, handler, ok := strings.Cut(item, "=")
		if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(handler)) > 0 {
			return nil, fmt.Errorf("%q is not of the form class=handler", item)
		}
		all[name] = handler
	}
	return all, nil
}

// maxPulls is the maximal number of concurrent image pulls.
const maxPulls = 1 << 10
