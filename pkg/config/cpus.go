package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	numbers "k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/cpuset"
)

// The default policies, which allocate no exclusive CPUs and no NUMA memory.
const (
	noCPUs     = "none"
	noMemory   = "None"
	noTopology = "none"
)

// PlacesContainers reports whether a policy allocates exclusive CPUs or NUMA memory, or aligns devices.
func (c Config) PlacesContainers() bool {
	return c.CPUManagerPolicy != noCPUs || c.MemoryManagerPolicy != noMemory || c.TopologyManagerPolicy != noTopology
}

// CPUs returns the policies of CPUs, memory and topology. Check has accepted them. reservation has
// the amounts that are reserved for the system and for Kubernetes.
func (c Config) CPUs(reservation v1.ResourceList) cpuset.Policy {
	p := cpuset.Policy{
		CPU: c.CPUManagerPolicy, Memory: c.MemoryManagerPolicy, Topology: c.TopologyManagerPolicy, Scope: c.TopologyManagerScope,
		Reservation: reservation,
	}
	p.CPUOptions, _ = pairs(c.CPUManagerPolicyOptions)
	p.TopologyOptions, _ = pairs(c.TopologyManagerPolicyOptions)
	p.Reserved, _ = numbers.Parse(c.ReservedCPUs)
	p.ReservedMemory, _ = reservedMemory(c.ReservedMemory)
	return p
}

// pairs parses "name=value" items.
func pairs(list []string) (map[string]string, error) {
	all := map[string]string{}
	for _, item := range items(list) {
		name, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form option=value", item)
		}
		all[name] = value
	}
	return all, nil
}

func cpuOptions(c Config) string {
	all, err := pairs(c.CPUManagerPolicyOptions)
	if err == nil {
		err = cpuset.CheckCPU(c.CPUManagerPolicy, all)
	}
	return errText(all, err)
}

func topologyOptions(c Config) string {
	all, err := pairs(c.TopologyManagerPolicyOptions)
	if err == nil {
		err = cpuset.CheckTopology(all)
	}
	return errText(all, err)
}

// reservedCPUs rejects reserved CPUs together with cgroups for the reservation, as the kubelet
// does.
func reservedCPUs(c Config) string {
	if c.ReservedCPUs == "" {
		return ""
	}
	set, err := numbers.Parse(c.ReservedCPUs)
	switch {
	case err != nil || set.IsEmpty():
		return fmt.Sprintf("%q is not a list of CPUs, such as 0-1,8", c.ReservedCPUs)
	case c.SystemReservedCgroup != "" || c.KubeReservedCgroup != "":
		return "cannot be combined with --system-reserved-cgroup or --kube-reserved-cgroup"
	}
	return ""
}

// withReservedCPUs replaces reserved amounts of CPU by the number of reserved CPUs (C-1.46.2).
func (c Config) withReservedCPUs(system, kube v1.ResourceList) {
	if set, err := numbers.Parse(c.ReservedCPUs); err == nil && !set.IsEmpty() {
		delete(kube, v1.ResourceCPU)
		system[v1.ResourceCPU] = *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
	}
}

// reservedMemory parses "0:memory=1Gi,hugepages-2Mi=1Gi" items, by NUMA node. Items without a node
// belong to the node of the item before.
func reservedMemory(list []string) (map[int]cpuset.Reserved, error) {
	all := map[int]cpuset.Reserved{}
	node := -1
	for _, item := range items(strings.Split(strings.Join(list, ","), ";")) {
		if id, rest, ok := strings.Cut(item, ":"); ok {
			n, err := strconv.Atoi(id)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("%q is not a NUMA node", id)
			}
			node, item = n, rest
		}
		name, text, ok := strings.Cut(item, "=")
		if node < 0 || !ok {
			return nil, fmt.Errorf("%q is not of the form node:memory=quantity", item)
		}
		kind := v1.ResourceName(name)
		if kind != v1.ResourceMemory && !strings.HasPrefix(name, v1.ResourceHugePagesPrefix) {
			return nil, fmt.Errorf("%q is neither memory nor hugepages-SIZE", name)
		}
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() <= 0 {
			return nil, fmt.Errorf("%q is not an amount of %s, such as 1Gi", text, name)
		}
		if all[node] == nil {
			all[node] = cpuset.Reserved{}
		}
		if _, twice := all[node][kind]; twice {
			return nil, fmt.Errorf("%s of NUMA node %d is reserved twice", name, node)
		}
		all[node][kind] = uint64(q.Value())
	}
	return all, nil
}

// optionGates refuses options of the CPU policy whose feature gates are off.
func optionGates(l leaf, all map[string]leaf) string {
	gates := all["featureGates"]
	for _, name := range slices.Sorted(maps.Keys(l.pairs)) {
		switch {
		case cpuset.IsAlpha(name) && gates.gate(gateAlphaOptions) != "true":
			return name + " needs the feature gate " + gateAlphaOptions
		case cpuset.IsBeta(name) && gates.gate(gateBetaOptions) == "false":
			return name + " needs the feature gate " + gateBetaOptions
		}
	}
	return ""
}

// memoryText is an item of reservedMemory as text.
func memoryText(node int32, limits map[string]string) (string, error) {
	if len(limits) == 0 {
		return "", errors.New("has no limits")
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		words = append(words, name+"="+limits[name])
	}
	return fmt.Sprintf("%d:%s", node, strings.Join(words, ",")), nil
}
